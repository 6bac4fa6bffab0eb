//! The step of `up` that creates, starts or replaces the container, or leaves it as it is.

use super::{UpOutcome, UpRunner};
use crate::engine::{Container, ContainerPhase, Engine};
use crate::error::{Error, Result};
use crate::host::container_spec::PASSED_ENV_DIGEST_LABEL;
use crate::host::instance::InstanceRecord;
use crate::host::keeper::KeeperContainer;
use crate::protocol::spec::ContainerSpec;

impl UpRunner<'_> {
    pub(super) async fn place_container(
        &self,
        spec: &ContainerSpec,
        record: &InstanceRecord,
        existing: Option<Container>,
    ) -> Result<UpOutcome> {
        let (name, replacer) = (&spec.name, self.replacer());
        let changes = existing.as_ref().is_none_or(|c| {
            !self.has_current_spec(c, spec) || c.phase != ContainerPhase::Running || !c.has_ports
        });
        if let (true, Engine::Docker(docker)) = (changes, self.engine) {
            // Removing the keeper revokes its earlier permissions, and prevents a second replacement at the same time.
            let instance = self.instance;
            KeeperContainer { docker, instance }
                .remove_container()
                .await?;
        }
        let Some(container) = existing else {
            self.progress.report_step(&format!("creating `{name}`"));
            self.instance.save_record(record)?;
            self.engine.create_and_start(spec).await?;
            return Ok(UpOutcome::Created);
        };
        let same = self.has_current_spec(&container, spec);
        if same {
            self.instance.save_record(record)?;
        }
        if same && container.phase == ContainerPhase::Running && container.has_ports {
            if container.labels.get(PASSED_ENV_DIGEST_LABEL)
                != spec.labels.get(PASSED_ENV_DIGEST_LABEL)
            {
                return Ok(UpOutcome::UnchangedWithOtherEnv);
            }
            return Ok(UpOutcome::Unchanged);
        }
        if same
            && matches!(
                container.phase,
                ContainerPhase::Stopped | ContainerPhase::Running
            )
        {
            self.progress.report_step(&format!("starting `{name}`"));
            let started = replacer.places().restart_with_ports(&container).await;
            let Err(error) = started else {
                return Ok(UpOutcome::Started);
            };
            if !matches!(error.downcast_ref(), Some(Error::Precondition { .. })) {
                return Err(error);
            }
            // A new container may start where this one cannot, for example after its processes were killed while
            // paused. Its state is stored.
            self.progress.log(&format!("{error:#}"));
        }
        self.progress.report_step(&format!("replacing `{name}`"));
        replacer.replace(spec, record, &container).await?;
        Ok(UpOutcome::Replaced)
    }
}
