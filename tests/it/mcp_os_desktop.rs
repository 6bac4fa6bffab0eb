//! The built-in MCP server: the desktop, and web pages.

use crate::harness::servers;
use crate::mcp::Client;
use crate::mcp_os::os;
use crate::pages::page;
use crate::trials;
use serde_json::{Value, json};
use std::thread;

trials![
    the_desktop_is_seen_and_used,
    a_web_page_is_read_in_the_visible_browser,
    dialogs_of_a_page_are_dismissed_and_reported,
    a_server_that_never_answers_is_reported_and_delays_no_other_call,
    a_page_that_a_user_edits_is_left_alone,
];

const READ: &str = "navigate_and_get_all_visible_text";

/// Waits until a window's title contains the text.
#[track_caller]
fn until_titled(os: &Client, words: &str) {
    os.api.until(&format!("a window `{words}`"), |_| {
        let windows = os.fields("desktop_windows", json!({}));
        windows.to_string().contains(words).then_some(())
    });
}

fn the_desktop_is_seen_and_used() {
    let os = os();
    let shot = os.tool(
        "desktop_screenshot",
        json!({"region": "0,0,100,50", "scale": 0.5}),
    );
    let fields = &shot["structuredContent"];
    assert_eq!(
        (&fields["width"], &fields["height"]),
        (&json!(50), &json!(25))
    );
    assert_eq!(shot["content"][0]["mimeType"], "image/png");
    let taken = fields["taken"].as_str().unwrap();
    let now = os.fields(
        "run_shell",
        json!({"command": "date -u +%FT%T.%3NZ", "session": "clock"}),
    );
    let now = now["stdout"].as_str().unwrap().trim();
    assert_eq!(taken.len(), now.len(), "{taken}");
    assert!(taken <= now && taken[..10] >= now[..10], "{taken} {now}");
    let words = shot["content"][1]["text"].as_str().unwrap();
    assert!(
        words.starts_with("50x25 pixels") && words.contains(taken),
        "{words}"
    );
    let screen = os.ask("resources/read", &json!({"uri": "os://screen"}));
    let told = &screen["contents"][0]["_meta"]["osctl/screenshot"];
    assert_eq!(told["width"], told["screen_width"], "{told}");
    assert!(told["taken"].is_string(), "{told}");
    let moved = os.fields(
        "desktop_input",
        json!({"actions": [{"type": "move", "x": 11, "y": 12}]}),
    );
    assert_eq!(moved["pointer"], json!({"x": 11, "y": 12}));
    os.fields("desktop_write_clipboard", json!({"text": "kopiert ö"}));
    assert_eq!(
        os.fields("desktop_read_clipboard", json!({}))["text"],
        "kopiert ö"
    );
    assert!(os.fields("desktop_windows", json!({}))["windows"].is_array());
    let none = os.refusal("desktop_focus", json!({"id": 1}));
    assert!(none.contains("there is no window 1"), "{none}");
    let wrong = os.refusal("desktop_screenshot", json!({"region": "here"}));
    assert!(wrong.contains("`here` is not a region"), "{wrong}");
}

fn a_web_page_is_read_in_the_visible_browser() {
    let os = os();
    let (base, tool) = (page(servers(), ""), READ);
    let read = os.fields(tool, json!({"url": format!("{base}away")}));
    assert_eq!(read["url"], format!("{base}page"));
    assert_eq!(
        (&read["title"], &read["status"], &read["loaded"]),
        (&json!("Title ö"), &json!(200), &json!(true))
    );
    let text = read["text"].as_str().unwrap();
    assert!(
        text.contains("shown") && text.contains("later") && !text.contains("hidden"),
        "{text}"
    );
    // The desktop shows the page, too.
    until_titled(&os, "Title ö");
    let part = os.fields(tool, json!({"url": format!("{base}page"), "limit": 3}));
    assert_eq!((&part["text"], &part["next"]), (&json!("sho"), &json!(3)));
    assert_eq!(
        os.fields(tool, json!({"url": format!("{base}gone")}))["status"],
        404
    );
    for (url, why) in [
        ("file:///etc/passwd", "is not a web address"),
        ("http://127.0.0.1:1/", "ERR_"),
    ] {
        let refused = os.refusal(tool, json!({"url": url}));
        assert!(refused.contains(why), "{refused}");
    }
}

fn dialogs_of_a_page_are_dismissed_and_reported() {
    let os = os();
    let answer = os.tool(READ, json!({"url": page(servers(), "asks")}));
    let fields = &answer["structuredContent"];
    let text = fields["text"].as_str().unwrap();
    assert!(text.contains("not deleted, nobody"), "{text}");
    let dialogs = [
        "alert: Look here",
        "confirm: Delete all?",
        "prompt: Your name?",
    ];
    assert_eq!(fields["dialogs"], json!(dialogs));
    let words = answer["content"][0]["text"].as_str().unwrap();
    assert!(words.contains("dismissed: confirm: Delete all?"), "{words}");
}

fn a_server_that_never_answers_is_reported_and_delays_no_other_call() {
    let os = os();
    let base = page(servers(), "");
    os.fields(READ, json!({"url": format!("{base}page")}));
    // The answer is not the page before.
    let never = format!("{base}never");
    let refused = os.refusal(READ, json!({"url": never, "timeout": 0.5}));
    assert!(
        refused.contains("did not answer within 0.5 seconds"),
        "{refused}"
    );
    // A waiting call does not delay another call.
    let waiting = {
        let os = os.clone();
        thread::spawn(move || os.tool(READ, json!({"url": never, "timeout": 50})))
    };
    let read = os.fields(READ, json!({"url": format!("{base}page")}));
    assert!(!waiting.is_finished());
    assert_eq!(
        (&read["title"], &read["loaded"]),
        (&json!("Title ö"), &json!(true))
    );
    assert_eq!(
        os.fields(READ, json!({"url": format!("{base}let-go")}))["status"],
        200
    );
    let answered = waiting.join().unwrap();
    assert_eq!(
        answered["structuredContent"]["title"], "Other",
        "{answered}"
    );
}

fn a_page_that_a_user_edits_is_left_alone() {
    let os = os();
    let base = page(servers(), "");
    // This tool confirms the browser's question before it leaves a page.
    let elsewhere = format!("url={base}page");
    servers().ok(["mcp", "call", "browser-use", "browser_navigate", &elsewhere]);
    os.fields(READ, json!({"url": format!("{base}work")}));
    until_titled(&os, "Work");
    let screen = os.fields("desktop_screenshot", json!({}));
    let middle = |side: &str| screen[side].as_u64().unwrap() / 2;
    let (x, y) = (middle("width"), middle("height"));
    let act = |action: Value| os.fields("desktop_input", json!({"actions": [action]}));
    act(json!({"type": "click", "x": x, "y": y}));
    until_titled(&os, "Work: begun");
    act(json!({"type": "text", "text": "mine"}));
    until_titled(&os, "Work: mine");
    let read = os.fields(READ, json!({"url": format!("{base}page")}));
    assert_eq!(read["title"], "Title ö", "{read}");
    let tabs = "import json, urllib.request; [t['title'] for t in json.load(urllib.request.urlopen('http://127.0.0.1:9221/json/list')) if t['type'] == 'page']";
    let tabs = os.fields(
        "execute_python_code",
        json!({"code": tabs, "session": "tabs"}),
    );
    let tabs = tabs["result"].as_str().unwrap();
    assert!(
        tabs.contains("'Work: mine'") && tabs.contains("'Title ö'"),
        "{tabs}"
    );
}
