//! Storing and reloading a session's objects, over HTTP.

use super::answer::{Body, Id, Params};
use super::stream::Form;
use super::tale::follow;
use super::{State, json};
use crate::companion::cryo::Refusal;
use crate::companion::kernel;
use crate::protocol::cryo::{
    Lines, OfSession, Reason, Reload, Reloaded, Removed, Shown, Snapshot, Snapshots, Store, Stored,
};
use crate::protocol::fault::{Failed, Fault};
use crate::protocol::tale::Told;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

/// Stores a session's variables, and says of each what became of it.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the bytes that were moved are told
/// as it goes on.
#[utoipa::path(post, path = "/cryo/store", request_body = Option<Store>, responses(
    (status = 200, content(
        (Stored = "application/json"), (Told<Stored> = "text/event-stream"), (Told<Stored> = "application/x-ndjson"),
    )),
    (status = 404, description = "There is no such session.", body = Failed),
    (status = 409, description = "Something would be lost, and `strict` is set; or the kernel is another generation than `seen`.", body = Failed),
    (status = 429, description = "Code runs.", body = Failed),
    (status = 507, description = "The disk is full; what was stored before is untouched.", body = Failed),
))]
pub(super) async fn store(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Body(wish): Body<Store>,
) -> Response {
    let cryo = state.cryo.clone();
    let (working, session) = (cryo.clone(), wish.session.clone());
    let work = async move { working.store(wish, Reason::Asked).await };
    match Form::accepted(&headers) {
        Some(form) => {
            let measure = move || (cryo.moved(&session), None);
            follow(form, measure, async { work.await.map_err(Refusal::told) })
        }
        None => answered(work.await),
    }
}

/// Brings a stored state back into a session, and says of each variable what is there afterwards.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the bytes that were moved are told
/// as it goes on.
#[utoipa::path(post, path = "/cryo/reload", request_body = Option<Reload>, responses(
    (status = 200, content(
        (Reloaded = "application/json"), (Told<Reloaded> = "text/event-stream"), (Told<Reloaded> = "application/x-ndjson"),
    )),
    (status = 404, description = "There is no such session, or nothing of that name.", body = Failed),
    (status = 422, description = "It is damaged; the hint names one that is not.", body = Failed),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn reload(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Body(wish): Body<Reload>,
) -> Response {
    let cryo = state.cryo.clone();
    let (working, session) = (cryo.clone(), wish.session.clone());
    let Some(form) = Form::accepted(&headers) else {
        return answered(cryo.reload(wish).await);
    };
    let total = cryo.total(&wish).await;
    let work = async move { working.reload(wish).await.map_err(Refusal::told) };
    follow(form, move || (cryo.moved(&session), total), work)
}

/// Stores every session that holds something new under its own name. `down` and `restart` say which
/// stop of the container follows.
#[utoipa::path(post, path = "/cryo/snapshot", request_body = Snapshot, responses(
    (status = 200, body = Snapshots),
))]
pub(super) async fn snapshot(Shared(state): Shared<State>, Body(wish): Body<Snapshot>) -> Response {
    let done = state.cryo.before(wish).await;
    let each = done.into_iter().map(|(session, stored)| match stored {
        Ok(stored) => OfSession {
            session,
            stored,
            error: None,
        },
        Err(refusal) => OfSession {
            session,
            stored: None,
            error: Some(refusal.told().1),
        },
    });
    let snapshots = each.collect();
    json(StatusCode::OK, Snapshots { snapshots })
}

/// All that is stored, by name, the newest first.
#[utoipa::path(get, path = "/cryo", responses((status = 200, body = Lines)))]
pub(super) async fn list(Shared(state): Shared<State>) -> Response {
    answered(state.cryo.list().await.map(|cryo| Lines { cryo }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// The number of a generation.
    generation: Option<u64>,
}

/// A stored state with its receipt; the newest of that name, unless `generation` says otherwise.
#[utoipa::path(get, path = "/cryo/{name}", params(("name" = String, Path, description = "What it is called"), Which), responses(
    (status = 200, body = Shown),
    (status = 404, description = "There is none.", body = Failed),
    (status = 422, description = "It is damaged; the hint names one that is not.", body = Failed),
))]
pub(super) async fn show(
    Shared(state): Shared<State>,
    Id(name): Id,
    Params(which): Params<Which>,
) -> Response {
    answered(state.cryo.show(name, which.generation).await)
}

/// Removes all that is stored under a name, or one `generation`.
#[utoipa::path(delete, path = "/cryo/{name}", params(("name" = String, Path, description = "What it is called"), Which), responses(
    (status = 200, body = Removed),
    (status = 404, description = "There is none.", body = Failed),
))]
pub(super) async fn remove(
    Shared(state): Shared<State>,
    Id(name): Id,
    Params(which): Params<Which>,
) -> Response {
    answered(state.cryo.remove(name, which.generation).await)
}

fn answered(done: Result<impl Serialize, Refusal>) -> Response {
    match done {
        Ok(reply) => json(StatusCode::OK, reply),
        Err(refusal) => refusal.into_response(),
    }
}

impl Refusal {
    /// As an HTTP status, and in words.
    pub(super) fn told(self) -> (StatusCode, Fault) {
        use StatusCode as S;
        match self {
            Self::Kernel(kernel::Refusal::Busy) => (
                S::TOO_MANY_REQUESTS,
                Fault::new("busy", "the kernel executes code")
                    .hint("wait for it, or `osctl interrupt` stops it"),
            ),
            Self::Kernel(kernel::Refusal::NoSession(name)) => (
                S::NOT_FOUND,
                Fault::new("unknown_session", format!("there is no session `{name}`"))
                    .hint("`osctl sessions list` shows which there are"),
            ),
            Self::Kernel(refusal) => refusal.told(),
            Self::Invalid(message) => (S::BAD_REQUEST, Fault::new("invalid_field", message)),
            Self::NoName(name) => (
                S::NOT_FOUND,
                Fault::new("nothing_stored", format!("nothing is stored as `{name}`"))
                    .hint("`osctl cryo list` shows what is"),
            ),
            Self::NoGeneration {
                name,
                generation,
                newest,
            } => (
                S::NOT_FOUND,
                Fault::new(
                    "unknown_generation",
                    format!("`{name}` has no generation {generation}; its newest is {newest}"),
                )
                .hint("`osctl cryo list` shows them all"),
            ),
            Self::Damaged {
                name,
                generation,
                why,
                previous,
            } => {
                let message = format!("generation {generation} of `{name}` can't be used: {why}");
                let hint = match previous {
                    Some(previous) => format!(
                        "`osctl cryo reload {name} --generation {previous}` brings back the one before it"
                    ),
                    None => format!(
                        "there is none before it; `osctl cryo rm {name} --generation {generation}` removes it"
                    ),
                };
                (
                    S::UNPROCESSABLE_ENTITY,
                    Fault::new("damaged", message).hint(hint),
                )
            }
            Self::Losses(message) => (
                S::CONFLICT,
                Fault::new("losses", message)
                    .hint("leave `--strict` out to store the rest; `--dry-run` shows the receipt"),
            ),
            Self::Full => (
                S::INSUFFICIENT_STORAGE,
                Fault::new(
                    "disk_full",
                    "the disk is full; what was stored before is untouched",
                )
                .hint("`osctl cryo rm NAME` makes room, and `osctl cryo list` shows what is there"),
            ),
            Self::Raised(raised) => (
                S::UNPROCESSABLE_ENTITY,
                Fault::new(&raised.kind, raised.message),
            ),
            Self::Failed(why) => {
                tracing::error!("cryo: {why}");
                (
                    S::INTERNAL_SERVER_ERROR,
                    Fault::new("cryo", why).hint("`osctl logs` shows more"),
                )
            }
        }
    }
}
