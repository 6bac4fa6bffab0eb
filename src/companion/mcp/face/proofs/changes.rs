//! What becomes of calls when the servers change, when a connection is lost, and when the companion ends.

use super::{BOTH, Client, Scene, Told, ask, call, found, hub, routes, server, text, value};
use crate::companion::mcp::stream::Stream;
use crate::companion::mcp::{Found, Wish};
use crate::protocol::mcp::LOST;
use axum::http::StatusCode;
use std::collections::BTreeMap;

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
        scene.hub.adopt(found([
            server("a", true, 601),
            server("b", false, 600),
            server("c", true, 600),
        ]));
        // A new call is the new server's, in the same session.
        let answer = client.answer(&call("8", &tool("echo"), "")).await;
        assert_eq!(
            answer,
            r#"{"jsonrpc":"2.0","id":8,"result":{"name":"echo"}}"#
        );
        assert_eq!(scene.stage.starts("a"), 2);
        // The open one is the old server's, also where its connection is lost meanwhile.
        drop(told);
        let mut told = Told::new(client.go_on(&last).await);
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
        let mut general = Told::new(client.go_on("").await);
        scene
            .hub
            .adopt(found([server("a", true, 600), server("b", false, 601)]));
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
        // It stays, and is told nothing.
        scene.hub.adopt(found([server("b", false, 601)]));
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
        let mut told = client.open("7", tool, r#","arguments":{"id":1.0}"#).await;
        assert!(
            told.next()
                .await
                .unwrap()
                .contains("sampling/createMessage")
        );
        let name = if tool == "a__ask" { "a" } else { "b" };
        let rest = if name == "a" { "b" } else { "a" };
        scene.hub.adopt(found([server(rest, rest == "a", 600)]));
        // It need not wait for an answer that can't come any more.
        let heard = scene
            .stage
            .hears(name, "the client that was asked is gone", 1)
            .await;
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

#[tokio::test]
async fn the_older_transport_brings_what_is_open_before_it_ends() {
    let scene = Scene::new();
    let app = routes(scene.hub.clone());
    let open = async |path: &str| {
        let mut told =
            Told::new(ask(&app, "GET", path, &[("accept", "text/event-stream")], "").await);
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
    scene.hub.adopt(found([server("b", false, 600)]));
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
    // Whoever has another server, or others beside, goes on.
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
    let refused = BTreeMap::from([("bad".to_owned(), "`args`: it is no list".to_owned())]);
    let servers = found([server("a", true, 600)]).servers;
    scene.hub.adopt(Found {
        servers,
        refused,
        ..Found::default()
    });
    let status = scene.hub.status();
    let told: Vec<_> = status
        .servers
        .iter()
        .map(|s| (&*s.name, s.state.word(), &*s.detail))
        .collect();
    let expected = ("bad", "refused", "`args`: it is no list");
    assert_eq!(told, [("a", "unstarted", "unstarted"), expected]);
    assert_eq!(
        scene.hub.prove("bad").await.unwrap_err(),
        "it is refused: `args`: it is no list"
    );
    let app = routes(scene.hub.clone());
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    let headers = [("accept", BOTH), ("content-type", "application/json")];
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

#[tokio::test]
async fn a_lost_stream_goes_on_where_the_companion_lives() {
    let scene = Scene::new();
    for (path, tool) in [("/mcp", "a__wait"), ("/servers/a/mcp", "wait")] {
        let client = scene.client(path).await;
        let count = scene.stage.heard("a", "wait").len();
        let mut told = client.open("\"x\"", tool, "").await;
        let (last, data) = told.event().await.unwrap();
        assert_eq!(data, "");
        drop(told);
        let open = scene.stage.hears("a", "wait", count + 1).await;
        scene.stage.answer("a", 0, &open, r#"{"n":1.0}"#);
        let mut again = Told::new(client.go_on(&last).await);
        let end = loop {
            let (id, data) = again.event().await.unwrap();
            if !data.is_empty() {
                assert_eq!(data, r#"{"jsonrpc":"2.0","id":"x","result":{"n":1.0}}"#);
                break id;
            }
        };
        assert_eq!(again.next().await, None);
        assert_eq!(client.go_on(&end).await.status(), StatusCode::NO_CONTENT);
    }
}

/// That an answer says that nobody knows the end of the call.
#[track_caller]
fn is_lost(answer: &str, id: &str) {
    let start = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":"#);
    assert!(answer.starts_with(&start), "{answer}");
    assert_eq!(value(answer)["error"]["data"]["type"], LOST, "{answer}");
}

#[tokio::test]
async fn after_a_restart_a_lost_call_is_told_as_that_at_once() {
    for (path, tool) in [("/mcp", "a__wait"), ("/servers/b/mcp", "wait")] {
        let scene = Scene::new();
        let client = scene.client(path).await;
        let mut told = client.open("1.0", tool, "").await;
        let (last, _) = told.event().await.unwrap();
        // Killed, so that nobody was told anything.
        let scene = scene.again([server("a", true, 600), server("b", false, 600)]);
        let client = scene.back(&client);
        let mut told = Told::new(client.go_on(&last).await);
        let (end, data) = told.event().await.unwrap();
        is_lost(&data, "1.0");
        assert_eq!(told.next().await, None);
        // Whoever then asks once more is told that there is nothing.
        assert_eq!(client.go_on(&end).await.status(), StatusCode::NO_CONTENT);
        // The session goes on.
        let tool = tool.replace("wait", "echo");
        assert!(
            client
                .answer(&call("2", &tool, ""))
                .await
                .contains("result")
        );
    }
}

#[tokio::test]
async fn a_companion_that_stops_answers_what_is_open() {
    let scene = Scene::new();
    let (one, all) = (
        scene.client("/servers/b/mcp").await,
        scene.client("/mcp").await,
    );
    let mut streams = [
        (one.open("1.0", "wait", "").await, "1.0"),
        (all.open("null", "a__wait", "").await, "null"),
    ];
    let waiting = |client: &Client, tool: &str| {
        let (client, body) = (client.clone(), call("3", tool, ""));
        tokio::spawn(
            async move { text(client.send("POST", "application/json", "", &body).await).await },
        )
    };
    let wholes = [waiting(&one, "wait"), waiting(&all, "b__wait")];
    scene.stage.hears("a", "wait", 1).await;
    scene.stage.hears("b", "wait", 3).await;
    scene.hub.shutdown().await;
    for (told, id) in &mut streams {
        is_lost(&told.next().await.unwrap(), id);
        assert_eq!(told.next().await, None);
    }
    for whole in wholes {
        is_lost(&whole.await.unwrap(), "3");
    }
    // Nothing is begun, and nobody is told that a session is gone, which it is not.
    assert_eq!(
        one.post(&call("4", "echo", "")).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    let after = hub(scene.data.path(), &scene.stage);
    after.adopt(found([server("b", false, 600)]));
    let one = Client {
        routes: routes(after),
        ..one
    };
    assert!(one.answer(&call("4", "echo", "")).await.contains("result"));
}

#[tokio::test]
async fn a_session_with_an_open_call_is_in_use() {
    let scene = Scene::new();
    let client = scene.client("/servers/a/mcp").await;
    let session = scene.hub.session(&client.session, Some("a"));
    let session = session.unwrap_or_else(|why| panic!("{why:?}"));
    let stream = std::sync::Arc::new(Stream::of_requests(1, &["1"]));
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    assert!(!session.idle().is_zero());
    session.outlet.open(&stream);
    assert!(session.idle().is_zero());
    stream.answer("{}".into());
    assert!(!session.idle().is_zero());
    assert_eq!(Wish::default().server, None);
}
