//! `osctl reset`: an empty namespace; files and packages stay.

use super::Context;
use crate::error::{Outcome, Result};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {}

pub(crate) async fn run(args: ResetArgs, cx: &Context) -> Result<Outcome> {
    let ResetArgs {} = args;
    let reply = cx.client()?.reset().await?;
    if cx.ui.json {
        cx.ui.document(&reply)?;
    } else {
        cx.ui.say(format!(
            "the namespace is empty; this is generation {}",
            reply.kernel.generation
        ));
    }
    Ok(Outcome::Done)
}
