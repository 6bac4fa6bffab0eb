//! `osctl reset`: clears the namespace; files and packages stay.

use super::CommandContext;
use super::answers::ResetAnswer;
use super::candidates::session_names;
use crate::error::{Result, VerbOutcome};
use crate::protocol::kernel::DEFAULT_SESSION;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// Session to clear
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Replace the kernel process, even if it runs code
    #[arg(long)]
    restart: bool,
}

pub(crate) async fn run(args: ResetArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let ResetArgs { session, restart } = args;
    let client = cx.companion_client()?;
    let reply = match restart {
        true => client.restart_session(&session).await?,
        false => client.reset_session(&session).await?,
    };
    if cx.ui.json {
        cx.ui.print_json(&ResetAnswer::from(reply))?;
    } else {
        let generation = reply.kernel.generation;
        cx.ui.print_message(format!(
            "cleared the variables; kernel generation {generation}"
        ));
    }
    Ok(VerbOutcome::Done)
}
