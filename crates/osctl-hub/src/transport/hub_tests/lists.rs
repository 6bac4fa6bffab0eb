//! Tests of merged lists while one server is slow or does not answer.

use super::{
    HubFixture, TestEventStream, TestMcpClient, parse_json, test_config, test_server_config,
};
use serde_json::json;
use std::time::{Duration, Instant};

/// Well below the time limits of clients, and far above the wait of a list.
const FAST_LIST_TIMEOUT: Duration = Duration::from_secs(4);

const TOOLS_LIST_REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

/// The names of the tools, and the missing servers.
async fn list_tools(client: &TestMcpClient, body: &str) -> (Vec<String>, serde_json::Value) {
    let answer = parse_json(&client.post_for_text(body).await);
    let tools = answer["result"]["tools"].as_array().unwrap().iter();
    let names = tools.map(|tool| tool["name"].as_str().unwrap().to_owned());
    (
        names.collect(),
        answer["result"]["_meta"]["osctl/missing"].clone(),
    )
}

#[tokio::test]
async fn merged_list_skips_a_silent_server() {
    let fixture = HubFixture::empty();
    fixture.servers.hold_answers("slow");
    let servers = [
        test_server_config("a", true, 600),
        test_server_config("slow", true, 600),
    ];
    fixture.hub.apply_config(test_config(servers));
    let client = fixture.session_client("/mcp").await;
    let mut general = TestEventStream::new(client.resume_after("").await);
    let begin = Instant::now();
    let (names, missing) = list_tools(&client, TOOLS_LIST_REQUEST).await;
    assert!(begin.elapsed() < FAST_LIST_TIMEOUT, "{:?}", begin.elapsed());
    assert_eq!(names, ["a__echo", "a__marked"]);
    assert_eq!(missing, json!(["slow"]));
    // Neither this client nor another one waits for the server again.
    let begin = Instant::now();
    let other = fixture.session_client("/mcp").await;
    for client in [&client, &other, &client, &other, &client, &other] {
        assert_eq!(
            list_tools(client, TOOLS_LIST_REQUEST).await.1,
            json!(["slow"])
        );
    }
    // Six lists that wait would take longer.
    assert!(begin.elapsed() < FAST_LIST_TIMEOUT, "{:?}", begin.elapsed());
    assert_eq!(
        fixture
            .servers
            .received_messages("slow", "initialize")
            .len(),
        1
    );
    fixture.servers.release_answers("slow");
    let changed = general.next_data().await.unwrap();
    assert!(changed.contains("tools/list_changed"), "{changed}");
    let (names, missing) = list_tools(&client, TOOLS_LIST_REQUEST).await;
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(missing.is_null(), "{missing}");
}

/// The clock stops while a task can run, so that a slow machine takes no time.
#[tokio::test(start_paused = true)]
async fn the_first_list_of_a_fresh_hub_is_answered_within_a_second() {
    let fixture = HubFixture::empty();
    for silent in ["slow", "slower"] {
        fixture.servers.hold_answers(silent);
    }
    let servers = ["a", "slow", "slower"];
    fixture.hub.apply_config(test_config(
        servers.map(|name| test_server_config(name, true, 600)),
    ));
    let begin = tokio::time::Instant::now();
    let client = fixture.session_client("/mcp").await;
    let (names, missing) = list_tools(&client, TOOLS_LIST_REQUEST).await;
    assert_eq!(names, ["a__echo", "a__marked"]);
    assert_eq!(missing, json!(["slow", "slower"]));
    // Timers have steps of a millisecond.
    let limit = Duration::from_millis(1_005);
    assert!(begin.elapsed() <= limit, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn the_instructions_name_servers_that_have_not_answered() {
    let fixture = HubFixture::empty();
    fixture
        .hub
        .apply_config(test_config([test_server_config("a", true, 600)]));
    let initialize = |fixture: &HubFixture| {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}});
        let client = fixture.sessionless_client("/mcp");
        async move { client.post_for_text(&body.to_string()).await }
    };
    let before = initialize(&fixture).await;
    assert!(before.contains("have not answered yet: `a`"), "{before}");
    let client = fixture.session_client("/mcp").await;
    list_tools(&client, TOOLS_LIST_REQUEST).await;
    let after = initialize(&fixture).await;
    assert!(!after.contains("have not answered yet"), "{after}");
}

#[tokio::test]
async fn a_list_request_with_a_wait_includes_a_slow_server() {
    let fixture = HubFixture::empty();
    fixture.servers.hold_answers("slow");
    fixture
        .hub
        .apply_config(test_config([test_server_config("slow", true, 600)]));
    let client = fixture.session_client("/mcp").await;
    assert_eq!(
        list_tools(&client, TOOLS_LIST_REQUEST).await.1,
        json!(["slow"])
    );
    let patient =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"osctl/wait":100}}}"#;
    let (waited, ()) = tokio::join!(list_tools(&client, patient), async {
        tokio::task::yield_now().await;
        fixture.servers.release_answers("slow");
    });
    assert_eq!(waited.0, ["slow__echo", "slow__marked"]);
    assert!(waited.1.is_null(), "{waited:?}");
}

#[tokio::test]
async fn a_server_that_is_busy_is_listed_as_it_was_before() {
    let fixture = HubFixture::empty();
    fixture
        .hub
        .apply_config(test_config([test_server_config("a", true, 600)]));
    let client = fixture.session_client("/mcp").await;
    assert_eq!(list_tools(&client, TOOLS_LIST_REQUEST).await.0.len(), 2);
    fixture.servers.hold_answers("a");
    let (names, missing) = list_tools(&client, TOOLS_LIST_REQUEST).await;
    assert_eq!((names.len(), missing.is_null()), (2, true));
}

#[tokio::test]
async fn the_timeout_of_a_server_holds_for_its_handshake() {
    let fixture = HubFixture::empty();
    fixture.servers.hold_answers("silent");
    fixture
        .hub
        .apply_config(test_config([test_server_config("silent", true, 1)]));
    let begin = Instant::now();
    let error = fixture.hub.probe_server("silent").await.unwrap_err();
    assert!(error.contains("did not answer within 1 s"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(30));
}
