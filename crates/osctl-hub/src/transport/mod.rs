//! The hub's HTTP interface: every transport and protocol revision, on the same servers.
//!
//! | path | speaks |
//! |---|---|
//! | `/servers/NAME/mcp` | Streamable HTTP ([`streamable`]), also without sessions ([`stateless`]) |
//! | `/servers/NAME/sse`, `/servers/NAME/messages` | the older transport ([`legacy_sse`]) |
//! | `/mcp`, `/sse`, `/messages` | the same with all servers as one |
//! | `/status`, `/servers/NAME/log` | the state of the servers, and their logs ([`status`]) |

#[cfg(test)]
mod hub_tests;
mod legacy_sse;
mod refusal;
mod stateless;
mod status;
mod stream_response;
mod streamable;

pub use refusal::{read_called_tool, refuse_request};

use super::{Hub, HubTarget};
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use osctl_protocol::mcp::ToolProfile;
use osctl_support::api::{self, ApiRefusal, ExtractorTexts, MAX_REQUEST_BODY_BYTES, QueryParams};
use serde::Deserialize;
use std::collections::HashMap;

/// All routes of the hub's port. Authentication takes place before them.
pub fn hub_routes(hub: Hub) -> Router {
    let endpoint = post(streamable::post_messages)
        .get(streamable::open_event_stream)
        .delete(streamable::delete_session);
    Router::new()
        .route("/", get(status::describe_endpoints))
        .route("/ping", get(status::ping))
        .route("/status", get(status::get_status))
        .route("/servers/{name}/log", get(status::get_log))
        .route("/servers/{name}/mcp", endpoint.clone())
        .route("/servers/{name}/sse", get(legacy_sse::open_stream))
        .route("/servers/{name}/messages", post(legacy_sse::post_message))
        .route("/mcp", endpoint)
        .route("/sse", get(legacy_sse::open_stream))
        .route("/messages", post(legacy_sse::post_message))
        .fallback(refusal::reject_unknown_hub_path)
        .method_not_allowed_fallback(api::reject_wrong_method)
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BODY_BYTES))
        .layer(from_fn_with_state(
            hub.clone(),
            refusal::refuse_while_stopping,
        ))
        .with_state(hub)
}

impl ExtractorTexts for Hub {
    const BODY_NAME: &'static str = "body";
    const LARGE_BODY_HINT: Option<&'static str> = None;
    const INVALID_QUERY_HINT: Option<&'static str> = None;
}

#[derive(Debug, Deserialize)]
struct TargetQuery {
    servers: Option<String>,
    tools: Option<String>,
    profile: Option<ToolProfile>,
}

impl<S: ExtractorTexts + Send + Sync> FromRequestParts<S> for HubTarget {
    type Rejection = ApiRefusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRefusal> {
        let PathServerName(server) = PathServerName::from_request_parts(parts, state).await?;
        let QueryParams::<TargetQuery>(query) =
            QueryParams::from_request_parts(parts, state).await?;
        Ok(Self {
            server,
            servers: query.servers,
            tools: query.tools,
            profile: query.profile,
        })
    }
}

/// The server that the path names; `None` for all servers.
#[derive(Debug)]
struct PathServerName(Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for PathServerName {
    type Rejection = ApiRefusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRefusal> {
        let path = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let found = path.map(|Path(mut path)| Self(path.remove("name")));
        // A name that is not valid text matches no server, and must not be mistaken for a missing name, which selects
        // all servers.
        found.map_err(|rejection| {
            ApiRefusal::new(StatusCode::NOT_FOUND, "unknown_path", rejection.body_text())
        })
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The content types that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AcceptedTypes {
    json: bool,
    events: bool,
    /// The client names events before JSON, and then receives events even where JSON is sufficient.
    events_first: bool,
}

fn parse_accept(headers: &HeaderMap) -> AcceptedTypes {
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
    let position = |kind: &str| all.iter().position(|a| *a == kind);
    let (json, events) = (position("application/json"), position("text/event-stream"));
    AcceptedTypes {
        json: takes("application/json", "application/*"),
        events: takes("text/event-stream", "text/*"),
        events_first: events.is_some_and(|events| json.is_some_and(|json| events < json)),
    }
}

#[cfg(test)]
mod tests {
    use super::{AcceptedTypes, parse_accept};
    use axum::http::{HeaderMap, HeaderValue};

    #[test]
    fn a_client_that_names_events_first_receives_events() {
        let of = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            let AcceptedTypes {
                json,
                events,
                events_first,
            } = parse_accept(&HeaderMap::from_iter([(axum::http::header::ACCEPT, value)]));
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
        let nothing = parse_accept(&HeaderMap::new());
        assert!(nothing.json && nothing.events && !nothing.events_first);
    }
}
