//! The hub over HTTP: every transport and revision, on the same servers.
//!
//! | path | speaks |
//! |---|---|
//! | `/servers/NAME/mcp` | Streamable HTTP ([`streamable`]), also without sessions ([`stateless`]) |
//! | `/servers/NAME/sse`, `/servers/NAME/messages` | the older transport ([`sse`]) |
//! | `/mcp`, `/sse`, `/messages` | the same with all servers as one |
//! | `/status`, `/servers/NAME/log` | how they stand ([`status`]) |

mod events;
#[cfg(test)]
mod proofs;
mod refusal;
mod sse;
mod stateless;
mod status;
mod streamable;

use super::{Hub, Wish};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use refusal::failed;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;

/// Bytes of a request's body.
const BODY_LIMIT: usize = 64 << 20;

/// All routes of the hub's port; who may ask is decided before.
pub(in crate::companion) fn routes(hub: Hub) -> Router {
    let endpoint = post(streamable::post)
        .get(streamable::get)
        .delete(streamable::delete);
    Router::new()
        .route("/", get(status::describe))
        .route("/ping", get(status::ping))
        .route("/status", get(status::status))
        .route("/servers/{name}/log", get(status::log))
        .route("/servers/{name}/mcp", endpoint.clone())
        .route("/servers/{name}/sse", get(sse::open))
        .route("/servers/{name}/messages", post(sse::post))
        .route("/mcp", endpoint)
        .route("/sse", get(sse::open))
        .route("/messages", post(sse::post))
        .fallback(refusal::unknown_path)
        .method_not_allowed_fallback(refusal::wrong_method)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(from_fn_with_state(hub.clone(), refusal::stopping))
        .with_state(hub)
}

#[derive(Debug, Deserialize)]
struct Narrowed {
    servers: Option<String>,
    tools: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Wish {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Named(server) = Named::from_request_parts(parts, state).await?;
        let Asked(query) = Asked::<Narrowed>::from_request_parts(parts, state).await?;
        Ok(Self {
            server,
            servers: query.servers,
            tools: query.tools,
        })
    }
}

/// The server that the path names; none for all.
#[derive(Debug)]
struct Named(Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let path = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let found = path.map(|Path(mut path)| Self(path.remove("name")));
        // What is no text is nobody's name, and must not be taken for none.
        found.map_err(|e| failed(StatusCode::NOT_FOUND, "unknown_path", e.body_text(), None))
    }
}

/// What the query asks for.
#[derive(Debug)]
struct Asked<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        let bad = |why: String| failed(StatusCode::BAD_REQUEST, "invalid_query", why, None);
        query
            .map(|Query(query)| Self(query))
            .map_err(|e| bad(e.body_text()))
    }
}

/// A whole body.
#[derive(Debug)]
struct Body(Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self).map_err(|e| match e.status() {
            status @ StatusCode::PAYLOAD_TOO_LARGE => {
                let why = format!("the body is larger than {} MiB", BODY_LIMIT >> 20);
                failed(status, "too_large", why, None)
            }
            status => failed(status, "unreadable_body", e.body_text(), None),
        })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// What kinds of answers a client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Accepted {
    json: bool,
    events: bool,
    /// It names events before JSON, and is given them also where JSON would do.
    events_first: bool,
}

fn accepted(headers: &HeaderMap) -> Accepted {
    let all: Vec<&str> = headers
        .get_all("accept")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|kind| kind.split(';').next().unwrap_or_default().trim())
        .collect();
    let takes = |kind: &str, family: &str| {
        all.is_empty() || all.iter().any(|a| [kind, family, "*/*"].contains(a))
    };
    let place = |kind: &str| all.iter().position(|a| *a == kind);
    let (json, events) = (place("application/json"), place("text/event-stream"));
    Accepted {
        json: takes("application/json", "application/*"),
        events: takes("text/event-stream", "text/*"),
        events_first: events.is_some_and(|events| json.is_some_and(|json| events < json)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Accepted, accepted};
    use axum::http::{HeaderMap, HeaderValue};

    #[test]
    fn who_names_events_first_is_given_events() {
        let of = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            let Accepted {
                json,
                events,
                events_first,
            } = accepted(&HeaderMap::from_iter([(axum::http::header::ACCEPT, value)]));
            (json, events, events_first)
        };
        let both = "application/json, text/event-stream";
        assert_eq!(of(both), (true, true, false));
        let events_first = "text/event-stream, application/json;q=0.9";
        assert_eq!(of(events_first), (true, true, true));
        assert_eq!(of("text/event-stream"), (false, true, false));
        assert_eq!(of("application/json"), (true, false, false));
        assert_eq!(of("*/*"), (true, true, false));
        assert_eq!(of("text/html"), (false, false, false));
        let nothing = accepted(&HeaderMap::new());
        assert!(nothing.json && nothing.events && !nothing.events_first);
    }
}
