//! `osctl health`: the engine's question to the companion, over its private socket.

use crate::companion;
use crate::error::{NO, Outcome, Result};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {}

pub(crate) async fn run(args: HealthArgs) -> Result<Outcome> {
    let HealthArgs {} = args;
    Ok(if companion::is_healthy().await? {
        Outcome::Done
    } else {
        Outcome::Code(NO)
    })
}
