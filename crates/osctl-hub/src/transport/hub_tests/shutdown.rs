//! Tests of open calls when a connection is lost, and when the companion ends.

use super::{
    EVENTS_FIRST, HubFixture, TEST_ACCEPT_BOTH, TestEventStream, TestMcpClient, hub_routes,
    parse_json, response_text, test_config, test_hub, test_server_config, tool_call_body,
};
use crate::message::RpcMessage;
use crate::message_stream::MessageStream;
use crate::{HubRefusal, HubTarget};
use axum::http::StatusCode;
use osctl_protocol::mcp::CALL_LOST_TYPE;

#[tokio::test]
async fn a_stream_says_from_where_and_when_to_resume() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/servers/a/mcp").await;
    let call = tool_call_body("1", "echo", "");
    let response = client.send_request("POST", EVENTS_FIRST, "", &call).await;
    let text = response_text(response).await;
    let lines: Vec<&str> = text.lines().take(3).collect();
    assert!(
        lines[0].starts_with("id: ") && lines[0].contains(".0."),
        "{text}"
    );
    assert_eq!(lines[1..], ["retry: 1000", "data:"], "{text}");
}

#[tokio::test]
async fn a_lost_stream_resumes_while_the_companion_runs() {
    let fixture = HubFixture::new();
    for (path, tool) in [("/mcp", "a__wait"), ("/servers/a/mcp", "wait")] {
        let client = fixture.session_client(path).await;
        let count = fixture.servers.received_messages("a", "wait").len();
        let mut events = client.call_for_events("\"x\"", tool, "").await;
        let (last, data) = events.next_event().await.unwrap();
        assert_eq!(data, "");
        drop(events);
        let open = fixture
            .servers
            .wait_for_message("a", "wait", count + 1)
            .await;
        fixture.servers.answer_call("a", 0, &open, r#"{"n":1.0}"#);
        let mut again = TestEventStream::new(client.resume_after(&last).await);
        let end = loop {
            let (id, data) = again.next_event().await.unwrap();
            if !data.is_empty() {
                assert_eq!(data, r#"{"jsonrpc":"2.0","id":"x","result":{"n":1.0}}"#);
                break id;
            }
        };
        assert_eq!(again.next_data().await, None);
        assert_eq!(
            client.resume_after(&end).await.status(),
            StatusCode::NO_CONTENT
        );
    }
}

/// Asserts that the answer says that the outcome of the call is unknown.
#[track_caller]
fn assert_lost(answer: &str, id: &str) {
    let start = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":"#);
    assert!(answer.starts_with(&start), "{answer}");
    assert_eq!(
        parse_json(answer)["error"]["data"]["type"],
        CALL_LOST_TYPE,
        "{answer}"
    );
}

#[tokio::test]
async fn after_a_restart_a_lost_call_is_reported_immediately() {
    for (path, tool) in [("/mcp", "a__wait"), ("/servers/b/mcp", "wait")] {
        let fixture = HubFixture::new();
        let client = fixture.session_client(path).await;
        let mut events = client.call_for_events("1.0", tool, "").await;
        let (last, _) = events.next_event().await.unwrap();
        // A killed companion sends no message to its clients.
        let fixture = fixture.restart_companion([
            test_server_config("a", true, 600),
            test_server_config("b", false, 600),
        ]);
        let client = fixture.reconnect(&client);
        let mut events = TestEventStream::new(client.resume_after(&last).await);
        let (end, data) = events.next_event().await.unwrap();
        assert_lost(&data, "1.0");
        assert_eq!(events.next_data().await, None);
        // Another attempt to resume receives 204.
        assert_eq!(
            client.resume_after(&end).await.status(),
            StatusCode::NO_CONTENT
        );
        // The session still works.
        let tool = tool.replace("wait", "echo");
        assert!(
            client
                .post_for_text(&tool_call_body("2", &tool, ""))
                .await
                .contains("result")
        );
    }
}

#[tokio::test]
async fn a_companion_that_stops_answers_what_is_open() {
    let fixture = HubFixture::new();
    let (one, all) = (
        fixture.session_client("/servers/b/mcp").await,
        fixture.session_client("/mcp").await,
    );
    let mut streams = [
        (one.call_for_events("1.0", "wait", "").await, "1.0"),
        (all.call_for_events("null", "a__wait", "").await, "null"),
    ];
    let waiting = |client: &TestMcpClient, tool: &str| {
        let (client, body) = (client.clone(), tool_call_body("3", tool, ""));
        tokio::spawn(async move {
            response_text(
                client
                    .send_request("POST", "application/json", "", &body)
                    .await,
            )
            .await
        })
    };
    let wholes = [waiting(&one, "wait"), waiting(&all, "b__wait")];
    fixture.servers.wait_for_message("a", "wait", 1).await;
    fixture.servers.wait_for_message("b", "wait", 3).await;
    fixture.hub.shutdown().await;
    for (events, id) in &mut streams {
        assert_lost(&events.next_data().await.unwrap(), id);
        assert_eq!(events.next_data().await, None);
    }
    for whole in wholes {
        assert_lost(&whole.await.unwrap(), "3");
    }
    // New calls are refused, and no client receives an error that its session does not exist.
    assert_eq!(
        one.post(&tool_call_body("4", "echo", "")).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    let after = test_hub(fixture.data.path(), &fixture.servers);
    after.apply_config(test_config([test_server_config("b", false, 600)]));
    let one = TestMcpClient {
        routes: hub_routes(after),
        ..one
    };
    assert!(
        one.post_for_text(&tool_call_body("4", "echo", ""))
            .await
            .contains("result")
    );
}

#[tokio::test]
async fn servers_that_are_not_offered_any_more_end_with_the_companion() {
    let fixture = HubFixture::new();
    let one = fixture.session_client("/servers/b/mcp").await;
    let mut events = one.call_for_events("1", "wait", "").await;
    fixture.servers.wait_for_message("b", "\"wait\"", 1).await;
    fixture.hub.apply_config(test_config([
        test_server_config("a", true, 600),
        test_server_config("b", false, 601),
    ]));
    let other = fixture.session_client("/servers/b/mcp").await;
    drop(other.call_for_events("2", "wait", "").await);
    fixture.servers.wait_for_message("b", "\"wait\"", 2).await;
    let ended = other.send_request("DELETE", TEST_ACCEPT_BOTH, "", "").await;
    assert_eq!(ended.status(), StatusCode::OK);
    // The server has an unanswered call, so the hub keeps it.
    let entry = fixture.hub.find_server("b").unwrap();
    assert_eq!(entry.status().calls, 1);
    fixture.hub.shutdown().await;
    assert_lost(&events.next_data().await.unwrap(), "1");
    assert_eq!(events.next_data().await, None);
    assert!(entry.has_ended());
}

#[tokio::test]
async fn a_dropped_answer_is_reported_as_not_kept() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/servers/a/mcp").await;
    let mut last = String::new();
    for number in 0..8 {
        let mut events = client
            .call_for_events(&number.to_string(), "echo", "")
            .await;
        let (id, _) = events.next_event().await.unwrap();
        while events.next_data().await.is_some() {}
        if number == 0 {
            last = id;
        }
    }
    let mut events = TestEventStream::new(client.resume_after(&last).await);
    let error = parse_json(&events.next_data().await.unwrap())["error"].clone();
    assert_eq!(error["data"]["type"], "not_kept", "{error}");
    assert_eq!(events.next_data().await, None);
}

#[tokio::test]
async fn concurrent_subscriptions_are_all_kept_and_a_stop_is_reported() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/servers/a/mcp").await;
    let session = fixture.hub.find_session(&client.session, Some("a"));
    let session = session.unwrap_or_else(|why| panic!("{why:?}"));
    let (hub, session) = (&fixture.hub, &session);
    std::thread::scope(|scope| {
        for of in 0..4 {
            scope.spawn(move || {
                for number in 0..25 {
                    let body = format!(
                        r#"{{"id":1,"method":"resources/subscribe","params":{{"uri":"a:{of}/{number}"}}}}"#
                    );
                    hub.persist_subscription(session, &RpcMessage::parse(body.into()).unwrap());
                }
            });
        }
    });
    let session_file = std::fs::read_to_string(hub.session_file(&client.session)).unwrap();
    assert_eq!(
        parse_json(&session_file)["subscribed"]
            .as_array()
            .unwrap()
            .len(),
        100
    );
    hub.shutdown().await;
    let refused = hub.restore_session(&client.session);
    assert!(matches!(refused, Err(HubRefusal::Stopping)));
}

#[tokio::test]
async fn a_session_with_an_open_call_is_in_use() {
    let fixture = HubFixture::new();
    let client = fixture.session_client("/servers/a/mcp").await;
    let session = fixture.hub.find_session(&client.session, Some("a"));
    let session = session.unwrap_or_else(|why| panic!("{why:?}"));
    let stream = std::sync::Arc::new(MessageStream::of_requests(1, &["1"]));
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    assert!(!session.idle_time().is_zero());
    session.streams.add_stream(&stream);
    assert!(session.idle_time().is_zero());
    stream.push_answer("{}".into());
    assert!(!session.idle_time().is_zero());
    assert_eq!(HubTarget::default().server, None);
}
