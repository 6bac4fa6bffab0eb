//! Tests that messages pass through the merged endpoint unchanged, and that refusals are JSON.

use super::{
    HubFixture, TEST_ACCEPT_BOTH, TestEventStream, parse_json, response_text, send_test_request,
    tool_call_body,
};
use crate::message::RpcMessage;
use crate::message::tests::PARSE_COUNT;
use serde_json::{Value, json};

/// Ids and arguments in the form that servers and clients of several languages write, and more unusual ones.
const UNUSUAL_IDS_AND_ARGUMENTS: [(&str, &str); 8] = [
    ("1", r#"{"n":1.0}"#),
    ("1.0", r#"{"n":1e400,"m":-0.0,"k":1E+2}"#),
    ("-0", r#"{"big":123456789012345678901234567890}"#),
    ("12345678901234567890", r#"{"a":{"a":[[[]]]},"a":2}"#),
    ("null", r#"{"unknown":{"x-y":null}}"#),
    (
        r#""\u0041\ud83d\ude00""#,
        r#"{"t":"\u0000\u2028 é 😀 \/","": ""}"#,
    ),
    (r#""""#, r#"{ "spaces" : [ 1 , 2 ]  , "tab":	1 }"#),
    (r#""osctl-1""#, r#"{"name":"b__echo","id":7}"#),
];

#[tokio::test]
async fn a_call_and_its_answer_are_parsed_once() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/mcp").await;
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let modern = format!(r#","arguments":{{"uri":"x:linked"}},"_meta":{meta}"#);
    let arguments = r#","arguments":{"uri":"x:linked"}"#;
    for server in ["a", "b"] {
        for params in [arguments, &modern] {
            let name = format!("{server}__link");
            let call = tool_call_body("1", &name, params);
            let headers = [
                ("accept", TEST_ACCEPT_BOTH),
                ("content-type", "application/json"),
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/call"),
                ("mcp-name", &name),
            ];
            let send = async || match params == arguments {
                true => client.post_for_text(&call).await,
                false => {
                    let sent =
                        send_test_request(&client.routes, "POST", "/mcp", &headers, call.clone());
                    response_text(sent.await).await
                }
            };
            // The first call starts the server; the second one is answered after the lists that the hub requests.
            send().await;
            send().await;
            let before = PARSE_COUNT.get();
            assert!(send().await.contains("x:linked"));
            // The test server parses the call, too.
            assert_eq!(PARSE_COUNT.get() - before, 3, "{call}");
        }
    }
}

#[tokio::test]
async fn merged_servers_preserve_bytes() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/mcp").await;
    let large = format!(r#"{{"x":"{}","n":1.0}}"#, "é\\n0123456789".repeat(400_000));
    assert!(large.len() > 5_000_000);
    for server in ["a", "b"] {
        for (id, arguments) in UNUSUAL_IDS_AND_ARGUMENTS
            .into_iter()
            .chain([("1.50", &*large)])
        {
            let params = format!(r#", "arguments":{arguments},"unknown":[1.0]"#);
            let answer = client
                .post_for_text(&tool_call_body(id, &format!("{server}__echo"), &params))
                .await;
            let expected =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"name":"echo"{params}}}}}"#);
            assert!(answer == expected, "{id}: {:.300}", answer);
        }
    }
}

#[tokio::test]
async fn progress_comes_under_the_clients_own_token() {
    let fixture = HubFixture::new();
    for path in ["/mcp", "/servers/a/mcp", "/servers/b/mcp"] {
        let client = fixture.session_client(path).await;
        for token in ["1.0", r#""\u0041""#, "12345678901234567890", "7"] {
            for server in ["a", "b"] {
                let tool = match path {
                    "/mcp" => format!("{server}__progress"),
                    _ => "progress".into(),
                };
                let meta = format!(r#","_meta":{{"progressToken":{token}}}"#);
                let mut events = client.call_for_events("3", &tool, &meta).await;
                let expected = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1.0,"x":[ ]}}}}"#
                );
                assert_eq!(events.next_data().await.unwrap(), expected);
                let end = events.next_data().await.unwrap();
                assert_eq!(end, r#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
                assert_eq!(events.next_data().await, None);
            }
        }
    }
}

#[tokio::test]
async fn cancel_reaches_only_its_server() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/mcp").await;
    for (server, id) in [("a", "9007199254740993"), ("b", r#""\u0041""#)] {
        let tool = format!("{server}__wait");
        let mut events = client.call_for_events(id, &tool, "").await;
        let mut other = client.call_for_events("9007199254740992", &tool, "").await;
        let first = fixture.servers.wait_for_message(server, "wait", 1).await;
        let second = fixture.servers.wait_for_message(server, "wait", 2).await;
        let cancel = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"x":1.0}}}}"#
        );
        // From another client this id matches no call.
        let other_client = fixture.session_client("/mcp").await;
        assert_eq!(other_client.post(&cancel).await.status(), 202);
        assert_eq!(client.post(&cancel).await.status(), 202);
        assert_eq!(events.next_data().await, None);
        let received = fixture
            .servers
            .wait_for_message(server, "notifications/cancelled", 1)
            .await;
        assert_eq!(received.raw_param(&["requestId"]), first.id());
        assert!(received.params().unwrap().ends_with(r#","x":1.0}"#));
        fixture.servers.answer_call(server, 0, &second, "{}");
        let end = other.next_data().await.unwrap();
        assert_eq!(
            end,
            r#"{"jsonrpc":"2.0","id":9007199254740992,"result":{}}"#
        );
        assert_eq!(
            fixture
                .servers
                .received_messages(server, "notifications/cancelled")
                .len(),
            1
        );
    }
    let others = fixture.servers.received_messages("a", "cancelled").len()
        + fixture.servers.received_messages("b", "cancelled").len();
    assert_eq!(others, 2);
}

#[tokio::test]
async fn odd_ids_of_servers_come_back_in_their_own_bytes() {
    for path in ["/servers/a/mcp", "/servers/b/mcp", "/mcp"] {
        let fixture = HubFixture::new();
        let client = fixture.session_client(path).await;
        let (server, tool) = match path {
            "/servers/b/mcp" => ("b", "ask"),
            "/mcp" => ("b", "b__ask"),
            _ => ("a", "ask"),
        };
        let ids = [
            "null",
            "1.0",
            "-0",
            "1e3",
            "12345678901234567890",
            "0",
            r#""""#,
        ];
        for (count, id) in ids
            .into_iter()
            .chain([r#""\u0041""#, r#""osctl-0""#])
            .enumerate()
        {
            let mut events = client
                .call_for_events("5", tool, &format!(r#","arguments":{{"id":{id}}}"#))
                .await;
            let request = events.next_data().await.unwrap();
            assert!(
                request.ends_with(r#""params":{"n":1.0,"big":1e400}}"#),
                "{request}"
            );
            // The id after a client parsed and serialized it.
            let forwarded = RpcMessage::parse(request.into()).unwrap();
            let forwarded: Value = serde_json::from_str(forwarded.id().unwrap()).unwrap();
            let answer =
                |id: &Value| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"n":1.0}}}}"#);
            // Answers of another client or with another id are ignored.
            let other_client = fixture.session_client(path).await;
            assert_eq!(other_client.post(&answer(&forwarded)).await.status(), 202);
            assert_eq!(client.post(&answer(&json!("absent"))).await.status(), 202);
            assert_eq!(client.post(&answer(&Value::Null)).await.status(), 202);
            assert_eq!(client.post(&answer(&forwarded)).await.status(), 202);
            let received = fixture
                .servers
                .wait_for_message(server, r#""result":{"n":1.0}"#, count + 1)
                .await;
            assert_eq!(received.id(), Some(id), "{path}");
            let end = events.next_data().await.unwrap();
            assert!(
                end.starts_with(r#"{"jsonrpc":"2.0","id":5,"result":"#),
                "{end}"
            );
        }
    }
}

#[tokio::test]
async fn unexpected_answers_are_ignored() {
    let fixture = HubFixture::new();
    for server in ["a", "b"] {
        let client = fixture
            .session_client(&format!("/servers/{server}/mcp"))
            .await;
        let mut events = client.call_for_events("1", "wait", "").await;
        let open = fixture.servers.wait_for_message(server, "wait", 1).await;
        for odd in [
            r#"{"jsonrpc":"2.0","id":999,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"osctl-999","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}"#,
            r#"{"jsonrpc":"2.0","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":{},"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1.5e9999,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":null}}"#,
            "[]",
            "no message",
        ] {
            fixture.servers.send_message(server, 0, odd);
        }
        fixture
            .servers
            .answer_call(server, 0, &open, r#"{"n":1.0}"#);
        let end = events.next_data().await.unwrap();
        assert_eq!(end, r#"{"jsonrpc":"2.0","id":1,"result":{"n":1.0}}"#);
    }
}

/// The id and code of a JSON-RPC error, or the type of an API error.
fn error_kind(text: &str) -> String {
    let value = parse_json(text);
    let error = &value["error"];
    match value["jsonrpc"].as_str() {
        Some(_) => format!("{} {}", value["id"], error["code"]),
        None => {
            assert_eq!(value["status"], "failed", "{text}");
            assert!(error["message"].is_string(), "{text}");
            error["type"].as_str().unwrap().into()
        }
    }
}

#[tokio::test]
async fn refusals_are_json_and_have_the_requests_id_where_it_had_one() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/servers/a/mcp").await;
    let session = ("mcp-session-id", client.session.as_str());
    let (json, both) = (
        ("content-type", "application/json"),
        ("accept", TEST_ACCEPT_BOTH),
    );
    let other_client = ("mcp-session-id", "0123");
    let ping = r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#;
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
    let initialize = r#"{"jsonrpc":"2.0","id":"h","method":"initialize","params":{}}"#;
    let batched = format!("[{initialize}]");
    let modern = r#"{"jsonrpc":"2.0","id":2,"method":"ping","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    let version = ("mcp-protocol-version", "1999-01-01");
    let (a, absent) = ("/servers/a/mcp", "/servers/absent/mcp");
    for (method, path, headers, body, status, expected) in [
        (
            "POST",
            a,
            &[json, both, session][..],
            "{",
            400,
            "null -32700",
        ),
        ("POST", a, &[json, both, session], "", 400, "null -32700"),
        (
            "POST",
            a,
            &[json, both, session],
            "\u{0}",
            400,
            "null -32700",
        ),
        ("POST", a, &[json, both, session], "[]", 400, "no_message"),
        ("POST", a, &[json, both, session], "1", 400, "no_message"),
        ("POST", a, &[json, both, session], "[1]", 400, "no_message"),
        (
            "POST",
            a,
            &[json, both, session],
            r#"{"id":"x"}"#,
            400,
            "\"x\" -32600",
        ),
        (
            "POST",
            a,
            &[json, both, session],
            r#"{"id":3,"method":7}"#,
            400,
            "3 -32600",
        ),
        (
            "POST",
            a,
            &[json, both, session],
            r#"{"id":{},"method":7}"#,
            400,
            "no_message",
        ),
        ("POST", a, &[json, both], ping, 400, "1.5 -32600"),
        ("POST", a, &[json, both], notification, 400, "no_session"),
        ("POST", a, &[json, both], &batched, 400, "no_session"),
        (
            "POST",
            a,
            &[json, both, other_client],
            ping,
            404,
            "1.5 -32600",
        ),
        (
            "POST",
            a,
            &[json, both, other_client],
            notification,
            404,
            "unknown_session",
        ),
        (
            "POST",
            a,
            &[json, both, session, version],
            ping,
            400,
            "1.5 -32600",
        ),
        ("POST", a, &[json, both], modern, 400, "2 -32020"),
        (
            "POST",
            absent,
            &[json, both],
            initialize,
            404,
            "\"h\" -32602",
        ),
        (
            "POST",
            absent,
            &[json, both, session],
            notification,
            404,
            "unknown_server",
        ),
        (
            "POST",
            absent,
            &[json, both, other_client],
            ping,
            404,
            "1.5 -32602",
        ),
        (
            "POST",
            a,
            &[json, ("accept", "text/html")],
            ping,
            406,
            "1.5 -32600",
        ),
        (
            "POST",
            a,
            &[json, ("accept", "text/html")],
            notification,
            406,
            "not_acceptable",
        ),
        (
            "GET",
            a,
            &[("accept", "application/json"), session],
            "",
            406,
            "not_acceptable",
        ),
        (
            "GET",
            a,
            &[("accept", "text/event-stream")],
            "",
            400,
            "no_session",
        ),
        (
            "GET",
            a,
            &[("accept", "text/event-stream"), other_client],
            "",
            404,
            "unknown_session",
        ),
        ("DELETE", a, &[other_client], "", 404, "unknown_session"),
        (
            "POST",
            a,
            &[("content-type", "text/plain"), both],
            ping,
            415,
            "no_json",
        ),
        (
            "POST",
            a,
            &[("content-type", "application/jsonl"), both],
            ping,
            415,
            "no_json",
        ),
        ("PUT", a, &[json, both, session], ping, 405, "wrong_method"),
        ("GET", "/nowhere", &[], "", 404, "unknown_path"),
        (
            "POST",
            "/servers/%ff/mcp",
            &[json, both],
            initialize,
            404,
            "unknown_path",
        ),
        ("GET", "/servers/%ff/log", &[], "", 404, "unknown_path"),
        ("GET", "/servers/absent/log", &[], "", 404, "unknown_server"),
        (
            "GET",
            "/servers/a/log?tail=x",
            &[],
            "",
            400,
            "invalid_query",
        ),
        ("GET", "/servers/absent/sse", &[], "", 404, "unknown_server"),
        (
            "POST",
            "/messages?session_id=0",
            &[json],
            ping,
            404,
            "1.5 -32600",
        ),
        (
            "POST",
            "/messages?session_id=0",
            &[json],
            notification,
            404,
            "unknown_session",
        ),
        ("POST", "/messages", &[json], "{", 400, "null -32700"),
    ] {
        let case = format!("{method} {path} {headers:?} {body}");
        let response =
            send_test_request(&client.routes, method, path, headers, body.to_owned()).await;
        assert_eq!(response.status(), status, "{case}");
        assert_eq!(
            response.headers()["content-type"],
            "application/json",
            "{case}"
        );
        assert_eq!(
            error_kind(&response_text(response).await),
            expected,
            "{case}"
        );
    }
    let much = vec![b' '; (64 << 20) + 1];
    for path in [a, "/messages?session_id=0"] {
        let response = send_test_request(
            &client.routes,
            "POST",
            path,
            &[json, both, session],
            much.clone(),
        )
        .await;
        assert_eq!(response.status(), 413);
        assert_eq!(error_kind(&response_text(response).await), "too_large");
    }
    // The content type is compared without regard to case and parameters.
    let written = ("content-type", "Application/JSON ; charset=utf-8");
    let response =
        send_test_request(&client.routes, "POST", a, &[written, both, session], ping).await;
    assert_eq!(
        response_text(response).await,
        r#"{"jsonrpc":"2.0","id":1.5,"result":{}}"#
    );
}

#[tokio::test]
async fn a_batch_brings_all_of_its_answers() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/mcp").await;
    let (one, two) = (
        tool_call_body("1.0", "a__echo", ""),
        tool_call_body("null", "b__echo", ""),
    );
    let batch = format!(r#"[{one},{{"jsonrpc":"2.0","method":"notifications/x"}},{two}]"#);
    let response = client
        .send_request("POST", "application/json", "", &batch)
        .await;
    let answers = parse_json(&response_text(response).await);
    let mut ids: Vec<String> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["id"].to_string())
        .collect();
    ids.sort();
    assert_eq!(ids, ["1.0", "null"]);
    let mut events = TestEventStream::new(client.post(&batch).await);
    assert!(events.next_data().await.is_some() && events.next_data().await.is_some());
    assert_eq!(events.next_data().await, None);
}
