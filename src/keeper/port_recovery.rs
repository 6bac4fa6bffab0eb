//! Recovery of published ports: the old container keeps running without its ports while another program has them. A
//! file on the disk names the container, and the keeper retries its ports while it is idle.

use super::container_start::{ContainerStartOutcome, start_ended_container};
use super::controller::load_target;
use super::run_store::KeeperRunStore;
use super::{KeeperSettings, sanitize};
use crate::atomic_write::{Durability, atomic_write};
use crate::backoff::Backoff;
use crate::error::Result;
use crate::protocol::evolve::EvolveRunId;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The delays between two attempts.
const PORT_RETRY_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(10),
};

const UNREACHABLE_FILE: &str = "unreachable-container.json";
/// The file of keepers before 0.1.0.
const FORMER_UNREACHABLE_FILE: &str = "unreached.json";

/// A container without its published ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnreachableContainer {
    /// The run that rolled back to the container, if there was one.
    pub(super) run: Option<EvolveRunId>,
    /// The id of the container.
    pub(super) container: String,
    /// Whether the container has ended: it gets its ports when it is started.
    pub(super) has_ended: bool,
}

/// The file that names the unreachable container.
#[derive(Debug, Clone)]
pub(super) struct UnreachableFile(PathBuf);

impl UnreachableFile {
    /// Gives the file of a former keeper today's name.
    pub(super) fn new(state: &Path) -> Self {
        let path = state.join(UNREACHABLE_FILE);
        let former = state.join(FORMER_UNREACHABLE_FILE);
        if former.exists()
            && !path.exists()
            && let Err(error) = fs::rename(&former, &path)
        {
            tracing::warn!("`{}` can't be renamed: {error}", former.display());
        }
        Self(path)
    }

    /// # Errors
    /// When the file can't be written.
    pub(super) fn write(&self, unreachable: &UnreachableContainer) -> Result<()> {
        let text = serde_json::to_vec(unreachable)?;
        atomic_write(&self.0, &text, Durability::FolderSynced)
            .context("writing the port recovery file")?;
        Ok(())
    }

    fn read(&self) -> Option<UnreachableContainer> {
        let text = match fs::read(&self.0) {
            Err(e) if e.kind() == ErrorKind::NotFound => return None,
            read => read.map_err(anyhow::Error::from),
        };
        let read = text.and_then(|text| Ok(serde_json::from_slice(&text)?));
        read.inspect_err(|error| tracing::warn!(error = %format_args!("{error:#}"), "the port recovery file can't be read"))
            .ok()
    }

    /// Marks the container as ended. A container that ended while no keeper ran was ended by the engine's restart,
    /// which could not start it without its ports; no person stopped it.
    pub(super) fn mark_as_ended(&self) {
        let Some(found) = self.read() else { return };
        let ended = UnreachableContainer {
            has_ended: true,
            ..found
        };
        if let Err(error) = self.write(&ended) {
            tracing::warn!(error = %format_args!("{error:#}"), "the port recovery file can't be written");
        }
    }

    pub(super) fn clear(&self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(%error, "the port recovery file can't be removed");
        }
    }
}

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortRecoveryOutcome {
    PortsRestored,
    /// The container was restarted and has its ports.
    Restarted,
    /// The container is no longer in its place, or was stopped on purpose.
    Obsolete,
}

/// Retries until every container that should have its ports has them.
pub(super) async fn recover_ports(settings: &KeeperSettings, run_store: &KeeperRunStore) {
    let unreachable_file = UnreachableFile::new(&settings.state_folder);
    let mut failures = 0;
    while let Some(unreachable) = unreachable_file.read() {
        match try_recover_ports(settings, &unreachable_file, &unreachable).await {
            Ok(tried) => {
                match tried {
                    PortRecoveryOutcome::PortsRestored => append_to_record(
                        run_store,
                        unreachable.run.as_ref(),
                        "the container has its ports again",
                    ),
                    PortRecoveryOutcome::Restarted => append_to_record(
                        run_store,
                        unreachable.run.as_ref(),
                        "the container was restarted and has its ports again",
                    ),
                    PortRecoveryOutcome::Obsolete => {}
                }
                return unreachable_file.clear();
            }
            Err(error) => {
                tracing::info!(error = %format_args!("{error:#}"), "the container does not have its ports yet")
            }
        }
        failures += 1;
        tokio::time::sleep(PORT_RETRY_BACKOFF.delay_after(failures)).await;
    }
}

async fn try_recover_ports(
    settings: &KeeperSettings,
    unreachable_file: &UnreachableFile,
    unreachable: &UnreachableContainer,
) -> Result<PortRecoveryOutcome> {
    let target = load_target(settings).await?;
    let id = &unreachable.container;
    let present = target.find_container(target.container_name()).await?;
    let Some(found) = present.filter(|found| found.id == *id) else {
        return Ok(PortRecoveryOutcome::Obsolete);
    };
    match (found.exit_reason.is_some(), unreachable.has_ended) {
        // The container was stopped on purpose since then.
        (true, false) => return Ok(PortRecoveryOutcome::Obsolete),
        (true, true) => {
            let revived =
                start_ended_container(&target, unreachable_file, id, unreachable.run.as_ref())
                    .await?;
            return match revived {
                ContainerStartOutcome::Untouched | ContainerStartOutcome::Started => {
                    Ok(PortRecoveryOutcome::Restarted)
                }
                ContainerStartOutcome::WithoutPorts(error)
                | ContainerStartOutcome::WaitsForPort(error)
                | ContainerStartOutcome::Unstartable(error) => Err(error),
            };
        }
        // The container runs again; from now on a stop is on purpose.
        (false, true) => unreachable_file.write(&UnreachableContainer {
            has_ended: false,
            ..unreachable.clone()
        })?,
        (false, false) => {}
    }
    let ended = UnreachableContainer {
        has_ended: true,
        ..unreachable.clone()
    };
    let again = target.restore_ports(&found, || unreachable_file.write(&ended));
    match again.await? {
        true => Ok(PortRecoveryOutcome::Restarted),
        false => Ok(PortRecoveryOutcome::PortsRestored),
    }
}

/// Appends a sentence to the record of the run.
fn append_to_record(run_store: &KeeperRunStore, run: Option<&EvolveRunId>, what: &str) {
    tracing::warn!(?run, "{what}");
    let Some(run) = run else { return };
    let append = || -> Result<()> {
        let Some(mut record) = run_store.read_record(run)? else {
            return Ok(());
        };
        let why: Vec<String> = record.why.into_iter().chain([what.to_owned()]).collect();
        record.why = Some(sanitize::sanitize_sentence(&why.join("; ")));
        run_store.save_record(&record)
    };
    if let Err(error) = append() {
        tracing::warn!(error = %format_args!("{error:#}"), "the run's record can't be written");
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FORMER_UNREACHABLE_FILE, UNREACHABLE_FILE, UnreachableContainer, UnreachableFile,
        append_to_record,
    };
    use crate::keeper::run_store::KeeperRunStore;
    use crate::keeper::test_samples::sample_record;
    use crate::protocol::evolve::EvolveStage;
    use std::fs;

    #[test]
    fn the_file_of_a_former_keeper_is_read_unless_there_is_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let former = folder.path().join(FORMER_UNREACHABLE_FILE);
        let recorded = r#"{"run":null,"container":"a","has_ended":false}"#;
        fs::write(&former, recorded).unwrap();
        let read = || {
            UnreachableFile::new(folder.path())
                .read()
                .unwrap()
                .container
        };
        assert_eq!(read(), "a");
        assert!(!former.exists() && folder.path().join(UNREACHABLE_FILE).exists());
        fs::write(&former, recorded.replace("\"a\"", "\"b\"")).unwrap();
        assert_eq!(read(), "a");
        UnreachableFile::new(folder.path()).clear();
        assert_eq!(read(), "b");
    }

    #[test]
    fn an_unreachable_container_is_recorded_for_the_next_keeper() {
        let folder = tempfile::tempdir().unwrap();
        let unreachable_file = UnreachableFile::new(folder.path());
        assert_eq!(unreachable_file.read(), None);
        let unreachable = UnreachableContainer {
            run: "20261120-193600".parse().ok(),
            container: "a".into(),
            has_ended: false,
        };
        unreachable_file.mark_as_ended();
        assert_eq!(unreachable_file.read(), None);
        unreachable_file.write(&unreachable).unwrap();
        assert_eq!(
            UnreachableFile::new(folder.path()).read(),
            Some(unreachable.clone())
        );
        unreachable_file.mark_as_ended();
        let ended = UnreachableContainer {
            has_ended: true,
            ..unreachable
        };
        assert_eq!(unreachable_file.read(), Some(ended));
        unreachable_file.clear();
        assert_eq!(unreachable_file.read(), None);
    }

    #[test]
    fn the_history_reports_recovered_ports() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        let mut lost = sample_record(EvolveStage::RolledBack, "new", "old");
        lost.run = run_store.create_run(5.0).unwrap();
        lost.why = Some("a port is in use".into());
        run_store.save_record(&lost).unwrap();
        append_to_record(
            &run_store,
            Some(&lost.run),
            "the container has its ports again",
        );
        let record = run_store.read_record(&lost.run).unwrap().unwrap();
        assert_eq!(
            record.why.as_deref(),
            Some("a port is in use; the container has its ports again")
        );
        // A record that was already deleted is not an error.
        append_to_record(&run_store, "20200101-000000".parse().ok().as_ref(), "gone");
    }
}
