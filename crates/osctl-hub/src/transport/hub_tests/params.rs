//! Tests of tool arguments in headers: for a remote server of the newest revision, and from clients.

use super::{
    HUB_TEST_TIMEOUT, HubFixture, TEST_ACCEPT_BOTH, parse_json, response_text, send_test_request,
    test_config, test_server_config, tool_call_body,
};
use crate::config::{McpServerConfig, ServerTransport};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

#[derive(Debug, Default)]
struct HeaderServerState {
    /// Whether the tool requires another header than at first.
    wants_other_header: AtomicBool,
    refused_calls: AtomicUsize,
    /// The number of list requests, without the ones after a refusal.
    list_requests: AtomicUsize,
}

async fn answer_header_request(
    State(wants): State<Arc<HeaderServerState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let name = match wants.wants_other_header.load(Ordering::Relaxed) {
        true => "Zone",
        false => "Region",
    };
    let region = json!({"type": "string", "x-mcp-header": name});
    let schema = json!({"type": "object", "properties": {"region": region}});
    let unfit = json!({"type": "object", "x-mcp-header": "Unfit"});
    let tools = [
        json!({"name": "unfit", "inputSchema": unfit}),
        json!({"name": "where", "inputSchema": schema}),
    ];
    let sent_header = headers.get(format!("mcp-param-{name}"));
    let sent_header = sent_header.map(|value| value.to_str().unwrap());
    let wanted = request["params"]["arguments"]["region"].as_str();
    let error = |code: i64| {
        (
            StatusCode::BAD_REQUEST,
            json!({"error": {"code": code, "message": "no"}}),
        )
    };
    let (status, mut answer) = match request["method"].as_str().unwrap() {
        "server/discover" => {
            let capabilities = json!({"tools": {}});
            let result = json!({"supportedVersions": ["2026-07-28"], "capabilities": capabilities});
            (StatusCode::OK, json!({"result": result}))
        }
        "tools/list" => {
            let is_after_refusal = request["id"] == "osctl-tools";
            wants
                .list_requests
                .fetch_add(usize::from(!is_after_refusal), Ordering::Relaxed);
            (StatusCode::OK, json!({"result": {"tools": tools}}))
        }
        "tools/call" if sent_header == wanted => {
            (StatusCode::OK, json!({"result": {"told": sent_header}}))
        }
        "tools/call" => {
            wants.refused_calls.fetch_add(1, Ordering::Relaxed);
            error(-32020)
        }
        _ => error(-32601),
    };
    answer["jsonrpc"] = "2.0".into();
    answer["id"] = request["id"].clone();
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (status, headers, answer.to_string()).into_response()
}

#[tokio::test]
async fn arguments_become_required_headers() {
    // Fails if another test has installed the provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let wants = Arc::new(HeaderServerState::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let app = Router::new()
        .route("/mcp", post(answer_header_request))
        .with_state(wants.clone());
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let headers = BTreeMap::new();
    let far = McpServerConfig {
        transport: ServerTransport::Remote { url, headers },
        ..test_server_config("far", false, 60)
    };
    let fixture = HubFixture::empty();
    fixture.hub.apply_config(test_config([far]));
    for path in ["/servers/far/mcp", "/mcp"] {
        let lists = wants.list_requests.load(Ordering::Relaxed);
        let client = fixture.session_client(path).await;
        let tool = if path == "/mcp" {
            "far__where"
        } else {
            "where"
        };
        let call_with_region = async |region: &str| {
            let params = format!(r#","arguments":{{"region":{region}}}"#);
            let answer = client
                .post_for_text(&tool_call_body("1.0", tool, &params))
                .await;
            parse_json(&answer)["result"]["told"].clone()
        };
        assert_eq!(call_with_region(r#""us west""#).await, "us west");
        assert_eq!(call_with_region("null").await, Value::Null);
        // A tool with invalid header declarations is not offered.
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let list = client.post_for_text(list).await;
        assert!(list.contains("where") && !list.contains("unfit"), "{list}");
        // The hub also requests the list itself after the handshake.
        let begin = Instant::now();
        while wants.list_requests.load(Ordering::Relaxed) < lists + 2 {
            assert!(
                begin.elapsed() < HUB_TEST_TIMEOUT,
                "no client requests the list"
            );
            sleep(Duration::from_millis(2)).await;
        }
        // The hub reads the list again, learns the new header, and repeats the call.
        wants.wants_other_header.fetch_xor(true, Ordering::Relaxed);
        let refused = wants.refused_calls.load(Ordering::Relaxed);
        assert_eq!(call_with_region(r#""eu""#).await, "eu");
        assert!(wants.refused_calls.load(Ordering::Relaxed) > refused);
    }
    serving.abort();
}

#[tokio::test]
async fn client_headers_must_match_its_call() {
    let fixture = HubFixture::empty();
    fixture
        .hub
        .apply_config(test_config([test_server_config("a", true, 60)]));
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    for (path, tool) in [("/servers/a/mcp", "marked"), ("/mcp", "a__marked")] {
        let client = fixture.session_client(path).await;
        let called = async |region: Option<&str>, own: Option<&str>| {
            let params = format!(r#","arguments":{{"region":"eu"}},"_meta":{meta}"#);
            let mut headers = vec![
                ("accept", TEST_ACCEPT_BOTH),
                ("content-type", "application/json"),
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/call"),
                ("mcp-name", tool),
            ];
            headers.extend(region.map(|region| ("mcp-param-region", region)));
            headers.extend(own.map(|own| ("osctl-protocol", own)));
            let body = tool_call_body("1", tool, &params);
            let response = send_test_request(&client.routes, "POST", path, &headers, body).await;
            (
                response.status(),
                parse_json(&response_text(response).await),
            )
        };
        // The hub knows the tool as soon as the server has sent its list.
        let begin = Instant::now();
        while called(None, None).await.0 != StatusCode::BAD_REQUEST {
            assert!(
                begin.elapsed() < HUB_TEST_TIMEOUT,
                "no client requests the list"
            );
            sleep(Duration::from_millis(2)).await;
        }
        // osctl's own clients may omit the header, but may not send a wrong one.
        for (region, own) in [
            (Some("eu"), None),
            (None, Some("1")),
            (Some("eu"), Some("1")),
        ] {
            let (status, answer) = called(region, own).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
        }
        let (status, _) = called(Some("us"), Some("1")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        for bad in [None, Some("us"), Some("=?base64?!?=")] {
            let (status, answer) = called(bad, None).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
            assert_eq!(answer["error"]["code"], -32020, "{answer}");
        }
    }
}
