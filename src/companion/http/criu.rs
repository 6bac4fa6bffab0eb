//! Freezing and thawing whole kernels, over HTTP.

use super::answer::{Body, FIELDS, Id};
use super::stream::Form;
use super::tale::follow;
use super::{State, json};
use crate::companion::criu::Refusal;
use crate::companion::cryo::BESIDE_CHECKPOINTS;
use crate::protocol::criu::{
    Checkpoint, Checkpointed, Checkpoints, CriuStatus, Removed, Restore, Restored,
};
use crate::protocol::fault::{Failed, Fault};
use crate::protocol::kernel::DEFAULT_SESSION;
use crate::protocol::tale::Told;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::path::Path;

/// Freezes an idle kernel as a whole process: variables, threads, generators, open files.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the bytes that were written are told
/// as it goes on.
#[utoipa::path(post, path = "/criu/checkpoint", request_body = Option<Checkpoint>, responses(
    (status = 200, content(
        (Checkpointed = "application/json"), (Told<Checkpointed> = "text/event-stream"), (Told<Checkpointed> = "application/x-ndjson"),
    )),
    (status = 409, description = "It holds what can't be frozen, and goes on.", body = Failed),
    (status = 429, description = "Code runs.", body = Failed),
    (status = 501, description = "It can't be done here.", body = Failed),
    (status = 507, description = "The disk is full; the kernel goes on.", body = Failed),
))]
pub(super) async fn checkpoint(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Body(request): Body<Checkpoint>,
) -> Response {
    let (criu, session) = (state.criu.clone(), request.session.clone());
    let working = criu.clone();
    let work = async move { working.checkpoint(request).await };
    match Form::accepted(&headers) {
        Some(form) => {
            let work = async { work.await.map_err(Refusal::told) };
            follow(form, move || criu.moved(&session), work)
        }
        None => answered(work.await),
    }
}

/// Brings a frozen kernel back, in the place of the session's present one.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the bytes that were read are told as
/// it goes on.
#[utoipa::path(post, path = "/criu/restore", request_body = Option<Restore>, responses(
    (status = 200, content(
        (Restored = "application/json"), (Told<Restored> = "text/event-stream"), (Told<Restored> = "application/x-ndjson"),
    )),
    (status = 404, description = "There is no such checkpoint.", body = Failed),
    (status = 409, description = "It does not fit here, or not any more.", body = Failed),
    (status = 422, description = "It is damaged; the hint names one that is not.", body = Failed),
    (status = 429, description = "Code runs.", body = Failed),
    (status = 501, description = "It can't be done here.", body = Failed),
))]
pub(super) async fn restore(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Body(request): Body<Restore>,
) -> Response {
    let (criu, session) = (state.criu.clone(), request.session.clone());
    let working = criu.clone();
    let work = async move { working.restore(request).await };
    match Form::accepted(&headers) {
        Some(form) => {
            let work = async { work.await.map_err(Refusal::told) };
            follow(form, move || criu.moved(&session), work)
        }
        None => answered(work.await),
    }
}

/// What is stored.
#[utoipa::path(get, path = "/criu", responses((status = 200, body = Checkpoints)))]
pub(super) async fn list(Shared(state): Shared<State>) -> Response {
    let checkpoints = state.criu.stored().await;
    json(StatusCode::OK, Checkpoints { checkpoints })
}

/// Removes every generation of a checkpoint.
#[utoipa::path(delete, path = "/criu/{name}", params(("name" = String, Path, description = "The checkpoint's name")), responses(
    (status = 200, body = Removed),
    (status = 404, description = "There is none.", body = Failed),
    (status = 409, description = "A kernel lies in it.", body = Failed),
))]
pub(super) async fn remove(Shared(state): Shared<State>, Id(name): Id) -> Response {
    answered(state.criu.remove(name).await)
}

/// Whether kernels can be frozen here and exactly why not, and what is stored.
#[utoipa::path(get, path = "/criu/status", responses((status = 200, body = CriuStatus)))]
pub(super) async fn status(Shared(state): Shared<State>) -> Response {
    json(StatusCode::OK, state.criu.status().await)
}

fn answered(done: Result<impl Serialize, Refusal>) -> Response {
    match done {
        Ok(reply) => json(StatusCode::OK, reply),
        Err(refusal) => refusal.into_response(),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Kernel(refusal) => refusal.into_response(),
            other => {
                let (status, fault) = other.told();
                json(status, Failed::from(fault))
            }
        }
    }
}

/// The name in a checkpoint's path, `…/NAME/NUMBER`.
fn named(checkpoint: &str) -> String {
    let name = Path::new(checkpoint).parent().and_then(Path::file_name);
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// How the generation beside a damaged one is restored.
fn whole(damaged: &str, other: u64) -> String {
    let name = named(damaged);
    format!("`osctl criu restore {name} --generation {other}` brings back one that is whole")
}

/// How a session is given up for an empty one.
fn reset(session: &str) -> String {
    match session {
        DEFAULT_SESSION => "`osctl reset`".into(),
        other => format!("`osctl reset --session {other}`"),
    }
}

/// What can be done about a session that lies in a checkpoint, `…/NAME/NUMBER`.
pub(super) fn ways_out(session: &str, checkpoint: &str) -> String {
    let path = Path::new(checkpoint);
    let number = path.file_name().unwrap_or_default().to_string_lossy();
    let (name, reset) = (named(checkpoint), reset(session));
    format!(
        "`osctl criu restore {name} --generation {number}` brings it back (`POST /criu/restore`), {reset} begins with an empty one (`POST /reset`)"
    )
}

impl Refusal {
    /// As an HTTP status, and in words.
    fn told(self) -> (StatusCode, Fault) {
        let message = self.message();
        let (status, kind, hint): (_, _, String) = match self {
            Self::Kernel(refusal) => return refusal.told(),
            Self::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid_field", FIELDS.into()),
            Self::Unavailable(_) => (
                StatusCode::NOT_IMPLEMENTED,
                "criu_unavailable",
                "`osctl up --criu` makes it possible; `osctl criu status` tells what is missing"
                    .into(),
            ),
            Self::NoCheckpoint { .. } => (
                StatusCode::NOT_FOUND,
                "unknown_checkpoint",
                "`osctl criu status` lists them".into(),
            ),
            Self::Damaged { path, other, .. } => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "damaged_checkpoint",
                match other {
                    Some(other) => whole(&path, other),
                    None => format!(
                        "`osctl cryo reload {BESIDE_CHECKPOINTS}{}` brings back the objects that were stored beside it",
                        named(&path)
                    ),
                },
            ),
            Self::OtherFiles(_) => (
                StatusCode::CONFLICT,
                "other_files",
                "restore it in a container of the image that it was made in".into(),
            ),
            Self::OtherProtocol(_) => (
                StatusCode::CONFLICT,
                "other_protocol",
                "restore it with the osctl that it was made with".into(),
            ),
            Self::TakenIds(_) => (
                StatusCode::CONFLICT,
                "taken_ids",
                "end who has them, or `osctl restart`".into(),
            ),
            refusal if refusal.is_full() => (
                StatusCode::INSUFFICIENT_STORAGE,
                "disk_full",
                "make room inside; `osctl exec '!df -h'` shows where there is none".into(),
            ),
            Self::InUse { name, session } => {
                let reset = reset(&session);
                let hint = format!(
                    "`osctl criu restore {name}` brings it back first, {reset} gives it up"
                );
                (StatusCode::CONFLICT, "in_use", hint)
            }
            Self::Stays(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "stays",
                "`osctl logs` shows more".into(),
            ),
            Self::NotFrozen { reason, .. } => (
                StatusCode::CONFLICT,
                "not_frozen",
                reason
                    .hint
                    .unwrap_or("`osctl logs` shows what criu said")
                    .into(),
            ),
            Self::NotRestored { reason, .. } => (
                StatusCode::CONFLICT,
                "not_restored",
                reason
                    .hint
                    .unwrap_or("`osctl logs` shows what criu said")
                    .into(),
            ),
        };
        (status, Fault::new(kind, message).hint(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::ways_out;
    use crate::companion::criu::Refusal;

    #[test]
    fn a_frozen_session_has_two_ways_out_by_the_exact_commands() {
        let hint = ways_out("default", "/data/criu/work/4");
        assert!(
            hint.contains("`osctl criu restore work --generation 4`"),
            "{hint}"
        );
        assert!(hint.contains("`osctl reset`"), "{hint}");
        let other = ways_out("second", "/data/criu/second/1");
        assert!(other.contains("`osctl reset --session second`"), "{other}");
    }

    #[test]
    fn the_hint_of_a_damaged_checkpoint_is_the_command_for_a_whole_one() {
        let hint = |other| {
            let damaged = Refusal::Damaged {
                path: "/data/criu/work/4".into(),
                why: "`pages-1.img` is missing".into(),
                other,
            };
            damaged.told().1.hint.unwrap()
        };
        let beside = hint(None);
        assert!(beside.contains("`osctl cryo reload criu-work`"), "{beside}");
        let hint = hint(Some(3));
        assert!(
            hint.contains("`osctl criu restore work --generation 3`"),
            "{hint}"
        );
    }
}
