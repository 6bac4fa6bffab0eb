//! The wait for a started container to become healthy.

use super::client::CompanionClient;
use super::engine_diagnosis::explain_by_engine;
use super::instance::Instance;
use crate::engine::{Container, ContainerPhase, Engine, EngineProgress, LogOptions};
use crate::error::{Error, Result};
use crate::protocol::service::{Health, HealthStatus};
use std::time::Duration;
use tokio::time::Instant;

/// Time limit from a container's start until it is healthy.
const CONTAINER_HEALTHY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for a healthy container to open its readiness gate when no run placed it.
const READINESS_GATE_TIMEOUT: Duration = Duration::from_secs(15);
const CONTAINER_POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_UNHEALTHY_LOG_LINES: usize = 15;

/// Waits for one container.
#[derive(Clone, Copy)]
pub(crate) struct HealthWatch<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) engine: &'a Engine,
    pub(crate) client: &'a CompanionClient,
    pub(crate) name: &'a str,
    pub(crate) progress: &'a dyn EngineProgress,
}

impl HealthWatch<'_> {
    /// # Errors
    /// When the container ends, or is not healthy in time: osctl then stops it, and the error holds its last output.
    pub(crate) async fn wait_until_healthy(&self) -> Result<()> {
        let name = self.name;
        self.progress
            .report_step(&format!("waiting for `{name}` to become healthy"));
        let deadline = Instant::now() + CONTAINER_HEALTHY_TIMEOUT;
        let mut last_check = Instant::now();
        loop {
            let why = match self.client.fetch_health().await {
                Ok(Health {
                    status: HealthStatus::Healthy,
                    ..
                }) => return Ok(()),
                Ok(Health {
                    failure: Some(why), ..
                }) => return Err(self.stop_unhealthy(why).await),
                Ok(health) => {
                    let waiting = health.services.iter().filter(|s| !s.ready && !s.idle);
                    let waiting: Vec<_> = waiting
                        .map(|s| format!("{} ({})", s.name, s.detail))
                        .collect();
                    self.progress
                        .report_step(&format!("waiting for {}", waiting.join(", ")));
                    waiting.join(", ")
                }
                Err(error)
                    if matches!(
                        error.downcast_ref(),
                        Some(Error::ProtocolMismatch { .. } | Error::Refused { .. })
                    ) =>
                {
                    return Err(error);
                }
                Err(error) => {
                    let error = explain_by_engine(error, self.instance, self.engine).await;
                    // Waiting does not update the companion, and its version does not justify a stop.
                    if let Some(Error::OlderCompanion { container, .. }) = error.downcast_ref() {
                        let (container, up) =
                            (container.clone(), self.instance.osctl_command("up --build"));
                        return Err(Error::OlderCompanion { container, up }.into());
                    }
                    error.to_string()
                }
            };
            if last_check.elapsed() > CONTAINER_POLL_INTERVAL * 10 {
                last_check = Instant::now();
                self.check_running().await?;
            }
            if Instant::now() > deadline {
                return Err(self
                    .stop_unhealthy(format!(
                        "it was not healthy within {} s: {why}",
                        CONTAINER_HEALTHY_TIMEOUT.as_secs()
                    ))
                    .await);
            }
            tokio::time::sleep(CONTAINER_POLL_INTERVAL).await;
        }
    }

    /// Waits until a healthy container opens its readiness gate, which happens when its keeper has confirmed that no
    /// run placed it. After the time limit, requests to the container report that it is closed.
    pub(crate) async fn wait_until_open(&self) {
        let started_at = Instant::now();
        while started_at.elapsed() < READINESS_GATE_TIMEOUT
            && self.client.fetch_health().await.is_ok_and(|h| h.evolving)
        {
            tokio::time::sleep(CONTAINER_POLL_INTERVAL).await;
        }
    }

    async fn check_running(&self) -> Result<()> {
        match self.engine.inspect(self.name).await? {
            Some(Container {
                phase: ContainerPhase::Running | ContainerPhase::Created | ContainerPhase::Paused,
                ..
            }) => Ok(()),
            Some(container) => Err(self
                .stop_unhealthy(container.exit_reason.unwrap_or_default())
                .await),
            None => Err(self
                .stop_unhealthy("the container was removed".into())
                .await),
        }
    }

    /// Stops a container that would otherwise restart forever, and adds its last output to the error.
    async fn stop_unhealthy(&self, why: String) -> anyhow::Error {
        let mut log = Vec::new();
        let options = LogOptions {
            follow: false,
            tail: Some(MAX_UNHEALTHY_LOG_LINES),
        };
        // The reason matters more than an error about reading the log.
        let _ = self
            .engine
            .logs(self.name, options, &mut |line| {
                log.push(line.to_owned());
                Ok(())
            })
            .await;
        let _ = self.engine.stop(self.name).await;
        let logs = self.instance.osctl_command("logs");
        Error::Unhealthy {
            container: self.name.into(),
            why,
            log,
            logs,
        }
        .into()
    }
}
