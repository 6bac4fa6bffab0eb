//! `osctl runs`: lists recent and running code and commands.

use super::CommandContext;
use super::answers::{ListedRunStatus, RunsAnswer};
use super::listed_runs::{ListedRun, list_runs};
use crate::error::{Result, VerbOutcome};
use crate::protocol::kernel::RunSummary;
use crate::protocol::text_sanitizer::sanitize_line;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// List only queued and running code and commands
    #[arg(long)]
    running: bool,
}

/// One line for `osctl status`.
pub(super) fn describe_run(run: &ListedRun) -> String {
    let RunSummary { id, session, .. } = &run.summary;
    let progress = match ListedRunStatus::from(&run.summary) {
        ListedRunStatus::Running => run.duration(),
        other => other.as_str().into(),
    };
    sanitize_line(&format!("{id} in {session}, {progress}: {}", run.code()))
}

pub(crate) async fn run(args: RunsArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let RunsArgs { running } = args;
    let found = list_runs(&cx.companion_client()?, running).await?;
    if cx.ui.json {
        cx.ui.print_json(&RunsAnswer::from(found))?;
        return Ok(VerbOutcome::Done);
    }
    let mut rows = vec![
        ["ID", "CREATED", "SESSION", "STATUS", "TOOK", "CODE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(found.into_iter().map(|run| {
        vec![
            run.summary.id.clone(),
            super::format_time(run.summary.created),
            run.summary.session.clone(),
            ListedRunStatus::from(&run.summary).as_str().into(),
            run.duration(),
            run.code(),
        ]
    }));
    let exec = cx.instance.osctl_command("exec CODE");
    let empty = match running {
        true => "no code or command is queued or running".into(),
        false => format!("no runs yet; `{exec}` runs Python code"),
    };
    cx.ui.print_list(&rows, &empty);
    Ok(VerbOutcome::Done)
}
