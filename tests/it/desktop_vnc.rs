//! Trials of the desktop over VNC: clients with the password see the screen, other clients nothing.

use crate::desktop::{BACKGROUND, Picture, instance, screenshot, vnc, wait_until_settled};
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
    compressed_pictures_are_the_same,
    clients_without_the_password_block_no_other_client,
    the_password_is_not_visible_inside,
];

/// Waits until the VNC server shows the whole desktop.
#[track_caller]
fn wait_until_shown(viewer: &mut Viewer, api: &Api) -> Picture {
    let shown = wait_until_settled(api);
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
    home.api().until("the record of the sign-in", |_| {
        let actions = home.json(["activity", "--client", "vnc"]);
        let last = actions["actions"].as_array()?.last()?.clone();
        (last["kind"] == "sign_in" && last["text"] == "desktop").then_some(())
    });
    for wrong in ["", "password", &password[..7]] {
        let message = Viewer::open(&address, wrong).unwrap_err();
        assert!(
            message.contains("the password is wrong"),
            "{wrong}: {message}"
        );
    }
    let shown = wait_until_shown(&mut viewer, &home.api());
    // The picture shows the background with icons.
    let ground = shown.share(|pixel| pixel == BACKGROUND);
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

fn compressed_pictures_are_the_same() {
    let home = instance();
    let (address, password) = vnc(home);
    // The compressed pictures of a connection are one stream, also next to another viewer.
    let mut compressed = Viewer::open(&address, &password).unwrap();
    compressed.pack().unwrap();
    let mut other = Viewer::open(&address, &password).unwrap();
    let shown = wait_until_shown(&mut other, &home.api());
    other.pack().unwrap();
    for round in 0..3 {
        for viewer in [&mut compressed, &mut other] {
            assert!(viewer.picture().unwrap() == shown.pixels, "round {round}");
        }
    }
}

fn clients_without_the_password_block_no_other_client() {
    let home = instance();
    let (address, password) = vnc(home);
    // More clients than the limit: some send nothing, the others a wrong password.
    let silent: Vec<TcpStream> = (0..150)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    let guesses: Vec<_> = (0..20)
        .map(|_| {
            let address = address.clone();
            thread::spawn(move || Viewer::open(&address, "wrong").unwrap_err())
        })
        .collect();
    // The engine's proxy may deliver earlier connections later, and the companion then closes a connection above the
    // limit.
    home.api()
        .until("a picture for a client with the password", |_| {
            let mut known = Viewer::open(&address, &password).ok()?;
            known.picture().ok()
        });
    for guess in guesses {
        // Clients above the limit were disconnected without a message, and no client was admitted.
        guess.join().unwrap();
    }
    // The server disconnects silent clients.
    for mut client in silent {
        client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        // A connection above the limit may end with a reset.
        let end = client.read_to_end(&mut Vec::new());
        let is_open = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
        assert!(
            !end.is_err_and(is_open),
            "a silent client is still connected"
        );
    }
}

fn the_password_is_not_visible_inside() {
    let home = instance();
    let api = home.api();
    let (_, password) = vnc(home);
    screenshot(&api, "");
    let container = Engine.get(&format!("/containers/{}/json", home.container()));
    let inspected = String::from_utf8(container.body).unwrap();
    assert!(inspected.contains("OSCTL_TOKEN_SHA256") && !inspected.contains(&password));
    // No process inside has the password in its arguments or environment.
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
