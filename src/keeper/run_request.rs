//! A run request and the run that it becomes: whether the run may start, which image it rolls back to, and its first
//! record.

use super::cancellation::RunCancellation;
use super::journal::{RunJournal, RunJournalEntry, RunJournalStep};
use super::run::{BuildPolicy, RunExecutor};
use super::run_store::{KeeperRunStore, unix_seconds};
use super::target::{DeployTarget, load_target};
use super::{
    KeeperSettings, git_repository, post_deploy_watch, rate_limit, sanitize, stage_transitions,
};
use crate::engine::{ContainerPhase, EngineProgress};
use crate::error::Result;
use crate::protocol::error::ApiError;
use crate::protocol::evolve::container_reports::ExpectedState;
use crate::protocol::evolve::{EvolveCaller, EvolveRecord, EvolveRunId, RunTask, refusal};

/// A request for a run.
#[derive(Debug, Clone)]
pub(super) struct RunRequest {
    pub(super) task: RunTask,
    pub(super) by: EvolveCaller,
    pub(super) reason: Option<String>,
    pub(super) force: bool,
    pub(super) dry_run: bool,
    /// The build policy of an evolve; a rollback ignores the value.
    pub(super) build_policy: BuildPolicy,
    /// The run whose image is the target of the rollback.
    pub(super) rollback_run: Option<EvolveRunId>,
}

/// Why a request is denied.
#[derive(Debug)]
pub(super) enum RunDenied {
    Busy(EvolveRunId),
    Refused(ApiError),
}

impl From<anyhow::Error> for RunDenied {
    fn from(error: anyhow::Error) -> Self {
        Self::Refused(ApiError::new(
            refusal::KEEPER_NOT_READY,
            format!("{error:#}"),
        ))
    }
}

/// The run, with its record written, ready to start.
///
/// # Errors
/// When the run may not start, or its record can't be written; nothing of the run is left then.
pub(super) async fn prepare_run(
    settings: &KeeperSettings,
    run_store: &KeeperRunStore,
    run_request: RunRequest,
) -> std::result::Result<RunExecutor, RunDenied> {
    let target = load_target(settings).await?;
    let records = run_store.list_records()?;
    if run_request.by == EvolveCaller::Agent {
        let started_at = records
            .iter()
            .filter(|r| r.requested_by == EvolveCaller::Agent);
        let started_at: Vec<f64> = started_at.map(|r| r.started).collect();
        if let Some(wait) = rate_limit::seconds_until_allowed(
            &started_at,
            unix_seconds(),
            target.config.limits.runs_per_hour,
        ) {
            let runs_per_hour = target.config.limits.runs_per_hour;
            let message =
                format!("the agent may start no more than {runs_per_hour} evolves in an hour");
            let hint = format!("try again in {wait:.0} s");
            return Err(RunDenied::Refused(
                ApiError::new(refusal::KEEPER_RATE_LIMITED, message).with_hint(hint),
            ));
        }
    }
    let old = target.find_container(target.container_name()).await?;
    let previous = old.as_ref().map(|found| found.image.clone());
    let journal = RunJournal::new(&settings.state_folder);
    // Only an entry about the current container counts.
    let watched = journal
        .read()?
        .filter(|entry| entry.step == RunJournalStep::Watching && entry.image == previous);
    let task_of = |entry: &RunJournalEntry| {
        let found = records.iter().find(|record| record.run == entry.run);
        found.map_or(RunTask::Evolve, |record| record.task)
    };
    let image = match (run_request.task, &watched) {
        (RunTask::Evolve, _) => None,
        (RunTask::Rescue, Some(entry)) => {
            let fallback_images =
                post_deploy_watch::rank_fallback_images(entry, task_of(entry), &records);
            Some(first_existing_image(&target, fallback_images).await?)
        }
        (RunTask::Rollback | RunTask::Rescue, _) => Some(
            find_rollback_image(
                &target,
                &records,
                run_request.rollback_run.as_ref(),
                previous.as_deref(),
            )
            .await?,
        ),
    };
    let run = run_store.create_run(unix_seconds())?;
    let first_stage = stage_transitions::first_stage(run_request.task);
    let record = EvolveRecord {
        task: run_request.task,
        reason: run_request.reason,
        requested_by: run_request.by,
        force: run_request.force,
        dry_run: run_request.dry_run,
        image: image.clone(),
        previous_image: previous.clone(),
        body_folder: target.config.body.to_str().map(str::to_owned),
        not_committed_because: match run_request.dry_run {
            true => None,
            false => git_repository::find_commit_obstacle(
                &settings.project,
                target.config.repository_root.as_deref(),
            )
            .map(|why| sanitize::sanitize_sentence(&why)),
        },
        ..EvolveRecord::empty(run.clone(), first_stage, unix_seconds())
    };
    let entry = RunJournalEntry {
        run: run.clone(),
        step: RunJournalStep::Preparing,
        running: old.as_ref().is_some_and(|old| {
            // The engine counts a container that crashes in a loop as present. A container that the engine could not
            // start should run, too.
            matches!(
                old.phase,
                ContainerPhase::Running | ContainerPhase::Restarting
            ) || old.failed_to_start
        }),
        old: old.map(|found| found.id),
        previous,
        image,
        expected: ExpectedState::default(),
        proven: match (run_request.task, &watched) {
            (RunTask::Evolve, Some(entry)) => {
                post_deploy_watch::proven_image(entry, task_of(entry))
            }
            _ => None,
        },
        after: watched.map(|before| {
            Box::new(RunJournalEntry {
                // Older entries no longer matter.
                after: None,
                rescues: before.rescues + u32::from(run_request.task == RunTask::Rescue),
                ..before
            })
        }),
        rescues: 0,
    };
    let save_and_open_log = || -> Result<_> {
        // Write the journal first, so that recovery ends the run, whatever else was written of it.
        journal.write(&entry)?;
        run_store.save_record(&record)?;
        run_store.open_log(&run, target.config.limits.log)
    };
    let log = match save_and_open_log() {
        Ok(log) => log,
        Err(error) => {
            // If the journal can't be restored now, the next keeper undoes the run.
            if let Err(error) = journal.restore_previous(&entry) {
                tracing::error!(error = %format_args!("{error:#}"), "the journal of a run that did not start can't be restored");
            }
            run_store.discard_run(&run);
            return Err(error.into());
        }
    };
    if let Some(why) = &record.not_committed_because {
        log.log(&format!("this evolve does not become a commit: {why}"));
    }
    // Without this copy, the run's changes can't be shown later.
    if let Err(error) = run_store.save_previous_body(&record) {
        tracing::warn!(error = %format_args!("{error:#}"), "the previous body can't be kept");
    }
    run_store.set_active_run(Some(run));
    Ok(RunExecutor {
        settings: settings.clone(),
        log,
        target,
        run_store: run_store.clone(),
        journal,
        record,
        journal_entry: entry,
        build_policy: run_request.build_policy,
        refusing_since: None,
        quiesced_since: None,
        taken_port: None,
        is_displaced: false,
        cancellation: RunCancellation::default(),
    })
}

fn deny_no_such_run(message: impl Into<String>) -> RunDenied {
    let error = ApiError::new(refusal::KEEPER_NO_SUCH_RUN, message);
    RunDenied::Refused(error.with_hint("`osctl evolve history` lists the evolves"))
}

/// The image to roll back to.
async fn find_rollback_image(
    target: &DeployTarget,
    records: &[EvolveRecord],
    to: Option<&EvolveRunId>,
    present: Option<&str>,
) -> std::result::Result<String, RunDenied> {
    let image = match to {
        Some(run) => {
            let mut worth = records.iter().filter(|r| r.has_replaced_container());
            let found = worth.find(|r| r.run == *run);
            let found =
                found.ok_or_else(|| deny_no_such_run(format!("evolve {run} did not succeed")))?;
            found.image.clone()
        }
        None => post_deploy_watch::find_previous_image(records, present).cloned(),
    };
    first_existing_image(target, image.into_iter().collect()).await
}

/// The first of the images that the engine still has.
async fn first_existing_image(
    target: &DeployTarget,
    images: Vec<String>,
) -> std::result::Result<String, RunDenied> {
    if images.is_empty() {
        return Err(deny_no_such_run(
            "there is no previous image to roll back to",
        ));
    }
    for image in images {
        if target.docker.find_image(&image).await?.is_some() {
            return Ok(image);
        }
    }
    Err(deny_no_such_run(
        "the image to roll back to is no longer kept",
    ))
}
