//! `osctl attach`: follows code or a command that was started elsewhere, from its first event or a later one. Ctrl-C
//! stops following the run; the run continues.

use super::CommandContext;
use super::candidates::run_ids;
use super::follow::{self, CtrlCAction, RunView};
use super::id_prefix::find_by_prefix;
use super::shell_command;
use crate::error::{Error, Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::host::events::ClientRunEvents;
use crate::protocol::kernel::ExecReply;
use crate::protocol::shell::ShellReply;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// ID of the run, or its first characters
    #[arg(value_name = "ID", add = ArgValueCandidates::new(run_ids))]
    id: String,
    /// Start at event N, from 0: a piece of output, a figure, the result or an error
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    offset: u64,
    /// Save figures in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) async fn run(args: AttachArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let AttachArgs { id, offset, out } = args;
    let client = cx.companion_client()?;
    let (id, followed) = match follow_id(&client, &id, offset).await {
        Err(error) if is_unknown(&error) => {
            let Some(id) = complete_run_id(&client, &id, cx).await? else {
                return Err(error);
            };
            let followed = follow_id(&client, &id, offset).await?;
            (id, followed)
        }
        followed => (id, followed?),
    };
    let events = match followed {
        FollowedRun::Code(events) => events,
        FollowedRun::Command(events) => {
            return shell_command::follow_command(&client, &id, events, cx).await;
        }
    };
    let mut view = RunView::new(cx, out)?;
    let open_events = async { Ok(events) };
    follow::follow_code_run(
        &client,
        &id,
        open_events,
        CtrlCAction::Detach,
        &mut view,
        cx,
    )
    .await
}

enum FollowedRun {
    Code(ClientRunEvents<ExecReply>),
    Command(ClientRunEvents<ShellReply>),
}

async fn follow_id(client: &CompanionClient, id: &str, offset: u64) -> Result<FollowedRun> {
    match client.follow_run(id, offset).await {
        Err(error) if is_unknown(&error) => match client.follow_shell(id, offset).await {
            Err(other) if is_unknown(&other) => Err(error),
            found => Ok(FollowedRun::Command(found?)),
        },
        found => Ok(FollowedRun::Code(found?)),
    }
}

/// The ID of the only run, of code or of a command, that begins with `prefix`.
pub(super) async fn complete_run_id(
    client: &CompanionClient,
    prefix: &str,
    cx: &CommandContext,
) -> Result<Option<String>> {
    let (code, commands) = tokio::try_join!(client.list_runs(), client.list_shell_runs())?;
    let ids = code.runs.into_iter().chain(commands.runs).map(|run| run.id);
    find_by_prefix(prefix, ids, &cx.instance.osctl_command("runs"))
}

/// Whether no run has that id; a shell command may have it.
pub(super) fn is_unknown(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(Error::Refused { status: 404, .. })
    )
}
