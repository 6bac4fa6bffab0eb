//! *quiescing*: the old container quiesces and stores its state.

use super::RunExecutor;
use crate::engine::{ContainerPhase, EngineProgress};
use crate::error::Result;
use crate::keeper::journal::RunJournalStep;
use crate::keeper::sanitize;
use crate::keeper::target::TargetHealth;
use crate::protocol::evolve::container_reports::QuiesceReply;
use anyhow::bail;
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

/// How long and how often the keeper cancels the quiescing of a container, and the pause between two calls.
const QUIESCE_CANCEL_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_QUIESCE_CANCELS: u32 = 50;
const QUIESCE_CANCEL_INTERVAL: Duration = Duration::from_millis(200);
/// The time limit for storing the state, in addition to the grace time.
const QUIESCE_STORE_TIMEOUT: Duration = Duration::from_secs(300);

impl RunExecutor {
    pub(super) async fn run_quiescing(&mut self) -> Result<()> {
        let Some(old) = self.journal_entry.old.clone() else {
            return Ok(());
        };
        self.write_step(RunJournalStep::Quiescing)?;
        let found = self.target.find_container(&old).await?;
        let restarts = found.as_ref().map_or(0, |found| found.restart_count);
        match found.map(|found| found.phase) {
            Some(ContainerPhase::Running) => {}
            // The memory of a paused container may hold state that is not stored.
            Some(ContainerPhase::Paused) if !self.is_forced() => bail!(
                "the container is paused: run `docker unpause {}` to resume it, or use `--force` to replace it \
                 with its last stored state",
                self.target.container_name()
            ),
            _ => {
                self.log.report_step("the old container does not run");
                return Ok(());
            }
        }
        // Check the health first: a companion that hangs must not take the long time limit of a large state.
        if self.is_forced()
            && self
                .cancellation
                .run_until_cancelled(self.target.probe_health(&old))
                .await?
                == TargetHealth::Unresponsive
        {
            self.log
                .log("the companion does not answer; the new container gets the last stored state");
            return Ok(());
        }
        self.refusing_since = Some(Instant::now());
        let grace = self.target.config.limits.grace;
        self.log
            .report_step(&format!("waiting for running code, at most {grace} s"));
        let seconds = grace.to_string();
        let mut verb = vec!["quiesce", "--json", "--grace", &seconds];
        if self.record.force {
            verb.push("--force");
        }
        let limit = Duration::from_secs(grace) + QUIESCE_STORE_TIMEOUT;
        let Some(answered) = self.request_quiesce(&old, &verb, limit).await else {
            return self.cancellation.check_cancelled();
        };
        match answered.and_then(|quiesced| self.accept_quiesced(quiesced, restarts)) {
            // With --force a person replaces a container that no longer quiesces.
            Err(error) if self.is_forced() => {
                let reason = sanitize::sanitize_sentence(&format!("{error:#}"));
                self.log.log(&format!(
                    "{reason}; --force: the new container gets the last stored state"
                ));
                Ok(())
            }
            done => done,
        }
    }

    /// The answer; `None` if the run was cancelled.
    async fn request_quiesce(
        &self,
        old: &str,
        verb: &[&str],
        limit: Duration,
    ) -> Option<Result<QuiesceReply>> {
        let mut request = pin!(self.target.exec_verb(old, verb, limit));
        tokio::select! {
            answered = &mut request => return Some(answered),
            () = self.cancellation.wait_cancelled() => {}
        }
        self.cancel_quiesce(old, request).await;
        None
    }

    /// Cancels quiescing: the running code continues, and the container accepts requests without waiting for that
    /// code to end. Repeats the call, because the container may not have started to quiesce yet.
    async fn cancel_quiesce(&self, old: &str, request: impl Future<Output = Result<QuiesceReply>>) {
        let reported = async {
            for _ in 0..MAX_QUIESCE_CANCELS {
                if let Err(error) = self.target.places.resume_requests(old).await {
                    self.log.log(&format!("{error:#}"));
                }
                tokio::time::sleep(QUIESCE_CANCEL_INTERVAL).await;
            }
        };
        tokio::select! {
            // Any answer means that the container no longer quiesces.
            _ = request => {}
            () = reported => {}
            () = tokio::time::sleep(QUIESCE_CANCEL_TIMEOUT) => {}
        }
    }

    fn accept_quiesced(&mut self, quiesced: QuiesceReply, restarts: u64) -> Result<()> {
        if !quiesced.quiesced {
            let why = quiesced
                .why
                .unwrap_or_else(|| "the container does not quiesce".into());
            let ids = quiesced.running.iter().map(String::as_str);
            let unnamed: Vec<&str> = ids.filter(|id| !why.contains(id)).collect();
            match unnamed.is_empty() {
                true => bail!("{why}"),
                false => bail!("{why} ({})", unnamed.join(", ")),
            }
        }
        let bytes = serde_json::to_vec(&quiesced.expected)?.len();
        if bytes > sanitize::MAX_EXPECTED_STATE_BYTES {
            bail!("the state summary is too large: {bytes} bytes");
        }
        self.quiesced_since = Some((Instant::now(), restarts));
        self.record.receipt = sanitize::sanitize_receipt(quiesced.receipt);
        self.record.other_state = sanitize::merge_non_variables(quiesced.other_state, Vec::new());
        self.journal_entry.expected = quiesced.expected;
        self.journal_entry.expected.run = Some(self.record.run.to_string());
        Ok(())
    }
}
