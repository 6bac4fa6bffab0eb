//! Refusals of kernels, shell commands and terminals.

use super::stored_state::checkpoint_hint;
use crate::companion::kernel::KernelRefusal;
use crate::companion::pty::PtyRefusal;
use crate::companion::shell::ShellRefusal;
use axum::http::StatusCode as S;
use osctl_support::api::ApiRefusal;

impl From<KernelRefusal> for ApiRefusal {
    fn from(refusal: KernelRefusal) -> Self {
        use KernelRefusal as R;
        match refusal {
            R::Busy => Self::new(
                S::TOO_MANY_REQUESTS,
                "busy",
                "the kernel executes other code",
            )
            .with_hint("try again, or interrupt the code with `osctl interrupt`")
            .with_tool_text("the session runs other code; `interrupt` stops that code")
            .with_retry_after(1),
            R::QueueFull => {
                let message = "the queue of the kernel is full";
                Self::new(S::TOO_MANY_REQUESTS, "queue_full", message)
                    .with_tool_text("too many calls already wait for the session")
                    .with_retry_after(1)
            }
            R::RunIdConflict(id) => used_run_id(&id, "request"),
            R::RunIdRemoved(id) => removed_run_id(&id, "run"),
            R::NoRun(id) => unknown_run(
                &id,
                "run",
                "`osctl runs` lists the retained runs; older runs are removed",
            ),
            R::NotRecorded => not_recorded("run", "code"),
            R::NoSession(name) => {
                let message = format!("there is no session `{name}`");
                Self::new(S::NOT_FOUND, "unknown_session", message).with_hint(
                    "`osctl sessions` lists the sessions, `osctl sessions create NAME` creates one",
                )
            }
            R::TooManySessions(count) => {
                let message = format!("the limit of {count} sessions is reached");
                let hint = "`osctl sessions rm NAME` deletes a session; `sessions.max` in osctl.yaml sets the limit";
                let text = format!(
                    "there are already {count} sessions, the maximum; `list_sessions` shows them, and `end_session` ends one"
                );
                Self::new(S::TOO_MANY_REQUESTS, "too_many_sessions", message)
                    .with_hint(hint)
                    .with_tool_text(text)
            }
            R::Invalid(message) => Self::invalid_field(message),
            R::NoKernel(why) => {
                let message = format!("the kernel can't be started: {why}");
                Self::new(S::SERVICE_UNAVAILABLE, "no_kernel", message)
                    .with_hint("`osctl logs` shows more")
                    .with_retry_after(1)
            }
            R::KernelLost(why) => Self::new(S::SERVICE_UNAVAILABLE, "no_kernel", why)
                .with_hint("`osctl logs` shows more")
                .with_retry_after(1),
            R::Checkpointed {
                session,
                checkpoint,
            } => {
                let message = format!("the kernel is in the checkpoint `{checkpoint}`");
                let text = format!(
                    "{message}; a person restores it with `osctl criu restore`, and `reset` starts an empty kernel"
                );
                Self::new(S::SERVICE_UNAVAILABLE, "checkpointed", message)
                    .with_hint(checkpoint_hint(&session, &checkpoint))
                    .with_tool_text(text)
                    .with_retry_after(1)
                    .with_checkpointed()
            }
            R::ResourceHeld(why) => {
                let message = format!("the kernel did not release its live objects: {why}");
                Self::new(S::CONFLICT, "resource_held", message).with_hint(
                    "`runtime.resource(…).invalidate()` releases a live object; nothing was lost",
                )
            }
            R::GenerationMismatch { seen, generation } => {
                let message = format!(
                    "the kernel is generation {generation}, but the request is for generation {seen}; nothing was stored"
                );
                let text = format!(
                    "the kernel has generation {generation}, but the call names generation {seen}; nothing was stored"
                );
                Self::new(S::CONFLICT, "other_generation", message)
                    .with_hint("check the current variables and store again")
                    .with_tool_text(text)
            }
            R::ShuttingDown => stopping().with_retry_after(1),
        }
    }
}

impl From<ShellRefusal> for ApiRefusal {
    fn from(refusal: ShellRefusal) -> Self {
        use ShellRefusal as R;
        match refusal {
            R::RunIdConflict(id) => used_run_id(&id, "command"),
            R::RunIdRemoved(id) => removed_run_id(&id, "command"),
            R::NoRun(id) => unknown_run(
                &id,
                "command",
                "`GET /shell/runs` lists the retained commands; older commands are removed",
            ),
            R::NotRecorded => not_recorded("command", "command"),
            R::NoJob(pid) => {
                let message = format!("there is no job {pid}");
                Self::new(S::NOT_FOUND, "unknown_job", message)
                    .with_hint("`GET /jobs` lists the background processes of commands")
            }
            R::NoStdin(id) => {
                let message = format!("the stdin of command `{id}` is not open");
                Self::new(S::CONFLICT, "no_stdin", message).with_hint(
                    "send `\"stdin_open\": true` with the command; stdin can be written once",
                )
            }
            R::NoFolder { path, why } => {
                let message = format!("can't change to `{path}`: {why}");
                Self::new(S::BAD_REQUEST, "no_folder", message)
                    .with_hint("`POST /shell/cd` changes to an existing folder")
                    .with_tool_text(format!("can't change to the directory `{path}`: {why}"))
            }
            R::TooManyCommands => {
                let message = "the limit of concurrent commands is reached";
                Self::new(S::TOO_MANY_REQUESTS, "too_many_commands", message)
                    .with_hint("`DELETE /shell/{id}` ends a command")
                    .with_tool_text("the maximum number of commands is running")
            }
            R::NoSupervisor(why) => {
                let message = format!("the command can't be started: {why}");
                Self::new(S::SERVICE_UNAVAILABLE, "not_started", message)
                    .with_hint("`osctl logs` shows more")
            }
            R::ShuttingDown => stopping(),
        }
    }
}

impl From<PtyRefusal> for ApiRefusal {
    fn from(refusal: PtyRefusal) -> Self {
        use PtyRefusal as R;
        match refusal {
            R::NoTerminal(id) => {
                let message = format!("there is no terminal `{id}`");
                let hint = "`osctl shell --list` lists the terminals; the companion removes an ended terminal after two minutes";
                Self::new(S::NOT_FOUND, "unknown_terminal", message).with_hint(hint)
            }
            R::TooManyTerminals(count) => {
                let message = format!("the limit of {count} terminals is reached");
                let hint = "`osctl shell --end ID` ends a terminal; `terminals.max` in osctl.yaml sets the limit";
                Self::new(S::TOO_MANY_REQUESTS, "too_many_terminals", message).with_hint(hint)
            }
            R::TooManyClients => {
                let message = "the limit of connections to the terminal is reached";
                Self::new(S::TOO_MANY_REQUESTS, "too_many_clients", message)
                    .with_hint("close another connection to the terminal")
            }
            R::Invalid(message) => Self::invalid_field(message),
            R::ShellNotStarted(why) => {
                let message = format!("the shell can't be started: {why}");
                Self::new(S::SERVICE_UNAVAILABLE, "no_shell", message)
                    .with_hint("`osctl logs` shows more")
            }
            R::ShuttingDown => stopping(),
        }
    }
}

/// `owner` is what the ID belongs to.
fn used_run_id(id: &str, owner: &str) -> ApiRefusal {
    let message = format!("ID `{id}` belongs to another {owner}");
    ApiRefusal::new(S::CONFLICT, "id_in_use", message)
        .with_hint("choose another ID, or omit `id`")
        .with_tool_text(format!("run `{id}` already exists and differs"))
}

/// `owner` is what the ID belonged to.
fn removed_run_id(id: &str, owner: &str) -> ApiRefusal {
    let message =
        format!("ID `{id}` was used by an earlier {owner} that was removed; nothing was executed");
    ApiRefusal::new(S::CONFLICT, "id_used", message)
        .with_hint("choose another ID, or omit `id`")
        .with_tool_text(format!(
            "run `{id}` was executed earlier and removed; nothing was executed now"
        ))
}

fn unknown_run(id: &str, what: &str, hint: &str) -> ApiRefusal {
    let message = format!("there is no {what} `{id}`");
    ApiRefusal::new(S::NOT_FOUND, "unknown_run", message)
        .with_hint(hint)
        .with_tool_text(format!("there is no run `{id}`; old runs are deleted"))
}

/// The refusal after a failed write of a record that must be durable.
fn not_recorded(record: &str, input: &str) -> ApiRefusal {
    let message = format!("the {record} can't be written to disk; nothing was executed");
    let hint = "`osctl shell df -h /data` shows the disk usage; omit `\"durable\": true` to execute without a record";
    ApiRefusal::new(S::INSUFFICIENT_STORAGE, "not_recorded", message)
        .with_hint(hint)
        .with_tool_text(format!("the disk is full; the {input} was not executed"))
}

fn stopping() -> ApiRefusal {
    ApiRefusal::new(
        S::SERVICE_UNAVAILABLE,
        "stopping",
        "the companion is stopping",
    )
    .with_tool_text("the computer is stopping")
}
