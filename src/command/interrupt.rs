//! `osctl interrupt`: interrupts running code and reports the state of the kernel.

use super::CommandContext;
use super::answers::InterruptAnswer;
use super::attach::{complete_run_id, is_unknown};
use super::candidates::{run_ids, session_names};
use crate::error::{Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::protocol::kernel::{DEFAULT_SESSION, ExecReply, KernelReport, KernelState, RunStatus};
use crate::protocol::shell::ShellReply;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use std::time::Duration;
use tokio::time::timeout;

/// Time limit of the question whether the session runs code.
const BUSY_QUERY_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct InterruptArgs {
    /// ID of the run, or its first characters [default: the code that runs in the session]
    #[arg(add = ArgValueCandidates::new(run_ids), conflicts_with = "session")]
    id: Option<String>,
    /// Session whose code to interrupt
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
}

pub(crate) async fn run(args: InterruptArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let InterruptArgs { id, session } = args;
    let client = cx.companion_client()?;
    let work = cx.ui.start_request("interrupting");
    let (what, kernel) = match id {
        Some(id) => {
            let interrupted = match interrupt_id(&client, &id).await {
                Err(error) if is_unknown(&error) => {
                    match complete_run_id(&client, &id, cx).await? {
                        Some(id) => interrupt_id(&client, &id).await?,
                        None => return Err(error),
                    }
                }
                found => found?,
            };
            drop(work);
            let reply = match interrupted {
                InterruptedRun::Code(reply) => reply,
                InterruptedRun::Command(reply) => return report_ended(&reply, cx),
            };
            if cx.ui.json {
                cx.ui
                    .print_json(&InterruptAnswer::from(reply.as_ref().clone()))?;
            }
            (what_became(&reply), reply.kernel)
        }
        None => {
            let is_busy = is_session_busy(&client, &session).await;
            let reply = client.interrupt_session(&session).await?;
            drop(work);
            if cx.ui.json {
                cx.ui.print_json(&InterruptAnswer::from(reply.clone()))?;
            }
            (what_ended(is_busy, &session), reply.kernel)
        }
    };
    if !cx.ui.json {
        report_state(&what, &kernel, cx);
    }
    Ok(VerbOutcome::Done)
}

/// Whether the session runs code; the reply to an interrupt does not say so. `None` if the companion does not answer in
/// time, which must not delay or prevent the interrupt.
async fn is_session_busy(client: &CompanionClient, session: &str) -> Option<bool> {
    let listed = timeout(BUSY_QUERY_TIMEOUT, client.list_sessions()).await;
    let known = listed.ok()?.ok()?.sessions;
    Some(known.iter().any(|one| one.name == session && one.busy))
}

/// Describes the end of the code that ran in the session.
fn what_ended(was_busy: Option<bool>, session: &str) -> String {
    match was_busy {
        Some(true) => "the running code has ended".to_owned(),
        Some(false) => format!("no code is running in session `{session}`"),
        None => format!("session `{session}` was interrupted"),
    }
}

#[derive(Debug)]
enum InterruptedRun {
    Code(Box<ExecReply>),
    Command(Box<ShellReply>),
}

async fn interrupt_id(client: &CompanionClient, id: &str) -> Result<InterruptedRun> {
    match client.interrupt_run(id).await {
        Err(error) if is_unknown(&error) => match client.interrupt_shell(id).await {
            Err(other) if is_unknown(&other) => Err(error),
            found => Ok(InterruptedRun::Command(Box::new(found?))),
        },
        found => Ok(InterruptedRun::Code(Box::new(found?))),
    }
}

fn report_ended(reply: &ShellReply, cx: &CommandContext) -> Result<VerbOutcome> {
    match cx.ui.json {
        true => cx.ui.print_json(&InterruptAnswer::from(reply.clone()))?,
        false => cx.ui.print_message(format!("ended command `{}`", reply.id)),
    }
    Ok(VerbOutcome::Done)
}

/// Describes the end of the interrupted run.
fn what_became(reply: &ExecReply) -> String {
    let how = match (reply.status, reply.execution_count) {
        (RunStatus::Interrupted, None) => "was interrupted before it started",
        (RunStatus::Interrupted, Some(_)) => "was interrupted",
        (RunStatus::Completed | RunStatus::Failed, _) => "had already ended",
        (RunStatus::Lost, _) => "was lost with the companion",
        (RunStatus::Running, _) => "is being interrupted",
    };
    format!("run `{}` {how}", reply.id)
}

fn report_state(what: &str, kernel: &KernelReport, cx: &CommandContext) {
    let generation = kernel.generation;
    let state = match kernel.state {
        KernelState::Kept => "kept",
        KernelState::Lost => "lost",
        KernelState::Restored => "restored",
    };
    cx.ui.print_message(format!(
        "{what}; kernel state: {state} (kernel generation {generation})"
    ));
}

#[cfg(test)]
mod tests {
    use super::{what_became, what_ended};
    use crate::protocol::kernel::ExecReply;
    use serde_json::json;

    fn describe(status: &str, number: Option<u64>) -> String {
        let reply: ExecReply = serde_json::from_value(json!({
            "id": "a", "status": status, "stdout": "", "stderr": "", "result": null, "data": [],
            "error": null, "execution_count": number, "timing_ms": 0.0,
            "kernel": {"generation": 1, "state": "kept"}, "truncated": null,
        }))
        .unwrap();
        what_became(&reply)
    }

    #[test]
    fn an_interrupt_of_a_session_claims_only_what_is_known() {
        assert_eq!(what_ended(Some(true), "a"), "the running code has ended");
        let idle = "no code is running in session `a`";
        assert_eq!(what_ended(Some(false), "a"), idle);
        assert_eq!(what_ended(None, "a"), "session `a` was interrupted");
    }

    #[test]
    fn an_interrupt_reports_runs_that_had_not_started_or_had_ended() {
        let waited = "run `a` was interrupted before it started";
        assert_eq!(describe("interrupted", None), waited);
        assert_eq!(describe("interrupted", Some(1)), "run `a` was interrupted");
        assert_eq!(describe("completed", Some(1)), "run `a` had already ended");
        assert_eq!(describe("failed", None), "run `a` had already ended");
    }
}
