//! `osctl health`: checks the companion over its private socket; run by the engine.

use crate::error::{Result, VerbOutcome};
use clap::Args;
#[cfg(target_os = "linux")]
use std::time::Duration;

/// The interval between two checks of `--wait`.
#[cfg(target_os = "linux")]
const HEALTH_WAIT_INTERVAL: Duration = Duration::from_millis(25);

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Wait up to this long for the companion to become healthy
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
}

#[cfg(target_os = "linux")]
pub(crate) async fn run(args: HealthArgs) -> Result<VerbOutcome> {
    let is_healthy = match args.wait.map(Duration::from_secs) {
        None => crate::companion::is_healthy().await?,
        Some(limit) => wait_until_healthy(limit).await,
    };
    Ok(match is_healthy {
        true => VerbOutcome::Done,
        false => VerbOutcome::Code(crate::error::EXIT_NEGATIVE),
    })
}

/// Whether the companion became healthy in time. A companion that gives no answer may be starting.
#[cfg(target_os = "linux")]
async fn wait_until_healthy(limit: Duration) -> bool {
    let wait = async {
        while !crate::companion::is_healthy().await.unwrap_or(false) {
            tokio::time::sleep(HEALTH_WAIT_INTERVAL).await;
        }
    };
    tokio::time::timeout(limit, wait).await.is_ok()
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run(_args: HealthArgs) -> Result<VerbOutcome> {
    Err(super::linux_only())
}
