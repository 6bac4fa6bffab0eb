//! The hub's errors: a server's wrong configuration, and a call that a restart cut.

use crate::harness::servers;
use crate::mcp::{Client, status};
use crate::mcp_children::with_servers;
use crate::trials;
use serde_json::{Value, json};

trials![
    a_wrong_field_refuses_one_server_and_is_reported,
    a_call_that_a_restart_cut_is_reported_as_lost,
];

fn a_wrong_field_refuses_one_server_and_is_reported() {
    let home = servers();
    let echo = Client::new("/servers/echo/mcp");
    let pid = echo.ask("test/pid", &json!({}));
    let wrong = json!({"command": "python3", "args": "/repo/echo.py"});
    let right = json!({"command": "python3", "args": ["/repo/echo.py"]});
    with_servers(&[("wrong", wrong), ("right", right)], || {
        let listed = home.ok(["mcp", "list"]);
        let row = listed.stdout.lines().find(|line| line.starts_with("wrong"));
        let row = row.unwrap_or_else(|| panic!("{listed:?}"));
        assert!(row.contains("refused") && row.contains("`args`"), "{row}");
        assert!(listed.stderr.contains("`wrong` in `"), "{listed:?}");
        let call = home.run(["mcp", "call", "wrong", "x"]);
        assert_eq!(call.code, 2, "{call:?}");
        assert!(call.stderr.contains("`wrong` is refused"), "{call:?}");
        let right = Client::new("/servers/right/mcp");
        assert_eq!(right.ask("test/x", &json!({"a": 1})), json!({"a": 1}));
        assert_eq!(status(&right.api, "wrong")["state"], "refused");
    });
    assert_eq!(echo.ask("test/pid", &json!({})), pid);
}

fn a_call_that_a_restart_cut_is_reported_as_lost() {
    let home = servers();
    let client = Client::with("/mcp?servers=echo", &json!({"sampling": {}}));
    let body =
        r#"{"jsonrpc":"2.0","id":1.0,"method":"tools/call","params":{"name":"echo__ask","n":1}}"#;
    let connection = client.api.connect();
    let mut events = connection.open("POST", &client.path, &client.headers(), body);
    let (last, asked) = events.sse().unwrap();
    assert!(asked.contains("sampling/createMessage"), "{asked}");
    drop(events);
    home.ok(["restart"]);
    let mut headers = client.headers();
    headers.push(("Last-Event-ID", &last));
    let mut connection = servers().hub().connect();
    let told = connection.send("GET", &client.path, &headers, b"");
    assert_eq!(told.status, 200, "{told:?}");
    // The stream has this event, and no other.
    let told = String::from_utf8(told.body).unwrap();
    let mut told = told.lines().filter_map(|line| line.strip_prefix("data: "));
    let (told, more) = (told.next().unwrap(), told.next());
    assert_eq!(more, None);
    assert!(
        told.starts_with(r#"{"jsonrpc":"2.0","id":1.0,"error":"#),
        "{told}"
    );
    let told: Value = serde_json::from_str(told).unwrap();
    assert_eq!(told["error"]["data"]["type"], "lost", "{told}");
}
