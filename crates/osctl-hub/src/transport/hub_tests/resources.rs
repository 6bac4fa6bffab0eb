//! Tests that a request for a resource reaches only the resource's server when all servers are merged.

use super::{
    HubFixture, TEST_ACCEPT_BOTH, TestMcpClient, parse_json, response_text, send_test_request,
    test_config, test_server_config, tool_call_body,
};

const RESOURCE_METHODS: [&str; 4] = [
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "completion/complete",
];

/// The resource requests that all three servers received.
fn received_resource_requests(fixture: &HubFixture) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for name in ["a", "b", "c"] {
        for method in RESOURCE_METHODS {
            let received = fixture
                .servers
                .received_messages(name, &format!("\"method\":\"{method}\""));
            all.extend(received.into_iter().map(|line| (name, line)));
        }
    }
    all
}

fn three_servers() -> HubFixture {
    let fixture = HubFixture::empty();
    let servers = [
        test_server_config("a", true, 600),
        test_server_config("b", false, 600),
        test_server_config("c", true, 600),
    ];
    fixture.hub.apply_config(test_config(servers));
    fixture
}

async fn read_resource(client: &TestMcpClient, uri: &str) -> String {
    let params = format!(r#"{{"uri":"{uri}"}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{params}}}"#);
    client.post_for_text(&body).await
}

#[tokio::test]
async fn a_resource_request_reaches_only_its_server() {
    for uri in ["b:listed", "b:t/one"] {
        let fixture = three_servers();
        let client = fixture.session_client("/mcp").await;
        for _ in 0..2 {
            assert!(
                read_resource(&client, uri).await.contains(r#""of":"b""#),
                "{uri}"
            );
        }
        for method in ["resources/subscribe", "resources/unsubscribe"] {
            let params = format!(r#"{{"uri":"{uri}"}}"#);
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
            assert!(parse_json(&client.post_for_text(&body).await)["result"].is_object());
        }
        let completed = r#"{"ref":{"type":"ref/resource","uri":"b:t/{x}"},"n":1.0}"#;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{completed}}}"#
        );
        assert!(client.post_for_text(&body).await.contains(completed));
        let received = received_resource_requests(&fixture);
        assert_eq!(received.len(), 5, "{received:?}");
        assert!(
            received.iter().all(|(name, _)| *name == "b"),
            "{received:?}"
        );
    }
}

#[tokio::test]
async fn a_request_for_an_unknown_resource_reaches_no_server() {
    let fixture = three_servers();
    let client = fixture.session_client("/mcp").await;
    for method in RESOURCE_METHODS {
        let params = r#"{"uri":"x:secret","ref":{"type":"ref/resource","uri":"x:secret"}}"#;
        let body = format!(r#"{{"jsonrpc":"2.0","id":1.0,"method":"{method}","params":{params}}}"#);
        let answer = client.post_for_text(&body).await;
        let error = parse_json(&answer)["error"].clone();
        let code = if method == "completion/complete" {
            -32602
        } else {
            -32002
        };
        assert_eq!(error["code"], code, "{answer}");
        assert!(
            answer.starts_with(r#"{"jsonrpc":"2.0","id":1.0,"#),
            "{answer}"
        );
    }
    // The newest revision uses another error code.
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let modern = async |uri: &str| {
        let params = format!(r#"{{"uri":"{uri}","_meta":{meta}}}"#);
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{params}}}"#);
        let headers = [
            ("accept", TEST_ACCEPT_BOTH),
            ("content-type", "application/json"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "resources/read"),
            ("mcp-name", uri),
        ];
        parse_json(
            &response_text(send_test_request(&client.routes, "POST", "/mcp", &headers, body).await)
                .await,
        )
    };
    let missing = modern("x:secret").await;
    assert_eq!(missing["error"]["code"], -32602, "{missing}");
    assert_eq!(missing["error"]["data"]["uri"], "x:secret");
    assert_eq!(received_resource_requests(&fixture), []);
    assert_eq!(modern("c:t/1").await["result"]["of"], "c");
    assert!(
        received_resource_requests(&fixture)
            .iter()
            .all(|(name, _)| *name == "c")
    );
}

#[tokio::test]
async fn a_linked_resource_is_read_from_the_server_that_linked_it() {
    let fixture = three_servers();
    let client = fixture.session_client("/mcp").await;
    let link = tool_call_body("1", "c__link", r#","arguments":{"uri":"x:linked"}"#);
    assert!(client.post_for_text(&link).await.contains("x:linked"));
    assert!(
        read_resource(&client, "x:linked")
            .await
            .contains(r#""of":"c""#)
    );
    // The route also exists for clients that connect later.
    let other = fixture.session_client("/mcp").await;
    assert!(
        read_resource(&other, "x:linked")
            .await
            .contains(r#""of":"c""#)
    );
    assert!(
        received_resource_requests(&fixture)
            .iter()
            .all(|(name, _)| *name == "c")
    );
}
