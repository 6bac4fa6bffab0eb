//! Who may ask: the token, the name by which we are called, and the page that calls.
//!
//! Loopback alone protects nothing: any web page can send requests there. The `Host` check stops
//! DNS rebinding, the `Origin` check stops foreign pages, the token stops everyone else.

use super::answer::failed;
use crate::companion::Settings;
use crate::protocol::hex::hex;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use subtle::ConstantTimeEq;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// How a browser, which can't set headers of a WebSocket, presents the token.
const SUBPROTOCOL: &str = "osctl.token.";
const LOOPBACK: &[&str] = &["localhost", "127.0.0.1", "[::1]"];

#[derive(Debug)]
pub(super) struct Guard {
    /// SHA-256 of the token in hexadecimal; `None` lets everyone in.
    token: Option<String>,
    hosts: Vec<String>,
}

impl Guard {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            token: settings.token.clone(),
            hosts: settings.hosts.clone(),
        }
    }

    fn knows(&self, host: &str) -> bool {
        let name = without_port(host);
        LOOPBACK.iter().any(|l| name.eq_ignore_ascii_case(l))
            || self.hosts.iter().any(|h| name.eq_ignore_ascii_case(h))
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(expected) = &self.token else {
            return true;
        };
        let given = presented(headers).unwrap_or_default();
        let digest = hex(Sha256::digest(given.as_bytes()));
        digest.as_bytes().ct_eq(expected.as_bytes()).into()
    }
}

pub(super) async fn check(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    // HTTP/1.1 has the name in the header, an absolute request line has it in the URI.
    let host = text(headers, header::HOST)
        .or(request.uri().authority().map(|a| a.as_str()))
        .unwrap_or_default();
    if !guard.knows(host) {
        let message = format!("requests to the host `{host}` are not served");
        return failed(
            StatusCode::FORBIDDEN,
            "foreign_host",
            message,
            Some("call it `127.0.0.1` or `localhost`, or add the name to `hosts` in osctl.yaml"),
        );
    }
    if let Some(origin) = text(headers, header::ORIGIN)
        && !is_same_origin(origin, host)
    {
        let message = format!("pages of `{origin}` are not served");
        return failed(StatusCode::FORBIDDEN, "foreign_origin", message, None);
    }
    let is_open = request.uri().path() == "/ping";
    if !is_open && !guard.admits(headers) {
        let (kind, message) = match presented(headers) {
            Some(_) => ("wrong_token", "the token is not this instance's"),
            None => ("missing_token", "the token is missing"),
        };
        let hint = "send `Authorization: Bearer TOKEN`; `osctl status` names the token's file";
        let mut response = failed(StatusCode::UNAUTHORIZED, kind, message, Some(hint));
        response.headers_mut().insert(
            header::WWW_AUTHENTICATE,
            header::HeaderValue::from_static("Bearer"),
        );
        return response;
    }
    next.run(request).await
}

fn presented(headers: &HeaderMap) -> Option<&str> {
    let bearer = text(headers, header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme
            .eq_ignore_ascii_case("bearer")
            .then_some(token.trim())
    });
    bearer
        .or_else(|| text(headers, API_KEY))
        .or_else(|| subprotocol(headers))
}

fn subprotocol(headers: &HeaderMap) -> Option<&str> {
    let offered = text(headers, header::SEC_WEBSOCKET_PROTOCOL)?.split(',');
    offered
        .map(str::trim)
        .find_map(|protocol| protocol.strip_prefix(SUBPROTOCOL))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        // In `[::1]` every colon is part of the name.
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

/// Scheme, name and port: the companion speaks plain HTTP.
fn is_same_origin(origin: &str, host: &str) -> bool {
    let full = |name: &str| {
        if without_port(name) == name {
            format!("{name}:80")
        } else {
            name.to_owned()
        }
    };
    origin
        .strip_prefix("http://")
        .is_some_and(|name| full(name).eq_ignore_ascii_case(&full(host)))
}

#[cfg(test)]
mod tests {
    use super::{Guard, is_same_origin, without_port};

    #[test]
    fn only_loopback_and_configured_names_are_known() {
        let guard = Guard {
            token: None,
            hosts: vec!["box.example".into()],
        };
        for name in [
            "localhost:8080",
            "127.0.0.1:9",
            "[::1]:8080",
            "LOCALHOST",
            "box.example:8080",
        ] {
            assert!(guard.knows(name), "{name}");
        }
        for name in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "::1",
            "[::2]:8080",
            "127.0.0.2",
        ] {
            assert!(!guard.knows(name), "{name}");
        }
    }

    #[test]
    fn an_origin_must_match_in_scheme_name_and_port() {
        assert!(is_same_origin("http://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(is_same_origin("http://localhost", "localhost:80"));
        for origin in [
            "https://127.0.0.1:8080",
            "http://127.0.0.1:8081",
            "http://localhost:8080",
            "null",
            "http://127.0.0.1",
        ] {
            assert!(!is_same_origin(origin, "127.0.0.1:8080"), "{origin}");
        }
    }

    #[test]
    fn a_port_is_told_from_an_address() {
        assert_eq!(without_port("[::1]:80"), "[::1]");
        assert_eq!(without_port("[::1]"), "[::1]");
        assert_eq!(without_port("a:80"), "a");
    }
}
