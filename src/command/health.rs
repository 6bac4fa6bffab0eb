//! `osctl health`: checks the companion over its private socket; run by the engine.

use crate::error::{Result, VerbOutcome};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {}

#[cfg(target_os = "linux")]
pub(crate) async fn run(args: HealthArgs) -> Result<VerbOutcome> {
    let HealthArgs {} = args;
    Ok(if crate::companion::is_healthy().await? {
        VerbOutcome::Done
    } else {
        VerbOutcome::Code(crate::error::EXIT_NEGATIVE)
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run(_args: HealthArgs) -> Result<VerbOutcome> {
    Err(super::linux_only())
}
