//! Evolving over HTTP: the wish goes on to the keeper, and what is asked of the container itself
//! comes by the private socket alone.

use super::answer::{Body, Id, Params, failed, invalid};
use super::stream::Form;
use super::{State, json};
use crate::companion::evolve::{Answer, Refusal, unexpected};
use crate::protocol::evolve::inside::Expected;
use crate::protocol::evolve::{
    Ask, Event, Evolve, Found, Piece, Reply, Rollback, Run, Runs, Started, Status, refusal,
};
use crate::protocol::fault::{Failed, Fault};
use axum::body::{Body as Streamed, Bytes};
use axum::extract::State as Shared;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream::unfold;
use serde::Deserialize;
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;
use utoipa::IntoParams;

/// Seconds that running code has, unless the keeper says otherwise.
const GRACE: f64 = 30.0;

/// Seconds that it may say.
const LONGEST_GRACE: f64 = 24.0 * 3600.0;

/// Rebuilds the image from the project's `body/` and replaces the container by it, with the kernel's
/// state carried over; goes back by itself when the new one does not prove itself.
///
/// The answer comes at once; the run goes on by itself, and `GET /evolve/status` tells how.
#[utoipa::path(post, path = "/evolve", request_body = Option<Evolve>, responses(
    (status = 200, description = "It has begun.", body = Started),
    (status = 400, description = "A field does not fit; there is none for an image, a mount, a command or an environment.", body = Failed),
    (status = 409, description = "Another run is on.", body = Failed),
    (status = 429, description = "It is too soon after the one before.", body = Failed),
    (status = 503, description = "There is no keeper here, or it does not answer.", body = Failed),
))]
pub(super) async fn begin(Shared(state): Shared<State>, Body(wish): Body<Evolve>) -> Response {
    started(&state, &Ask::Evolve(wish)).await
}

/// Goes back to the image before, or to the one that `run` brought, by the same gates.
#[utoipa::path(post, path = "/evolve/rollback", request_body = Option<Rollback>, responses(
    (status = 200, description = "It has begun.", body = Started),
    (status = 404, description = "There is nothing to go back to.", body = Failed),
    (status = 409, description = "Another run is on.", body = Failed),
    (status = 503, description = "There is no keeper here, or it does not answer.", body = Failed),
))]
pub(super) async fn rollback(Shared(state): Shared<State>, Body(wish): Body<Rollback>) -> Response {
    started(&state, &Ask::Rollback(wish)).await
}

async fn started(state: &State, ask: &Ask) -> Response {
    match state.evolve.ask(ask).await {
        Ok((Reply::Started { run }, _)) => {
            state.evolve.tell_runs();
            let status = "started".into();
            json(StatusCode::OK, Started { status, run })
        }
        Ok((other, _)) => unexpected(&other).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// Whether a run is on, and how the last one ended.
#[utoipa::path(get, path = "/evolve/status", responses(
    (status = 200, body = Status),
    (status = 503, description = "There is no keeper here, or it does not answer.", body = Failed),
))]
pub(super) async fn status(Shared(state): Shared<State>) -> Response {
    match state.evolve.ask(&Ask::Status {}).await {
        Ok((Reply::Status(status), _)) => json(StatusCode::OK, status),
        Ok((other, _)) => unexpected(&other).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// All runs, the newest first, each without its checks and its receipt.
#[utoipa::path(get, path = "/evolve/runs", responses(
    (status = 200, body = Runs),
    (status = 503, description = "There is no keeper here, or it does not answer.", body = Failed),
))]
pub(super) async fn list(Shared(state): Shared<State>) -> Response {
    match state.evolve.history().await {
        Ok(runs) => json(StatusCode::OK, Runs { runs }),
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    /// The first byte of the log.
    #[serde(default)]
    offset: u64,
}

/// How a run stands, and its log from `offset` on.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` both come as they happen, to its end.
#[utoipa::path(get, path = "/evolve/runs/{run}", params(("run" = String, Path, description = "The run's name"), From), responses(
    (status = 200, content(
        (Found = "application/json"), (Event = "text/event-stream"), (Event = "application/x-ndjson"),
    )),
    (status = 404, description = "There is no such run.", body = Failed),
    (status = 503, description = "There is no keeper here, or it does not answer.", body = Failed),
))]
pub(super) async fn find(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Id(run): Id,
    Params(From { offset }): Params<From>,
) -> Response {
    let run: Run = match run.parse() {
        Ok(run) => run,
        Err(why) => return invalid(why),
    };
    let form = Form::accepted(&headers);
    let follow = form.is_some();
    let ask = Ask::Log {
        run,
        offset,
        follow,
    };
    match (state.evolve.ask(&ask).await, form) {
        (Ok((first, rest)), Some(form)) => streamed(first, rest, form),
        (Ok((first, rest)), None) => match gathered(first, rest, offset).await {
            Ok(found) => json(StatusCode::OK, found),
            Err(refusal) => refusal.into_response(),
        },
        (Err(refusal), _) => refusal.into_response(),
    }
}

async fn gathered(first: Reply, mut rest: Answer, offset: u64) -> Result<Found, Refusal> {
    let mut log = Piece {
        offset,
        text: String::new(),
        next: offset,
    };
    let mut next = Some(first);
    while let Some(reply) = next {
        match event(reply)? {
            Event::Log(piece) => {
                if log.text.is_empty() {
                    log.offset = piece.offset;
                }
                log.text += &piece.text;
                log.next = piece.next;
            }
            Event::Record(record) => {
                return Ok(Found {
                    record: *record,
                    log,
                });
            }
        }
        next = rest
            .next()
            .await
            .map_err(|error| Refusal::Silent(error.to_string()))?;
    }
    Err(Refusal::Silent("it hung up".into()))
}

fn streamed(first: Reply, rest: Answer, form: Form) -> Response {
    let pieces = unfold((Some(first), rest), move |(first, mut rest)| async move {
        let reply = match first {
            Some(reply) => reply,
            None => rest.next().await.ok()??,
        };
        let line = form.line(&event(reply).ok()?);
        Some((Ok::<Bytes, Infallible>(line), (None, rest)))
    });
    let headers = [(header::CONTENT_TYPE, form.mime())];
    (headers, Streamed::from_stream(pieces)).into_response()
}

fn event(reply: Reply) -> Result<Event, Refusal> {
    match reply {
        Reply::Log { offset, text, next } => Ok(Event::Log(Piece { offset, text, next })),
        Reply::Record(record) => Ok(Event::Record(record)),
        other => Err(unexpected(&other)),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        use StatusCode as S;
        match self {
            Self::NoKeeper(why) => failed(
                S::SERVICE_UNAVAILABLE,
                "no_keeper",
                format!("there is no keeper here, which alone can evolve the container: {why}"),
                Some("`osctl up` on the host starts it"),
            ),
            Self::Silent(why) => failed(
                S::SERVICE_UNAVAILABLE,
                "keeper_silent",
                format!("the keeper does not answer: {why}"),
                Some("`osctl evolve status` on the host tells more"),
            ),
            Self::Busy(run) => failed(
                S::CONFLICT,
                "evolving",
                format!("the run `{run}` is on"),
                Some("`GET /evolve/status` tells how it goes"),
            ),
            Self::Invalid(message) => invalid(message),
            Self::Keeper(Fault {
                kind,
                message,
                hint,
            }) => {
                let status = match kind.as_str() {
                    refusal::BAD_REQUEST => S::BAD_REQUEST,
                    refusal::NO_SUCH_RUN => S::NOT_FOUND,
                    refusal::TOO_OFTEN => S::TOO_MANY_REQUESTS,
                    _ => S::SERVICE_UNAVAILABLE,
                };
                let mut response = failed(status, &kind, message, hint.as_deref());
                if status == S::TOO_MANY_REQUESTS {
                    let later = HeaderValue::from_static("30");
                    response.headers_mut().insert(header::RETRY_AFTER, later);
                }
                response
            }
        }
    }
}

/// What the keeper asks, by hidden verbs inside.
pub(super) fn private() -> axum::Router<State> {
    axum::Router::new()
        .route("/evolve/remember", post(remember))
        .route("/evolve/selftest", post(selftest))
        .route("/evolve/quiesce", post(quiesce))
        .route("/evolve/resume", post(resume))
        .route("/evolve/verify", post(verify))
}

async fn remember(Shared(state): Shared<State>) -> Response {
    json(StatusCode::OK, state.evolve.remember().await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prove {
    /// State to bring back, in the form of the data folder.
    snapshot: Option<PathBuf>,
}

async fn selftest(Shared(state): Shared<State>, Body(prove): Body<Prove>) -> Response {
    json(StatusCode::OK, state.evolve.selftest(prove.snapshot).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rest {
    /// Seconds that running code has.
    grace: Option<f64>,
    #[serde(default)]
    force: bool,
}

async fn quiesce(Shared(state): Shared<State>, Body(rest): Body<Rest>) -> Response {
    let grace = rest.grace.unwrap_or(GRACE);
    if !(0.0..=LONGEST_GRACE).contains(&grace) {
        return invalid(format!("`grace` is up to {LONGEST_GRACE} seconds"));
    }
    let grace = Duration::from_secs_f64(grace);
    json(
        StatusCode::OK,
        state.evolve.quiesce(grace, rest.force).await,
    )
}

async fn resume(Shared(state): Shared<State>) -> Response {
    json(StatusCode::OK, state.evolve.resume().await)
}

async fn verify(Shared(state): Shared<State>, Body(expected): Body<Expected>) -> Response {
    json(StatusCode::OK, state.evolve.verify(&expected).await)
}
