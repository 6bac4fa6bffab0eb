//! Watch period of a new container after success: the keeper rolls back a container that crashes repeatedly.
//!
//! If another run interrupts the watch period and fails, the watch period restarts. If that run succeeds, an image
//! that did not pass its watch period is not a fallback: the new container falls back to the last image that passed
//! ([`proven_image`], [`rank_fallback_images`]).

use super::journal::{RunJournalEntry, RunJournalStep};
use super::target::{DeployTarget, TargetHealth};
use crate::backoff::Backoff;
use crate::engine::ContainerPhase;
use crate::error::Result;
use crate::protocol::evolve::{EvolveRecord, RunTask};
use std::time::Duration;
use tokio::time::Instant;

/// The interval between two checks.
const DEPLOY_WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How many restarts by the engine are allowed.
const MAX_WATCHED_RESTARTS: u64 = 1;
/// The interval between two answers of the container's companion, and how long it may give none.
const WATCHED_HEALTH_INTERVAL: Duration = Duration::from_secs(5);
const WATCHED_HEALTH_TIMEOUT: Duration = Duration::from_secs(20);
/// An engine that takes longer to inspect a container is too slow for the companion's silence to count.
const SLOW_ENGINE_THRESHOLD: Duration = Duration::from_secs(2);
/// How many failed rescues are allowed.
const MAX_FAILED_RESCUES: u32 = 3;
/// The delays before the container of a rescue is watched.
const RESCUE_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(10),
    max: Duration::from_secs(30),
};

/// The result of a watch period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchVerdict {
    Passed,
    /// The reason for the rollback.
    Failed(String),
}

/// One observation of the container.
#[derive(Debug, Clone, Copy)]
struct WatchSample {
    restarts: u64,
    unresponsive: Duration,
}

fn find_failure(seen: WatchSample) -> Option<String> {
    if seen.restarts > MAX_WATCHED_RESTARTS {
        let restarts = seen.restarts;
        return Some(format!(
            "the container failed its watch period: the engine restarted it {restarts} times"
        ));
    }
    (seen.unresponsive > WATCHED_HEALTH_TIMEOUT).then(|| {
        let seconds = WATCHED_HEALTH_TIMEOUT.as_secs();
        format!(
            "the container failed its watch period: its companion did not answer for {seconds} s"
        )
    })
}

/// Watches until the watch period is over or the container has failed.
///
/// # Errors
/// When the engine is away too long.
pub(super) async fn watch_container(
    target: &DeployTarget,
    entry: &RunJournalEntry,
) -> Result<WatchVerdict> {
    tokio::time::sleep(RESCUE_BACKOFF.delay_after(entry.rescues)).await;
    let watch_period = Duration::from_secs(target.config.limits.watch_period);
    let started_at = Instant::now();
    let mut last_reply_at = started_at;
    // A monotonic clock, which is not affected when the system time is set.
    while started_at.elapsed() < watch_period {
        let asked_at = Instant::now();
        let Some(found) = target.find_container(target.container_name()).await? else {
            // The container was removed on purpose.
            return Ok(WatchVerdict::Passed);
        };
        let ours = Some(&found.image) == entry.image.as_ref();
        if !ours {
            return Ok(WatchVerdict::Passed);
        }
        let by_person = found.phase == ContainerPhase::Paused
            || (found.restart_count == 0 && found.exit_reason.is_some());
        let is_slow = asked_at.elapsed() > SLOW_ENGINE_THRESHOLD;
        if by_person
            || is_slow
            || (last_reply_at.elapsed() >= WATCHED_HEALTH_INTERVAL
                && target.probe_health(&found.id).await? != TargetHealth::Unresponsive)
        {
            last_reply_at = Instant::now();
        }
        let seen = WatchSample {
            restarts: found.restart_count,
            unresponsive: last_reply_at.elapsed(),
        };
        if let Some(why) = find_failure(seen) {
            return Ok(WatchVerdict::Failed(why));
        }
        tokio::time::sleep(DEPLOY_WATCH_INTERVAL).await;
    }
    Ok(WatchVerdict::Passed)
}

/// Whether the keeper tries no more rescues from this container.
pub(super) fn has_exhausted_rescues(entry: &RunJournalEntry) -> bool {
    entry.rescues >= MAX_FAILED_RESCUES
}

/// The image that a run falls back to beyond the container that it replaces. `watched` is the entry of that container
/// and `task` is the task that created it; `None` if the container has passed its watch period.
pub(super) fn proven_image(watched: &RunJournalEntry, task: RunTask) -> Option<String> {
    let is_watched = watched.step == RunJournalStep::Watching;
    match (is_watched, task) {
        (false, _) => None,
        (true, RunTask::Evolve) => watched.proven.clone().or_else(|| watched.previous.clone()),
        // The target of a rollback had passed its watch period earlier.
        (true, RunTask::Rollback | RunTask::Rescue) => None,
    }
}

/// The fallback images for the container of `watched`, the best first. `task` is the task that created the container.
pub(super) fn rank_fallback_images(
    watched: &RunJournalEntry,
    task: RunTask,
    records: &[EvolveRecord],
) -> Vec<String> {
    let replaced = watched.previous.as_ref();
    let proven = watched.proven.as_ref();
    let predecessor = find_previous_image(records, watched.image.as_deref());
    let all = match task {
        RunTask::Evolve => [proven, replaced.filter(|_| proven.is_none()), predecessor],
        // An image that a person left is better than a container that does not run.
        RunTask::Rollback => [proven, predecessor, replaced],
        // An image that was left because it failed its watch period is not a fallback.
        RunTask::Rescue => [predecessor, None, None],
    };
    let mut images: Vec<String> = Vec::new();
    for image in all.into_iter().flatten() {
        if Some(image) != watched.image.as_ref() && !images.contains(image) {
            images.push(image.clone());
        }
    }
    images
}

/// The image that ran before the body with this image was deployed. Rollbacks are not considered, because they would
/// lead back to the image that was left.
pub(super) fn find_previous_image<'a>(
    records: &'a [EvolveRecord],
    image: Option<&str>,
) -> Option<&'a String> {
    let found = records.iter().find(|r| {
        r.has_replaced_container()
            && r.task == RunTask::Evolve
            && r.image.as_deref() == image
            && r.previous_image != r.image
    });
    found.and_then(|r| r.previous_image.as_ref())
}

#[cfg(test)]
mod tests {
    use super::{WatchSample, find_failure, proven_image, rank_fallback_images};
    use crate::keeper::journal::{RunJournalEntry, RunJournalStep};
    use crate::keeper::test_samples;
    use crate::protocol::evolve::{EvolveRecord, EvolveStage, RunTask};
    use std::time::Duration;

    fn entry(image: &str, previous: &str) -> RunJournalEntry {
        RunJournalEntry {
            previous: Some(previous.into()),
            image: Some(image.into()),
            ..test_samples::sample_entry(RunJournalStep::Watching)
        }
    }

    fn brought(image: &str, previous: &str) -> EvolveRecord {
        test_samples::sample_record(EvolveStage::Succeeded, image, previous)
    }

    #[test]
    fn an_unproven_image_ranks_after_a_proven_one() {
        let second = entry("b", "a");
        assert_eq!(proven_image(&second, RunTask::Evolve).as_deref(), Some("a"));
        let mut third = entry("c", "b");
        third.proven = proven_image(&second, RunTask::Evolve);
        let records = [brought("c", "b"), brought("b", "a")];
        assert_eq!(
            rank_fallback_images(&third, RunTask::Evolve, &records),
            ["a", "b"]
        );
        // The number of failed images in between does not matter.
        assert_eq!(proven_image(&third, RunTask::Evolve).as_deref(), Some("a"));
        // An image that passed its watch period is a fallback.
        assert_eq!(
            rank_fallback_images(&entry("c", "b"), RunTask::Evolve, &records),
            ["b"]
        );
        let over = RunJournalEntry {
            step: RunJournalStep::Preparing,
            ..second
        };
        assert_eq!(proven_image(&over, RunTask::Evolve), None);
    }

    #[test]
    fn a_rescue_does_not_return_to_an_image_that_failed() {
        let records = [brought("b", "a")];
        // `b` was left for `a`, which fails its watch period, too.
        assert!(rank_fallback_images(&entry("a", "b"), RunTask::Rescue, &records).is_empty());
        assert_eq!(proven_image(&entry("a", "b"), RunTask::Rescue), None);
        assert_eq!(
            rank_fallback_images(&entry("a", "b"), RunTask::Rollback, &records),
            ["b"]
        );
        // The same image in a new container.
        assert_eq!(
            rank_fallback_images(&entry("b", "b"), RunTask::Evolve, &records),
            ["a"]
        );
    }

    #[test]
    fn one_restart_is_no_failure_and_two_are() {
        let seen = |restarts, seconds| WatchSample {
            restarts,
            unresponsive: Duration::from_secs(seconds),
        };
        assert_eq!(find_failure(seen(0, 0)), None);
        assert_eq!(find_failure(seen(1, 19)), None);
        assert!(find_failure(seen(2, 0)).unwrap().contains("2 times"));
        assert!(
            find_failure(seen(0, 21))
                .unwrap()
                .contains("did not answer")
        );
    }
}
