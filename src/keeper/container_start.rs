//! Start of a container that has ended, or that the engine could not start when the engine itself started.

use super::retry_policy::is_engine_away;
use super::target::DeployTarget;
use super::unreachable_file::{UnreachableContainer, UnreachableFile};
use crate::engine::ContainerPhase;
use crate::error::{Error, Result};
use crate::protocol::evolve::EvolveRunId;
use std::time::Duration;
use tokio::time::Instant;

/// How long a start is retried: the processes of an engine that was killed may hold its ports for some seconds.
const CONTAINER_START_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const CONTAINER_START_INTERVAL: Duration = Duration::from_millis(200);

/// The outcome of a start.
#[derive(Debug)]
pub(super) enum ContainerStartOutcome {
    /// The container had not ended, or does not exist.
    Untouched,
    Started,
    /// The container runs without its ports, for this reason. The keeper retries the ports while it is idle.
    WithoutPorts(anyhow::Error),
    /// The container does not run until one of its ports is free. The keeper retries the start while it is idle.
    WaitsForPort(anyhow::Error),
    /// The engine can't start this container.
    Unstartable(anyhow::Error),
}

/// Starts a container unless it runs. The record of `run` gets a line when the container has its ports again.
///
/// # Errors
/// When the engine is away, or the unreachable file can't be written.
pub(super) async fn start_ended_container(
    target: &DeployTarget,
    unreachable_file: &UnreachableFile,
    container: &str,
    run: Option<&EvolveRunId>,
) -> Result<ContainerStartOutcome> {
    let found = target.find_container(container).await?;
    let ended =
        found.filter(|c| matches!(c.phase, ContainerPhase::Created | ContainerPhase::Stopped));
    let Some(ended) = ended else {
        return Ok(ContainerStartOutcome::Untouched);
    };
    tracing::info!(container, "the keeper starts a container that has ended");
    let started_at = Instant::now();
    let error = loop {
        let tried = match target.places.restore_network(&ended).await {
            Ok(()) => target.docker.start(&ended.id).await,
            refused => refused,
        };
        match tried {
            Ok(()) => return Ok(ContainerStartOutcome::Started),
            Err(error) if is_engine_away(&error) => return Err(error),
            Err(error) if started_at.elapsed() > CONTAINER_START_TIMEOUT => break error,
            Err(_) => tokio::time::sleep(CONTAINER_START_INTERVAL).await,
        }
    };
    if !matches!(error.downcast_ref(), Some(Error::PortTaken { .. })) {
        return Ok(ContainerStartOutcome::Unstartable(error));
    }
    let unreachable = |has_ended| UnreachableContainer {
        run: run.cloned(),
        container: ended.id.clone(),
        has_ended,
    };
    // Write the file before the start: if the keeper ends now, the next keeper recovers the ports.
    unreachable_file.write(&unreachable(true))?;
    match target.start_without_ports(&ended).await {
        Ok(()) => {
            unreachable_file.write(&unreachable(false))?;
            Ok(ContainerStartOutcome::WithoutPorts(error))
        }
        Err(again) if is_engine_away(&again) => Err(again),
        Err(again) => {
            tracing::info!(error = %format_args!("{again:#}"), "the container does not start without its ports, either");
            Ok(ContainerStartOutcome::WaitsForPort(error))
        }
    }
}
