//! Reconciliation of the current container while no run is active: it runs, no other container of the instance waits
//! beside it, and the history names its image.

use super::KeeperSettings;
use super::container_start::{ContainerStartOutcome, start_ended_container};
use super::retry_policy::is_engine_away;
use super::run_store::{KeeperRunStore, unix_seconds};
use super::target::DeployTarget;
use super::unreachable_file::UnreachableFile;
use crate::engine::Container;
use crate::error::Result;
use crate::protocol::evolve::{EvolveCaller, EvolveRecord, EvolveStage};

/// The reason in the history.
const OUTSIDE_RUN_REASON: &str =
    "`osctl up` or another program created this container outside of an evolve";

/// Repairs what an earlier run, a killed engine or the host has left.
///
/// # Errors
/// When the engine is away. Other refusals of the engine are logged: a run that they affect reports them.
pub(super) async fn reconcile_containers(
    settings: &KeeperSettings,
    run_store: &KeeperRunStore,
    target: &DeployTarget,
) -> Result<()> {
    let done = async {
        let resolved = resolve_aside_container(run_store, target).await;
        // The container that was put back may have failed to start, too.
        start_failed_container(settings, run_store, target).await?;
        resolved
    };
    log_unless_engine_away(done.await)
}

/// Adds a record if the image of the current container is not the image that the history names. While another container
/// is still set aside, the history decides later which of them stays, and gets no record.
///
/// # Errors
/// When the engine is away.
pub(super) async fn record_current_image(
    run_store: &KeeperRunStore,
    target: &DeployTarget,
) -> Result<()> {
    let noted = async {
        let Some(present) = target.find_container(target.container_name()).await? else {
            return Ok(());
        };
        if target.find_container(&target.places.aside).await?.is_some() {
            return Ok(());
        }
        let records = run_store.list_records()?;
        let Some(latest) = records.first() else {
            return Ok(());
        };
        let before = recorded_image(latest);
        if before == Some(present.image.as_str()) {
            return Ok(());
        }
        let record = host_created_record(run_store, &present.image, before)?;
        tracing::info!(run = %record.run, image = present.image, "the container was created outside of a run");
        run_store.save_record(&record)
    };
    log_unless_engine_away(noted.await)
}

fn log_unless_engine_away(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if !is_engine_away(&error) => {
            tracing::warn!(error = %format_args!("{error:#}"), "the current container can't be reconciled");
            Ok(())
        }
        done => done,
    }
}

/// The image that runs according to this record, whose run has ended.
pub(super) fn recorded_image(latest: &EvolveRecord) -> Option<&str> {
    let brings = latest.has_replaced_container();
    match brings {
        true => latest.image.as_deref(),
        false => latest.previous_image.as_deref(),
    }
}

/// Moves the container under the other name back into its place if that place is free or the history names its image.
/// Otherwise removes it.
async fn resolve_aside_container(run_store: &KeeperRunStore, target: &DeployTarget) -> Result<()> {
    let Some(aside) = target.find_container(&target.places.aside).await? else {
        return Ok(());
    };
    let records = run_store.list_records()?;
    let named = records.first().and_then(recorded_image);
    let is_proven = async |present: &Container| {
        Ok(named == Some(&*present.image) || named != Some(&*aside.image))
    };
    let places = &target.places;
    if !places.choose_over_aside(&aside, is_proven).await? {
        tracing::warn!(
            container = places.aside,
            "the keeper has removed a container that no run needs"
        );
        return Ok(());
    }
    tracing::warn!(
        container = places.aside,
        "the keeper moves a container back into its place"
    );
    let reached = places.restore_network(&aside).await;
    places.put_back(&aside, true).await?;
    reached?;
    places.resume_requests(&aside.id).await
}

/// Starts a container that the engine could not start. A container that a person stopped stays stopped.
async fn start_failed_container(
    settings: &KeeperSettings,
    run_store: &KeeperRunStore,
    target: &DeployTarget,
) -> Result<()> {
    let present = target.find_container(target.container_name()).await?;
    let Some(failed) = present.filter(|found| found.failed_to_start) else {
        return Ok(());
    };
    let latest = run_store
        .list_records()?
        .into_iter()
        .next()
        .map(|record| record.run);
    let unreachable_file = UnreachableFile::new(&settings.state_folder);
    match start_ended_container(target, &unreachable_file, &failed.id, latest.as_ref()).await? {
        ContainerStartOutcome::Untouched | ContainerStartOutcome::Started => {}
        ContainerStartOutcome::WithoutPorts(error) => {
            tracing::warn!(error = %format_args!("{error:#}"), "the container runs without its ports")
        }
        ContainerStartOutcome::WaitsForPort(error) | ContainerStartOutcome::Unstartable(error) => {
            tracing::warn!(error = %format_args!("{error:#}"), "the container can't be started");
        }
    }
    Ok(())
}

/// The record of a container that the host created.
fn host_created_record(
    run_store: &KeeperRunStore,
    image: &str,
    before: Option<&str>,
) -> Result<EvolveRecord> {
    let began = unix_seconds();
    let run = run_store.create_run(began)?;
    Ok(EvolveRecord {
        reason: Some(OUTSIDE_RUN_REASON.into()),
        requested_by: EvolveCaller::Host,
        image: Some(image.into()),
        previous_image: before.map(str::to_owned),
        ..EvolveRecord::empty(run, EvolveStage::Succeeded, began)
    })
}

#[cfg(test)]
mod tests {
    use super::{host_created_record, recorded_image};
    use crate::keeper::run_store::KeeperRunStore;
    use crate::keeper::test_samples::sample_record;
    use crate::protocol::evolve::{EvolveRecord, EvolveStage};

    #[test]
    fn a_record_names_the_image_that_runs_after_it() {
        for (status, dry_run, image) in [
            (EvolveStage::Succeeded, false, "new"),
            (EvolveStage::Succeeded, true, "old"),
            (EvolveStage::RolledBack, false, "old"),
            (EvolveStage::Failed, false, "old"),
        ] {
            let latest = EvolveRecord {
                dry_run,
                ..sample_record(status, "new", "old")
            };
            assert_eq!(recorded_image(&latest), Some(image), "{status}");
        }
    }

    #[test]
    fn a_container_created_by_the_host_is_the_latest_record() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        let mut failed = sample_record(EvolveStage::Failed, "new", "old");
        failed.run = run_store.create_run(5.0).unwrap();
        run_store.save_record(&failed).unwrap();
        let record = host_created_record(&run_store, "other", recorded_image(&failed)).unwrap();
        run_store.save_record(&record).unwrap();
        let latest = run_store.list_records().unwrap().remove(0);
        assert_eq!(recorded_image(&latest), Some("other"));
        assert_eq!(latest.previous_image.as_deref(), Some("old"));
    }
}
