//! Trials of the desktop when its services end unexpectedly: they restart, and nothing is left behind.

use crate::desktop::{
    BACKGROUND, Picture, instance, is_background, is_ready, screenshot, vnc, wait_until_settled,
};
use crate::desktop_memory::{read, wait_until_stored};
use crate::desktop_user::{CONNECTED, open_page, restore_size, wait_until_screen_fits};
use crate::harness::{Api, Engine, Home};
use crate::pages::page;
use crate::trials;
use crate::viewer::Viewer;
use serde_json::{Value, json};
use std::io::ErrorKind;

trials![
    each_killed_service_restarts,
    services_that_are_killed_twenty_times_restart = "desktop_faults::each_killed_service_restarts",
    viewers_that_come_and_go_leave_nothing,
    a_frozen_server_gives_no_picture_and_blocks_nothing_else,
    a_frozen_vnc_server_is_replaced,
    a_hard_stop_leaves_no_lock_behind,
    an_unused_desktop_ends_and_a_browser_keeps_it,
    the_desktop_can_run_always_or_never,
];

/// Every fifth round waits for the page in the browser; in the others the page reconnects alone, or loses its
/// connection again.
const PAGE_CHECK_INTERVAL: usize = 5;

/// An expression that is true while the page's picture is not black.
const HAS_PICTURE: &str = "(() => { const c = document.querySelector('#screen canvas'); \
    const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; \
    return d.some((value, at) => at % 4 < 3 && value > 0) })()";

/// Services that are killed while the X server runs.
const CLIENTS: [&str; 6] = ["chromium", "x11vnc", "tint2", "pcmanfm", "openbox", "dbus"];
const SERVER: &str = "xvfb";

/// Code for the kernel that kills services by name and returns the number of processes.
const KILL: &str = r#"
import os, signal
NAMES = {"xvfb": "Xvfb", "dbus": "dbus-daemon"}
def processes(name):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            comm, stat = (open(f"/proc/{pid}/{part}").read() for part in ("comm", "stat"))
        except OSError:
            continue
        if comm.strip() == NAMES.get(name, name):
            yield int(pid), int(stat.rsplit(")", 1)[1].split()[1])
def kill(names):
    count = 0
    for name in names:
        found = dict(processes(name))
        for pid, parent in found.items():
            if parent not in found:  # not one that another of its name has made
                os.kill(pid, signal.SIGKILL)
                count += 1
    return count
"#;

/// Code for the kernel that counts the open files of the companion and of the VNC server.
const OPEN: &str = r#"
def opened(word):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
            if words[1:2] == ["companion"] and word == "companion" or words[0] == word:
                return len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue
"#;

fn number(api: &Api, code: &str) -> u64 {
    let reply = api.exec(code);
    let result = reply["result"].as_str().and_then(|text| text.parse().ok());
    result.unwrap_or_else(|| panic!("{reply}"))
}

/// The number of starts of a service according to the log.
fn starts(home: &Home, service: &str) -> usize {
    let log = home.ok(["logs", service]).stdout;
    log.matches(&format!("service={service}: the service started"))
        .count()
}

#[track_caller]
fn until_ready(api: &Api, services: &[&str]) {
    api.until(&format!("{services:?}"), |api| {
        services
            .iter()
            .all(|name| is_ready(api, name))
            .then_some(())
    });
}

fn each_killed_service_restarts() {
    kill_services(2);
}

fn services_that_are_killed_twenty_times_restart() {
    kill_services(20);
}

fn kill_services(rounds: usize) {
    let home = instance();
    let api = home.api();
    let (address, password) = vnc(home);
    // The page writes to the browser's profile; another page is opened, so that no open page can restore the value.
    let (keeps, other) = (page(home, "keeps"), page(home, "press"));
    let (code, text) = read(home, &keeps);
    assert!(code == 0 && text.contains("a stranger"), "{code} {text}");
    wait_until_stored(&api, &keeps);
    assert_eq!(read(home, &other).0, 0);
    // Two users are connected: one with a VNC client, one with a browser whose window has another size.
    let mut person = open_page(home);
    wait_until_screen_fits(&api, &mut person);
    let mut viewer = Viewer::open(&address, &password).unwrap();
    api.exec(KILL);
    let all: Vec<&str> = CLIENTS.into_iter().chain([SERVER]).collect();
    let before: Vec<usize> = all.iter().map(|name| starts(home, name)).collect();
    for round in 0..rounds {
        for names in [&CLIENTS[..], &[SERVER]] {
            until_ready(&api, &all);
            let is_page_checked = round % PAGE_CHECK_INTERVAL == 0;
            if is_page_checked {
                person.until(CONNECTED);
                person.value("document.documentElement.dataset.connected = 'before'");
            }
            let started: Vec<_> = names.iter().map(|name| starts(home, name)).collect();
            let killed = number(&api, &format!("kill({})", json!(names)));
            assert_eq!(killed, names.len() as u64, "round {round}: {names:?}");
            // Wait until the companion has noticed the end.
            api.until("the end of a service", |api| {
                let has_ended = |(name, before): (&&str, &usize)| {
                    !is_ready(api, name) || starts(home, name) > *before
                };
                names.iter().zip(&started).any(has_ended).then_some(())
            });
            // Connected clients have lost the connection; they reconnect and receive a picture.
            let lost = viewer.picture().unwrap_err();
            assert_ne!(
                lost.kind(),
                ErrorKind::WouldBlock,
                "the connection is still open and shows nothing"
            );
            viewer = reconnect(&api, &address, &password);
            if is_page_checked {
                person.until(CONNECTED);
                person.until(HAS_PICTURE);
            }
        }
    }
    until_ready(&api, &all);
    for (name, before) in all.iter().zip(before) {
        let after = starts(home, name);
        assert!(after >= before + rounds, "{name}: {before} {after}");
    }
    drop((viewer, person));
    // New VNC clients and screenshots show the desktop.
    let mut viewer = Viewer::open(&address, &password).unwrap();
    assert!(
        api.connect()
            .send("DELETE", "/display/browser", &[], b"")
            .status
            == 200
    );
    api.until("a picture of the desktop", |api| {
        let (shown, _) = screenshot(api, "");
        (shown.share(|pixel| pixel == BACKGROUND) > 0.5).then_some(())
    });
    assert!(viewer.picture().is_ok());
    restore_size(&api);
    // The profile still contains the value that the page stored.
    let (code, text) = read(home, &keeps);
    assert!(code == 0 && text.contains("has been here"), "{code} {text}");
    api.connect().send("DELETE", "/display/browser", &[], b"");
}

/// Tries to connect, like a client that has lost its connection, until it receives a picture.
#[track_caller]
fn reconnect(api: &Api, address: &str, password: &str) -> Viewer {
    api.until("the viewer's reconnection", |_| {
        let mut viewer = Viewer::open(address, password).ok()?;
        let picture = viewer.picture().ok()?;
        picture.iter().any(|byte| *byte != 0).then_some(viewer)
    })
}

fn viewers_that_come_and_go_leave_nothing() {
    let home = instance();
    let api = home.api();
    let (address, password) = vnc(home);
    let look = || Viewer::open(&address, &password).unwrap();
    look().picture().unwrap();
    api.exec(&format!("{KILL}{OPEN}"));
    let opened = |api: &Api| {
        let count = |word: &str| number(api, &format!("opened('{word}')"));
        [count("companion"), count("x11vnc")]
    };
    let settled = api.until("the first viewer's end", |api| {
        let [before, after] = [opened(api), opened(api)];
        (before == after).then_some(before)
    });
    for _ in 0..10 {
        let crowd: Vec<_> = (0..10)
            .map(|_| {
                let (address, password) = (address.clone(), password.clone());
                std::thread::spawn(move || {
                    let mut viewer = Viewer::open(&address, &password).unwrap();
                    viewer.picture().unwrap();
                    // The viewer disconnects without a message.
                })
            })
            .collect();
        crowd.into_iter().for_each(|viewer| viewer.join().unwrap());
    }
    // Clients may also disconnect during the handshake.
    for _ in 0..20 {
        drop(std::net::TcpStream::connect(&address).unwrap());
    }
    api.until("the last viewer's end", |api| {
        let now = opened(api);
        (now[0] <= settled[0] + 1 && now[1] <= settled[1]).then_some(())
    });
    look().picture().unwrap();
}

fn a_frozen_server_gives_no_picture_and_blocks_nothing_else() {
    let home = instance();
    let api = home.api();
    screenshot(&api, "");
    api.exec(KILL);
    let signal = |name: &str| {
        let code = format!("[os.kill(pid, signal.{name}) for pid, _ in processes('xvfb')]; 0");
        assert_eq!(number(&api, &code), 0);
    };
    signal("SIGSTOP");
    let frozen = api.clone();
    let asked = std::thread::spawn(move || frozen.get("/display/screenshot"));
    // Everything else works during the freeze.
    assert_eq!(api.exec("6 * 7")["result"], "42");
    let answer = asked.join().unwrap();
    assert_eq!(answer.error().0, 503);
    signal("SIGCONT");
    screenshot(&api, "");
}

fn a_frozen_vnc_server_is_replaced() {
    let home = instance();
    let api = home.api();
    let mut page = open_page(home);
    api.exec(KILL);
    let code = "[os.kill(pid, signal.SIGSTOP) for pid, _ in processes('x11vnc')]; 0";
    assert_eq!(number(&api, code), 0);
    page.value("location.reload()");
    page.until(CONNECTED);
}

fn a_hard_stop_leaves_no_lock_behind() {
    let home = instance();
    let api = home.api();
    assert_eq!(api.post("/display/browser", &Value::Null).status, 200);
    let kill = format!("/containers/{}/kill", home.container());
    assert_eq!(Engine.send("POST", &kill, &Value::Null).status, 204);
    // Locks of X and of the browser's profile, as killed processes leave them.
    let lock = home.files().join(".browser/SingletonLock");
    let _ = std::fs::remove_file(&lock);
    std::os::unix::fs::symlink("another-host-1", &lock).unwrap();
    home.up();
    let api = home.api();
    api.exec("open('/tmp/.X99-lock', 'w').write('         1\\n')");
    let (shown, _) = screenshot(&api, "");
    assert!(shown.share(|pixel| pixel == BACKGROUND) > 0.5);
    assert_eq!(api.post("/display/browser", &Value::Null).status, 200);
    api.connect().send("DELETE", "/display/browser", &[], b"");
}

/// Code for the kernel that serves a file whose second half is delayed; the result is the port.
const SLOW: &str = r#"
import glob, http.server, json, threading, urllib.request
goes_on = threading.Event()
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Disposition", "attachment; filename=slow.txt")
        self.send_header("Content-Length", "200000")
        self.end_headers()
        self.wfile.write(b"x" * 100000)
        goes_on.wait()
        self.wfile.write(b"x" * 100000)
    def log_message(self, *words):
        pass
def begun():
    pages = json.load(urllib.request.urlopen("http://127.0.0.1:9221/json/list"))
    return bool(glob.glob("/root/**/*.crdownload", recursive=True)) and not any("slow" in page["url"] for page in pages)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
threading.Thread(target=server.serve_forever, daemon=True).start()
server.server_address[1]
"#;

fn an_unused_desktop_ends_and_a_browser_keeps_it() {
    let home = Home::new("it-idle");
    home.write_config("desktop:\n  idle: 1\n  resolution: 800x600\n");
    home.up();
    let api = home.api();
    let shown = wait_until_settled(&api);
    assert_eq!((shown.width, shown.height), (800, 600));
    api.until("the end of the desktop", |api| {
        (!is_ready(api, "xvfb")).then_some(())
    });
    // The next use restarts the desktop unchanged.
    assert!(wait_until_settled(&api) == shown);
    // A browser with a page counts as use, and so does a window.
    let page = "/display/browser?url=data:,page";
    assert_eq!(api.post(page, &Value::Null).status, 200);
    let ticks = "import time; time.sleep(4)";
    api.exec(ticks);
    assert!(is_ready(&api, "xvfb") && is_ready(&api, "chromium"));
    api.exec("import subprocess; window = subprocess.Popen(['/opt/osctl/body/desktop/terminal'])");
    api.until("the terminal's window", |api| {
        let windows = api.get("/display/windows").json();
        let all = windows["windows"].as_array().unwrap();
        all.iter().any(|w| w["class"] == "XTerm").then_some(())
    });
    // A connection to the debugger also keeps a browser whose tabs are all blank.
    let blank = r#"
import json, socket, urllib.request
for page in json.load(urllib.request.urlopen("http://127.0.0.1:9221/json/list")):
    if page["url"] == "data:,page":
        urllib.request.urlopen("http://127.0.0.1:9221/json/close/" + page["id"]).read()
client = socket.create_connection(("127.0.0.1", 9221))
client.sendall(b"GET /devtools/browser HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
client.recv(12)
"#;
    assert_eq!(api.exec(blank)["result"], "b'HTTP/1.1 101'");
    api.exec(ticks);
    assert!(is_ready(&api, "chromium"));
    // A download without a tab keeps the browser, too.
    let port = number(&api, SLOW);
    let file = format!("/display/browser?url=http://127.0.0.1:{port}/slow.txt");
    assert_eq!(api.post(&file, &Value::Null).status, 200);
    api.until("the start of the download", |api| {
        (api.exec("begun()")["result"] == "True").then_some(())
    });
    api.exec("client.close()");
    api.exec(ticks);
    assert!(is_ready(&api, "chromium"));
    api.exec("goes_on.set()");
    api.until("the browser's end", |api| {
        (!is_ready(api, "chromium")).then_some(())
    });
    api.exec(ticks);
    assert!(is_ready(&api, "xvfb"));
    api.exec("window.kill(); window.wait()");
    api.until("the end of the desktop", |api| {
        (!is_ready(api, "xvfb")).then_some(())
    });
    // No process of the desktop is left.
    let left = "import subprocess; int(subprocess.run(['pgrep', '-cx', 'Xvfb|openbox|pcmanfm|tint2|dbus-daemon|x11vnc|chromium'], capture_output=True).stdout)";
    api.until("the end of all its processes", |api| {
        (number(api, left) == 0).then_some(())
    });
    home.down();
}

fn the_desktop_can_run_always_or_never() {
    let home = Home::new("it-off");
    home.write_config("desktop:\n  run: \"off\"\n");
    home.up();
    let refused = home.api().get("/display/screenshot").error();
    assert_eq!((refused.0, refused.1.as_str()), (503, "no_desktop"));
    // `osctl desktop` prints no link either.
    let refused = home.run(["desktop", "--url"]);
    assert!(
        refused.code != 0 && refused.stdout.is_empty(),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("`desktop.run"), "{refused:?}");
    // The image contains the browser, but not the desktop.
    let there =
        "import shutil; [bool(shutil.which(name)) for name in ('Xvfb', 'pcmanfm', 'chromium')]";
    assert_eq!(home.api().exec(there)["result"], "[False, False, True]");
    home.write_config("desktop:\n  run: always\n  idle: 1\n  depth: 16\n");
    home.up();
    let api = home.api();
    // The desktop starts without a request.
    api.until("the desktop", |api| is_ready(api, "pcmanfm").then_some(()));
    api.exec("import time; time.sleep(4)");
    assert!(is_ready(&api, "pcmanfm"));
    // The screen has the configured depth, and all clients see the same colours.
    assert_eq!(api.get("/display/resolution").json()["depth"], 16);
    wait_until_settled(&api);
    let (address, password) = vnc(&home);
    let mut viewer = Viewer::open(&address, &password).unwrap();
    let seen = Picture {
        width: viewer.width.into(),
        height: viewer.height.into(),
        pixels: viewer.picture().unwrap(),
    };
    let ground = seen.share(is_background);
    assert!((0.5..0.9999).contains(&ground), "{ground}");
    drop(viewer);
    // The browser works, too.
    let red = "data:text/html,%3Cbody%20style=background:red%3E";
    let opened = api.post(&format!("/display/browser?url={red}"), &Value::Null);
    assert_eq!(opened.status, 200, "{:?}", opened.json());
    api.until("a red page", |api| {
        let (shown, _) = screenshot(api, "?scale=0.25");
        (shown.share(|[r, g, b]| r > 240 && g < 9 && b < 9) > 0.5).then_some(())
    });
    home.down();
}
