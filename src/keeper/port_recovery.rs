//! Recovery of published ports: the old container keeps running without its ports while another program has them. A
//! file on the disk names the container, and the keeper retries its ports while it is idle.

use super::container_start::{ContainerStartOutcome, start_ended_container};
use super::run_store::KeeperRunStore;
use super::target::load_target;
use super::unreachable_file::{UnreachableContainer, UnreachableFile};
use super::{KeeperSettings, sanitize};
use crate::backoff::Backoff;
use crate::error::Result;
use crate::protocol::evolve::EvolveRunId;
use std::time::Duration;

/// The delays between two attempts.
const PORT_RETRY_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(10),
};

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
    let shown_run = run.map(tracing::field::display);
    tracing::warn!(run = shown_run, what, "the recovery of the ports succeeded");
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
    use super::append_to_record;
    use crate::keeper::run_store::KeeperRunStore;
    use crate::keeper::test_samples::sample_record;
    use crate::protocol::evolve::EvolveStage;

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
