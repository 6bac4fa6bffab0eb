//! Pages for people: a browser that opens an address gets HTML where programs get JSON.
//!
//! Only refusals and the list of endpoints become pages. A page contains the text of the reply, escaped, and loads
//! nothing.

use crate::protocol::error::FailedReply;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;

/// Maximum size of a reply that becomes a page.
const MAX_PAGE_JSON_BYTES: usize = 1 << 20;
const PAGE_CSP: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const PAGE_HELP: &str = "`osctl desktop` opens the desktop of this instance in a browser; `osctl status` lists its addresses.";

pub(super) async fn answer_browser(request: Request, next: Next) -> Response {
    let is_root = request.uri().path() == "/";
    let title = asks_for_page(&request).then(|| page_title(request.headers()));
    let response = next.run(request).await;
    let status = response.status();
    let is_shown = is_json(response.headers()) && (is_root || !status.is_success());
    let Some(title) = title.filter(|_| is_shown) else {
        return response;
    };
    let (mut parts, body) = response.into_parts();
    let json = to_bytes(body, MAX_PAGE_JSON_BYTES)
        .await
        .unwrap_or_default();
    let page = render_page(&title, &json);
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_CSP),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    parts.headers.remove(header::CONTENT_LENGTH);
    for (header, value) in headers {
        parts
            .headers
            .insert(header, HeaderValue::from_static(value));
    }
    Response::from_parts(parts, Body::from(page))
}

/// Whether a person opens the address; scripts and programs accept other types.
fn asks_for_page(request: &Request) -> bool {
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    request.method() == Method::GET
        && text(header::ACCEPT.as_str()).is_some_and(|types| types.contains("text/html"))
        && text("sec-fetch-dest").is_none_or(|kind| kind == "document")
}

/// The title: with the container's name, if the address is that of `osctl desktop`.
fn page_title(headers: &HeaderMap) -> String {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    match host.and_then(|host| host.split_once(".localhost")) {
        Some((name, _)) => format!("{name} · osctl"),
        None => "osctl".into(),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
}

fn render_page(title: &str, json: &Bytes) -> String {
    let content = match serde_json::from_slice::<FailedReply>(json) {
        Ok(FailedReply { error, .. }) => {
            let hint = error
                .hint
                .map(|hint| format!("<p>{}</p>", with_code(&hint)));
            format!(
                "<p><b>{}</b></p>{}",
                with_code(&error.message),
                hint.unwrap_or_default()
            )
        }
        Err(_) => {
            let value: Value = serde_json::from_slice(json).unwrap_or_default();
            format!("<pre>{}</pre>", escape_html(&format!("{value:#}")))
        }
    };
    let (title, help) = (escape_html(title), with_code(PAGE_HELP));
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <style>body{{max-width:42rem;margin:4rem auto;padding:0 1rem;font:16px/1.5 sans-serif}}</style>\
         <h1>{title}</h1>{content}<p>{help}</p></html>"
    )
}

/// Escaped text; what is in backticks becomes code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(index, part)| match index % 2 {
            0 => escape_html(part),
            _ => format!("<code>{}</code>", escape_html(part)),
        })
        .collect()
}

fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::{MAX_PAGE_JSON_BYTES, answer_browser};
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, StatusCode};
    use axum::middleware::from_fn;
    use axum::routing::get;
    use axum::{Json, Router};
    use osctl_support::api::ApiRefusal;
    use serde_json::json;
    use tower::ServiceExt;

    /// The status, the type and the text of the reply.
    async fn reply(path: &str, headers: &[(&str, &str)]) -> (StatusCode, String, String) {
        let refuse = || async {
            ApiRefusal::new(
                StatusCode::UNAUTHORIZED,
                "missing_token",
                "no <script> & `token`",
            )
            .with_hint("send `TOKEN`")
        };
        let routes = Router::new()
            .route("/", get(|| async { Json(json!({"endpoints": ["<x>"]})) }))
            .route("/status", get(|| async { Json(json!({"status": "ok"})) }))
            .route("/refused", get(refuse))
            .layer(from_fn(answer_browser));
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = routes
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let kind = response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, MAX_PAGE_JSON_BYTES).await.unwrap();
        (
            parts.status,
            kind,
            String::from_utf8(bytes.to_vec()).unwrap(),
        )
    }

    const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

    #[tokio::test]
    async fn a_refusal_is_a_page_with_escaped_text() {
        let host = ("host", "os-host-ux.localhost:8080");
        let (status, kind, page) = reply("/refused", &[BROWSER, host]).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert_eq!(kind, "text/html; charset=utf-8");
        assert!(page.contains("<title>os-host-ux · osctl</title>"), "{page}");
        assert!(
            page.contains("no &lt;script&gt; &amp; <code>token</code>"),
            "{page}"
        );
        assert!(page.contains("<code>osctl desktop</code>"), "{page}");
        let (_, _, page) = reply("/", &[BROWSER, ("host", "127.0.0.1:8080")]).await;
        assert!(page.contains("<title>osctl</title>"), "{page}");
        assert!(page.contains("&lt;x&gt;"), "{page}");
    }

    #[tokio::test]
    async fn programs_and_scripts_get_json() {
        for headers in [
            &[][..],
            &[("accept", "application/json")],
            &[BROWSER, ("sec-fetch-dest", "empty")],
        ] {
            let (_, kind, text) = reply("/refused", headers).await;
            assert_eq!(kind, "application/json");
            assert!(text.contains("missing_token"), "{text}");
        }
        let (_, kind, _) = reply("/status", &[BROWSER]).await;
        assert_eq!(kind, "application/json");
    }
}
