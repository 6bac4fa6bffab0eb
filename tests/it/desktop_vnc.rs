//! The desktop by VNC: who knows the password sees what it shows, and nobody else anything.

use crate::desktop::{GROUND, Picture, instance, screenshot, settled, vnc};
use crate::harness::{Api, Engine, TEST_TIMEOUT};
use crate::trials;
use crate::viewer::Viewer;
use serde_json::json;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::thread;

trials![
    a_vnc_client_needs_the_password_and_sees_what_a_screenshot_shows,
    the_vnc_server_may_open_few_files,
    pictures_that_are_packed_are_the_same,
    who_does_not_say_the_password_keeps_nobody_out,
    the_password_is_told_to_nobody,
];

/// The whole desktop, once the VNC server knows of it, too.
#[track_caller]
fn shown_to(viewer: &mut Viewer, api: &Api) -> Picture {
    let shown = settled(api);
    let size = (u32::from(viewer.width), u32::from(viewer.height));
    assert_eq!((shown.width, shown.height), size);
    api.until("the same picture by VNC", |_| {
        (viewer.picture().unwrap() == shown.pixels).then_some(())
    });
    shown
}

fn a_vnc_client_needs_the_password_and_sees_what_a_screenshot_shows() {
    let home = instance();
    let (address, password) = vnc(home);
    let mut viewer = Viewer::open(&address, &password).unwrap();
    for wrong in ["", "password", &password[..7]] {
        let told = Viewer::open(&address, wrong).unwrap_err();
        assert!(told.contains("the password is wrong"), "{wrong}: {told}");
    }
    let shown = shown_to(&mut viewer, &home.api());
    // And it is a picture: the desktop's colour, and icons on it.
    let ground = shown.share(|pixel| pixel == GROUND);
    assert!((0.5..0.9999).contains(&ground), "{ground}");
}

fn the_vnc_server_may_open_few_files() {
    let home = instance();
    let api = home.api();
    let (address, password) = vnc(home);
    Viewer::open(&address, &password).unwrap();
    let code = r#"
import glob
def limit(name):
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            if open(f"{folder}/comm").read().strip() != name:
                continue
            for line in open(f"{folder}/limits"):
                if line.startswith("Max open files"):
                    return line.split()[3:5]
        except OSError:
            continue
limit("x11vnc")
"#;
    assert_eq!(api.exec(code)["result"], "['1024', '1024']");
}

fn pictures_that_are_packed_are_the_same() {
    let home = instance();
    let (address, password) = vnc(home);
    // What is packed is one stream from the first picture to the last, also beside another viewer.
    let mut packed = Viewer::open(&address, &password).unwrap();
    packed.pack().unwrap();
    let mut other = Viewer::open(&address, &password).unwrap();
    let shown = shown_to(&mut other, &home.api());
    other.pack().unwrap();
    for round in 0..3 {
        for viewer in [&mut packed, &mut other] {
            assert!(viewer.picture().unwrap() == shown.pixels, "round {round}");
        }
    }
}

fn who_does_not_say_the_password_keeps_nobody_out() {
    let home = instance();
    let (address, password) = vnc(home);
    // More than there are places for: some say nothing at all, the others something wrong.
    let silent: Vec<TcpStream> = (0..150)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    let guesses: Vec<_> = (0..20)
        .map(|_| {
            let address = address.clone();
            thread::spawn(move || Viewer::open(&address, "wrong").unwrap_err())
        })
        .collect();
    // What passes connections on may let those before it come later, and one of more than there are
    // places for is cut for them.
    home.api().until("a picture for who knows it", |_| {
        let mut known = Viewer::open(&address, &password).ok()?;
        known.picture().ok()
    });
    for guess in guesses {
        // Those who were cut for others heard nothing, and nobody was let in.
        guess.join().unwrap();
    }
    // Silence ends by itself.
    for mut client in silent {
        client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        // One that was cut for another may be told so less politely.
        let end = client.read_to_end(&mut Vec::new());
        let goes_on = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
        assert!(!end.is_err_and(goes_on), "silence goes on");
    }
}

fn the_password_is_told_to_nobody() {
    let home = instance();
    let api = home.api();
    let (_, password) = vnc(home);
    screenshot(&api, "");
    let container = Engine.get(&format!("/containers/{}/json", home.container()));
    let inspected = String::from_utf8(container.body).unwrap();
    assert!(inspected.contains("OSCTL_TOKEN_SHA256") && !inspected.contains(&password));
    // Neither by what runs inside: arguments and variables of all.
    let code = r#"
import glob
def said(file):
    try:
        return open(file, "rb").read()
    except OSError:
        return b""
all = b"".join(said(f) for kind in ("cmdline", "environ") for f in glob.glob(f"/proc/[0-9]*/{kind}"))
"#;
    api.exec(code);
    let found = api.exec(&format!(
        "b'companion' in all, {} in all",
        json!(password).to_string().replacen('"', "b\"", 1)
    ));
    assert_eq!(found["result"], "(True, False)");
}
