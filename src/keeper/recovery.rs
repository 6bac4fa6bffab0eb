//! Recovery of a run that an earlier keeper started: the run is completed or rolled back.

use super::KeeperSettings;
use super::cancellation::RunCancellation;
use super::container_start::{ContainerStartOutcome, start_ended_container};
use super::gc;
use super::journal::{RunJournal, RunJournalEntry, RunJournalStep};
use super::reconcile;
use super::retry_policy::is_engine_away;
use super::run::{BuildPolicy, RunExecutor};
use super::run_store::KeeperRunStore;
use super::target::DeployTarget;
use super::unreachable_file::UnreachableFile;
use crate::error::Result;
use crate::protocol::evolve::{EvolveRecord, EvolveStage};
use std::time::Duration;

/// How long a restarted container may take to become healthy.
const KEEPER_RECOVERY_HEALTH_TIMEOUT: Duration = Duration::from_secs(120);

/// The next activity after recovery.
#[derive(Debug)]
pub(super) enum KeeperRecoveryOutcome {
    Idle,
    /// Watch the container of this entry.
    ResumeWatch(Box<RunJournalEntry>),
    /// The container in its watch period can't be started; the reason.
    WatchFailed(String),
}

/// The end of a run that was interrupted at this step; `None` if the run has ended already.
pub(super) fn interrupted_run_end(step: RunJournalStep) -> Option<EvolveStage> {
    match step {
        RunJournalStep::Preparing | RunJournalStep::Quiescing => Some(EvolveStage::Failed),
        RunJournalStep::Swapping => Some(EvolveStage::RolledBack),
        // The new container is verified: the remaining steps can't fail for a reason of the container.
        RunJournalStep::Finalizing => Some(EvolveStage::Succeeded),
        RunJournalStep::Watching => None,
    }
}

/// Ends the run that the journal names, and returns the entry that is in its watch period. `why` is why the run was
/// interrupted.
///
/// # Errors
/// When the engine refuses or is away; the call can be repeated.
pub(super) async fn recover_from_journal(
    settings: &KeeperSettings,
    run_store: &KeeperRunStore,
    target: &DeployTarget,
    why: &str,
) -> Result<KeeperRecoveryOutcome> {
    let journal = RunJournal::new(&settings.state_folder);
    if let Some(entry) = journal.read()?
        && let Some(end) = interrupted_run_end(entry.step)
    {
        finish_interrupted_run(settings, run_store, target, entry, (end, why)).await?;
    } else if let Err(error) = target.remove_trial().await {
        match is_engine_away(&error) {
            true => return Err(error),
            // If the trial container is in the way of the next run, that run reports it.
            false => {
                tracing::warn!(error = %format_args!("{error:#}"), "the container of an earlier trial can't be removed")
            }
        }
    }
    run_store.set_active_run(None);
    // A full disk must not stop the recovery.
    if let Err(error) = run_store.mark_ended_runs() {
        tracing::warn!(error = %format_args!("{error:#}"), "the ends of earlier runs can't be recorded");
    }
    let entry = journal.read()?;
    if entry.is_none() {
        reconcile::reconcile_containers(settings, run_store, target).await?;
    }
    reconcile::record_current_image(run_store, target).await?;
    gc::collect_garbage(target, run_store, entry.as_ref()).await;
    match entry {
        None => Ok(KeeperRecoveryOutcome::Idle),
        Some(entry) => resume_watch(settings, run_store, target, entry).await,
    }
}

/// Starts the container in its watch period if it has ended, and waits until it is healthy. A port that another program
/// has is not a failure of the container: the keeper watches the container nevertheless.
async fn resume_watch(
    settings: &KeeperSettings,
    run_store: &KeeperRunStore,
    target: &DeployTarget,
    entry: RunJournalEntry,
) -> Result<KeeperRecoveryOutcome> {
    let log = run_store.open_log(&entry.run, target.config.limits.log)?;
    let unreachable_file = UnreachableFile::new(&settings.state_folder);
    let works = match start_ended_container(
        target,
        &unreachable_file,
        target.container_name(),
        Some(&entry.run),
    )
    .await?
    {
        ContainerStartOutcome::Untouched | ContainerStartOutcome::WaitsForPort(_) => Ok(()),
        ContainerStartOutcome::Started | ContainerStartOutcome::WithoutPorts(_) => {
            target
                .wait_until_healthy(
                    target.container_name(),
                    KEEPER_RECOVERY_HEALTH_TIMEOUT,
                    &log,
                )
                .await
        }
        ContainerStartOutcome::Unstartable(error) => Err(error),
    };
    match works {
        Ok(()) => Ok(KeeperRecoveryOutcome::ResumeWatch(Box::new(entry))),
        Err(error) if is_engine_away(&error) => Err(error),
        Err(error) => {
            let why =
                format!("the container failed its watch period: it can't be restarted: {error:#}");
            Ok(KeeperRecoveryOutcome::WatchFailed(why))
        }
    }
}

#[tracing::instrument(name = "run", skip_all, fields(run = %entry.run))]
async fn finish_interrupted_run(
    settings: &KeeperSettings,
    run_store: &KeeperRunStore,
    target: &DeployTarget,
    entry: RunJournalEntry,
    (end, why): (EvolveStage, &str),
) -> Result<()> {
    tracing::warn!(step = ?entry.step, %end, "the keeper continues the run from its journal");
    run_store.set_active_run(Some(entry.run.clone()));
    let record = match run_store.read_record(&entry.run) {
        Ok(Some(record)) => record,
        // The record was not written yet, or is unreadable: end the run nevertheless.
        found => {
            tracing::warn!(?found, "the run's record is missing");
            placeholder_record(&entry)
        }
    };
    // A run whose record shows its end may still have steps to do.
    let stage = record.status;
    let end = if stage.has_ended() { stage } else { end };
    let mut work = RunExecutor {
        settings: settings.clone(),
        target: target.clone(),
        run_store: run_store.clone(),
        journal: RunJournal::new(&settings.state_folder),
        log: run_store.open_log(&entry.run, target.config.limits.log)?,
        record,
        journal_entry: entry,
        build_policy: BuildPolicy::Always,
        refusing_since: None,
        quiesced_since: None,
        taken_port: None,
        is_displaced: false,
        cancellation: RunCancellation::default(),
    };
    if end != EvolveStage::Succeeded && !stage.has_ended() {
        work.record_failure(stage, &anyhow::anyhow!(why.to_owned()));
    }
    work.end_run(end).await
}

/// A record for a run whose own record is missing.
fn placeholder_record(entry: &RunJournalEntry) -> EvolveRecord {
    let status = match entry.step {
        RunJournalStep::Preparing => EvolveStage::Building,
        RunJournalStep::Quiescing => EvolveStage::Quiescing,
        RunJournalStep::Swapping => EvolveStage::Swapping,
        RunJournalStep::Finalizing | RunJournalStep::Watching => EvolveStage::Verifying,
    };
    EvolveRecord {
        image: entry.image.clone(),
        previous_image: entry.previous.clone(),
        ..EvolveRecord::empty(entry.run.clone(), status, super::run_store::unix_seconds())
    }
}

/// Gives up a run that the keeper can neither complete nor roll back: the record says so, and new runs are accepted
/// again.
pub(super) fn abandon_run(
    settings: &KeeperSettings,
    run_store: &KeeperRunStore,
    error: &anyhow::Error,
) {
    let journal = RunJournal::new(&settings.state_folder);
    match journal.read() {
        Ok(Some(entry)) => {
            let record = run_store.read_record(&entry.run).ok().flatten();
            let record = abandoned_record(
                record.unwrap_or_else(|| placeholder_record(&entry)),
                entry.step,
                error,
            );
            // A full disk must not stop the keeper; the log has the error.
            if let Err(error) = run_store.save_record(&record) {
                tracing::error!(error = %format_args!("{error:#}"), "the end of a run can't be recorded");
            }
        }
        Ok(None) => {}
        Err(error) => {
            tracing::error!(error = %format_args!("{error:#}"), "the journal can't be read and is removed")
        }
    }
    run_store.set_active_run(None);
    if let Err(error) = journal.close() {
        tracing::error!(error = %format_args!("{error:#}"), "the journal can't be removed");
    }
}

/// The record of a run that could not be ended, with the known facts only.
fn abandoned_record(
    record: EvolveRecord,
    step: RunJournalStep,
    error: &anyhow::Error,
) -> EvolveRecord {
    let (status, left) = match step {
        // The new container has answered, regardless of the remaining steps.
        RunJournalStep::Finalizing | RunJournalStep::Watching => (
            EvolveStage::Succeeded,
            format!("the old container could not be cleaned up: {error:#}"),
        ),
        RunJournalStep::Preparing => (
            EvolveStage::Failed,
            format!("the evolve could not be cleaned up: {error:#}"),
        ),
        RunJournalStep::Quiescing | RunJournalStep::Swapping => (
            EvolveStage::Failed,
            format!("the rollback failed: {error:#}; run `osctl up` to create the container again"),
        ),
    };
    let why = record.why.iter().cloned().chain([left]);
    EvolveRecord {
        failed_stage: match status {
            EvolveStage::Succeeded => record.failed_stage,
            _ => record.failed_stage.or(Some(record.status)),
        },
        why: Some(why.collect::<Vec<_>>().join("; and ")),
        status,
        ..record
    }
}

#[cfg(test)]
mod tests {
    use super::{abandon_run, abandoned_record, interrupted_run_end, placeholder_record};
    use crate::keeper::KeeperSettings;
    use crate::keeper::journal::{RunJournal, RunJournalEntry, RunJournalStep};
    use crate::keeper::run_store::KeeperRunStore;
    use crate::keeper::test_samples;
    use crate::protocol::evolve::EvolveStage;

    fn entry(step: RunJournalStep) -> RunJournalEntry {
        RunJournalEntry {
            old: Some("old".into()),
            previous: Some("before".into()),
            image: Some("new".into()),
            ..test_samples::sample_entry(step)
        }
    }

    #[test]
    fn every_interrupted_step_has_a_defined_end() {
        for (step, end) in [
            (RunJournalStep::Preparing, Some(EvolveStage::Failed)),
            (RunJournalStep::Quiescing, Some(EvolveStage::Failed)),
            (RunJournalStep::Swapping, Some(EvolveStage::RolledBack)),
            (RunJournalStep::Finalizing, Some(EvolveStage::Succeeded)),
            (RunJournalStep::Watching, None),
        ] {
            assert_eq!(interrupted_run_end(step), end, "{step:?}");
        }
    }

    #[test]
    fn an_abandoned_run_is_recorded_with_what_failed() {
        let error = anyhow::anyhow!("the engine refused it");
        let abandon = |step| abandoned_record(placeholder_record(&entry(step)), step, &error);
        let back = abandon(RunJournalStep::Swapping);
        assert_eq!(
            (back.status, back.failed_stage),
            (EvolveStage::Failed, Some(EvolveStage::Swapping))
        );
        assert!(back.why.unwrap().contains("the rollback failed"));
        let tried = abandon(RunJournalStep::Preparing);
        assert_eq!(tried.status, EvolveStage::Failed);
        assert!(!tried.why.unwrap().contains("rollback"));
        // The new container has answered.
        let done = abandon(RunJournalStep::Finalizing);
        assert_eq!(
            (done.status, done.failed_stage),
            (EvolveStage::Succeeded, None)
        );
        assert!(
            done.why
                .unwrap()
                .contains("could not be cleaned up: the engine refused it")
        );
    }

    #[test]
    fn an_unreadable_journal_does_not_block_the_keeper() {
        let folder = tempfile::tempdir().unwrap();
        let settings = KeeperSettings {
            state_folder: folder.path().into(),
            ..KeeperSettings::default()
        };
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        std::fs::write(folder.path().join("journal.json"), "{\"run\":").unwrap();
        abandon_run(&settings, &run_store, &anyhow::anyhow!("it can't be read"));
        assert_eq!(RunJournal::new(folder.path()).read().unwrap(), None);
    }
}
