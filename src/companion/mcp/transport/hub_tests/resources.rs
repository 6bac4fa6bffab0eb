//! Tests that a request for a resource reaches only the resource's server when all servers are merged.

use super::{Scene, TEST_ACCEPT_BOTH, TestMcpClient, ask, call, found, server, text, value};

const METHODS: [&str; 4] = [
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "completion/complete",
];

/// The resource requests that all three servers received.
fn asked(scene: &Scene) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for name in ["a", "b", "c"] {
        for method in METHODS {
            let heard = scene.stage.heard(name, &format!("\"method\":\"{method}\""));
            all.extend(heard.into_iter().map(|line| (name, line)));
        }
    }
    all
}

fn scene() -> Scene {
    let scene = Scene::empty();
    let servers = [
        server("a", true, 600),
        server("b", false, 600),
        server("c", true, 600),
    ];
    scene.hub.apply_config(found(servers));
    scene
}

async fn read(client: &TestMcpClient, uri: &str) -> String {
    let params = format!(r#"{{"uri":"{uri}"}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{params}}}"#);
    client.answer(&body).await
}

#[tokio::test]
async fn a_resource_request_reaches_only_its_server() {
    for uri in ["b:listed", "b:t/one"] {
        let scene = scene();
        let client = scene.client("/mcp").await;
        for _ in 0..2 {
            assert!(read(&client, uri).await.contains(r#""of":"b""#), "{uri}");
        }
        for method in ["resources/subscribe", "resources/unsubscribe"] {
            let params = format!(r#"{{"uri":"{uri}"}}"#);
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
            assert!(value(&client.answer(&body).await)["result"].is_object());
        }
        let completed = r#"{"ref":{"type":"ref/resource","uri":"b:t/{x}"},"n":1.0}"#;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{completed}}}"#
        );
        assert!(client.answer(&body).await.contains(completed));
        let asked = asked(&scene);
        assert_eq!(asked.len(), 5, "{asked:?}");
        assert!(asked.iter().all(|(name, _)| *name == "b"), "{asked:?}");
    }
}

#[tokio::test]
async fn a_request_for_an_unknown_resource_reaches_no_server() {
    let scene = scene();
    let client = scene.client("/mcp").await;
    for method in METHODS {
        let params = r#"{"uri":"x:secret","ref":{"type":"ref/resource","uri":"x:secret"}}"#;
        let body = format!(r#"{{"jsonrpc":"2.0","id":1.0,"method":"{method}","params":{params}}}"#);
        let answer = client.answer(&body).await;
        let error = value(&answer)["error"].clone();
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
        value(&text(ask(&client.routes, "POST", "/mcp", &headers, body).await).await)
    };
    let missing = modern("x:secret").await;
    assert_eq!(missing["error"]["code"], -32602, "{missing}");
    assert_eq!(missing["error"]["data"]["uri"], "x:secret");
    assert_eq!(asked(&scene), []);
    assert_eq!(modern("c:t/1").await["result"]["of"], "c");
    assert!(asked(&scene).iter().all(|(name, _)| *name == "c"));
}

#[tokio::test]
async fn a_linked_resource_is_read_from_the_server_that_linked_it() {
    let scene = scene();
    let client = scene.client("/mcp").await;
    let link = call("1", "c__link", r#","arguments":{"uri":"x:linked"}"#);
    assert!(client.answer(&link).await.contains("x:linked"));
    assert!(read(&client, "x:linked").await.contains(r#""of":"c""#));
    // The route also exists for clients that connect later.
    let other = scene.client("/mcp").await;
    assert!(read(&other, "x:linked").await.contains(r#""of":"c""#));
    assert!(asked(&scene).iter().all(|(name, _)| *name == "c"));
}
