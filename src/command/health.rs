//! `osctl health`: checks the companion over its private socket; run by the engine.

#[cfg(target_os = "linux")]
use crate::error::{EXIT_NEGATIVE, Error};
use crate::error::{Result, VerbOutcome};
#[cfg(target_os = "linux")]
use crate::protocol::service::{Health, HealthStatus};
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
    let health = match args.wait.map(Duration::from_secs) {
        None => Some(crate::companion::fetch_health().await?),
        Some(limit) => tokio::time::timeout(limit, wait_for_end_of_start())
            .await
            .ok(),
    };
    match health {
        Some(Health {
            status: HealthStatus::Healthy,
            ..
        }) => Ok(VerbOutcome::Done),
        // The keeper reads the exit code and the message.
        Some(Health {
            failure: Some(why), ..
        }) => Err(Error::precondition(why, "`osctl logs` shows the log").into()),
        _ => Ok(VerbOutcome::Code(EXIT_NEGATIVE)),
    }
}

/// Waits until the companion is healthy, or waiting does not help. A companion that gives no answer may be starting.
#[cfg(target_os = "linux")]
async fn wait_for_end_of_start() -> Health {
    loop {
        match crate::companion::fetch_health().await {
            Ok(health) if health.status == HealthStatus::Healthy || health.failure.is_some() => {
                return health;
            }
            Ok(_) | Err(_) => tokio::time::sleep(HEALTH_WAIT_INTERVAL).await,
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run(_args: HealthArgs) -> Result<VerbOutcome> {
    Err(super::linux_only_error())
}
