//! Notifications of servers and clients: each reaches its addressee unchanged.

use crate::mcp::Client;
use crate::trials;
use serde_json::{Value, json};

trials![
    a_client_with_changed_roots_is_asked_for_them,
    a_shared_server_does_not_get_one_clients_roots,
    a_log_message_of_a_shared_server_reaches_the_client_of_the_call,
];

const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{"_meta":{"x":1.0, "u":[ ]}}}"#;

/// A request of the tests' echo server, or a tool call where all servers are together.
fn request(path: &str, server: &str, name: &str) -> (Value, &'static str) {
    match path.contains('?') {
        true => (json!({"name": format!("{server}__{name}")}), "tools/call"),
        false => match name {
            "roots" => (json!({}), "test/roots"),
            _ => (json!({}), "test/heard"),
        },
    }
}

/// The raw answer to a request.
fn answer(client: &Client, server: &str, name: &str) -> String {
    let (params, method) = request(&client.path, server, name);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    String::from_utf8(client.post(&body.to_string()).body).unwrap()
}

fn a_client_with_changed_roots_is_asked_for_them() {
    let can = json!({"roots": {"listChanged": true}});
    for path in ["/servers/echo-own/mcp", "/mcp?servers=echo-own,filesystem"] {
        let client = Client::with(path, &can);
        let mut told = client.listen();
        // A server asks for the roots when it starts.
        answer(&client, "echo-own", "heard");
        for (number, root) in ["file:///a", "file:///b"].into_iter().enumerate() {
            assert_eq!(client.post(CHANGED).status, 202);
            let (_, asked) = told.sse().unwrap();
            let asked: Value = serde_json::from_str(&asked).unwrap();
            assert_eq!(asked["method"], "roots/list", "{asked}");
            let roots = format!(r#"{{"roots":[{{"uri":"{root}", "n":1.0}}]}}"#);
            let id = &asked["id"];
            let said = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{roots}}}"#);
            assert_eq!(client.post(&said).status, 202);
            let known = answer(&client, "echo-own", "roots");
            assert!(
                known.ends_with(&format!(r#""result":{roots}}}"#)),
                "{known}"
            );
            let heard = answer(&client, "echo-own", "heard");
            assert_eq!(heard.matches(CHANGED).count(), number + 1, "{heard}");
        }
    }
}

fn a_shared_server_does_not_get_one_clients_roots() {
    let can = json!({"roots": {"listChanged": true}});
    let client = Client::with("/servers/echo/mcp", &can);
    let other = r#"{"jsonrpc":"2.0","method":"notifications/test/x","params":{"n":1.0}}"#;
    answer(&client, "echo", "heard");
    for notice in [CHANGED, other] {
        assert_eq!(client.post(notice).status, 202);
    }
    let heard = answer(&client, "echo", "heard");
    assert!(
        heard.contains(other) && !heard.contains("roots/list_changed"),
        "{heard}"
    );
}

fn a_log_message_of_a_shared_server_reaches_the_client_of_the_call() {
    let params =
        r#"{"level":"info","logger":"l","data":{"n":1.0, "u":[ ],"big":9007199254740993}}"#;
    let log = format!(r#"{{"jsonrpc":"2.0","id":"l","method":"test/log","params":{params}}}"#);
    let expected =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{params}}}"#);
    let result = format!(r#"{{"jsonrpc":"2.0","id":"l","result":{params}}}"#);
    let (client, other) = (
        Client::new("/servers/echo/mcp"),
        Client::new("/servers/echo/mcp"),
    );
    let mut told = other.listen();
    other.ask("resources/subscribe", &json!({"uri": "echo:a"}));
    let open = |client: &Client, body: &str| {
        let connection = client.api.connect();
        connection.open("POST", &client.path, &client.headers(), body)
    };
    let mut events = open(&client, &log);
    assert_eq!(events.sse().unwrap().1, expected);
    assert_eq!(events.sse().unwrap().1, result);
    // The other client does not get the log message, only the later notification.
    client.ask("test/touch", &json!({}));
    let (_, first) = told.sse().unwrap();
    assert!(first.contains("resources/updated"), "{first}");
    // While both clients have open calls, the message may belong to either, and the hub drops it.
    let body = r#"{"jsonrpc":"2.0","id":"p","method":"test/progress","params":{"_meta":{"progressToken":"t"},"steps":1000,"pause":0.02}}"#;
    let mut progress = open(&other, body);
    assert!(progress.sse().unwrap().1.contains("notifications/progress"));
    assert_eq!(String::from_utf8(client.post(&log).body).unwrap(), result);
    for _ in 0..5 {
        let (_, data) = progress.sse().unwrap();
        assert!(data.contains("notifications/progress"), "{data}");
    }
    let cancel =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"p"}}"#;
    assert_eq!(other.post(cancel).status, 202);
    while let Some((_, data)) = progress.sse() {
        assert!(data.contains("notifications/progress"), "{data}");
    }
    // All servers together forward the message, too.
    let all = Client::new("/mcp?servers=echo");
    let params = r#"{"name":"echo__log","arguments":{"level":"info","data":1.0}}"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    let (_, data) = open(&all, &body).sse().unwrap();
    let params = params.replace("echo__log", "log");
    let expected =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{params}}}"#);
    assert_eq!(data, expected);
}
