//! The retained runs of code and of commands, as one list.

use super::format::format_duration;
use crate::error::Result;
use crate::host::client::CompanionClient;
use crate::protocol::kernel::{RunStatus, RunSummary};
use crate::protocol::quote::unquote_name;

/// A run of code, or of a command.
#[derive(Debug, Clone)]
pub(crate) struct ListedRun {
    pub(crate) summary: RunSummary,
    pub(crate) is_command: bool,
}

impl ListedRun {
    /// The first line of the code; a command has `$ ` in front.
    pub(super) fn code(&self) -> String {
        match self.is_command {
            true => format!("$ {}", unquote_name(&self.summary.code)),
            false => self.summary.code.clone(),
        }
    }

    pub(super) fn duration(&self) -> String {
        format_duration(self.summary.timing_ms / 1e3)
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
