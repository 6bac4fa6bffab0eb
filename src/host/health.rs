//! Waiting for a container that was started to become healthy.

use super::client::Client;
use super::instance::Instance;
use super::older_companion::name_older_companion;
use crate::engine::{Container, Engine, LogOptions, Phase, Progress};
use crate::error::{Error, Result};
use crate::protocol::service::{Health, HealthStatus};
use std::time::{Duration, Instant};

/// How long a container may take from its start to its health.
const HEALTHY: Duration = Duration::from_secs(120);
/// How long a healthy one may keep others out that no run has brought.
const OPEN: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);
const LOG_LINES: usize = 15;

/// Looks at one container.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) engine: &'a Engine,
    pub(crate) client: &'a Client,
    pub(crate) name: &'a str,
    pub(crate) progress: &'a dyn Progress,
}

impl Watch<'_> {
    /// # Errors
    /// When it ends instead, or is not healthy in time: it is stopped then, and the error has its
    /// last words.
    pub(crate) async fn until_healthy(&self) -> Result<()> {
        let name = self.name;
        self.progress
            .step(&format!("waiting for `{name}` to become healthy"));
        let deadline = Instant::now() + HEALTHY;
        let mut looked = Instant::now();
        loop {
            let why = match self.client.health().await {
                Ok(Health {
                    status: HealthStatus::Healthy,
                    ..
                }) => return Ok(()),
                Ok(health) => {
                    let waiting = health.services.iter().filter(|s| !s.ready && !s.idle);
                    let waiting: Vec<_> = waiting
                        .map(|s| format!("{} ({})", s.name, s.detail))
                        .collect();
                    self.progress
                        .step(&format!("waiting for {}", waiting.join(", ")));
                    waiting.join(", ")
                }
                Err(error)
                    if matches!(
                        error.downcast_ref(),
                        Some(Error::OtherProtocol { .. } | Error::Refused { .. })
                    ) =>
                {
                    return Err(error);
                }
                Err(error) => {
                    let error = name_older_companion(error, self.instance, self.engine).await;
                    // Waiting does not renew it, and it is no reason to stop it.
                    if let Some(Error::OlderCompanion { container, .. }) = error.downcast_ref() {
                        let (container, up) =
                            (container.clone(), self.instance.command("up --build"));
                        return Err(Error::OlderCompanion { container, up }.into());
                    }
                    error.to_string()
                }
            };
            if looked.elapsed() > POLL * 10 {
                looked = Instant::now();
                self.check_alive().await?;
            }
            if Instant::now() > deadline {
                return Err(self
                    .unhealthy(format!("it was not within {} s: {why}", HEALTHY.as_secs()))
                    .await);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until a healthy one lets everybody in, which is as soon as its keeper has said that no run
    /// places it. What takes longer is told to who asks.
    pub(crate) async fn until_open(&self) {
        let begin = Instant::now();
        while begin.elapsed() < OPEN && self.client.health().await.is_ok_and(|h| h.evolving) {
            tokio::time::sleep(POLL).await;
        }
    }

    async fn check_alive(&self) -> Result<()> {
        match self.engine.inspect(self.name).await? {
            Some(Container {
                phase: Phase::Running | Phase::Created | Phase::Paused,
                ..
            }) => Ok(()),
            Some(container) => Err(self.unhealthy(container.exit.unwrap_or_default()).await),
            None => Err(self.unhealthy("it was removed meanwhile".into()).await),
        }
    }

    /// Stops what would else restart for ever, and keeps what it said.
    async fn unhealthy(&self, why: String) -> anyhow::Error {
        let mut log = Vec::new();
        let options = LogOptions {
            follow: false,
            tail: Some(LOG_LINES),
        };
        // The reason is worth more than why the log could not be read.
        let _ = self
            .engine
            .logs(self.name, options, &mut |line| {
                log.push(line.to_owned());
                Ok(())
            })
            .await;
        let _ = self.engine.stop(self.name).await;
        let logs = self.instance.command("logs");
        Error::Unhealthy {
            container: self.name.into(),
            why,
            log,
            logs,
        }
        .into()
    }
}
