//! The successful end of a run: the new container and its image stay, the old container is removed.

use super::RunExecutor;
use crate::engine::EngineProgress;
use crate::error::Result;
use crate::keeper::journal::RunJournalStep;
use crate::protocol::evolve::{ROLLED_BACK_TAG, RunTask};

impl RunExecutor {
    pub(super) async fn finalize_run(&mut self) -> Result<()> {
        self.write_step(RunJournalStep::Finalizing)?;
        self.log.begin_stage("finalizing");
        // The new container is verified: it may accept requests. If it misses this call, it asks the keeper.
        if let Err(error) = self
            .target
            .places
            .resume_requests(self.target.container_name())
            .await
        {
            self.log.log(&format!("{error:#}"));
        }
        if let Some(since) = self.refusing_since.take() {
            self.record.refused_ms = Some(since.elapsed().as_secs_f64() * 1e3);
        }
        let docker = &self.target.docker;
        if let Some(image) = &self.journal_entry.image {
            docker
                .tag_image(image, &self.target.image_tag("latest"))
                .await?;
        }
        // Remove the old container without unpausing it: its state is stored, and it must not run beside the new one.
        if let Some(old) = &self.journal_entry.old
            && self.target.find_container(old).await?.is_some()
        {
            self.log.report_step("removing the old container");
            docker.remove(old).await?;
        }
        self.log.report_step("keeping the previous image");
        if let Some(previous) = &self.journal_entry.previous
            && self.journal_entry.previous != self.journal_entry.image
            && docker.find_image(previous).await?.is_some()
        {
            docker
                .tag_image(previous, &self.target.image_tag("previous"))
                .await?;
        }
        let rolled_back = self.target.image_tag(ROLLED_BACK_TAG);
        match (self.record.task, &self.journal_entry.image) {
            (RunTask::Rollback | RunTask::Rescue, Some(image)) => {
                docker.tag_image(image, &rolled_back).await
            }
            // The image keeps another name: it runs, or is the previous image.
            _ => docker.remove_image(&rolled_back).await,
        }
    }
}
