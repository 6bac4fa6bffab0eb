//! Trials of browser-use: it works in the same browser that users see, and neither ends the browser for the other.

use crate::desktop::{instance, is_ready, screenshot};
use crate::harness::{Api, Home};
use crate::mcp::status;
use crate::pages::page;
use crate::trials;
use serde_json::{Value, json};
use std::fs;

trials![
    browser_use_works_in_the_visible_browser,
    browser_use_survives_the_end_of_the_browser,
    the_debugger_does_not_restart_a_closed_browser,
    the_debugger_is_reachable_from_inside_only,
    a_headless_browser_runs_where_it_is_configured,
    browser_use_sends_no_telemetry,
];

/// The page's colours before and after its button is pressed.
const BEFORE: [u8; 3] = [0xff, 0, 0xff];
const AFTER: [u8; 3] = [0, 0xff, 0];
const BLUE: [u8; 3] = [0, 0, 0xff];

/// Calls a tool of browser-use; returns its text.
#[track_caller]
fn call(home: &Home, tool: &str, arguments: &[String]) -> String {
    call_of("browser-use", home, tool, arguments)
}

#[track_caller]
fn call_of(server: &str, home: &Home, tool: &str, arguments: &[String]) -> String {
    let mut words = vec!["mcp", "call", server, tool];
    words.extend(arguments.iter().map(String::as_str));
    home.ok(words).stdout
}

#[track_caller]
fn wait_until_seen(api: &Api, colour: [u8; 3]) {
    api.until(&format!("{colour:?} on the screen"), |api| {
        let (shown, _) = screenshot(api, "?scale=0.25");
        (shown.share(|pixel| pixel == colour) > 0.5).then_some(())
    });
}

#[track_caller]
fn close(api: &Api) {
    let closed = api.connect().send("DELETE", "/display/browser", &[], b"");
    assert_eq!(closed.status, 200);
    api.until("the end of the browser", |api| {
        let browser = api.get("/display/browser").json();
        (browser["detail"] == "on demand").then_some(())
    });
}

fn browser_use_works_in_the_visible_browser() {
    let home = instance();
    let api = home.api();
    close(&api);
    // Listing its tools starts no browser.
    let tools = home.ok(["mcp", "tools", "browser-use"]).stdout;
    assert!(tools.contains("browser_navigate"), "{tools}");
    assert!(!is_ready(&api, "chromium"));
    // A page that a user has opened stays open.
    let mine = "data:text/html,<title>mine</title><body style='background:rgb(0,0,255)'>";
    let mine: String = mine.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let opened = api.post(&format!("/display/browser?url={mine}"), &Value::Null);
    assert_eq!(opened.status, 200, "{:?}", opened.json());
    wait_until_seen(&api, BLUE);
    let page = page(home, "press");
    call(home, "browser_navigate", &[format!("url={page}")]);
    wait_until_seen(&api, BEFORE);
    let tabs = call(home, "browser_list_tabs", &[]);
    assert!(tabs.contains(&page) && tabs.contains("mine"), "{tabs}");
    let state: Value = serde_json::from_str(&call(home, "browser_get_state", &[])).unwrap();
    let elements = state["interactive_elements"].as_array().unwrap();
    let button = elements.iter().find(|e| e["text"] == "press me").unwrap();
    call(
        home,
        "browser_click",
        &[format!("index={}", button["index"])],
    );
    wait_until_seen(&api, AFTER);
    let text = call(home, "browser_get_html", &["selector=#said".into()]);
    assert!(text.contains("it was pressed"), "{text}");
    // Closing browser-use's session does not end the browser.
    call(home, "browser_close_all", &[]);
    assert!(is_ready(&api, "chromium"));
    wait_until_seen(&api, AFTER);
}

fn browser_use_survives_the_end_of_the_browser() {
    let home = instance();
    let api = home.api();
    let navigate = [format!("url={}", page(home, "press"))];
    call(home, "browser_navigate", &navigate);
    wait_until_seen(&api, BEFORE);
    api.exec(
        "import subprocess; subprocess.run(['pkill', '-9', '-o', '-x', 'chromium'], check=True)",
    );
    // The browser's session file decides which pages reopen; browser-use answers in any case.
    let state: Value = serde_json::from_str(&call(home, "browser_get_state", &[])).unwrap();
    assert!(state["url"].is_string(), "{state}");
    call(home, "browser_navigate", &navigate);
    wait_until_seen(&api, BEFORE);
    close(&api);
    call(home, "browser_navigate", &navigate);
    wait_until_seen(&api, BEFORE);
    close(&api);
}

fn the_debugger_does_not_restart_a_closed_browser() {
    let api = instance().api();
    let started = api.post("/display/browser", &Value::Null).json();
    assert_eq!(started["cdp_url"], "http://127.0.0.1:9221");
    // Connections by the address of an earlier browser process and without an ID.
    let connect = r#"
import socket
def connect(path):
    client = socket.create_connection(("127.0.0.1", 9221))
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1:9221", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", ""]
    client.sendall("\r\n".join(lines).encode())
    return client.recv(12).decode()
"#;
    api.exec(connect);
    let status =
        |api: &Api, path: &str| api.exec(&format!("connect({})", json!(path)))["result"].clone();
    for path in ["/devtools/browser", "/devtools/browser/1-2"] {
        assert_eq!(status(&api, path), "'HTTP/1.1 101'", "{path}");
    }
    assert_eq!(status(&api, "/devtools/page/none"), "'HTTP/1.1 500'");
    close(&api);
    assert_eq!(status(&api, "/devtools/browser/1-2"), "'HTTP/1.1 503'");
    assert!(!is_ready(&api, "chromium"));
    // A request for the version starts the browser.
    let asked = "import json, urllib.request; json.load(urllib.request.urlopen('http://127.0.0.1:9221/json/version'))['webSocketDebuggerUrl'].startswith('ws://127.0.0.1:9221/devtools/browser/')";
    assert_eq!(api.exec(asked)["result"], "True");
    assert!(is_ready(&api, "chromium"));
    close(&api);
}

fn the_debugger_is_reachable_from_inside_only() {
    let api = instance().api();
    assert_eq!(api.post("/display/browser", &Value::Null).status, 200);
    let code = r#"
import socket
own = socket.gethostbyname(socket.gethostname())
def reached(host, port):
    try:
        socket.create_connection((host, port), timeout=10).close()
        return True
    except ConnectionRefusedError:
        return False
own.startswith("127."), [reached(host, port) for host in ("127.0.0.1", own) for port in (9221, 9222)]
"#;
    let expected = "(False, [True, True, False, False])";
    assert_eq!(api.exec(code)["result"], expected);
    close(&api);
}

/// Code for the kernel that counts browsers, and browsers without a window.
const BROWSERS: &str = r#"
import glob
def browsers():
    lines = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            lines.append(open(path).read())
        except OSError:
            pass
    names = [line.split("\0")[0].split("/")[-1] for line in lines]
    # Those of its own have a type, or are another program.
    own = [line for name, line in zip(names, lines) if name.startswith("chrom") and "crashpad" not in name and "--type=" not in line]
    return len(own), sum("--headless" in line for line in own)
"#;

fn a_headless_browser_runs_where_it_is_configured() {
    let home = instance();
    let (api, hub) = (home.api(), home.hub());
    close(&api);
    let quiet = json!({
        "command": "/opt/osctl/body/servers/browser-use",
        "env": {"IN_DOCKER": "true", "BROWSER_USE_HEADLESS": "true"},
        "shared": true,
    });
    let added = home.data().join("mcp.json");
    fs::write(&added, json!({"mcpServers": {"quiet": quiet}}).to_string()).unwrap();
    hub.until("the start of the server", |hub| {
        status(hub, "quiet").is_object().then_some(())
    });
    let press = [format!("url={}", page(home, "press"))];
    call_of("quiet", home, "browser_navigate", &press);
    let state = call_of("quiet", home, "browser_get_state", &[]);
    assert!(state.contains("press me"), "{state}");
    api.exec(BROWSERS);
    assert_eq!(api.exec("browsers()")["result"], "(1, 1)");
    assert!(!is_ready(&api, "chromium"));
    // The browser ends with its server.
    fs::remove_file(&added).unwrap();
    api.until("the end of the browser", |api| {
        (api.exec("browsers()")["result"] == "(0, 0)").then_some(())
    });
}

fn browser_use_sends_no_telemetry() {
    let home = instance();
    home.ok(["mcp", "tools", "browser-use"]);
    call(home, "browser_list_tabs", &[]);
    // Read the settings of browser-use in the environment of its server.
    let code = r#"
import glob, subprocess
def told():
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            words = open(f"{folder}/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        if b"/opt/osctl/body/servers/shared_browser.py" in words:
            pairs = open(f"{folder}/environ", "rb").read().split(b"\0")
            environment = dict(pair.split(b"=", 1) for pair in pairs if pair)
            code = "from browser_use.config import CONFIG; print(CONFIG.ANONYMIZED_TELEMETRY, CONFIG.BROWSER_USE_CLOUD_SYNC)"
            return subprocess.check_output([words[0], "-c", code], env=environment).decode()
told()
"#;
    assert_eq!(home.api().exec(code)["result"], "'False False\\n'");
    close(&home.api());
}
