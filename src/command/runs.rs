//! `osctl runs`: lists recent and running code and commands.

use super::CommandContext;
use super::answers::RunsAnswer;
use crate::error::{Result, VerbOutcome};
use crate::protocol::kernel::RunStatus;
use clap::Args;
use std::collections::BTreeSet;

/// Maximum length of the code in a row.
const MAX_SHOWN_CODE_CHARS: usize = 40;

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// List only queued and running code and commands
    #[arg(long)]
    running: bool,
}

pub(crate) async fn run(args: RunsArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let RunsArgs { running } = args;
    let client = cx.companion_client()?;
    let (mut found, commands) = tokio::try_join!(client.list_runs(), client.list_shell_runs())?;
    let is_command: BTreeSet<String> = commands.runs.iter().map(|run| run.id.clone()).collect();
    found.runs.extend(commands.runs);
    found.runs.sort_by(|a, b| a.created.total_cmp(&b.created));
    found
        .runs
        .retain(|run| !running || run.status == RunStatus::Running);
    if cx.ui.json {
        let answer = RunsAnswer::new(found.runs, |run| is_command.contains(&run.id));
        cx.ui.print_json(&answer)?;
        return Ok(VerbOutcome::Done);
    }
    let mut rows = vec![
        ["ID", "SESSION", "STATUS", "TOOK", "CODE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(found.runs.into_iter().map(|run| {
        let status = match run.status {
            RunStatus::Running => "running",
            RunStatus::Completed => "completed",
            RunStatus::Failed => "failed",
            RunStatus::Interrupted => "interrupted",
            RunStatus::Lost => "lost",
        };
        let code = match is_command.contains(&run.id) {
            true => format!("$ {}", run.code),
            false => run.code,
        };
        let code = code.chars().take(MAX_SHOWN_CODE_CHARS).collect();
        vec![
            run.id,
            run.session,
            status.into(),
            super::format_duration(run.timing_ms / 1e3),
            code,
        ]
    }));
    cx.ui.print_table(&rows);
    Ok(VerbOutcome::Done)
}
