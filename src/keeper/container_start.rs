//! Starting a container that the engine has ended, or could not start when it was started itself.

use super::port_recovery::{UnreachableContainer, UnreachableFile};
use super::retry_policy::is_away;
use super::target::DeployTarget;
use crate::engine::ContainerPhase;
use crate::error::{Error, Result};
use crate::protocol::evolve::EvolveRunId;
use std::time::{Duration, Instant};

/// How long a start is tried again: programs of an engine that was killed may hold its ports for some seconds.
const CONTAINER_START_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two tries.
const CONTAINER_START_INTERVAL: Duration = Duration::from_millis(200);

/// What became of it.
#[derive(Debug)]
pub(super) enum ContainerStartOutcome {
    /// It had not ended, or is gone.
    Untouched,
    Started,
    /// It runs without its ports, for that reason. They are tried again whenever nothing else is on.
    WithoutPorts(anyhow::Error),
    /// It does not run before a port of it is free, which is tried again whenever nothing else is on.
    Waits(anyhow::Error),
    /// The engine can't start this very container.
    Refused(anyhow::Error),
}

/// Starts a container unless it runs. `run` is told when its ports are there again.
///
/// # Errors
/// When the engine is away, or the mark can't be written.
pub(super) async fn start_ended_container(
    site: &DeployTarget,
    mark: &UnreachableFile,
    container: &str,
    run: Option<&EvolveRunId>,
) -> Result<ContainerStartOutcome> {
    let found = site.find_container(container).await?;
    let ended =
        found.filter(|c| matches!(c.phase, ContainerPhase::Created | ContainerPhase::Stopped));
    let Some(ended) = ended else {
        return Ok(ContainerStartOutcome::Untouched);
    };
    tracing::info!(container, "starting the container, which had ended");
    let begin = Instant::now();
    let error = loop {
        let tried = match site.restore_network(&ended).await {
            Ok(()) => site.docker.start(&ended.id).await,
            refused => refused,
        };
        match tried {
            Ok(()) => return Ok(ContainerStartOutcome::Started),
            Err(error) if is_away(&error) => return Err(error),
            Err(error) if begin.elapsed() > CONTAINER_START_TIMEOUT => break error,
            Err(_) => tokio::time::sleep(CONTAINER_START_INTERVAL).await,
        }
    };
    if !matches!(error.downcast_ref(), Some(Error::PortTaken { .. })) {
        return Ok(ContainerStartOutcome::Refused(error));
    }
    let unreached = |has_ended| UnreachableContainer {
        run: run.cloned(),
        container: ended.id.clone(),
        has_ended,
    };
    // Before the start: a keeper that ends now is followed by one that looks for the ports.
    mark.write(&unreached(true))?;
    match site.start_without_ports(&ended).await {
        Ok(()) => {
            mark.write(&unreached(false))?;
            Ok(ContainerStartOutcome::WithoutPorts(error))
        }
        Err(again) if is_away(&again) => Err(again),
        Err(again) => {
            tracing::info!("it does not start without its ports, either: {again:#}");
            Ok(ContainerStartOutcome::Waits(error))
        }
    }
}
