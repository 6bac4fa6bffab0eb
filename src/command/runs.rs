//! `osctl runs`: what was executed lately, and what is: code and commands of the shell.

use super::Context;
use crate::error::{Outcome, Result};
use crate::protocol::kernel::RunStatus;
use clap::Args;
use std::collections::BTreeSet;

/// Characters of the code that a line shows.
const CODE: usize = 40;

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// Only those that wait or run
    #[arg(long)]
    running: bool,
}

pub(crate) async fn run(args: RunsArgs, cx: &Context) -> Result<Outcome> {
    let RunsArgs { running } = args;
    let client = cx.client()?;
    let (mut found, commands) = tokio::try_join!(client.runs(), client.commands())?;
    let is_command: BTreeSet<String> = commands.runs.iter().map(|run| run.id.clone()).collect();
    found.runs.extend(commands.runs);
    found.runs.sort_by(|a, b| a.created.total_cmp(&b.created));
    found
        .runs
        .retain(|run| !running || run.status == RunStatus::Running);
    if cx.ui.json {
        cx.ui.document(&found)?;
        return Ok(Outcome::Done);
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
        let code = code.chars().take(CODE).collect();
        vec![
            run.id,
            run.session,
            status.into(),
            super::duration(run.timing_ms / 1e3),
            code,
        ]
    }));
    cx.ui.table(&rows);
    Ok(Outcome::Done)
}
