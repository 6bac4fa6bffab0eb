//! Commands of the shell, over HTTP.

use super::answer::{Body, Id, Params, failed, invalid, not_recorded};
use super::runs::{self, FindQuery, OutputQuery, is_id, page, settle};
use super::stream::{self, Form};
use super::{State, json};
use crate::companion::shell::{Refusal, Run};
use crate::protocol::fault::Failed;
use crate::protocol::kernel::{DEFAULT_SESSION, Event, Found, Page, RunStatus, Runs, Summary};
use crate::protocol::shell::{
    ChangeFolder, ChangeVariable, Command, Job, Jobs, Located, ShellReply,
};
use axum::body::Body as Streamed;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Ids that are words of the paths.
const WORDS: [&str; 3] = ["cd", "env", "runs"];

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, kind, message, hint) = match self {
            Self::NotRecorded => {
                let (status, fault) = not_recorded("command");
                return json(status, Failed::from(fault));
            }
            Self::OtherRun(id) => (
                StatusCode::CONFLICT,
                "id_in_use",
                format!("run `{id}` exists and is another command"),
                Some("choose another id, or leave it out"),
            ),
            Self::NoRun(id) => (
                StatusCode::NOT_FOUND,
                "unknown_run",
                format!("there is no command `{id}`"),
                Some("the last ones are kept, older ones are forgotten"),
            ),
            Self::NoJob(pid) => (
                StatusCode::NOT_FOUND,
                "unknown_job",
                format!("there is no job {pid}"),
                Some("`GET /jobs` lists what commands left running"),
            ),
            Self::NoStdin(id) => (
                StatusCode::CONFLICT,
                "no_stdin",
                format!("the stdin of command `{id}` is not open"),
                Some("send `\"stdin_open\": true` with the command; it can be written once"),
            ),
            Self::NoFolder { path, why } => (
                StatusCode::BAD_REQUEST,
                "no_folder",
                format!("`{path}` can't be gone to: {why}"),
                Some("`POST /shell/cd` goes to a folder that exists"),
            ),
            Self::TooMany => (
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_commands",
                "as many commands run as may run at once".into(),
                Some("`DELETE /shell/{id}` ends one"),
            ),
            Self::NoGuard(why) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "not_started",
                format!("the command can't be started: {why}"),
                Some("`osctl logs` shows more"),
            ),
            Self::Stopping => (
                StatusCode::SERVICE_UNAVAILABLE,
                "stopping",
                "the companion is stopping".into(),
                None,
            ),
        };
        failed(status, kind, message, hint)
    }
}

/// Runs a command in bash, with the session's folder, environment, functions and aliases, and keeps
/// what it changes of them.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the events come as they happen, to
/// `done`, or for `wait` seconds.
#[utoipa::path(post, path = "/shell", request_body = Command, responses(
    (status = 200, description = "How the command ended, or stands after `wait` seconds, whatever its exit code.", content(
        (ShellReply = "application/json"), (Event<ShellReply> = "text/event-stream"), (Event<ShellReply> = "application/x-ndjson"),
    )),
    (status = 400, description = "The body is no JSON, or a field does not fit.", body = Failed),
    (status = 404, description = "There is no such session.", body = Failed),
    (status = 409, description = "The id belongs to another command.", body = Failed),
    (status = 429, description = "Too many commands run.", body = Failed),
    (status = 507, description = "`durable` is `true`, and the disk does not take the command; nothing was executed.", body = Failed),
    (status = 503, description = "The command can't be started, or the companion stops.", body = Failed),
))]
pub(super) async fn execute(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Body(command): Body<Command>,
) -> Response {
    if let Some(refusal) = runs::refused(command.timeout, command.wait) {
        return refusal;
    }
    if let Some(id) = command.id.as_deref()
        && (!is_id(id) || WORDS.contains(&id))
    {
        return invalid(format!(
            "`{id}` can't be an id: use letters, digits, `-`, `_` and `.`, 128 at most, and none of `cd`, `env` and `runs`"
        ));
    }
    if command.command.contains('\0') {
        return invalid("a command can't contain NUL".into());
    }
    let id = command.id.as_deref();
    let is_known = id.is_some_and(|id| state.shells.run(id).is_ok());
    if !is_known && let Err(refusal) = state.sessions.kernel(&command.session) {
        return refusal.into_response();
    }
    let wait = command.wait;
    match (
        state.shells.execute(command).await,
        Form::accepted(&headers),
    ) {
        // Whoever began it and reads what it writes is waited for: nothing is left out.
        (Ok(run), Some(form)) => {
            run.acknowledged().await;
            let session = run.work.session.clone();
            let running = move || state.shells.report(&session);
            stream::respond(run.follow_pacing(), running, wait, form)
        }
        (Ok(run), None) => {
            settle(&run, wait).await;
            json(StatusCode::OK, reply(&state, &run))
        }
        (Err(refusal), _) => refusal.into_response(),
    }
}

fn reply(state: &State, run: &Run) -> ShellReply {
    run.reply(state.shells.report(&run.work.session))
}

/// The commands that can be found, the oldest first.
#[utoipa::path(get, path = "/shell/runs", responses((status = 200, body = Runs)))]
pub(super) async fn list(Shared(state): Shared<State>) -> Response {
    let runs = state.shells.runs();
    state.shells.registry().settle().await;
    let summary = |run: &Arc<Run>| Summary {
        execution_count: None,
        ..run.summary()
    };
    let runs = runs.iter().map(summary).collect();
    json(StatusCode::OK, Runs { runs })
}

/// How a command stands, and its events, also of one that another client began.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the events come as they happen, from
/// `offset`, or behind `Last-Event-ID`.
#[utoipa::path(get, path = "/shell/{id}", params(("id" = String, Path, description = "The command's id"), FindQuery), responses(
    (status = 200, content(
        (Found<ShellReply> = "application/json"), (Event<ShellReply> = "text/event-stream"), (Event<ShellReply> = "application/x-ndjson"),
    )),
    (status = 404, description = "There is no such command.", body = Failed),
))]
pub(super) async fn find(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Id(id): Id,
    Params(query): Params<FindQuery>,
) -> Response {
    let run = state.shells.run(&id);
    let report = move |run: &Run| state.shells.report(&run.work.session);
    runs::found(run, report, &headers, query).await
}

/// A page of what a command has written.
#[utoipa::path(get, path = "/shell/{id}/output", params(("id" = String, Path, description = "The command's id"), OutputQuery), responses(
    (status = 200, body = Page),
    (status = 404, description = "There is no such command.", body = Failed),
))]
pub(super) async fn output(
    Shared(state): Shared<State>,
    Id(id): Id,
    Params(query): Params<OutputQuery>,
) -> Response {
    match state.shells.run(&id) {
        Ok(run) => page(&run, query).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Writes to the stdin of a command that was begun with `stdin_open`; its end is the stdin's.
#[utoipa::path(post, path = "/shell/{id}/stdin", params(("id" = String, Path, description = "The command's id")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 204, description = "All was taken, or the command needs no more."),
    (status = 404, description = "There is no such command.", body = Failed),
    (status = 409, description = "Its stdin is not open.", body = Failed),
))]
pub(super) async fn stdin(Shared(state): Shared<State>, Id(id): Id, body: Streamed) -> Response {
    let stdin = match state.shells.stdin(&id) {
        Ok(stdin) => stdin,
        Err(refusal) => return refusal.into_response(),
    };
    let mut body = body.into_data_stream();
    loop {
        let piece = tokio::select! {
            piece = body.next() => piece,
            () = stdin.closed() => break,
        };
        match piece {
            Some(Ok(bytes)) if stdin.send(bytes.clone()).await => {}
            Some(Err(error)) => {
                let message = format!("the command's stdin did not come whole: {error}");
                return failed(StatusCode::BAD_REQUEST, "input_cut", message, None);
            }
            Some(Ok(_)) | None => break,
        }
    }
    stdin.end();
    StatusCode::NO_CONTENT.into_response()
}

/// Interrupts a command as Ctrl-C does, and ends what does not stop within two seconds.
#[utoipa::path(delete, path = "/shell/{id}", params(("id" = String, Path, description = "The command's id")), responses(
    (status = 200, body = ShellReply),
    (status = 404, description = "There is no such command.", body = Failed),
))]
pub(super) async fn interrupt(Shared(state): Shared<State>, Id(id): Id) -> Response {
    match state.shells.interrupt(&id).await {
        Ok(run) => json(StatusCode::OK, reply(&state, &run)),
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// The default one, unless said otherwise.
    #[serde(default)]
    session: Option<String>,
}

/// Where the session's next command starts.
#[utoipa::path(get, path = "/shell", params(Which), responses(
    (status = 200, body = Located),
    (status = 404, description = "There is no such session.", body = Failed),
))]
pub(super) async fn locate(Shared(state): Shared<State>, Params(which): Params<Which>) -> Response {
    let session = which.session.as_deref().unwrap_or(DEFAULT_SESSION);
    match state.sessions.kernel(session) {
        Ok(_) => located(&state.shells.cwd(session)),
        Err(refusal) => refusal.into_response(),
    }
}

/// Goes to a folder, where the session's next command starts.
#[utoipa::path(post, path = "/shell/cd", request_body = ChangeFolder, responses(
    (status = 200, body = Located),
    (status = 400, description = "There is no such folder; nothing has changed.", body = Failed),
    (status = 404, description = "There is no such session.", body = Failed),
))]
pub(super) async fn change_folder(
    Shared(state): Shared<State>,
    Body(change): Body<ChangeFolder>,
) -> Response {
    let ChangeFolder { session, path } = change;
    if let Err(refusal) = state.sessions.kernel(&session) {
        return refusal.into_response();
    }
    let found = match state.shells.folder(&session, &path).await {
        Ok(found) => found,
        Err(refusal) => return refusal.into_response(),
    };
    // It may have been deleted meanwhile.
    if let Err(refusal) = state.sessions.kernel(&session) {
        return refusal.into_response();
    }
    match state.shells.enter(&session, found) {
        Ok(cwd) => located(&cwd),
        Err(refusal) => refusal.into_response(),
    }
}

/// Sets a variable of the environment of the session's next commands, or unsets it.
#[utoipa::path(post, path = "/shell/env", request_body = ChangeVariable, responses(
    (status = 200, body = Located),
    (status = 400, description = "No variable can be called that.", body = Failed),
    (status = 404, description = "There is no such session.", body = Failed),
))]
pub(super) async fn change_variable(
    Shared(state): Shared<State>,
    Body(change): Body<ChangeVariable>,
) -> Response {
    let ChangeVariable {
        key,
        value,
        session,
    } = change;
    if !is_name(&key) {
        return invalid(format!("`{key}` can't be the name of a variable"));
    }
    if value.as_ref().is_some_and(|value| value.contains('\0')) {
        return invalid(format!("the value of `{key}` can't contain NUL"));
    }
    if let Err(refusal) = state.sessions.kernel(&session) {
        return refusal.into_response();
    }
    match state.shells.set(&session, &key, value.as_deref()) {
        Ok(()) => located(&state.shells.cwd(&session)),
        Err(refusal) => refusal.into_response(),
    }
}

fn located(cwd: &std::path::Path) -> Response {
    let located = Located {
        status: RunStatus::Completed,
        cwd: cwd.display().to_string(),
    };
    json(StatusCode::OK, located)
}

fn is_name(key: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What commands left running in the background.
#[utoipa::path(get, path = "/jobs", responses((status = 200, body = Jobs)))]
pub(super) async fn jobs(Shared(state): Shared<State>) -> Response {
    let jobs = state.shells.jobs().await;
    json(StatusCode::OK, Jobs { jobs })
}

/// Ends what a command left running: SIGTERM, and SIGKILL after two seconds.
#[utoipa::path(delete, path = "/jobs/{pid}", params(("pid" = i32, Path, description = "The job's id")), responses(
    (status = 200, description = "The job as it was.", body = Job),
    (status = 404, description = "There is no such job.", body = Failed),
))]
pub(super) async fn end_job(Shared(state): Shared<State>, Path(pid): Path<String>) -> Response {
    let Ok(number) = pid.parse() else {
        return invalid(format!("`{pid}` is no job: it is called by a number"));
    };
    match state.shells.end_job(number).await {
        Ok(job) => json(StatusCode::OK, job),
        Err(refusal) => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn names_of_variables_are_bashs_own() {
        assert!(is_name("_A1"));
        for name in ["", "1A", "A-B", "A B", "ä", "A=1", "A[0]"] {
            assert!(!is_name(name), "{name}");
        }
    }
}
