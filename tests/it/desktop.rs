//! Trials of the desktop: VNC clients, browsers and the API show the same screen.

use crate::harness::{Api, Home, Response};
use crate::trials;
use crate::viewer::Viewer;
use serde_json::{Value, json};
use std::fs;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

trials![
    no_service_runs_before_the_first_use,
    a_screenshot_is_cut_and_scaled_and_states_its_size_and_time,
    invalid_requests_are_refused_and_not_partly_done,
    text_of_any_script_is_typed_and_pasted,
    selected_text_in_a_terminal_is_copied,
    windows_are_listed_and_brought_to_the_front,
    the_taskbar_minimizes_and_shows_windows,
    the_resolution_changes_while_the_desktop_runs,
    all_clients_share_one_browser,
];

static INSTANCE: OnceLock<Home> = OnceLock::new();

/// The instance of the desktop trials; created at the first call.
pub(crate) fn instance() -> &'static Home {
    INSTANCE.get_or_init(|| {
        let home = Home::new("it-desktop");
        home.write_config("limits:\n  memory: 2g\n");
        home.up();
        home
    })
}

pub(crate) fn clean_up() {
    if let Some(home) = INSTANCE.get() {
        home.down();
    }
}

/// The address of the VNC server, and its password.
pub(crate) fn vnc(home: &Home) -> (String, String) {
    let status = home.json(["status"]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let password = fs::read_to_string(text(&status["vnc_password_file"])).unwrap();
    (
        text(&status["endpoints"]["vnc"]),
        password.trim().to_owned(),
    )
}

/// A picture with one byte each for red, green and blue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Picture {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) pixels: Vec<u8>,
}

impl Picture {
    #[track_caller]
    pub(crate) fn read(file: &[u8]) -> Self {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(frame.color_type, png::ColorType::Rgb);
        Self {
            width: frame.width,
            height: frame.height,
            pixels,
        }
    }

    fn at(&self, x: u32, y: u32) -> [u8; 3] {
        let begin = ((y * self.width + x) * 3) as usize;
        self.pixels[begin..begin + 3].try_into().unwrap()
    }

    /// The share of pixels that match.
    pub(crate) fn share(&self, fits: impl Fn([u8; 3]) -> bool) -> f64 {
        let all = self.pixels.chunks_exact(3);
        let count = all.clone().filter(|p| fits([p[0], p[1], p[2]])).count();
        count as f64 / all.len() as f64
    }
}

#[track_caller]
pub(crate) fn screenshot(api: &Api, query: &str) -> (Picture, Response) {
    let response = api.get(&format!("/display/screenshot{query}"));
    let reply =
        String::from_utf8_lossy(&response.body[..response.body.len().min(300)]).into_owned();
    assert_eq!(response.status, 200, "{reply}");
    assert_eq!(response.headers["content-type"], "image/png");
    (Picture::read(&response.body), response)
}

/// The colour of the desktop's background.
pub(crate) const BACKGROUND: [u8; 3] = [0x2f, 0x48, 0x58];

/// The positions of the icons, for every size of the screen.
const ICONS: [(u32, u32); 3] = [(60, 45), (60, 140), (60, 235)];

/// Whether a pixel has the background's colour, up to the rounding of a screen with 16 bits a pixel.
pub(crate) fn is_background(pixel: [u8; 3]) -> bool {
    (pixel.iter().zip(BACKGROUND)).all(|(a, b)| a.abs_diff(b) < 9)
}

/// Waits until the desktop shows its background and all icons, and no longer changes.
#[track_caller]
pub(crate) fn wait_until_settled(api: &Api) -> Picture {
    let mut before = screenshot(api, "").0;
    api.until("a desktop without changes", |api| {
        thread::sleep(Duration::from_millis(300));
        let now = screenshot(api, "").0;
        let has_icons = ICONS.into_iter().all(|(x, y)| {
            let mut around = (y - 20..y + 20).flat_map(|y| (x - 20..x + 20).map(move |x| (x, y)));
            around.any(|(x, y)| !is_background(now.at(x, y)))
        });
        let is_whole = has_icons && (0.5..0.9999).contains(&now.share(is_background));
        let stays = is_whole && now == before;
        before = now;
        stays.then_some(())
    });
    before
}

#[track_caller]
pub(crate) fn put(api: &Api, path: &str, body: &Value) -> Response {
    let body = body.to_string();
    api.connect().send("PUT", path, &[], body.as_bytes())
}

#[track_caller]
pub(crate) fn act(api: &Api, actions: Value) {
    let done = api.post("/display/input", &json!({"actions": actions}));
    assert_eq!(done.status, 200, "{:?}", done.json());
}

/// Starts a terminal on the desktop and waits for its window.
#[track_caller]
fn terminal(api: &Api, title: &str, program: &[&str]) -> Value {
    let mut words = vec!["/opt/osctl/body/desktop/terminal", "-T", title];
    words.extend(program);
    let words = json!(words);
    api.exec(&format!(
        "import subprocess\nterminal = subprocess.Popen({words})"
    ));
    api.until("the terminal's window", |api| {
        window(api, title).filter(|window| window["focused"] == true)
    })
}

fn window(api: &Api, title: &str) -> Option<Value> {
    let windows = api.get("/display/windows").json();
    let all = windows["windows"].as_array().unwrap().iter();
    { all }.find(|window| window["title"] == title).cloned()
}

/// Whether a service is ready according to `GET /health`.
pub(crate) fn is_ready(api: &Api, name: &str) -> bool {
    let health = api.get("/health").json();
    let services = health["services"].as_array().unwrap();
    services
        .iter()
        .any(|s| s["name"] == name && s["ready"] == true)
}

fn no_service_runs_before_the_first_use() {
    let home = instance();
    let api = home.api();
    for service in ["xvfb", "pcmanfm", "x11vnc", "chromium"] {
        assert!(!is_ready(&api, service), "{service}");
    }
    // A connection with a wrong password does not start the desktop either.
    let (address, _) = vnc(home);
    let reply = Viewer::open(&address, "wrong").unwrap_err();
    assert!(reply.contains("the password is wrong"), "{reply}");
    assert!(!is_ready(&api, "xvfb"));
    screenshot(&api, "");
    for service in ["xvfb", "dbus", "openbox", "pcmanfm", "tint2"] {
        assert!(is_ready(&api, service), "{service}");
    }
    // Services that only VNC clients and browsers need do not run yet.
    assert!(!is_ready(&api, "x11vnc") && !is_ready(&api, "chromium"));
    let log = home.ok(["logs", "pcmanfm"]).stdout;
    assert!(log.lines().all(|line| line.contains("pcmanfm")), "{log}");
    assert!(
        log.contains("service=pcmanfm: the service started"),
        "{log}"
    );
}

fn a_screenshot_is_cut_and_scaled_and_states_its_size_and_time() {
    let home = instance();
    let api = home.api();
    wait_until_settled(&api);
    let (whole, response) = screenshot(&api, "");
    let size = format!("{}x{}", whole.width, whole.height);
    assert_eq!(response.headers["osctl-picture"], size);
    assert_eq!(response.headers["osctl-screen"], size);
    let taken: u64 = response.headers["osctl-taken"].parse().unwrap();
    let now = api.exec("import time; int(time.time() * 1000)")["result"].clone();
    let now: u64 = now.as_str().unwrap().parse().unwrap();
    assert!(taken <= now && now - taken < 60_000, "{taken} {now}");
    let (part, response) = screenshot(&api, "?region=20,5,90,70");
    assert_eq!((part.width, part.height), (90, 70));
    assert_eq!(response.headers["osctl-screen"], size);
    for (x, y) in [(0, 0), (40, 30), (89, 69)] {
        assert_eq!(part.at(x, y), whole.at(20 + x, 5 + y));
    }
    let (half, _) = screenshot(&api, "?scale=0.5");
    assert_eq!(
        (half.width, half.height),
        (whole.width / 2, whole.height / 2)
    );
    assert_eq!(half.at(half.width - 5, 5), whole.at(whole.width - 10, 10));
    let file = home.folder.join("shot.png");
    let path = file.to_str().unwrap();
    let reply = home.json(["screenshot", path, "--region", "20,5,90,70"]);
    assert_eq!(reply["picture"], "90x70");
    assert_eq!(Picture::read(&fs::read(&file).unwrap()), part);
    // An existing file stays when the screenshot fails.
    let ran = home.run(["screenshot", path, "--region", "0,0,1,99999"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert_eq!(Picture::read(&fs::read(&file).unwrap()), part);
    for (path, why) in [
        ("nosuch/shot.png", "the folder of"),
        ("shot.jpg", "is a PNG file"),
    ] {
        let ran = home.run(["screenshot", path]);
        assert!(ran.code == 2 && ran.stderr.contains(why), "{ran:?}");
    }
}

fn invalid_requests_are_refused_and_not_partly_done() {
    let api = instance().api();
    for query in [
        "?region=1,2,3",
        "?region=0,0,99999,1",
        "?region=0,0,5000,5",
        "?scale=0",
        "?scale=-1",
        "?scale=9",
        "?scale=NaN",
        "?colour=red",
    ] {
        assert_eq!(
            api.get(&format!("/display/screenshot{query}")).status,
            400,
            "{query}"
        );
    }
    act(&api, json!([{"type": "move", "x": 7, "y": 9}]));
    for wrong in [
        json!({"type": "move", "x": 99_999, "y": 0}),
        json!({"type": "move", "x": -1, "y": 0}),
        json!({"type": "click", "x": 1}),
        json!({"type": "click", "button": "fourth"}),
        json!({"type": "key", "keys": "hyperdrive"}),
        json!({"type": "jump"}),
        json!({"type": "move", "x": 1, "y": 1, "z": 1}),
    ] {
        let actions = json!([{"type": "move", "x": 50, "y": 50}, wrong]);
        let refused = api.post("/display/input", &json!({"actions": actions}));
        assert_eq!(refused.status, 400, "{wrong}");
    }
    // Actions that take too long are refused.
    let drag = json!({"type": "drag", "from": {"x": 50, "y": 50}, "to": {"x": 60, "y": 60}});
    let refused = api.post("/display/input", &json!({"actions": vec![drag; 500]}));
    assert_eq!(refused.status, 400);
    let stayed = api.post("/display/input", &json!({"actions": []})).json();
    assert_eq!(stayed["pointer"], json!({"x": 7, "y": 9}));
    let none = api.post("/display/focus", &json!({"id": 1}));
    assert_eq!(none.error().1, "unknown_window");
    for size in [(1, 1), (200, 60_000)] {
        let size = json!({"width": size.0, "height": size.1});
        assert_eq!(
            put(&api, "/display/resolution", &size).status,
            400,
            "{size}"
        );
    }
}

fn text_of_any_script_is_typed_and_pasted() {
    let api = instance().api();
    let words = "Zwölf Boxkämpfer, ça va? Ж 日本語 ελ € „“ ~^`\\|@ 😀";
    // The program reads a line and stores it. A terminal that has just started pastes nothing, so the program creates a
    // file when it runs.
    let reader = "import os, sys; open('/tmp/runs', 'w'); line = sys.stdin.readline(); os.remove('/tmp/runs'); open('/tmp/read', 'w').write(line)";
    let reader = ["-e", "python3", "-c", reader];
    let runs = |api: &Api| {
        let code = "import os; os.path.exists('/tmp/runs')";
        (api.exec(code)["result"] == "True").then_some(())
    };
    let read = |api: &Api| {
        let code = "import os; os.path.exists('/tmp/read') and open('/tmp/read').read() or None";
        let text = api.exec(code)["result"].clone();
        text.is_string().then_some(text)
    };
    let line = format!("{words}\n");
    let expected = api.exec(&json!(line).to_string())["result"].clone();
    terminal(&api, "typing", &reader);
    api.until("the start of the reader", runs);
    act(&api, json!([{"type": "text", "text": line}]));
    assert_eq!(api.until("the arrival of the typed text", read), expected);
    api.exec("os.remove('/tmp/read'); terminal.wait()");
    // The same with the clipboard, in both directions.
    let copied = json!({"text": line});
    assert_eq!(put(&api, "/display/clipboard", &copied).status, 200);
    assert_eq!(api.get("/display/clipboard").json(), copied);
    terminal(&api, "pasting", &reader);
    api.until("the start of the reader", runs);
    act(&api, json!([{"type": "key", "keys": "shift+Insert"}]));
    assert_eq!(api.until("the arrival of the pasted text", read), expected);
    api.exec("os.remove('/tmp/read'); terminal.wait()");
}

fn selected_text_in_a_terminal_is_copied() {
    let api = instance().api();
    let nothing = json!({"text": "nothing"});
    assert_eq!(put(&api, "/display/clipboard", &nothing).status, 200);
    // The middle of the window is on a word.
    let words =
        "import time; print('\\n'.join(['marked' * 13] * 60), flush=True); time.sleep(1000)";
    let window = terminal(&api, "marking", &["-e", "python3", "-c", words]);
    let middle = |begin: &str, length: &str| {
        let number = |name: &str| window[name].as_i64().unwrap();
        number(begin) + number(length) / 2
    };
    let (x, y) = (middle("x", "width"), middle("y", "height"));
    api.until("the copy of the selected text", |api| {
        act(api, json!([{"type": "click", "x": x, "y": y, "count": 2}]));
        let copied = api.get("/display/clipboard").json()["text"].clone();
        copied.as_str().unwrap().contains("marked").then_some(())
    });
    // A stopped program that owns the clipboard delays requests for the clipboard, but not the input.
    api.exec("import signal; terminal.send_signal(signal.SIGSTOP)");
    let asked: Vec<_> = (0..4)
        .map(|_| {
            let api = api.clone();
            thread::spawn(move || api.get("/display/clipboard").status)
        })
        .collect();
    for x in 0..10 {
        act(&api, json!([{"type": "move", "x": x, "y": 1}]));
    }
    assert!(asked.iter().any(|one| !one.is_finished()));
    api.exec("terminal.send_signal(signal.SIGCONT)");
    for one in asked {
        one.join().unwrap();
    }
    api.exec("terminal.kill(); terminal.wait()");
}

fn windows_are_listed_and_brought_to_the_front() {
    let api = instance().api();
    let first = terminal(&api, "first", &[]);
    api.exec("one = terminal");
    let second = terminal(&api, "second", &[]);
    assert_eq!(second["class"], "XTerm");
    assert!(
        first["pid"].is_u64() && first["width"].as_u64() > Some(100),
        "{first}"
    );
    let focused = api
        .post("/display/focus", &json!({"id": first["id"]}))
        .json();
    let all = focused["windows"].as_array().unwrap();
    let front = all.last().unwrap();
    assert_eq!(
        (&front["id"], &front["focused"]),
        (&first["id"], &json!(true))
    );
    act(&api, json!([{"type": "text", "text": "exit\n"}]));
    api.exec("one.wait()");
    api.until("the first window's end", |api| {
        window(api, "first").is_none().then_some(())
    });
    assert!(window(&api, "second").is_some());
    api.exec("terminal.kill(); terminal.wait()");
}

/// The colour of the focused window in the taskbar, and the height of the taskbar.
const ACTIVE_TASK: [u8; 3] = [0x4d, 0x73, 0x87];
const TASKBAR_PIXELS: u32 = 32;

fn the_taskbar_minimizes_and_shows_windows() {
    let api = instance().api();
    terminal(&api, "minimized", &[]);
    let click = |(x, y): (u32, u32)| act(&api, json!([{"type": "click", "x": x, "y": y}]));
    let task = api.until("the window in the taskbar", |api| {
        let (shown, _) = screenshot(api, "");
        let y = shown.height - TASKBAR_PIXELS / 2;
        let mut row = (0..shown.width).map(|x| (x, y));
        row.find(|(x, y)| shown.at(*x, *y) == ACTIVE_TASK)
    });
    for is_minimized in [true, false] {
        click((task.0 + 2, task.1));
        api.until("the other state of the window", |api| {
            let window = window(api, "minimized")?;
            (window["minimized"] == is_minimized).then_some(())
        });
    }
    api.exec("terminal.kill(); terminal.wait()");
}

fn the_resolution_changes_while_the_desktop_runs() {
    let home = instance();
    let api = home.api();
    for (width, height) in [(1600, 900), (640, 480), (1280, 800)] {
        let size = format!("{width}x{height}");
        let reply = home.json(["desktop", "--resolution", &size]);
        assert_eq!(
            (&reply["width"], &reply["height"]),
            (&json!(width), &json!(height))
        );
        let (shown, _) = screenshot(&api, "");
        assert_eq!((shown.width, shown.height), (width, height));
        // No corner stays black.
        api.until(&format!("a picture of {size}"), |api| {
            let (shown, _) = screenshot(api, "");
            let black = shown.share(|pixel| pixel == [0; 3]);
            (black < 0.05 && shown.at(width - 1, height - 1) != [0; 3]).then_some(())
        });
    }
    assert_eq!(home.run(["desktop", "--resolution", "big"]).code, 2);
}

fn all_clients_share_one_browser() {
    let home = instance();
    let api = home.api();
    // A page of one colour, with a title that identifies its window.
    let page = "data:text/html,<title>red</title><body style='background:rgb(255,0,0)'>";
    let page: String = page.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let started = api.post(&format!("/display/browser?url={page}"), &Value::Null);
    assert_eq!(started.status, 200, "{:?}", started.json());
    assert_eq!(started.json()["running"], true);
    let is_red = |api: &Api| {
        let (shown, _) = screenshot(api, "?scale=0.25");
        (shown.share(|[r, g, b]| r > 250 && g < 5 && b < 5) > 0.5).then_some(())
    };
    api.until("the page on the screen", is_red);
    // A tool inside finds the same browser through its debugger and changes the page that all clients see.
    let endpoint = started.json()["cdp_url"].as_str().unwrap().to_owned();
    let pages = format!(
        "import json, urllib.request\n\
         pages = json.load(urllib.request.urlopen('{endpoint}/json/list'))\n\
         sum(page['title'] == 'red' for page in pages)"
    );
    assert_eq!(api.exec(&pages)["result"], "1");
    // The profile is persistent, and a killed browser restarts with its pages.
    assert!(home.files().join(".browser/Default").is_dir());
    api.until("the write of the browser's session", |api| {
        let code = "import glob; sum(b'red' in open(f, 'rb').read() for f in glob.glob('/root/host/.browser/Default/Sessions/Session_*'))";
        (api.exec(code)["result"] != "0").then_some(())
    });
    api.exec(
        "import subprocess; subprocess.run(['pkill', '-9', '-o', '-x', 'chromium'], check=True)",
    );
    api.until("the end of the browser", |api| {
        (!is_ready(api, "chromium")).then_some(())
    });
    api.until("the restart of the browser", |api| {
        is_ready(api, "chromium").then_some(())
    });
    api.until("the return of its pages", is_red);
    let closed = api.connect().send("DELETE", "/display/browser", &[], b"");
    assert_eq!(closed.status, 200);
    api.until("the end of the browser", |api| {
        let browser = api.get("/display/browser").json();
        (browser["running"] == false && browser["detail"] == "on demand").then_some(())
    });
}
