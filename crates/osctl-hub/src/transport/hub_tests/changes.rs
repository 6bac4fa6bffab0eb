//! Tests of open calls and listeners when the configured servers change.

use super::{
    HUB_TEST_TIMEOUT, HubFixture, TEST_ACCEPT_BOTH, TestEventStream, TestMcpClient, hub_routes,
    parse_json, response_text, send_test_request, test_config, test_server_config, tool_call_body,
};
use crate::config::McpConfig;
use crate::message::RpcMessage;
use axum::body::Bytes;
use osctl_protocol::mcp::ServerState;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn open_calls_are_answered_when_their_server_changes_and_the_others_are_left_alone() {
    for path in ["/servers/a/mcp", "/mcp"] {
        let fixture = HubFixture::new();
        let client = fixture.session_client(path).await;
        let tool = |name: &str| match path {
            "/mcp" => format!("a__{name}"),
            _ => name.into(),
        };
        if path == "/mcp" {
            client
                .post_for_text(&tool_call_body("1", "b__echo", ""))
                .await;
        }
        let mut events = client.call_for_events("7", &tool("wait"), "").await;
        let (last, _) = events.next_event().await.unwrap();
        let open = fixture.servers.wait_for_message("a", "wait", 1).await;
        fixture.hub.apply_config(test_config([
            test_server_config("a", true, 601),
            test_server_config("b", false, 600),
            test_server_config("c", true, 600),
        ]));
        // A new call is sent to the new server, in the same session.
        let answer = client
            .post_for_text(&tool_call_body("8", &tool("echo"), ""))
            .await;
        assert_eq!(
            answer,
            r#"{"jsonrpc":"2.0","id":8,"result":{"name":"echo"}}"#
        );
        assert_eq!(fixture.servers.start_count("a"), 2);
        // The open call remains with the old server, even if its connection is lost.
        drop(events);
        let mut events = TestEventStream::new(client.resume_after(&last).await);
        fixture.servers.answer_call("a", 0, &open, r#"{"n":1.0}"#);
        let end = events.next_data().await.unwrap();
        assert_eq!(end, r#"{"jsonrpc":"2.0","id":7,"result":{"n":1.0}}"#);
        if path == "/mcp" {
            client
                .post_for_text(&tool_call_body("9", "b__echo", ""))
                .await;
            assert_eq!(fixture.servers.start_count("b"), 1);
            assert_eq!(
                fixture
                    .servers
                    .received_messages("b", "\"initialize\"")
                    .len(),
                1
            );
            client
                .post_for_text(&tool_call_body("10", "c__echo", ""))
                .await;
            assert_eq!(fixture.servers.start_count("c"), 1);
        }
    }
}

#[tokio::test]
async fn replacement_server_is_subscribed() {
    for (path, uri) in [("/servers/b/mcp", "b:listed"), ("/mcp", "b:listed")] {
        let fixture = HubFixture::new();
        let client = fixture.session_client(path).await;
        for method in ["resources/subscribe", "logging/setLevel"] {
            let params = format!(r#"{{"uri":"{uri}","level":"info"}}"#);
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
            assert!(parse_json(&client.post_for_text(&body).await)["result"].is_object());
        }
        let mut general = TestEventStream::new(client.resume_after("").await);
        fixture.hub.apply_config(test_config([
            test_server_config("a", true, 600),
            test_server_config("b", false, 601),
        ]));
        fixture
            .servers
            .wait_for_message("b", "resources/subscribe", 2)
            .await;
        fixture
            .servers
            .wait_for_message("b", "logging/setLevel", 2)
            .await;
        while !general
            .next_data()
            .await
            .unwrap()
            .contains("resources/list_changed")
        {}
        let received = async || {
            client
                .post_for_text(&tool_call_body("1", "b__echo", ""))
                .await;
            fixture
                .servers
                .received_messages("b", "resources/subscribe")
                .len()
        };
        let before = received().await;
        // The session stays and receives no notification.
        fixture
            .hub
            .apply_config(test_config([test_server_config("b", false, 601)]));
        assert_eq!(received().await, before, "{path}");
    }
}

#[tokio::test]
async fn removed_server_answers_open_calls() {
    for (path, tool) in [
        ("/servers/b/mcp", "ask"),
        ("/mcp", "b__ask"),
        ("/mcp", "a__ask"),
    ] {
        let fixture = HubFixture::new();
        let client = fixture.session_client(path).await;
        let (mut events, request) = call_asking_tool(&client, tool).await;
        let name = if tool == "a__ask" { "a" } else { "b" };
        let rest = if name == "a" { "b" } else { "a" };
        fixture
            .hub
            .apply_config(test_config([test_server_config(rest, rest == "a", 600)]));
        let words = match path {
            // The session and the client that was asked stay.
            "/mcp" => {
                client.post_for_text(&client_answer(&request)).await;
                "it was asked"
            }
            // The server need not wait for an answer that can't arrive.
            _ => "the client of this request has disconnected",
        };
        let received = fixture.servers.wait_for_message(name, words, 1).await;
        assert_eq!(received.id(), Some("1.0"));
        let end = events.next_data().await.unwrap();
        assert!(
            end.starts_with(r#"{"jsonrpc":"2.0","id":7,"result":"#),
            "{end}"
        );
        let answer = client.post_for_text(&tool_call_body("8", tool, "")).await;
        let error = parse_json(&answer)["error"].clone();
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .starts_with("there is no"),
            "{answer}"
        );
    }
}

/// Calls a tool whose server sends a request to the client; returns the stream and the request.
async fn call_asking_tool(client: &TestMcpClient, tool: &str) -> (TestEventStream, String) {
    let mut events = client
        .call_for_events("7", tool, r#","arguments":{"id":1.0}"#)
        .await;
    let request = events.next_data().await.unwrap();
    assert!(request.contains("sampling/createMessage"), "{request}");
    (events, request)
}

/// The client's answer to that request.
fn client_answer(request: &str) -> String {
    let request = RpcMessage::parse(Bytes::copy_from_slice(request.as_bytes())).unwrap();
    let id = request.id().unwrap();
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"said":"it was asked"}}}}"#)
}

#[tokio::test]
async fn open_call_survives_a_server_change() {
    for (path, name) in [
        ("/servers/a/mcp", "a"),
        ("/servers/b/mcp", "b"),
        ("/mcp", "b"),
    ] {
        let fixture = HubFixture::new();
        let client = fixture.session_client(path).await;
        let tool = |tool: &str| match path {
            "/mcp" => format!("{name}__{tool}"),
            _ => tool.into(),
        };
        // Only a server with a child for each client can send requests to its client.
        let mut open = match name {
            "b" => Some(call_asking_tool(&client, &tool("ask")).await),
            _ => None,
        };
        let mut waiting = client.call_for_events("8", &tool("wait"), "").await;
        let call = fixture.servers.wait_for_message(name, "\"wait\"", 1).await;
        let before = fixture.hub.find_server(name).unwrap();
        fixture.hub.apply_config(test_config([
            test_server_config("a", true, 601),
            test_server_config("b", false, 601),
        ]));
        if let Some((events, request)) = &mut open {
            client.post_for_text(&client_answer(request)).await;
            let received = fixture
                .servers
                .wait_for_message(name, "it was asked", 1)
                .await;
            assert_eq!(received.id(), Some("1.0"));
            assert!(events.next_data().await.unwrap().contains("it was asked"));
        }
        let params = r#"{"requestId":8}"#;
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":"#;
        client.post_for_text(&format!("{cancel}{params}}}")).await;
        let received = fixture
            .servers
            .wait_for_message(name, "notifications/cancelled", 1)
            .await;
        assert_eq!(received.raw_param(&["requestId"]), call.id());
        while let Some(data) = waiting.next_data().await {
            assert!(!data.contains("\"id\":8"), "{data}");
        }
        // No call is open any more, so the previous server ends.
        let begin = Instant::now();
        while !before.has_ended() {
            assert!(begin.elapsed() < HUB_TEST_TIMEOUT, "{path}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn removal_answers_calls_in_backoff() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/servers/a/mcp").await;
    fixture.servers.fail_next_starts(1);
    for tool in ["die", "echo"] {
        let answer = client.post_for_text(&tool_call_body("1", tool, "")).await;
        assert!(
            answer.contains("failed: the built-in server ended"),
            "{answer}"
        );
        let server = fixture.hub.status().servers.swap_remove(0);
        let is_named = server.detail.starts_with("the built-in server ended");
        assert!(is_named, "{server:?}");
        let failed = [ServerState::Failed, ServerState::BackingOff];
        assert!(failed.contains(&server.state), "{server:?}");
    }
    let mut events = client.call_for_events("2", "echo", "").await;
    fixture
        .hub
        .apply_config(test_config([test_server_config("b", false, 600)]));
    assert_eq!(
        events.next_data().await.unwrap(),
        r#"{"jsonrpc":"2.0","id":2,"result":{"name":"echo"}}"#
    );
}

#[tokio::test]
async fn a_listener_without_a_session_receives_a_change_before_it_ends() {
    let fixture = HubFixture::new();
    let app = hub_routes(fixture.hub.clone());
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{{{meta},"notifications":{{"toolsListChanged":true}}}}}}"#
    );
    let headers = [
        ("accept", TEST_ACCEPT_BOTH),
        ("content-type", "application/json"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "subscriptions/listen"),
    ];
    let listen = async || {
        TestEventStream::new(send_test_request(&app, "POST", "/mcp", &headers, body.clone()).await)
    };
    let mut events = listen().await;
    assert!(events.next_data().await.unwrap().contains("acknowledged"));
    let clients = fixture.hub.status().clients;
    let listed = clients
        .iter()
        .map(|client| (&*client.name, &*client.revision));
    assert_eq!(listed.collect::<Vec<_>>(), [("unknown", "2026-07-28")]);
    fixture.hub.apply_config(test_config([
        test_server_config("a", true, 600),
        test_server_config("b", false, 600),
        test_server_config("c", true, 600),
    ]));
    let changed = events.next_data().await.unwrap();
    assert!(
        changed.contains("tools/list_changed") && changed.contains("\"l\""),
        "{changed}"
    );
    assert_eq!(events.next_data().await, None);
}

#[tokio::test]
async fn legacy_sse_delivers_pending_first() {
    let fixture = HubFixture::new();
    let app = hub_routes(fixture.hub.clone());
    let open = async |path: &str| {
        let mut events = TestEventStream::new(
            send_test_request(&app, "GET", path, &[("accept", "text/event-stream")], "").await,
        );
        let messages = events.next_data().await.unwrap();
        let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}"#;
        send_test_request(&app, "POST", &messages, &[], initialize).await;
        assert!(
            events
                .next_data()
                .await
                .unwrap()
                .contains("protocolVersion")
        );
        (events, messages)
    };
    let (mut one, to_one) = open("/servers/a/sse").await;
    let (mut all, to_all) = open("/sse").await;
    let (mut other, to_other) = open("/servers/b/sse").await;
    assert_eq!(
        send_test_request(
            &app,
            "POST",
            &to_one,
            &[],
            tool_call_body("1.0", "wait", "")
        )
        .await
        .status(),
        202
    );
    let first = fixture.servers.wait_for_message("a", "wait", 1).await;
    assert_eq!(
        send_test_request(
            &app,
            "POST",
            &to_all,
            &[],
            tool_call_body("1.0", "a__wait", "")
        )
        .await
        .status(),
        202
    );
    let second = fixture.servers.wait_for_message("a", "wait", 2).await;
    fixture
        .hub
        .apply_config(test_config([test_server_config("b", false, 600)]));
    for (call, events) in [(&first, &mut one), (&second, &mut all)] {
        fixture.servers.answer_call("a", 0, call, "{}");
        let answer = loop {
            let next = events.next_data().await.unwrap();
            if !next.contains("list_changed") {
                break next;
            }
        };
        assert_eq!(answer, r#"{"jsonrpc":"2.0","id":1.0,"result":{}}"#);
    }
    assert_eq!(one.next_data().await, None);
    assert_eq!(
        send_test_request(&app, "POST", &to_one, &[], tool_call_body("2", "echo", ""))
            .await
            .status(),
        404
    );
    // Connections to another server or to all servers stay.
    for (to, tool, events) in [
        (&to_all, "b__echo", &mut all),
        (&to_other, "echo", &mut other),
    ] {
        assert_eq!(
            send_test_request(&app, "POST", to, &[], tool_call_body("2", tool, ""))
                .await
                .status(),
            202
        );
        assert!(
            events
                .next_data()
                .await
                .unwrap()
                .starts_with(r#"{"jsonrpc":"2.0","id":2,"result""#)
        );
    }
}

#[tokio::test]
async fn invalid_server_reports_its_error() {
    let fixture = HubFixture::empty();
    let invalid_servers = BTreeMap::from([(
        "bad".to_owned(),
        "`args` must be a list of strings".to_owned(),
    )]);
    let servers = test_config([test_server_config("a", true, 600)]).servers;
    fixture.hub.apply_config(McpConfig {
        servers,
        invalid_servers,
        ..McpConfig::default()
    });
    let status = fixture.hub.status();
    let states: Vec<_> = status
        .servers
        .iter()
        .map(|s| (&*s.name, s.state.as_str(), &*s.detail))
        .collect();
    let expected = ("bad", "refused", "`args` must be a list of strings");
    assert_eq!(states, [("a", "running", "running"), expected]);
    assert_eq!(
        fixture.hub.probe_server("bad").await.unwrap_err(),
        "its configuration is refused: `args` must be a list of strings"
    );
    let app = hub_routes(fixture.hub.clone());
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    let headers = [
        ("accept", TEST_ACCEPT_BOTH),
        ("content-type", "application/json"),
    ];
    let answer = response_text(
        send_test_request(&app, "POST", "/servers/bad/mcp", &headers, initialize).await,
    )
    .await;
    assert!(
        answer.contains("the server `bad` is refused: `args`"),
        "{answer}"
    );
    let client = fixture.session_client("/mcp").await;
    assert!(
        client
            .post_for_text(&tool_call_body("1", "a__echo", ""))
            .await
            .contains("result")
    );
}
