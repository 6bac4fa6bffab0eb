//! Admission control: which requests are refused while the container quiesces.

use crate::companion::admission::{AdmissionControl, ListenerKind};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use osctl_support::api::ApiRefusal;

/// The tool that reports the evolve in progress, as `/evolve/status` does.
const ALWAYS_ADMITTED_TOOL: &str = "os__evolve_status";

/// Admits a request, or answers that the client must retry later.
pub(super) async fn admit_request(
    State((gate, listener)): State<(AdmissionControl, ListenerKind)>,
    request: Request,
    next: Next,
) -> Response {
    if is_always_admitted(request.method(), request.uri().path()) {
        return next.run(request).await;
    }
    let Some(pass) = gate.admit(listener) else {
        let (request, tool) = osctl_hub::read_called_tool(request).await;
        return match tool.as_deref() {
            Some(ALWAYS_ADMITTED_TOOL) => next.run(request).await,
            _ => osctl_hub::refuse_request(request, evolving_refusal()).await,
        };
    };
    let response = next.run(request).await;
    drop(pass);
    response
}

fn evolving_refusal() -> ApiRefusal {
    let message = "the container accepts no new requests: an evolve is in progress, or the container is starting";
    ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, "evolving", message)
        .with_hint("try again soon; `osctl evolve status` shows the progress of an evolve")
        .with_retry_after(1)
}

/// Requests that are always answered: reads, and requests that help the container to quiesce.
fn is_always_admitted(method: &Method, path: &str) -> bool {
    let is_in = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    match *method {
        // These paths start something, or query a kernel.
        Method::GET | Method::HEAD => {
            !is_in(&["/pty", "/display", "/desktop", "/variables", "/history"])
        }
        Method::DELETE => is_in(&["/exec/", "/shell/"]),
        Method::POST => path == "/interrupt" || path == "/evolve" || is_in(&["/evolve/"]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{admit_request, is_always_admitted};
    use crate::companion::admission::{AdmissionControl, ListenerKind};
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use axum::http::Method;
    use axum::middleware::from_fn_with_state;
    use axum::routing::any;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_client_of_mcp_reads_why_it_is_refused_and_the_status_of_the_evolve() {
        let gate = AdmissionControl::default();
        gate.close_to_outside();
        let layer = from_fn_with_state((gate, ListenerKind::Outside), admit_request);
        let echo = any(|body: String| async move { body });
        let routes = Router::new().fallback_service(echo).layer(layer);
        let post = async |path: &str, agent: Option<&str>, body: &str| {
            let mut request = Request::post(path);
            if let Some(version) = agent {
                request = request.header("osctl-protocol", version);
            }
            let request = request.body(Body::from(body.to_owned())).unwrap();
            let response = routes.clone().oneshot(request).await.unwrap();
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            (status, body, headers.contains_key("retry-after"))
        };
        let call = |tool: &str| {
            let params = json!({"name": tool});
            json!({"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params})
        };
        for (path, tool) in [
            ("/mcp", "os__evolve_status"),
            ("/servers/os/mcp", "evolve_status"),
        ] {
            let sent = call(tool);
            let answer = post(path, None, &sent.to_string()).await;
            assert_eq!(answer, (200, sent, false));
        }
        for (path, tool) in [
            ("/mcp", "os__run_shell"),
            ("/mcp", "evolve_status"),
            ("/servers/x/mcp", "evolve_status"),
        ] {
            let call = call(tool).to_string();
            let (status, body, can_retry) = post(path, None, &call).await;
            assert_eq!((status, can_retry), (503, true), "{tool}");
            assert_eq!(
                (&body["jsonrpc"], &body["id"]),
                (&json!("2.0"), &json!("a"))
            );
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains("an evolve is in progress"), "{message}");
            assert_eq!(body["error"]["data"]["type"], "evolving");
            let (status, body, _) = post(path, Some("1"), &call).await;
            assert_eq!((status, &body["error"]["type"]), (503, &json!("evolving")));
        }
        for body in ["", "{", "[]", r#"{"jsonrpc":"2.0","method":"x"}"#] {
            let (status, body, _) = post("/mcp", None, body).await;
            assert_eq!((status, &body["error"]["type"]), (503, &json!("evolving")));
        }
    }

    #[test]
    fn only_reads_are_always_admitted() {
        for (method, path) in [
            (Method::GET, "/ping"),
            (Method::GET, "/exec/a"),
            (Method::GET, "/files/etc/passwd"),
            (Method::DELETE, "/exec/a"),
            (Method::POST, "/interrupt"),
            (Method::POST, "/evolve"),
            (Method::GET, "/servers/a/mcp"),
        ] {
            assert!(is_always_admitted(&method, path), "{method} {path}");
        }
        for (method, path) in [
            (Method::POST, "/exec"),
            (Method::POST, "/shell"),
            (Method::PUT, "/files/a"),
            (Method::DELETE, "/files/a"),
            (Method::DELETE, "/sessions/a"),
            (Method::GET, "/pty"),
            (Method::GET, "/display/screenshot"),
            (Method::POST, "/servers/a/mcp"),
            (Method::POST, "/evolved"),
        ] {
            assert!(!is_always_admitted(&method, path), "{method} {path}");
        }
    }
}
