//! The transports between clients and the hub.

use crate::harness::{TEST_TIMEOUT, servers};
use crate::mcp::{ACCEPT_JSON_OR_SSE, Client, JSON, hello};
use crate::mcp_children::{ODD, large};
use crate::trials;
use serde_json::{Value, json};
use std::time::Instant;

trials![
    streamable_http_follows_its_specification,
    a_lost_stream_continues_after_its_last_event,
    clients_of_the_revision_without_sessions_use_older_servers,
    the_older_transport_reaches_the_same_servers,
];

fn streamable_http_follows_its_specification() {
    let client = Client::new("/servers/echo/mcp");
    let answer = client.post(r#"{"jsonrpc":"2.0","id":"a","method":"test/x","params":{"n":1}}"#);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(
        answer.json(),
        json!({"jsonrpc": "2.0", "id": "a", "result": {"n": 1}})
    );
    // The hub agrees to an older version that a client requests.
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut fresh = client.clone();
        fresh.session.clear();
        let agreed = fresh.post(&hello(version, &json!({}))).json();
        assert_eq!(agreed["result"]["protocolVersion"], version);
    }
    let unknown = hello("2099-01-01", &json!({}));
    let mut fresh = client.clone();
    fresh.session.clear();
    let agreed = fresh.post(&unknown).json();
    assert_eq!(agreed["result"]["protocolVersion"], "2025-11-25");
    let send = |method: &str, headers: &[(&str, &str)], body: &str| {
        let mut connection = client.api.connect();
        connection
            .send(method, &client.path, headers, body.as_bytes())
            .status
    };
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let of = |session: &'static str| ("Mcp-Session-Id", session);
    assert_eq!(send("POST", &[JSON, ACCEPT_JSON_OR_SSE], ping), 400);
    assert_eq!(
        send("POST", &[JSON, ACCEPT_JSON_OR_SSE, of("0123")], ping),
        404
    );
    assert_eq!(
        send(
            "POST",
            &[("Content-Type", "text/plain"), ACCEPT_JSON_OR_SSE],
            ping
        ),
        415
    );
    assert_eq!(send("POST", &[JSON, ("Accept", "text/html")], ping), 406);
    let mut headers = client.headers();
    headers.push(("MCP-Protocol-Version", "1999-01-01"));
    assert_eq!(send("POST", &headers, ping), 400);
    for bad in ["{", "[]", "1", r#"{"jsonrpc":"2.0","id":1}"#] {
        assert_eq!(client.post(bad).status, 400, "{bad}");
    }
    assert_eq!(send("PUT", &client.headers(), ping), 405);
    assert_eq!(
        send("GET", &[("Accept", "application/json"), of("0123")], ""),
        406
    );
    assert_eq!(send("GET", &[("Accept", "text/event-stream")], ""), 400);
    // A session belongs to one server.
    let mut other = client.clone();
    other.path = "/servers/echo-own/mcp".into();
    assert_eq!(other.post(ping).status, 404);
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"test/x","params":{}},{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":2,"method":"test/x","params":{}}]"#;
    let json_only = [
        JSON,
        ("Accept", "application/json"),
        ("Mcp-Session-Id", client.session.as_str()),
    ];
    let answers = client
        .api
        .connect()
        .send("POST", &client.path, &json_only, batch.as_bytes());
    assert_eq!(answers.json().as_array().unwrap().len(), 2);
    assert_eq!(send("DELETE", &client.headers(), ""), 200);
    assert_eq!(client.post(ping).status, 404);
    assert_eq!(send("DELETE", &client.headers(), ""), 404);
}

fn a_lost_stream_continues_after_its_last_event() {
    let client = Client::new("/servers/echo/mcp");
    let body = r#"{"jsonrpc":"2.0","id":"p","method":"test/progress","params":{"_meta":{"progressToken":"t"},"steps":5,"pause":0.05}}"#;
    let connection = client.api.connect();
    let mut events = connection.open("POST", &client.path, &client.headers(), body);
    let (first, data) = events.sse().unwrap();
    assert!(
        data.contains(r#""params":{"progressToken":"t","progress":0.0,"x":[ ]}"#),
        "{data}"
    );
    drop(events);
    let mut headers = client.headers();
    headers.push(("Last-Event-ID", &first));
    let mut events = client.api.connect().open("GET", &client.path, &headers, "");
    for step in 1..5 {
        let (_, data) = events.sse().unwrap();
        assert!(data.contains(&format!(r#""progress":{step}.0"#)), "{data}");
    }
    let (last, data) = events.sse().unwrap();
    assert!(
        data.starts_with(r#"{"jsonrpc":"2.0","id":"p","result":"#),
        "{data}"
    );
    assert_eq!(events.sse(), None);
    // The hub reports a finished stream with 204: an ended stream would look like a lost connection.
    let behind = |event: &str| {
        let mut headers = client.headers();
        headers.push(("Last-Event-ID", event));
        let connection = client.api.connect();
        connection.try_open("GET", &client.path, &headers, "")
    };
    for over in [&*last, "1.1", "nothing"] {
        assert_eq!(behind(over).0, 204, "{over}");
    }
    // The stream of messages that belong to no call continues, also after an event that the hub no longer has.
    let (status, mut general) = behind("g1.7");
    assert_eq!(status, 200);
    client.ask("resources/subscribe", &json!({"uri": "echo:a"}));
    client.ask("test/touch", &json!({}));
    let (event, data) = general.sse().unwrap();
    assert!(event.starts_with('g') && data.contains("echo:a"), "{data}");
}

fn clients_of_the_revision_without_sessions_use_older_servers() {
    let api = servers().hub();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let send = |method: &str, mut params: Value, more: &[(&str, &str)]| {
        params["_meta"] = meta.clone();
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let mut headers = vec![
            JSON,
            ACCEPT_JSON_OR_SSE,
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", method),
        ];
        headers.extend(more);
        let mut connection = api.connect();
        connection.send(
            "POST",
            "/servers/echo/mcp",
            &headers,
            body.to_string().as_bytes(),
        )
    };
    let found = send("server/discover", json!({}), &[]).json();
    assert_eq!(found["result"]["supportedVersions"][0], "2026-07-28");
    assert_eq!(found["result"]["instructions"], "It echoes.");
    let listed = send("tools/list", json!({}), &[]);
    assert!(!listed.headers.contains_key("mcp-session-id"));
    let listed = listed.json();
    assert_eq!(listed["result"]["resultType"], "complete");
    assert_eq!(listed["result"]["ttlMs"], 0);
    let called = send(
        "tools/call",
        json!({"name": "echo"}),
        &[("Mcp-Name", "echo")],
    )
    .json();
    assert_eq!(called["result"]["name"], "echo");
    let missing = send("tools/call", json!({"name": "echo"}), &[]);
    assert_eq!(
        (missing.status, missing.json()["error"]["code"].clone()),
        (400, json!(-32020))
    );
    let gone = send("initialize", json!({}), &[]);
    assert_eq!(
        (gone.status, gone.json()["error"]["code"].clone()),
        (404, json!(-32601))
    );
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"1900-01-01"}}}"#;
    let headers = [
        JSON,
        ACCEPT_JSON_OR_SSE,
        ("MCP-Protocol-Version", "1900-01-01"),
        ("Mcp-Method", "tools/list"),
    ];
    let other = api
        .connect()
        .send("POST", "/mcp", &headers, body.as_bytes());
    assert_eq!(
        (other.status, other.json()["error"]["code"].clone()),
        (400, json!(-32022))
    );
    assert_eq!(other.json()["error"]["data"]["supported"][0], "2026-07-28");
    // A listener gets what it subscribed to, with the id of its request.
    let params = json!({"_meta": meta, "notifications": {"resourceSubscriptions": ["echo:a"]}});
    let body =
        json!({"jsonrpc": "2.0", "id": "s", "method": "subscriptions/listen", "params": params});
    let headers = [
        JSON,
        ACCEPT_JSON_OR_SSE,
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "subscriptions/listen"),
    ];
    let mut events = api
        .connect()
        .open("POST", "/servers/echo/mcp", &headers, &body.to_string());
    let (_, first) = events.sse().unwrap();
    assert!(
        first.contains("notifications/subscriptions/acknowledged"),
        "{first}"
    );
    send("test/touch", json!({}), &[]);
    let (_, updated) = events.sse().unwrap();
    let updated: Value = serde_json::from_str(&updated).unwrap();
    assert_eq!(updated["params"]["uri"], "echo:a");
    assert_eq!(
        updated["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"],
        "s"
    );
}

fn the_older_transport_reaches_the_same_servers() {
    let api = servers().hub();
    let mut events = api.connect().open(
        "GET",
        "/servers/echo/sse",
        &[("Accept", "text/event-stream")],
        "",
    );
    let (_, path) = events.sse().unwrap();
    assert!(
        path.starts_with("/servers/echo/messages?session_id="),
        "{path}"
    );
    let post = |body: &str| {
        let mut connection = api.connect();
        connection
            .send("POST", &path, &[JSON], body.as_bytes())
            .status
    };
    assert_eq!(post(&hello("2024-11-05", &json!({}))), 202);
    let (_, data) = events.sse().unwrap();
    assert!(
        data.contains(r#""protocolVersion": "2024-11-05""#),
        "{data}"
    );
    assert_eq!(
        post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
        202
    );
    // The hub forwards the messages unchanged, however unusual or large.
    let large = large();
    let odd = ODD.iter().copied();
    for (id, params) in odd.chain([("9007199254740993", r#"{"n":1.0}"#), ("1.50", &large)]) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"test/x","params":{params}}}"#);
        assert_eq!(post(&body), 202, "{id}");
        let (_, data) = events.sse().unwrap();
        let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{params}}}"#);
        assert!(data == expected, "{id}: {data:.300}");
    }
    drop(events);
    // The session ends with the connection.
    let begin = Instant::now();
    while post(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#) != 404 {
        assert!(begin.elapsed() < TEST_TIMEOUT, "the session did not end");
    }
}
