//! Trials of the desktop in a user's browser.

use crate::desktop::{act, instance, put};
use crate::harness::{Api, Home};
use crate::trials;
use crate::web::Page;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

trials![
    a_user_opens_the_desktop_and_types_into_a_terminal,
    each_icon_opens_what_it_shows,
    a_link_opens_the_desktop_once_and_nothing_else,
    desktop_starts_a_browser_where_a_display_exists,
];

/// A busy machine may deliver the clicks of a double click too far apart; the trial then clicks again.
const CLICK_RETRY_INTERVAL: Duration = Duration::from_secs(8);

/// An expression that is true while the page has a connection.
pub(crate) const CONNECTED: &str = "document.documentElement.dataset.connected === 'yes'";

/// Opens the desktop in a browser on the host, as `osctl desktop` does.
pub(crate) fn open_page(home: &Home) -> Page {
    let link = home.json(["desktop"])["url"].as_str().unwrap().to_owned();
    let mut page = Page::open(&link, (1100, 700));
    page.until(CONNECTED);
    page
}

/// The address of an instance's pages: its own host name, so that browsers send no cookies of other instances.
fn page_address(home: &Home) -> String {
    let api = home.api();
    let port = api.address.rsplit(':').next().unwrap();
    format!("http://{}.localhost:{port}", home.container())
}

/// Waits until the screen has the size of the page and the page shows the whole screen.
#[track_caller]
pub(crate) fn wait_until_screen_fits(api: &Api, page: &mut Page) {
    let area = "(e => [Math.floor(e.width), Math.floor(e.height)])(document.getElementById('screen').getBoundingClientRect())";
    let area = page.value(area);
    api.until("the screen with the window's size", |api| {
        let now = api.get("/display/resolution").json();
        (json!([now["width"], now["height"]]) == area).then_some(())
    });
    page.until(&format!(
        "(c => c.width === {} && c.height === {})(document.querySelector('#screen canvas'))",
        area[0], area[1]
    ));
}

/// Restores the size that the other trials expect.
pub(crate) fn restore_size(api: &Api) {
    let size = json!({"width": 1280, "height": 800});
    put(api, "/display/resolution", &size);
}

/// The windows of a class.
#[track_caller]
fn windows(api: &Api, class: &str) -> Vec<Value> {
    let windows = api.get("/display/windows").json();
    let all = windows["windows"].as_array().unwrap().iter();
    all.filter(|w| w["class"] == class).cloned().collect()
}

/// Whether a program of that name runs inside.
#[track_caller]
fn runs(api: &Api, name: &str) -> bool {
    let code = format!("import subprocess; subprocess.run(['pgrep', '-x', '{name}']).returncode");
    api.exec(&code)["result"] == "0"
}

fn a_user_opens_the_desktop_and_types_into_a_terminal() {
    let home = instance();
    let api = home.api();
    let shown = api.get("/display/windows").json();
    assert_eq!(shown["windows"], json!([]));
    let mut page = open_page(home);
    page.until("document.querySelector('#screen canvas').width > 0");
    let title = page.value("document.title");
    assert_eq!(title, format!("{} · osctl desktop", home.container()));
    wait_until_screen_fits(&api, &mut page);
    // The canvas shows the background with icons.
    page.until(
        "(() => { const c = document.querySelector('#screen canvas'); \
         const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let ground = 0; \
         for (let i = 0; i < d.length; i += 4) ground += d[i] === 0x2f && d[i + 1] === 0x48 && d[i + 2] === 0x58; \
         const share = ground * 4 / d.length; return share > 0.5 && share < 0.9999 })()",
    );
    // The third icon is the terminal.
    let place = page.value(
        "(r => [r.left + 60, r.top + 235])(document.querySelector('#screen canvas').getBoundingClientRect())",
    );
    let (x, y) = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    let mut clicked: Option<Instant> = None;
    api.until("the start of the terminal", |api| {
        if clicked.is_none_or(|at| at.elapsed() > CLICK_RETRY_INTERVAL) && !runs(api, "xterm") {
            page.double_click(x, y);
            clicked = Some(Instant::now());
        }
        let all = windows(api, "XTerm");
        all.iter().any(|w| w["focused"] == true).then_some(())
    });
    // The terminal starts in the project.
    page.press("echo typed in a browser in $PWD > /tmp/typed\n");
    let read = "import os; os.path.exists('/tmp/typed') and open('/tmp/typed').read() or None";
    let typed = api.until("the arrival of the typed text", |api| {
        let text = api.exec(read)["result"].clone();
        text.is_string().then_some(text)
    });
    assert_eq!(typed, "'typed in a browser in /repo\\n'");
    // The clipboard works in both directions, with any script.
    put(
        &api,
        "/display/clipboard",
        &json!({"text": "von innen: 日本"}),
    );
    page.value("document.getElementById('copy').click()");
    // The dialog opens on request and contains the latest text.
    page.until(
        "document.getElementById('clipboard').open && document.getElementById('text').value === 'von innen: 日本'",
    );
    page.value("document.getElementById('text').value = 'von außen: Ж'");
    page.value("document.querySelector('button[value=copy]').click()");
    api.until("the arrival of the copied text", |api| {
        let text = api.get("/display/clipboard").json()["text"].clone();
        (text == "von außen: Ж").then_some(())
    });
    // The page reconnects after a lost connection.
    page.value("document.documentElement.dataset.connected = 'before'");
    api.exec("import subprocess; subprocess.run(['pkill', '-9', '-x', 'x11vnc'], check=True)");
    page.until(CONNECTED);
    let before = windows(&api, "XTerm");
    page.press("exit\n");
    api.until("the terminal's end", |api| {
        let now = windows(api, "XTerm");
        let is_gone = |one: &Value| now.iter().all(|w| w["id"] != one["id"]);
        before.iter().any(is_gone).then_some(())
    });
    // An additional click may have opened a second window.
    api.until("the end of all terminals", |api| {
        api.exec("subprocess.run(['pkill', '-x', 'xterm'])");
        let is_over = !runs(api, "xterm") && windows(api, "XTerm").is_empty();
        is_over.then_some(())
    });
    drop(page);
    restore_size(&api);
}

fn each_icon_opens_what_it_shows() {
    let api = instance().api();
    restore_size(&api);
    // The positions of the other two icons; the third is the terminal.
    for (y, class) in [(140, "Pcmanfm"), (45, "Chromium")] {
        let shown = |api: &Api| windows(api, class).first().cloned();
        assert_eq!(shown(&api), None, "{class}");
        let mut clicked: Option<Instant> = None;
        api.until(class, |api| {
            if clicked.is_none_or(|at| at.elapsed() > CLICK_RETRY_INTERVAL) {
                act(api, json!([{"type": "click", "x": 60, "y": y, "count": 2}]));
                clicked = Some(Instant::now());
            }
            shown(api)
        });
        if class == "Pcmanfm" {
            // The title of the window is the name of the folder.
            api.until("the project's folder", |api| {
                shown(api).filter(|window| window["title"] == "repo")
            });
        }
        if class == "Chromium" {
            api.connect().send("DELETE", "/display/browser", &[], b"");
        }
        // An additional click may have opened a second window.
        api.until("the end of the window", |api| {
            let Some(window) = shown(api) else {
                return Some(());
            };
            let focused = api.post("/display/focus", &json!({"id": window["id"]}));
            if class != "Chromium" && focused.status == 200 {
                act(api, json!([{"type": "key", "keys": "alt+F4"}]));
            }
            None
        });
    }
}

fn a_link_opens_the_desktop_once_and_nothing_else() {
    let home = instance();
    let api = home.api();

    let bare = |path: &str, headers: &[(&str, &str)]| {
        let mut all = vec![("Authorization", "")];
        all.extend(headers);
        api.connect().send("GET", path, &all, b"")
    };
    for path in [
        "/desktop/",
        "/desktop/desktop.js",
        "/desktop/socket",
        "/display/screenshot",
    ] {
        assert_eq!(bare(path, &[]).status, 401, "{path}");
    }
    let link = home.ok(["desktop", "--url"]).stdout;
    let path = link.trim().strip_prefix(&page_address(home)).unwrap();
    let entered = bare(path, &[]);
    assert_eq!(entered.status, 303);
    assert_eq!(entered.headers["location"], "/desktop/");
    let cookie = &entered.headers["set-cookie"];
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    let again = bare(path, &[]);
    assert_eq!(again.error().1, "used_link");
    let pass = ("Cookie", cookie.split(';').next().unwrap());
    let page = bare("/desktop/", &[pass]);
    assert_eq!(page.status, 200);
    let policy = &page.headers["content-security-policy"];
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(bare("/desktop/novnc/core/rfb.js", &[pass]).status, 200);
    for path in [
        "/desktop/novnc/../../../etc/passwd",
        "/desktop/novnc/package.json",
        "/desktop/x",
    ] {
        assert_eq!(bare(path, &[pass]).status, 404, "{path}");
    }
    // The cookie does not replace the token, because pages of other ports send it, too.
    for path in ["/", "/status", "/exec", "/files/etc/passwd", "/sessions"] {
        assert_eq!(bare(path, &[pass]).status, 401, "{path}");
    }
    let foreign = ("Sec-Fetch-Site", "same-site");
    assert_eq!(bare("/display/screenshot", &[pass, foreign]).status, 401);
    let origin = ("Origin", "http://127.0.0.1:1");
    assert_eq!(bare("/desktop/socket", &[pass, origin]).status, 403);
}

fn desktop_starts_a_browser_where_a_display_exists() {
    let home = instance();
    let api = home.api();
    let folder = tempfile::tempdir().unwrap();
    let (program, link_file) = (folder.path().join("xdg-open"), folder.path().join("told"));
    let file = link_file.display();
    let script =
        format!("#!/bin/sh\nprintf %s \"$1\" > '{file}.new' && mv '{file}.new' '{file}'\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", folder.path().display());
    let mut command = home.command(["desktop"]);
    command.env("PATH", path).env("DISPLAY", ":7");
    let ran = command.output().unwrap();
    assert!(ran.status.success() && ran.stdout.is_empty(), "{ran:?}");
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert!(stderr.contains("desktop --url`"), "{stderr}");
    assert_eq!(
        stderr.contains("Safari"),
        cfg!(target_os = "macos"),
        "{stderr}"
    );
    let link = api.until("the start of the browser", |_| {
        fs::read_to_string(&link_file).ok()
    });
    let path = link.strip_prefix(&page_address(home));
    let entered = { api.connect() }.send("GET", path.unwrap(), &[("Authorization", "")], b"");
    assert_eq!(entered.status, 303);
}
