//! Authentication: the token, the host name of the request and the origin of the calling page.
//!
//! A loopback address alone protects nothing: any web page can send requests to it. The `Host` check stops DNS
//! rebinding, the `Origin` check stops foreign pages, the token stops every other client.

use super::service::ping_response;
use crate::companion::CompanionSettings;
use crate::companion::desktop::OneTimeTokens;
use crate::protocol::hex::hex;
use crate::protocol::proof::{MAX_NONCE_BYTES, prove_nonce};
use crate::protocol::service::PingQuery;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use osctl_support::api::ApiRefusal;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use subtle::ConstantTimeEq;

const API_KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");
/// Prefix of the subprotocol that carries a browser's token: browsers cannot set headers of a WebSocket.
const TOKEN_SUBPROTOCOL_PREFIX: &str = "osctl.token.";
const FETCH_SITE_HEADER: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Paths that need no token: `/ping` changes nothing, `/desktop/enter` brings a code.
const UNAUTHENTICATED_PATHS: [&str; 2] = [PING_PATH, "/desktop/enter"];
const PING_PATH: &str = "/ping";
/// A browser's cookie does not give access to this path, so a cookie cannot obtain another link.
const DESKTOP_LINK_PATH: &str = "/desktop/link";
const LOOPBACK_HOSTS: &[&str] = &["localhost", "127.0.0.1", "[::1]"];

#[derive(Debug)]
pub(super) struct HttpAuth {
    /// SHA-256 of the token in hexadecimal; `None` admits every client.
    required_token_digest: Option<String>,
    /// The same digest, set even when every client is admitted: it proves which companion this is.
    token_digest: Option<String>,
    allowed_hosts: Vec<String>,
    one_time_tokens: OneTimeTokens,
}

impl HttpAuth {
    pub(super) fn new(settings: &CompanionSettings, one_time_tokens: OneTimeTokens) -> Self {
        Self {
            required_token_digest: settings.required_token_digest.clone(),
            token_digest: settings.token_digest.clone(),
            allowed_hosts: settings.hosts.clone(),
            one_time_tokens,
        }
    }

    fn is_allowed_host(&self, host: &str) -> bool {
        let name = without_port(host);
        LOOPBACK_HOSTS.iter().any(|l| name.eq_ignore_ascii_case(l))
            || self
                .allowed_hosts
                .iter()
                .any(|h| name.eq_ignore_ascii_case(h))
    }

    /// The reply to the nonce of `GET /ping`.
    fn prove_nonce(&self, uri: &Uri) -> Option<String> {
        let query = Query::<PingQuery>::try_from_uri(uri).ok()?;
        let nonce = query.0.nonce.filter(|n| n.len() <= MAX_NONCE_BYTES)?;
        Some(prove_nonce(self.token_digest.as_deref()?, &nonce))
    }

    fn has_valid_token(&self, headers: &HeaderMap) -> bool {
        let Some(expected) = &self.required_token_digest else {
            return true;
        };
        let token = presented_token(headers).unwrap_or_default();
        let digest = hex(Sha256::digest(token.as_bytes()));
        digest.as_bytes().ct_eq(expected.as_bytes()).into()
    }

    /// Whether a browser's cookie gives access to `path`. Pages of other ports send the cookie, too; `Sec-Fetch-Site`
    /// tells them apart.
    fn has_valid_cookie(&self, path: &str, headers: &HeaderMap, host: &str) -> bool {
        let is_ours = ["/desktop/", "/display/"]
            .iter()
            .any(|p| path.starts_with(p));
        let fetch_site = header_text(headers, FETCH_SITE_HEADER);
        let name = cookie_name(host);
        is_ours
            && path != DESKTOP_LINK_PATH
            && fetch_site.is_none_or(|site| ["same-origin", "none"].contains(&site))
            && cookie_values(headers, &name).any(|pass| self.one_time_tokens.is_valid_cookie(pass))
    }
}

/// The name of a browser's cookie. It depends on the port because browsers send cookies to all ports of a host.
pub(super) fn cookie_name(host: &str) -> String {
    let port = host.strip_prefix(without_port(host)).unwrap_or_default();
    let port = port.trim_start_matches(':');
    format!("osctl_{}", if port.is_empty() { "80" } else { port })
}

fn cookie_values<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(header::COOKIE).iter();
    let pairs = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    pairs.filter_map(move |pair| {
        let (key, value) = pair.split_once('=')?;
        (key.trim() == name).then_some(value.trim())
    })
}

pub(super) async fn authenticate_request(
    State(auth): State<Arc<HttpAuth>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    // HTTP/1.1 has the host name in the header, an absolute request line has it in the URI.
    let host = header_text(headers, header::HOST)
        .or(request.uri().authority().map(|a| a.as_str()))
        .unwrap_or_default();
    if !auth.is_allowed_host(host) {
        let message = format!("host `{host}` is not allowed");
        return ApiRefusal::new(StatusCode::FORBIDDEN, "foreign_host", message)
            .with_hint("use `127.0.0.1` or `localhost`, or add the name to `hosts` in osctl.yaml")
            .into_response();
    }
    if let Some(origin) = header_text(headers, header::ORIGIN)
        && !is_same_origin(origin, host)
    {
        let message = format!("origin `{origin}` is not allowed");
        return ApiRefusal::new(StatusCode::FORBIDDEN, "foreign_origin", message).into_response();
    }
    let path = request.uri().path();
    if path == PING_PATH
        && let Some(proof) = auth.prove_nonce(request.uri())
    {
        return ping_response(Some(proof));
    }
    let is_open = UNAUTHENTICATED_PATHS.contains(&path);
    if !is_open && !auth.has_valid_cookie(path, headers, host) && !auth.has_valid_token(headers) {
        let (kind, message) = match presented_token(headers) {
            Some(_) => ("wrong_token", "the token does not belong to this instance"),
            None => ("missing_token", "the token is missing"),
        };
        let hint = match path.starts_with("/desktop") {
            true => "`osctl desktop` opens the desktop in a browser",
            false => {
                "send `Authorization: Bearer TOKEN`; `osctl status` shows the path of the token file"
            }
        };
        let refusal = ApiRefusal::new(StatusCode::UNAUTHORIZED, kind, message).with_hint(hint);
        let mut response = osctl_hub::refuse_request(request, refusal).await;
        response.headers_mut().insert(
            header::WWW_AUTHENTICATE,
            header::HeaderValue::from_static("Bearer"),
        );
        return response;
    }
    next.run(request).await
}

fn presented_token(headers: &HeaderMap) -> Option<&str> {
    let bearer = header_text(headers, header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme
            .eq_ignore_ascii_case("bearer")
            .then_some(token.trim())
    });
    bearer
        .or_else(|| header_text(headers, API_KEY_HEADER))
        .or_else(|| subprotocol_token(headers))
}

fn subprotocol_token(headers: &HeaderMap) -> Option<&str> {
    let offered = header_text(headers, header::SEC_WEBSOCKET_PROTOCOL)?.split(',');
    offered
        .map(str::trim)
        .find_map(|protocol| protocol.strip_prefix(TOKEN_SUBPROTOCOL_PREFIX))
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        // In `[::1]` every colon belongs to the name.
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

/// Compares scheme, name and port; the scheme is `http` because the companion serves plain HTTP.
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
    use super::{HttpAuth, cookie_name, is_same_origin, without_port};
    use crate::companion::desktop::OneTimeTokens;
    use axum::http::{HeaderMap, HeaderValue};

    fn test_auth() -> HttpAuth {
        HttpAuth {
            required_token_digest: None,
            token_digest: None,
            allowed_hosts: vec!["box.example".into()],
            one_time_tokens: OneTimeTokens::new(None),
        }
    }

    #[test]
    fn cookie_grants_only_desktop_pages() {
        let auth = test_auth();
        let pass = auth
            .one_time_tokens
            .redeem_token(&auth.one_time_tokens.issue_token().unwrap())
            .unwrap();
        let host = "127.0.0.1:8080";
        let header = |name: &str, value: &str| {
            let cookie = format!("a=b; {name}={pass}; c=d");
            let mut headers = HeaderMap::new();
            headers.insert("cookie", HeaderValue::from_str(&cookie).unwrap());
            headers.insert("sec-fetch-site", HeaderValue::from_str(value).unwrap());
            headers
        };
        let ours = header("osctl_8080", "same-origin");
        assert!(auth.has_valid_cookie("/desktop/socket", &ours, host));
        assert!(auth.has_valid_cookie("/display/screenshot", &ours, host));
        for path in [
            "/exec",
            "/desktop/link",
            "/files/etc/passwd",
            "/",
            "/desktopx",
        ] {
            assert!(!auth.has_valid_cookie(path, &ours, host), "{path}");
        }
        for fetch_site in ["same-site", "cross-site"] {
            let theirs = header("osctl_8080", fetch_site);
            assert!(
                !auth.has_valid_cookie("/display/screenshot", &theirs, host),
                "{fetch_site}"
            );
        }
        let other = header("osctl_8081", "same-origin");
        assert!(!auth.has_valid_cookie("/desktop/", &other, host));
    }

    #[test]
    fn cookie_name_contains_the_port() {
        assert_eq!(cookie_name("127.0.0.1:8080"), "osctl_8080");
        assert_eq!(cookie_name("[::1]:9"), "osctl_9");
        assert_eq!(cookie_name("localhost"), "osctl_80");
    }

    #[test]
    fn only_loopback_and_configured_names_are_known() {
        let auth = test_auth();
        for name in [
            "localhost:8080",
            "127.0.0.1:9",
            "[::1]:8080",
            "LOCALHOST",
            "box.example:8080",
        ] {
            assert!(auth.is_allowed_host(name), "{name}");
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
            assert!(!auth.is_allowed_host(name), "{name}");
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
    fn a_port_differs_from_an_address() {
        assert_eq!(without_port("[::1]:80"), "[::1]");
        assert_eq!(without_port("[::1]"), "[::1]");
        assert_eq!(without_port("a:80"), "a");
    }
}
