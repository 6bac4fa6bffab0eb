//! `osctl interrupt`: interrupts running code and reports the state of the kernel.

use super::CommandContext;
use super::answers::InterruptAnswer;
use super::attach::is_unknown;
use super::candidates::{run_ids, session_names};
use crate::error::{Result, VerbOutcome};
use crate::protocol::kernel::{DEFAULT_SESSION, ExecReply, KernelReport, KernelState, RunStatus};
use crate::protocol::shell::ShellReply;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct InterruptArgs {
    /// The run to stop [default: the current run of the session]
    #[arg(add = ArgValueCandidates::new(run_ids), conflicts_with = "session")]
    id: Option<String>,
    /// The kernel whose code to stop
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION, hide_default_value = true, add = ArgValueCandidates::new(session_names))]
    session: String,
}

pub(crate) async fn run(args: InterruptArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let InterruptArgs { id, session } = args;
    let client = cx.companion_client()?;
    let work = cx.ui.start_work("interrupting");
    let (what, kernel) = match id {
        Some(id) => {
            let reply = match client.interrupt_run(&id).await {
                Err(error) if is_unknown(&error) => {
                    return match client.interrupt_shell(&id).await {
                        Ok(reply) => report_ended(&reply, cx),
                        Err(other) if is_unknown(&other) => Err(error),
                        Err(other) => Err(other),
                    };
                }
                found => found?,
            };
            drop(work);
            if cx.ui.json {
                cx.ui.print_json(&InterruptAnswer::from(reply.clone()))?;
            }
            (what_became(&reply), reply.kernel)
        }
        None => {
            let reply = client.interrupt_session(&session).await?;
            drop(work);
            if cx.ui.json {
                cx.ui.print_json(&InterruptAnswer::from(reply.clone()))?;
            }
            ("what ran has ended".to_owned(), reply.kernel)
        }
    };
    if !cx.ui.json {
        report_state(&what, &kernel, cx);
    }
    Ok(VerbOutcome::Done)
}

fn report_ended(reply: &ShellReply, cx: &CommandContext) -> Result<VerbOutcome> {
    match cx.ui.json {
        true => cx.ui.print_json(&InterruptAnswer::from(reply.clone()))?,
        false => cx
            .ui
            .print_message(format!("command `{}` has ended", reply.id)),
    }
    Ok(VerbOutcome::Done)
}

/// Describes the end of the interrupted run.
fn what_became(reply: &ExecReply) -> String {
    let how = match (reply.status, reply.execution_count) {
        (RunStatus::Interrupted, None) => "was interrupted before it began",
        (RunStatus::Interrupted, Some(_)) => "was interrupted",
        (RunStatus::Completed | RunStatus::Failed, _) => "has ended already",
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
        "{what}; the kernel's state is {state}, generation {generation}"
    ));
}

#[cfg(test)]
mod tests {
    use super::what_became;
    use crate::protocol::kernel::ExecReply;
    use serde_json::json;

    fn told(status: &str, number: Option<u64>) -> String {
        let reply: ExecReply = serde_json::from_value(json!({
            "id": "a", "status": status, "stdout": "", "stderr": "", "result": null, "data": [],
            "error": null, "execution_count": number, "timing_ms": 0.0,
            "kernel": {"generation": 1, "state": "kept"}, "truncated": null,
        }))
        .unwrap();
        what_became(&reply)
    }

    #[test]
    fn a_run_that_never_began_or_had_ended_is_told_as_such() {
        let waited = "run `a` was interrupted before it began";
        assert_eq!(told("interrupted", None), waited);
        assert_eq!(told("interrupted", Some(1)), "run `a` was interrupted");
        assert_eq!(told("completed", Some(1)), "run `a` has ended already");
        assert_eq!(told("failed", None), "run `a` has ended already");
    }
}
