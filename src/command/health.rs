//! `osctl health`: the engine's question to the companion, over its private socket.

use crate::error::{Outcome, Result};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {}

#[cfg(target_os = "linux")]
pub(crate) async fn run(args: HealthArgs) -> Result<Outcome> {
    let HealthArgs {} = args;
    Ok(if crate::companion::is_healthy().await? {
        Outcome::Done
    } else {
        Outcome::Code(crate::error::NO)
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run(_args: HealthArgs) -> Result<Outcome> {
    Err(super::linux_only())
}
