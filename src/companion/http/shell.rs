//! Routes of shell commands.

use super::HttpState;
use super::run_response::{
    self, RunFindQuery, RunOutputQuery, is_run_id, output_page, wait_for_run,
};
use super::stream::{self, StreamFormat};
use crate::companion::activity::Caller;
use crate::companion::shell::CommandRun;
use crate::protocol::activity::ActivityKind;
use crate::protocol::error::FailedReply;
use crate::protocol::kernel::{
    DEFAULT_SESSION, OutputPage, RunDetails, RunEvent, RunList, RunStatus, RunSummary,
};
use crate::protocol::shell::{
    ChangeFolder, ChangeVariable, JobInfo, JobList, ShellLocation, ShellReply, ShellRequest,
};
use axum::body::Body as Streamed;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use futures_util::StreamExt;
use osctl_support::api::{ApiRefusal, ApiResult, JsonBody, PathId, QueryParams};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Ids that are reserved because the paths use these words.
const RESERVED_RUN_IDS: [&str; 3] = ["cd", "env", "runs"];

/// Run a command in bash
///
/// The command uses the working directory, environment, functions and aliases of the session. The session keeps the
/// changes that the command makes to them.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of events until `done`, or for
/// `wait` seconds.
#[utoipa::path(post, path = "/shell", request_body = ShellRequest, responses(
    (status = 200, description = "The command at its end or after `wait` seconds, with any exit code.", content(
        (ShellReply = "application/json"), (RunEvent<ShellReply> = "text/event-stream"), (RunEvent<ShellReply> = "application/x-ndjson"),
    )),
    (status = 400, description = "The request body is not valid JSON, or a field is invalid.", body = FailedReply),
    (status = 404, description = "The session does not exist.", body = FailedReply),
    (status = 409, description = "The ID belongs to another command.", body = FailedReply),
    (status = 429, description = "The limit of concurrent commands is reached.", body = FailedReply),
    (status = 507, description = "`durable` is `true`, and the command can't be written to disk; nothing was executed.", body = FailedReply),
    (status = 503, description = "The command can't be started, or the companion is stopping.", body = FailedReply),
))]
pub(super) async fn execute(
    Shared(state): Shared<HttpState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    JsonBody(command): JsonBody<ShellRequest>,
) -> ApiResult {
    run_response::check_durations(command.timeout, command.wait)?;
    if let Some(id) = command.id.as_deref()
        && (!is_run_id(id) || RESERVED_RUN_IDS.contains(&id))
    {
        return Err(ApiRefusal::invalid_field(format!(
            "`{id}` is not a valid ID: use at most 128 letters, digits, `-`, `_` and `.`, but not `cd`, `env` or `runs`"
        )));
    }
    if command.command.contains('\0') {
        return Err(ApiRefusal::invalid_field("a command can't contain NUL"));
    }
    let id = command.id.as_deref();
    let is_known = id.is_some_and(|id| state.shells.find_run(id).is_ok());
    if !is_known {
        state.sessions.find_kernel(&command.session)?;
    }
    let wait = command.wait;
    let run = state.shells.execute(command).await?;
    state
        .activity
        .record_run(ActivityKind::Shell, &caller, &run);
    Ok(match StreamFormat::from_accept_header(&headers) {
        // The command waits for this follower, so the client that started the command misses no output.
        Some(format) => {
            run.wait_begin_synced().await;
            let session = run.request.session.clone();
            let running = move || state.shells.command_report(&session);
            stream::stream_run_events(run.follow_pacing(), running, wait, format)
        }
        None => {
            wait_for_run(&run, wait).await;
            Json(shell_reply(&state, &run)).into_response()
        }
    })
}

fn shell_reply(state: &HttpState, run: &CommandRun) -> ShellReply {
    run.build_reply(state.shells.command_report(&run.request.session))
}

/// List retained commands
///
/// The oldest command is first.
#[utoipa::path(get, path = "/shell/runs", responses((status = 200, body = RunList)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Json<RunList> {
    let runs = state.shells.list_runs();
    state.shells.run_registry().wait_synced().await;
    let summary = |run: &Arc<CommandRun>| RunSummary {
        execution_count: None,
        ..run.summary()
    };
    let runs = runs.iter().map(summary).collect();
    Json(RunList { runs })
}

/// Show a command and its events
///
/// Any client can read any command. With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of
/// events from `offset`, or after `Last-Event-ID`.
#[utoipa::path(get, path = "/shell/{id}", params(("id" = String, Path, description = "ID of the command"), RunFindQuery), responses(
    (status = 200, content(
        (RunDetails<ShellReply> = "application/json"), (RunEvent<ShellReply> = "text/event-stream"), (RunEvent<ShellReply> = "application/x-ndjson"),
    )),
    (status = 404, description = "The command does not exist.", body = FailedReply),
))]
pub(super) async fn find(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    PathId(id): PathId,
    QueryParams(query): QueryParams<RunFindQuery>,
) -> ApiResult {
    let run = state.shells.find_run(&id);
    let report = move |run: &CommandRun| state.shells.command_report(&run.request.session);
    run_response::run_response(run, report, &headers, query).await
}

/// Read a page of the output of a command
#[utoipa::path(get, path = "/shell/{id}/output", params(("id" = String, Path, description = "ID of the command"), RunOutputQuery), responses(
    (status = 200, body = OutputPage),
    (status = 404, description = "The command does not exist.", body = FailedReply),
))]
pub(super) async fn output(
    Shared(state): Shared<HttpState>,
    PathId(id): PathId,
    QueryParams(query): QueryParams<RunOutputQuery>,
) -> ApiResult<Json<OutputPage>> {
    let run = state.shells.find_run(&id)?;
    output_page(&run, query).await
}

/// Write to the stdin of a command
///
/// The command must have been started with `stdin_open`. The end of the request body closes the stdin.
#[utoipa::path(post, path = "/shell/{id}/stdin", params(("id" = String, Path, description = "ID of the command")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 204, description = "All bytes were written, or the command has closed its stdin."),
    (status = 404, description = "The command does not exist.", body = FailedReply),
    (status = 409, description = "The stdin of the command is not open.", body = FailedReply),
))]
pub(super) async fn stdin(
    Shared(state): Shared<HttpState>,
    PathId(id): PathId,
    body: Streamed,
) -> ApiResult<StatusCode> {
    let stdin = state.shells.take_stdin(&id)?;
    let mut body = body.into_data_stream();
    loop {
        let piece = tokio::select! {
            piece = body.next() => piece,
            () = stdin.wait_closed() => break,
        };
        match piece {
            Some(Ok(bytes)) if stdin.send_bytes(bytes.clone()).await => {}
            Some(Err(error)) => {
                let message = format!("the request body for the stdin is incomplete: {error}");
                let status = StatusCode::BAD_REQUEST;
                return Err(ApiRefusal::new(status, "input_cut", message));
            }
            Some(Ok(_)) | None => break,
        }
    }
    stdin.close_input();
    Ok(StatusCode::NO_CONTENT)
}

/// Interrupt a command
///
/// The companion sends SIGINT, as Ctrl-C does, and kills processes that do not end within two seconds.
#[utoipa::path(delete, path = "/shell/{id}", params(("id" = String, Path, description = "ID of the command")), responses(
    (status = 200, body = ShellReply),
    (status = 404, description = "The command does not exist.", body = FailedReply),
))]
pub(super) async fn interrupt(
    Shared(state): Shared<HttpState>,
    PathId(id): PathId,
) -> ApiResult<Json<ShellReply>> {
    let run = state.shells.interrupt(&id).await?;
    Ok(Json(shell_reply(&state, &run)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellSessionQuery {
    /// Name of the session; `default` if missing.
    #[serde(default)]
    session: Option<String>,
}

/// Show the working directory of a session
#[utoipa::path(get, path = "/shell", params(ShellSessionQuery), responses(
    (status = 200, body = ShellLocation),
    (status = 404, description = "The session does not exist.", body = FailedReply),
))]
pub(super) async fn locate(
    Shared(state): Shared<HttpState>,
    QueryParams(which): QueryParams<ShellSessionQuery>,
) -> ApiResult<Json<ShellLocation>> {
    let session = which.session.as_deref().unwrap_or(DEFAULT_SESSION);
    state.sessions.find_kernel(session)?;
    Ok(shell_location(&state.shells.session_cwd(session)))
}

/// Change the working directory of a session
#[utoipa::path(post, path = "/shell/cd", request_body = ChangeFolder, responses(
    (status = 200, body = ShellLocation),
    (status = 400, description = "The folder does not exist; nothing has changed.", body = FailedReply),
    (status = 404, description = "The session does not exist.", body = FailedReply),
))]
pub(super) async fn change_folder(
    Shared(state): Shared<HttpState>,
    JsonBody(change): JsonBody<ChangeFolder>,
) -> ApiResult<Json<ShellLocation>> {
    let ChangeFolder { session, path } = change;
    state.sessions.find_kernel(&session)?;
    let found = state.shells.find_folder(&session, &path).await?;
    // The session may have been deleted since the lookup.
    state.sessions.find_kernel(&session)?;
    let cwd = state.shells.change_folder(&session, found)?;
    Ok(shell_location(&cwd))
}

/// Set or unset an environment variable of a session
///
/// The change applies to the next commands.
#[utoipa::path(post, path = "/shell/env", request_body = ChangeVariable, responses(
    (status = 200, body = ShellLocation),
    (status = 400, description = "The name of the variable is invalid.", body = FailedReply),
    (status = 404, description = "The session does not exist.", body = FailedReply),
))]
pub(super) async fn change_variable(
    Shared(state): Shared<HttpState>,
    JsonBody(change): JsonBody<ChangeVariable>,
) -> ApiResult<Json<ShellLocation>> {
    let ChangeVariable {
        key,
        value,
        session,
    } = change;
    if !is_variable_name(&key) {
        let message = format!("`{key}` is not a valid name of a variable");
        return Err(ApiRefusal::invalid_field(message));
    }
    if value.as_ref().is_some_and(|value| value.contains('\0')) {
        let message = format!("the value of `{key}` can't contain NUL");
        return Err(ApiRefusal::invalid_field(message));
    }
    state.sessions.find_kernel(&session)?;
    state
        .shells
        .set_variable(&session, &key, value.as_deref())?;
    Ok(shell_location(&state.shells.session_cwd(&session)))
}

fn shell_location(cwd: &std::path::Path) -> Json<ShellLocation> {
    Json(ShellLocation {
        status: RunStatus::Completed,
        cwd: cwd.display().to_string(),
    })
}

fn is_variable_name(key: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// List background processes of commands
#[utoipa::path(get, path = "/jobs", responses((status = 200, body = JobList)))]
pub(super) async fn jobs(Shared(state): Shared<HttpState>) -> Json<JobList> {
    let jobs = state.shells.list_jobs().await;
    Json(JobList { jobs })
}

/// End a background process of a command
///
/// The companion sends SIGTERM, and SIGKILL after two seconds.
#[utoipa::path(delete, path = "/jobs/{pid}", params(("pid" = i32, Path, description = "Process ID of the job")), responses(
    (status = 200, description = "The job before its end.", body = JobInfo),
    (status = 404, description = "The job does not exist.", body = FailedReply),
))]
pub(super) async fn end_job(
    Shared(state): Shared<HttpState>,
    Path(pid): Path<String>,
) -> ApiResult<Json<JobInfo>> {
    let number = pid.parse().map_err(|_| {
        ApiRefusal::invalid_field(format!(
            "`{pid}` is not a job: give its process ID, a number"
        ))
    })?;
    Ok(Json(state.shells.end_job(number).await?))
}

#[cfg(test)]
mod tests {
    use super::is_variable_name;

    #[test]
    fn variable_names_follow_bash() {
        assert!(is_variable_name("_A1"));
        for name in ["", "1A", "A-B", "A B", "ä", "A=1", "A[0]"] {
            assert!(!is_variable_name(name), "{name}");
        }
    }
}
