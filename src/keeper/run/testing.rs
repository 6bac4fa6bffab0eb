//! *testing*: runs the image beside the current container, with temporary data.

use super::RunExecutor;
use crate::engine::EngineProgress;
use crate::error::Result;
use crate::image::resource_watch;
use crate::keeper::sanitize;
use crate::keeper::target::{TRIAL_STATE_FOLDER, TargetHealth};
use crate::protocol::evolve::container_reports::{
    EvolveCheck, RememberReply, SCRIPT_CHECK_PREFIX, SelfTestReply,
};
use anyhow::{Context, bail};
use std::time::Duration;

/// The time limit for storing the state of idle sessions.
const TRIAL_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);

impl RunExecutor {
    pub(super) async fn run_testing(&mut self) -> Result<()> {
        let image = self
            .journal_entry
            .image
            .clone()
            .context("there is no image to test")?;
        self.target.remove_trial().await?;
        self.cancellation.check_cancelled()?;
        self.store_old_state().await;
        self.cancellation.check_cancelled()?;
        let trial = self.target.trial_spec(&image, Some(&self.record.run));
        self.log
            .report_step("starting the image beside the running container");
        self.target.docker.create_and_start(&trial).await?;
        // Cancel only after the container exists: a half created container can't be removed.
        let (stop, volume) = (
            self.cancellation.clone(),
            self.settings.state_folder.clone(),
        );
        let passed = tokio::select! {
            passed = stop.run_until_cancelled(self.test_trial_container(&trial.name)) => passed,
            full = resource_watch::wait_for_shortage(&volume) => Err(full),
        };
        let removed = self.target.remove_trial().await;
        passed.and(removed)
    }

    /// Stores the current state, which the trial restores. A failure stops nothing: the state is stored again before
    /// the swap.
    async fn store_old_state(&self) {
        let Some(old) = self
            .journal_entry
            .old
            .as_deref()
            .filter(|_| self.journal_entry.running)
        else {
            return;
        };
        // For a companion that hangs, the trial uses the state that was stored last.
        if self.is_forced()
            && matches!(
                self.target.probe_health(old).await,
                Ok(TargetHealth::Unresponsive)
            )
        {
            self.log.log("the companion does not answer");
            return;
        }
        self.log.report_step("storing the current state");
        let reply = self
            .target
            .exec_verb(old, &["remember", "--json"], TRIAL_SNAPSHOT_TIMEOUT)
            .await;
        match reply {
            Ok(RememberReply { sessions }) => {
                for (session, why) in sessions {
                    if let Some(why) = why {
                        self.log
                            .log(&format!("session `{session}` was not stored: {why}"));
                    }
                }
            }
            Err(error) => self.log.log(&format!("{error:#}")),
        }
    }

    async fn test_trial_container(&mut self, trial: &str) -> Result<()> {
        let limits = self.target.config.limits.clone();
        let (start, limit) = (
            Duration::from_secs(limits.start),
            Duration::from_secs(limits.test),
        );
        self.log
            .report_step("waiting until the container is healthy");
        self.target
            .wait_until_healthy(trial, start, &self.log)
            .await?;
        self.log.report_step("running the self-test");
        let mut verb = vec!["selftest", "--json", "--snapshot", TRIAL_STATE_FOLDER];
        if self.keeps_image() {
            verb.push("--same-image");
        }
        let reply: Result<SelfTestReply> = self.target.exec_verb(trial, &verb, limit).await;
        let passed = reply.and_then(|tested| self.record_checks(tested.passed, tested.checks));
        if passed.is_err() {
            self.target.copy_log_tail(trial, &self.log).await;
            return passed;
        }
        // A container that ends shortly after the self-test fails the stage, too.
        self.target.check_running(trial, &self.log).await
    }

    /// Logs the checks. The error names the checks that did not pass.
    pub(super) fn record_checks(&mut self, passed: bool, checks: Vec<EvolveCheck>) -> Result<()> {
        for check in &checks {
            let how = if check.passed { "ok" } else { "not ok" };
            self.log.log(&format!(
                "{how}: {} ({:.0} ms) {}",
                check.name, check.timing_ms, check.detail
            ));
        }
        self.record.checks = sanitize::sanitize_checks(checks);
        let failed: Vec<_> = self.record.checks.iter().filter(|c| !c.passed).collect();
        match (passed, failed.as_slice()) {
            (true, []) => Ok(()),
            (_, []) => bail!("the self-test failed without a reason"),
            (_, failed) => {
                let messages = failed
                    .iter()
                    .map(|c| format!("{}: {}", c.name, summarize_detail(&c.detail)));
                bail!("{}", messages.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// The lines that the failed scripts of the body wrote.
pub(super) fn failed_script_lines(checks: &[EvolveCheck]) -> Vec<String> {
    let failed = checks
        .iter()
        .filter(|check| !check.passed && check.name.starts_with(SCRIPT_CHECK_PREFIX));
    let lines = failed.flat_map(|check| check.detail.lines());
    lines.map(str::to_owned).collect()
}

/// A finding in one line: of several lines, how the check ended and the last line, which names the cause in most
/// programs.
fn summarize_detail(detail: &str) -> String {
    let mut lines = detail.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        None => first.into(),
        Some(last) => {
            let how = first.split_once(": ").map_or(first, |(how, _)| how);
            format!("{how}: {last}")
        }
    }
}
