//! `osctl runs`: lists recent and running code and commands.

use super::CommandContext;
use super::answers::{ListedRunStatus, RunsAnswer};
use crate::error::{Result, VerbOutcome};
use crate::protocol::kernel::RunStatus;
use crate::protocol::quote::unquote_name;
use clap::Args;
use std::collections::BTreeSet;

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
        ["ID", "STARTED", "SESSION", "STATUS", "TOOK", "CODE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(found.runs.into_iter().map(|run| {
        let status = ListedRunStatus::from(&run).as_str();
        let code = match is_command.contains(&run.id) {
            true => format!("$ {}", unquote_name(&run.code)),
            false => run.code,
        };
        vec![
            run.id,
            super::format_time(run.created),
            run.session,
            status.into(),
            super::format_duration(run.timing_ms / 1e3),
            code,
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
