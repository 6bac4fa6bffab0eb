//! Admission control: which requests are refused while the container quiesces.

use crate::companion::admission::{AdmissionControl, ListenerKind};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use osctl_support::api::ApiRefusal;

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
        return evolving_refusal().into_response();
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
    use super::is_always_admitted;
    use axum::http::Method;

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
