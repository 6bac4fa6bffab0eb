//! Tests of open calls and listeners when the configured servers change.

use super::{
    HUB_TEST_TIMEOUT, Scene, TEST_ACCEPT_BOTH, TestEventStream, TestMcpClient, ask, call, found,
    hub_routes, server, text, value,
};
use crate::companion::mcp::McpConfig;
use crate::companion::mcp::message::RpcMessage;
use axum::body::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn open_calls_are_answered_when_their_server_changes_and_the_others_are_left_alone() {
    for path in ["/servers/a/mcp", "/mcp"] {
        let scene = Scene::new();
        let client = scene.client(path).await;
        let tool = |name: &str| match path {
            "/mcp" => format!("a__{name}"),
            _ => name.into(),
        };
        if path == "/mcp" {
            client.answer(&call("1", "b__echo", "")).await;
        }
        let mut told = client.open("7", &tool("wait"), "").await;
        let (last, _) = told.event().await.unwrap();
        let open = scene.stage.hears("a", "wait", 1).await;
        scene.hub.apply_config(found([
            server("a", true, 601),
            server("b", false, 600),
            server("c", true, 600),
        ]));
        // A new call is sent to the new server, in the same session.
        let answer = client.answer(&call("8", &tool("echo"), "")).await;
        assert_eq!(
            answer,
            r#"{"jsonrpc":"2.0","id":8,"result":{"name":"echo"}}"#
        );
        assert_eq!(scene.stage.starts("a"), 2);
        // The open call remains with the old server, even if its connection is lost.
        drop(told);
        let mut told = TestEventStream::new(client.go_on(&last).await);
        scene.stage.answer("a", 0, &open, r#"{"n":1.0}"#);
        let end = told.next().await.unwrap();
        assert_eq!(end, r#"{"jsonrpc":"2.0","id":7,"result":{"n":1.0}}"#);
        if path == "/mcp" {
            client.answer(&call("9", "b__echo", "")).await;
            assert_eq!(scene.stage.starts("b"), 1);
            assert_eq!(scene.stage.heard("b", "\"initialize\"").len(), 1);
            client.answer(&call("10", "c__echo", "")).await;
            assert_eq!(scene.stage.starts("c"), 1);
        }
    }
}

#[tokio::test]
async fn what_a_client_listens_to_is_said_to_a_server_that_takes_anothers_place() {
    for (path, uri) in [("/servers/b/mcp", "b:listed"), ("/mcp", "b:listed")] {
        let scene = Scene::new();
        let client = scene.client(path).await;
        for method in ["resources/subscribe", "logging/setLevel"] {
            let params = format!(r#"{{"uri":"{uri}","level":"info"}}"#);
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
            assert!(value(&client.answer(&body).await)["result"].is_object());
        }
        let mut general = TestEventStream::new(client.go_on("").await);
        scene
            .hub
            .apply_config(found([server("a", true, 600), server("b", false, 601)]));
        scene.stage.hears("b", "resources/subscribe", 2).await;
        scene.stage.hears("b", "logging/setLevel", 2).await;
        while !general
            .next()
            .await
            .unwrap()
            .contains("resources/list_changed")
        {}
        let said = async || {
            client.answer(&call("1", "b__echo", "")).await;
            scene.stage.heard("b", "resources/subscribe").len()
        };
        let before = said().await;
        // The session stays and receives no notification.
        scene.hub.apply_config(found([server("b", false, 601)]));
        assert_eq!(said().await, before, "{path}");
    }
}

#[tokio::test]
async fn a_server_that_is_taken_away_answers_what_is_open_and_nothing_more() {
    for (path, tool) in [
        ("/servers/b/mcp", "ask"),
        ("/mcp", "b__ask"),
        ("/mcp", "a__ask"),
    ] {
        let scene = Scene::new();
        let client = scene.client(path).await;
        let (mut told, asked) = asked(&client, tool).await;
        let name = if tool == "a__ask" { "a" } else { "b" };
        let rest = if name == "a" { "b" } else { "a" };
        scene
            .hub
            .apply_config(found([server(rest, rest == "a", 600)]));
        let words = match path {
            // The session and the client that was asked stay.
            "/mcp" => {
                client.answer(&answer_to(&asked)).await;
                "it was asked"
            }
            // The server need not wait for an answer that can't arrive.
            _ => "the client of this request has disconnected",
        };
        let heard = scene.stage.hears(name, words, 1).await;
        assert_eq!(heard.id(), Some("1.0"));
        let end = told.next().await.unwrap();
        assert!(
            end.starts_with(r#"{"jsonrpc":"2.0","id":7,"result":"#),
            "{end}"
        );
        let answer = client.answer(&call("8", tool, "")).await;
        let error = value(&answer)["error"].clone();
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
async fn asked(client: &TestMcpClient, tool: &str) -> (TestEventStream, String) {
    let mut told = client.open("7", tool, r#","arguments":{"id":1.0}"#).await;
    let asked = told.next().await.unwrap();
    assert!(asked.contains("sampling/createMessage"), "{asked}");
    (told, asked)
}

/// The client's answer to that request.
fn answer_to(asked: &str) -> String {
    let asked = RpcMessage::parse(Bytes::copy_from_slice(asked.as_bytes())).unwrap();
    let id = asked.id().unwrap();
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"said":"it was asked"}}}}"#)
}

#[tokio::test]
async fn a_call_that_is_open_over_a_change_is_still_its_clients() {
    for (path, name) in [
        ("/servers/a/mcp", "a"),
        ("/servers/b/mcp", "b"),
        ("/mcp", "b"),
    ] {
        let scene = Scene::new();
        let client = scene.client(path).await;
        let tool = |tool: &str| match path {
            "/mcp" => format!("{name}__{tool}"),
            _ => tool.into(),
        };
        // Only a server with a child for each client can send requests to its client.
        let mut open = match name {
            "b" => Some(asked(&client, &tool("ask")).await),
            _ => None,
        };
        let mut waiting = client.open("8", &tool("wait"), "").await;
        let call = scene.stage.hears(name, "\"wait\"", 1).await;
        let before = scene.hub.find_server(name).unwrap();
        scene
            .hub
            .apply_config(found([server("a", true, 601), server("b", false, 601)]));
        if let Some((told, asked)) = &mut open {
            client.answer(&answer_to(asked)).await;
            let heard = scene.stage.hears(name, "it was asked", 1).await;
            assert_eq!(heard.id(), Some("1.0"));
            assert!(told.next().await.unwrap().contains("it was asked"));
        }
        let params = r#"{"requestId":8}"#;
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":"#;
        client.answer(&format!("{cancel}{params}}}")).await;
        let heard = scene.stage.hears(name, "notifications/cancelled", 1).await;
        assert_eq!(heard.raw_param(&["requestId"]), call.id());
        while let Some(told) = waiting.next().await {
            assert!(!told.contains("\"id\":8"), "{told}");
        }
        // No call is open any more, so the previous server ends.
        let begin = Instant::now();
        while !before.is_over() {
            assert!(begin.elapsed() < HUB_TEST_TIMEOUT, "{path}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn a_call_that_waits_for_a_server_at_rest_is_answered_though_it_is_taken_away() {
    let scene = Scene::new();
    let client = scene.client("/servers/a/mcp").await;
    scene.stage.break_next(1);
    for tool in ["die", "echo"] {
        let answer = client.answer(&call("1", tool, "")).await;
        assert!(
            answer.contains("failed: the built-in server ended"),
            "{answer}"
        );
    }
    let mut told = client.open("2", "echo", "").await;
    scene.hub.apply_config(found([server("b", false, 600)]));
    assert_eq!(
        told.next().await.unwrap(),
        r#"{"jsonrpc":"2.0","id":2,"result":{"name":"echo"}}"#
    );
}

#[tokio::test]
async fn a_listener_without_a_session_receives_a_change_before_it_ends() {
    let scene = Scene::new();
    let app = hub_routes(scene.hub.clone());
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
    let listen =
        async || TestEventStream::new(ask(&app, "POST", "/mcp", &headers, body.clone()).await);
    let mut told = listen().await;
    assert!(told.next().await.unwrap().contains("acknowledged"));
    scene.hub.apply_config(found([
        server("a", true, 600),
        server("b", false, 600),
        server("c", true, 600),
    ]));
    let changed = told.next().await.unwrap();
    assert!(
        changed.contains("tools/list_changed") && changed.contains("\"l\""),
        "{changed}"
    );
    assert_eq!(told.next().await, None);
}

#[tokio::test]
async fn the_older_transport_brings_what_is_open_before_it_ends() {
    let scene = Scene::new();
    let app = hub_routes(scene.hub.clone());
    let open = async |path: &str| {
        let mut told = TestEventStream::new(
            ask(&app, "GET", path, &[("accept", "text/event-stream")], "").await,
        );
        let messages = told.next().await.unwrap();
        let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}"#;
        ask(&app, "POST", &messages, &[], hello).await;
        assert!(told.next().await.unwrap().contains("protocolVersion"));
        (told, messages)
    };
    let (mut one, to_one) = open("/servers/a/sse").await;
    let (mut all, to_all) = open("/sse").await;
    let (mut other, to_other) = open("/servers/b/sse").await;
    assert_eq!(
        ask(&app, "POST", &to_one, &[], call("1.0", "wait", ""))
            .await
            .status(),
        202
    );
    let first = scene.stage.hears("a", "wait", 1).await;
    assert_eq!(
        ask(&app, "POST", &to_all, &[], call("1.0", "a__wait", ""))
            .await
            .status(),
        202
    );
    let second = scene.stage.hears("a", "wait", 2).await;
    scene.hub.apply_config(found([server("b", false, 600)]));
    for (call, told) in [(&first, &mut one), (&second, &mut all)] {
        scene.stage.answer("a", 0, call, "{}");
        let answer = loop {
            let next = told.next().await.unwrap();
            if !next.contains("list_changed") {
                break next;
            }
        };
        assert_eq!(answer, r#"{"jsonrpc":"2.0","id":1.0,"result":{}}"#);
    }
    assert_eq!(one.next().await, None);
    assert_eq!(
        ask(&app, "POST", &to_one, &[], call("2", "echo", ""))
            .await
            .status(),
        404
    );
    // Connections to another server or to all servers stay.
    for (to, tool, told) in [
        (&to_all, "b__echo", &mut all),
        (&to_other, "echo", &mut other),
    ] {
        assert_eq!(
            ask(&app, "POST", to, &[], call("2", tool, ""))
                .await
                .status(),
            202
        );
        assert!(
            told.next()
                .await
                .unwrap()
                .starts_with(r#"{"jsonrpc":"2.0","id":2,"result""#)
        );
    }
}

#[tokio::test]
async fn a_refused_server_says_why_and_hides_no_other() {
    let scene = Scene::empty();
    let refused = BTreeMap::from([(
        "bad".to_owned(),
        "`args` must be a list of strings".to_owned(),
    )]);
    let servers = found([server("a", true, 600)]).servers;
    scene.hub.apply_config(McpConfig {
        servers,
        refused,
        ..McpConfig::default()
    });
    let status = scene.hub.status();
    let told: Vec<_> = status
        .servers
        .iter()
        .map(|s| (&*s.name, s.state.word(), &*s.detail))
        .collect();
    let expected = ("bad", "refused", "`args` must be a list of strings");
    assert_eq!(told, [("a", "unstarted", "unstarted"), expected]);
    assert_eq!(
        scene.hub.probe_server("bad").await.unwrap_err(),
        "its configuration is refused: `args` must be a list of strings"
    );
    let app = hub_routes(scene.hub.clone());
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    let headers = [
        ("accept", TEST_ACCEPT_BOTH),
        ("content-type", "application/json"),
    ];
    let answer = text(ask(&app, "POST", "/servers/bad/mcp", &headers, hello).await).await;
    assert!(
        answer.contains("the server `bad` is refused: `args`"),
        "{answer}"
    );
    let client = scene.client("/mcp").await;
    assert!(
        client
            .answer(&call("1", "a__echo", ""))
            .await
            .contains("result")
    );
}
