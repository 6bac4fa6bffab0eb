//! `osctl attach`: follows code or a command that was started elsewhere, from its first event or a later one. Ctrl-C
//! stops following the run; the run continues.

use super::CommandContext;
use super::candidates::run_ids;
use super::follow::{self, CtrlCAction, RunView};
use super::shell_command;
use crate::error::{Error, Result, VerbOutcome};
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The run's id
    #[arg(add = ArgValueCandidates::new(run_ids))]
    id: String,
    /// Start with this event instead of the first
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    offset: u64,
    /// Save figures into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) async fn run(args: AttachArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let AttachArgs { id, offset, out } = args;
    let client = cx.companion_client()?;
    let events = match client.follow_run(&id, offset).await {
        Err(error) if is_unknown(&error) => match client.follow_shell(&id, offset).await {
            Ok(events) => return shell_command::follow_command(&client, &id, events, cx).await,
            Err(other) if is_unknown(&other) => return Err(error),
            Err(other) => return Err(other),
        },
        found => found?,
    };
    let mut view = RunView::new(cx, out)?;
    let begin = async { Ok(events) };
    follow::follow_run(&client, &id, begin, CtrlCAction::Detach, &mut view, cx).await
}

/// Whether no run has that id; a shell command may have it.
pub(super) fn is_unknown(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(Error::Refused { status: 404, .. })
    )
}
