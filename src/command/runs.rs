//! `osctl runs`: lists recent and running code and commands.

use super::CommandContext;
use super::answers::{ListedRunStatus, RunsAnswer};
use crate::error::{Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::protocol::kernel::{RunStatus, RunSummary};
use crate::protocol::quote::unquote_name;
use crate::protocol::text_sanitizer::sanitize_line;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// List only queued and running code and commands
    #[arg(long)]
    running: bool,
}

/// A run of code, or of a command.
#[derive(Debug, Clone)]
pub(crate) struct ListedRun {
    pub(crate) summary: RunSummary,
    pub(crate) is_command: bool,
}

impl ListedRun {
    /// The first line of the code, or of the command after a `$`.
    pub(super) fn code(&self) -> String {
        match self.is_command {
            true => format!("$ {}", unquote_name(&self.summary.code)),
            false => self.summary.code.clone(),
        }
    }

    fn duration(&self) -> String {
        super::format_duration(self.summary.timing_ms / 1e3)
    }

    /// One line for `osctl status`.
    pub(super) fn describe(&self) -> String {
        let RunSummary { id, session, .. } = &self.summary;
        let progress = match ListedRunStatus::from(&self.summary) {
            ListedRunStatus::Running => self.duration(),
            other => other.as_str().into(),
        };
        sanitize_line(&format!("{id} in {session}, {progress}: {}", self.code()))
    }
}

/// The retained runs, the newest first.
///
/// # Errors
/// When the companion does not answer.
pub(super) async fn list_runs(
    client: &CompanionClient,
    only_running: bool,
) -> Result<Vec<ListedRun>> {
    let (code, commands) = tokio::try_join!(client.list_runs(), client.list_shell_runs())?;
    let listed = |is_command| {
        move |summary| ListedRun {
            summary,
            is_command,
        }
    };
    let code = code.runs.into_iter().map(listed(false));
    let mut all: Vec<ListedRun> = code
        .chain(commands.runs.into_iter().map(listed(true)))
        .filter(|run| !only_running || run.summary.status == RunStatus::Running)
        .collect();
    all.sort_by(|a, b| b.summary.created.total_cmp(&a.summary.created));
    Ok(all)
}

pub(crate) async fn run(args: RunsArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let RunsArgs { running } = args;
    let found = list_runs(&cx.companion_client()?, running).await?;
    if cx.ui.json {
        cx.ui.print_json(&RunsAnswer::from(found))?;
        return Ok(VerbOutcome::Done);
    }
    let mut rows = vec![
        ["ID", "STARTED", "SESSION", "STATUS", "TOOK", "CODE"]
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
