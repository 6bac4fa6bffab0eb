//! Tests of the tools that a client lists and calls, and of calls that a server does not survive.

use super::{HubFixture, parse_json, test_config, test_server_config, tool_call_body};
use crate::config::McpServerConfig;
use std::fs;
use std::time::Duration;
use tokio::time::sleep;

/// A cancellation. The test server ends at the reason `die`.
fn cancellation(id: &str, reason: &str) -> String {
    let params = format!(r#"{{"requestId":{id},"reason":"{reason}"}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)
}

/// A shared server whose cached lists are known.
async fn fixture_with(config: McpServerConfig) -> HubFixture {
    let fixture = HubFixture::empty();
    fixture.hub.apply_config(test_config([config]));
    let client = fixture.session_client("/servers/a/mcp").await;
    let listed = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    client.post_for_text(listed).await;
    fixture.hub.probe_server("a").await.unwrap();
    fixture
}

#[tokio::test]
async fn the_lean_profile_hides_tools_from_the_list_alone() {
    let fixture = fixture_with(McpServerConfig {
        lean_patterns: Some(vec!["ec*".into()]),
        ..test_server_config("a", true, 600)
    })
    .await;
    for (path, names) in [
        ("/mcp", &["a__echo"][..]),
        ("/mcp?profile=lean", &["a__echo"]),
        ("/mcp?profile=lean&servers=a", &["a__echo"]),
        ("/mcp?profile=full", &["a__echo", "a__marked"]),
        ("/mcp?servers=a", &["a__echo", "a__marked"]),
        ("/mcp?tools=a__*", &["a__echo", "a__marked"]),
        ("/servers/a/mcp", &["echo", "marked"]),
    ] {
        let client = fixture.session_client(path).await;
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let answer = parse_json(&client.post_for_text(list).await);
        let listed = answer["result"]["tools"].as_array().unwrap().iter();
        let listed: Vec<&str> = listed.map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(listed, names, "{path}");
        let prefix = if path.starts_with("/mcp") { "a__" } else { "" };
        let call = tool_call_body("1", &format!("{prefix}marked"), r#","n":1"#);
        let answer = parse_json(&client.post_for_text(&call).await);
        assert_eq!(answer["result"]["n"], 1, "{path}: {answer}");
    }
    let client = fixture.sessionless_client("/mcp?profile=large");
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    assert_eq!(client.post(list).await.status(), 400);
}

#[tokio::test]
async fn the_status_and_the_probe_count_the_offered_tools() {
    let fixture = fixture_with(McpServerConfig {
        tool_patterns: vec!["ec*".into()],
        ..test_server_config("a", true, 600)
    })
    .await;
    let counted = fixture.hub.probe_server("a").await;
    let status = fixture.hub.status().servers.swap_remove(0);
    assert_eq!((status.tools, counted), (Some(1), Ok(1)));
}

#[tokio::test]
async fn a_name_without_its_server_is_answered_with_the_full_name() {
    let fixture = fixture_with(test_server_config("a", true, 600)).await;
    let client = fixture.session_client("/mcp").await;
    for (name, meant) in [
        ("marked", "; did you mean `a__marked`?"),
        ("a_marked", "; did you mean `a__marked`?"),
        ("nothing", ": names have the form `SERVER__NAME`"),
    ] {
        let answer = client.post_for_text(&tool_call_body("1", name, "")).await;
        let answer = parse_json(&answer);
        let expected = format!("there is no `{name}`{meant}");
        assert_eq!(answer["error"]["message"], expected);
    }
    for (params, why) in [
        ("{}", "`name` is missing"),
        (r#"{"name":7}"#, "`name` must be a string"),
    ] {
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let answer = parse_json(&client.post_for_text(&call).await);
        assert_eq!(answer["error"]["message"], why, "{answer}");
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
}

#[tokio::test]
async fn a_call_that_changes_nothing_is_sent_again_after_the_end_of_its_server() {
    let fixture = fixture_with(test_server_config("a", true, 600)).await;
    let client = fixture.session_client("/servers/a/mcp").await;
    // The server ends at the word `die`, and has the tool `marked` that only reads: it ends twice for that tool.
    for (tool, starts) in [("marked", 2), ("echo", 3)] {
        let call = tool_call_body("1", tool, r#","arguments":{"x":"die"}"#);
        let answer = parse_json(&client.post_for_text(&call).await);
        let why = answer["error"]["message"].as_str().unwrap();
        assert!(why.contains("`a` failed"), "{why}");
        let handshakes = fixture.servers.received_messages("a", "\"initialize\"");
        assert_eq!(handshakes.len(), starts, "{tool}");
    }
}

#[tokio::test]
async fn a_repeated_call_brings_the_result_of_the_next_server() {
    let fixture = fixture_with(test_server_config("a", true, 600)).await;
    let client = fixture.session_client("/servers/a/mcp").await;
    let call = tool_call_body("1", "marked", r#","arguments":{"x":"die-once"}"#);
    let answer = client.post_for_text(&call).await;
    assert_eq!(answer.matches("\"id\":1").count(), 1, "{answer}");
    let answer = parse_json(&answer);
    assert_eq!(answer["result"]["arguments"]["x"], "die-once", "{answer}");
    assert_eq!(fixture.hub.status().servers[0].total_calls, 1);
    let handshakes = fixture.servers.received_messages("a", "\"initialize\"");
    assert_eq!(handshakes.len(), 2);
}

#[tokio::test]
async fn cancellations_are_kept_from_a_server_that_does_not_survive_them() {
    let fixture = fixture_with(McpServerConfig {
        forwards_cancel: false,
        ..test_server_config("a", true, 600)
    })
    .await;
    let client = fixture.session_client("/servers/a/mcp").await;
    let mut cancelled = client.call_for_events("5", "wait", "").await;
    let mut left = client.call_for_events("6", "wait", "").await;
    fixture.servers.wait_for_message("a", "wait", 2).await;
    let cancel = cancellation("5", "stop");
    assert_eq!(client.post(&cancel).await.status(), 202);
    assert_eq!(cancelled.next_data().await, None);
    let second = fixture.servers.wait_for_message("a", "wait", 2).await;
    fixture.servers.answer_call("a", 0, &second, "{}");
    let answer = left.next_data().await.unwrap();
    assert_eq!(answer, r#"{"jsonrpc":"2.0","id":6,"result":{}}"#);
    let received = fixture.servers.received_messages("a", "cancelled");
    assert!(received.is_empty(), "{received:?}");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_kept_from_a_server_that_does_not_survive_cancellations() {
    for (forwards_cancel, count) in [(true, 1), (false, 0)] {
        let fixture = fixture_with(McpServerConfig {
            forwards_cancel,
            ..test_server_config("a", true, 1)
        })
        .await;
        let client = fixture.session_client("/servers/a/mcp").await;
        let answer = client.post_for_text(&tool_call_body("5", "wait", "")).await;
        assert!(answer.contains("did not answer within 1 s"), "{answer}");
        // The server has received the messages before this call.
        client.post_for_text(&tool_call_body("6", "echo", "")).await;
        let received = fixture.servers.received_messages("a", "cancelled");
        assert_eq!(received.len(), count, "{received:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_at_a_cancellation_gets_no_more_of_them() {
    let fixture = fixture_with(test_server_config("a", true, 600)).await;
    let client = fixture.session_client("/servers/a/mcp").await;
    fixture.servers.hold_answers("a");
    let mut first = client.call_for_events("5", "wait", "").await;
    let mut left = client.call_for_events("6", "marked", r#","n":1"#).await;
    fixture.servers.wait_for_message("a", "tools/call", 2).await;
    assert_eq!(client.post(&cancellation("5", "die")).await.status(), 202);
    assert_eq!(first.next_data().await, None);
    // The next server answers the call that changes nothing.
    let answer = parse_json(&left.next_data().await.unwrap());
    assert_eq!(answer["result"]["n"], 1, "{answer}");
    let mut second = client.call_for_events("7", "wait", "").await;
    fixture.servers.wait_for_message("a", "\"wait\"", 2).await;
    assert_eq!(client.post(&cancellation("7", "die")).await.status(), 202);
    assert_eq!(second.next_data().await, None);
    let answer = client.post_for_text(&tool_call_body("8", "echo", "")).await;
    assert!(parse_json(&answer)["result"].is_object(), "{answer}");
    let handshakes = fixture.servers.received_messages("a", "\"initialize\"");
    assert_eq!(handshakes.len(), 2);
    let log = fs::read_to_string(fixture.data.path().join("logs/a.log")).unwrap();
    assert_eq!(log.matches("`cancel: false`").count(), 1, "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_for_another_reason_still_gets_cancellations() {
    let fixture = fixture_with(test_server_config("a", true, 600)).await;
    let client = fixture.session_client("/servers/a/mcp").await;
    for count in [1, 2] {
        let mut cancelled = client.call_for_events("5", "wait", "").await;
        fixture
            .servers
            .wait_for_message("a", "\"wait\"", count)
            .await;
        assert_eq!(client.post(&cancellation("5", "stop")).await.status(), 202);
        assert_eq!(cancelled.next_data().await, None);
        fixture
            .servers
            .wait_for_message("a", "cancelled", count)
            .await;
        sleep(Duration::from_secs(3)).await;
        let end = tool_call_body("6", "echo", r#","arguments":{"x":"die"}"#);
        let answer = client.post_for_text(&end).await;
        assert!(answer.contains("`a` failed"), "{answer}");
    }
}
