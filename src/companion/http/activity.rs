//! The activity log over HTTP: the caller of each request, records of requests that are no runs, and the route.

use super::HttpState;
use super::stream::{EVENT_HEARTBEAT_INTERVAL, StreamFormat};
use crate::companion::activity::{ActivityLog, Caller};
use crate::companion::admission::ListenerKind;
use crate::protocol::activity::{
    ActivityEvent, ActivityKind, ActivityList, ActivityQuery, ActivityRecord, ActivityVerdict,
};
use crate::protocol::activity_draft::ActivityDraft;
use crate::protocol::activity_text::path_text;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::{self, unfold};
use osctl_support::api::{ApiResult, QueryParams};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

/// Names the caller of a request for the handlers, and records the requests of [`recorded_action`].
pub(super) async fn record_request(
    Shared((log, listener)): Shared<(ActivityLog, ListenerKind)>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let agent = headers
        .get(header::USER_AGENT)
        .and_then(|v| v.to_str().ok());
    let caller = Caller::from_user_agent(agent, listener);
    let action = recorded_action(request.method(), request.uri().path(), headers);
    let draft = action.map(|(kind, text)| ActivityDraft {
        tool: Some(request.method().to_string()),
        text,
        ..ActivityDraft::begin(kind, caller.0.clone())
    });
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|v| v.to_str().ok()?.parse().ok());
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    if let Some(draft) = draft
        && let Some(verdict) = request_verdict(draft.kind, response.status())
    {
        log.record(draft, verdict, length.unwrap_or(0));
    }
    response
}

/// The kind and the text of a request that is recorded here. Handlers and the hub record runs and calls of tools.
fn recorded_action(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Option<(ActivityKind, String)> {
    let file = path.strip_prefix("/files").filter(|rest| !rest.is_empty());
    match (method, path) {
        (&Method::PUT | &Method::DELETE, _) => Some((ActivityKind::File, path_text(file?))),
        (&Method::POST, "/evolve" | "/evolve/rollback") => {
            Some((ActivityKind::Evolve, path.into()))
        }
        (&Method::GET, "/desktop/enter") => Some((ActivityKind::SignIn, "desktop".into())),
        // Without an upgrade, the request lists the terminals.
        (&Method::GET, "/pty") if headers.contains_key(header::UPGRADE) => {
            Some((ActivityKind::Terminal, String::new()))
        }
        _ => None,
    }
}

/// The verdict by the status; `None` for a request that is not recorded. A client without a token
/// could fill the log with refused sign-ins.
fn request_verdict(kind: ActivityKind, status: StatusCode) -> Option<ActivityVerdict> {
    match status.as_u16() {
        100..400 => Some(ActivityVerdict::Completed),
        _ if kind == ActivityKind::SignIn => None,
        400..500 => Some(ActivityVerdict::Refused),
        _ => Some(ActivityVerdict::Failed),
    }
}

/// List what clients did
///
/// The records are sorted by their end, the oldest first. With `Accept: text/event-stream` or `application/x-ndjson` the
/// reply is a stream that continues with each new record.
#[utoipa::path(get, path = "/activity", params(
    ("since" = Option<f64>, Query, description = "Only actions that ended at this time or later, in seconds since 1970"),
    ("after" = Option<u64>, Query, description = "Only records with a greater number"),
    ("client" = Option<String>, Query, description = "Only records of this client"),
    ("session" = Option<String>, Query, description = "Only records of this session"),
    ("limit" = Option<usize>, Query, description = "Maximum number of earlier records, the newest ones; 200 if missing, at most 10,000"),
), responses(
    (status = 200, content(
        (ActivityList = "application/json"), (ActivityEvent = "text/event-stream"), (ActivityEvent = "application/x-ndjson"),
    )),
))]
pub(super) async fn list(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    QueryParams(query): QueryParams<ActivityQuery>,
) -> ApiResult {
    let Some(format) = StreamFormat::from_accept_header(&headers) else {
        let records = state.activity.read(query).await;
        return Ok(Json(ActivityList { records }).into_response());
    };
    // Subscribe first, so that no record is missed in between.
    let news = state.activity.subscribe();
    let known = state.activity.read(query.clone()).await;
    let last = known.last().map_or(0, |record| record.seq);
    let after = query.after.unwrap_or(0).max(last);
    let query = ActivityQuery {
        after: Some(after),
        ..query
    };
    let known = stream::iter(known).map(ActivityEvent::Record);
    let new = unfold((news, query), |(mut news, query)| async move {
        let event = next_event(&mut news, &query).await?;
        Some((event, (news, query)))
    });
    let pieces = known
        .chain(new)
        .map(move |event| Ok::<_, Infallible>(format.encode_message(&event)));
    let headers = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

async fn next_event(
    news: &mut Receiver<Arc<ActivityRecord>>,
    query: &ActivityQuery,
) -> Option<ActivityEvent> {
    loop {
        match timeout(EVENT_HEARTBEAT_INTERVAL, news.recv()).await {
            Ok(Ok(record)) if query.matches(&record) => {
                return Some(ActivityEvent::Record((*record).clone()));
            }
            Ok(Ok(_)) => {}
            Ok(Err(RecvError::Lagged(count))) => return Some(ActivityEvent::Skipped { count }),
            Ok(Err(RecvError::Closed)) => return None,
            Err(_) => return Some(ActivityEvent::Heartbeat),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{recorded_action, request_verdict};
    use crate::protocol::activity::{ActivityKind as K, ActivityVerdict as V};
    use axum::http::{HeaderMap, Method, StatusCode};

    #[test]
    fn writes_evolves_terminals_and_sign_ins_are_recorded() {
        let mut upgrade = HeaderMap::new();
        upgrade.insert("upgrade", "websocket".parse().unwrap());
        let none = HeaderMap::new();
        for (method, path, headers, expected) in [
            (Method::PUT, "/files/a%20b", &none, Some((K::File, "/a b"))),
            (Method::DELETE, "/files/a", &none, Some((K::File, "/a"))),
            (Method::POST, "/evolve", &none, Some((K::Evolve, "/evolve"))),
            (
                Method::GET,
                "/desktop/enter",
                &none,
                Some((K::SignIn, "desktop")),
            ),
            (Method::GET, "/pty", &upgrade, Some((K::Terminal, ""))),
            (Method::GET, "/pty", &none, None),
            (Method::GET, "/files/a", &none, None),
            (Method::PUT, "/environment", &none, None),
            (Method::POST, "/exec", &none, None),
            (Method::POST, "/evolve/quiesce", &none, None),
            (Method::DELETE, "/sessions/a", &none, None),
        ] {
            let action = recorded_action(&method, path, headers);
            let expected = expected.map(|(kind, text)| (kind, text.to_owned()));
            assert_eq!(action, expected, "{method} {path}");
        }
    }

    #[test]
    fn a_refused_sign_in_is_not_recorded() {
        for (kind, status, expected) in [
            (K::File, 200, Some(V::Completed)),
            (K::Terminal, 101, Some(V::Completed)),
            (K::SignIn, 303, Some(V::Completed)),
            (K::SignIn, 401, None),
            (K::File, 404, Some(V::Refused)),
            (K::Evolve, 503, Some(V::Failed)),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(request_verdict(kind, status), expected);
        }
    }
}
