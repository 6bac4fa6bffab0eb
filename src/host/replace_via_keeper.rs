//! Replacement of a running container through the keeper, with the stages of an evolve.
//!
//! ```text
//! target, deployed to the keeper ──▶ keeper: evolve ──▶ succeeded: the target is recorded
//!                                        │
//!                                        └─▶ else: the old container keeps running, with the ports and the project
//!                                            that were recorded before, and the permissions of the target
//! ```
//!
//! The host deploys the target before it requests the run. So a permission that the person has revoked does not apply
//! to any later run, also when another caller starts that run and however this run ends. When the old container keeps
//! running, the ports and the project by which it is found are set back to their earlier values.

use super::follow_evolve::{FollowOutcome, InterruptWait, follow_keeper_run};
use super::instance::InstanceRecord;
use super::keeper::{KeeperContainer, unexpected_reply_error};
use crate::engine::EngineProgress;
use crate::error::{Error, Result};
use crate::image::CompanionBinary;
use crate::protocol::evolve::{
    self, DeployConfig, EvolveRequest, EvolveRunId, EvolveStage, KeeperReply, KeeperRequest,
    RollbackRequest,
};
use std::path::Path;

/// The reason in the run history.
const REPLACE_REASON: &str = "`osctl up`";

/// A deploy config for the keeper, and the record that the host saves with it.
#[derive(Debug)]
pub(crate) struct ReplaceTarget {
    pub(crate) config: DeployConfig,
    pub(crate) record: InstanceRecord,
}

/// A replacement of the container through the keeper.
#[derive(Clone, Copy)]
pub(crate) struct KeeperReplacement<'a> {
    pub(crate) keeper: KeeperContainer<'a>,
    pub(crate) companion: &'a CompanionBinary,
    pub(crate) socket: &'a Path,
    /// The image of the container after a rollback; it stays in use, also when `body/` differs from it.
    pub(crate) rolled_back_image: Option<&'a str>,
    /// Whether the keeper interrupts code that does not end.
    pub(crate) force: bool,
    pub(crate) wait_for_interrupt: InterruptWait<'a>,
    pub(crate) progress: &'a dyn EngineProgress,
}

impl KeeperReplacement<'_> {
    /// Replaces the container with the one that `target` describes.
    ///
    /// # Errors
    /// When a stage fails: the old container then keeps running, as `previous` describes. When another run is in
    /// progress.
    pub(crate) async fn replace_with(
        &self,
        target: &ReplaceTarget,
        previous: &ReplaceTarget,
    ) -> Result<()> {
        let instance = self.keeper.instance;
        instance.back_up_record()?;
        instance.save_record(&target.record)?;
        let run = match self.start_run(target).await {
            Ok(run) => run,
            Err(error) => {
                self.restore_deploy_config(target, previous).await?;
                return Err(error);
            }
        };
        // If this fails, the result of the run is unknown; the next `up` checks it.
        let interrupt = (self.wait_for_interrupt)();
        let followed = follow_keeper_run(&self.keeper, &run, interrupt, self.progress).await?;
        let record = match followed {
            FollowOutcome::RunEnded(record) => record,
            FollowOutcome::Detached => {
                let logs = instance.osctl_command(&format!("evolve logs -f {run}"));
                let run = run.to_string();
                return Err(Error::RunContinues { run, logs }.into());
            }
        };
        if record.status == EvolveStage::Succeeded {
            return Ok(());
        }
        self.restore_deploy_config(target, previous).await?;
        Err(self.not_replaced_error(&record).into())
    }

    async fn start_run(&self, target: &ReplaceTarget) -> Result<EvolveRunId> {
        self.deploy(target).await?;
        self.keeper.wait_until_ready().await?;
        let (reason, force) = (Some(REPLACE_REASON.into()), self.force);
        let ask = match self.rolled_back_image {
            None => KeeperRequest::Evolve(EvolveRequest {
                reason,
                force,
                dry_run: false,
                rebuild: false,
                replace: true,
            }),
            Some(image) => KeeperRequest::Rollback(RollbackRequest {
                run: Some(self.find_run_of_image(image).await?),
                reason,
                force,
            }),
        };
        match self.keeper.request_reply(&ask).await? {
            KeeperReply::Started { run } => Ok(run),
            KeeperReply::Busy { run } => Err(run_in_progress_error(&self.keeper, &run, "")),
            other => Err(unexpected_reply_error(&other)),
        }
    }

    /// The latest run that produced the image.
    async fn find_run_of_image(&self, image: &str) -> Result<EvolveRunId> {
        let runs = match self
            .keeper
            .request_reply(&KeeperRequest::History {})
            .await?
        {
            KeeperReply::History { runs } => runs,
            other => return Err(unexpected_reply_error(&other)),
        };
        let is_of_target = |record: &evolve::EvolveRecord| {
            record.has_replaced_container() && record.image.as_deref() == Some(image)
        };
        let found = runs.into_iter().find(is_of_target).map(|record| record.run);
        found.ok_or_else(|| {
            let message = "the keeper has no evolve for the image that a rollback restored";
            let up = self.keeper.instance.osctl_command("up --build");
            Error::precondition(message, format!("`{up}` builds the image from body/")).into()
        })
    }

    async fn deploy(&self, target: &ReplaceTarget) -> Result<()> {
        let (deploy_config, record) = (&target.config, &target.record);
        let socket = Some(self.socket);
        self.keeper
            .deploy(deploy_config, self.companion, record, socket, self.progress)
            .await
    }

    /// Restores the old record and deploy config; the old container keeps running.
    async fn restore_deploy_config(
        &self,
        target: &ReplaceTarget,
        previous: &ReplaceTarget,
    ) -> Result<()> {
        self.keeper.instance.restore_record()?;
        if target.record == previous.record {
            return Ok(());
        }
        // The reason for the rollback matters more than this error. The next `up` deploys the config again.
        if let Err(error) = self.deploy(previous).await {
            self.progress.log(&format!("{error:#}"));
        }
        Ok(())
    }

    fn not_replaced_error(&self, record: &evolve::EvolveRecord) -> Error {
        let instance = self.keeper.instance;
        let stage = record.failed_stage.map_or("unknown", EvolveStage::as_str);
        let hint = match record.failed_stage {
            Some(EvolveStage::Quiescing) => {
                let force = instance.osctl_command("up --force");
                format!("wait until the running code has ended, or interrupt it: `{force}`")
            }
            _ => {
                let logs = instance.osctl_command(&format!("evolve logs {}", record.run));
                format!("`{logs}` shows the whole log; the old container keeps running")
            }
        };
        Error::NotReplaced {
            container: instance.container_name(),
            stage,
            why: record
                .why
                .clone()
                .unwrap_or_else(|| "the reason is unknown".into()),
            log: record.log_tail.clone(),
            hint,
        }
    }
}

/// The error for a replacement while a run is in progress; it names the run.
pub(crate) fn run_in_progress_error(
    keeper: &KeeperContainer<'_>,
    run: &EvolveRunId,
    stage: &str,
) -> anyhow::Error {
    let logs = keeper
        .instance
        .osctl_command(&format!("evolve logs -f {run}"));
    let stop = keeper.instance.osctl_command("evolve stop");
    let hint = format!("`{logs}` follows the evolve, `{stop}` cancels it");
    Error::precondition(format!("evolve {run} is in progress{stage}"), hint).into()
}
