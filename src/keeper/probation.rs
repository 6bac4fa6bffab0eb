//! After success a new container is watched for a while: what ends again and again is taken back.
//!
//! A probation that another run has interrupted begins anew when that run has failed. When it has
//! succeeded, what did not last its probation is no refuge: the new container falls back to the last
//! image that did ([`proven`], [`refuges`]).

use super::journal::{Entry, Step};
use super::site::{Pulse, Site};
use crate::engine::Phase;
use crate::error::Result;
use crate::protocol::evolve::{Record, Stage, Task};
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How often the engine may have started it again.
const RESTARTS: u64 = 1;
/// How long its companion may give no answer.
const SILENCE: Duration = Duration::from_secs(20);
/// An engine that takes so long to say how a container stands is to blame itself.
const SLOW: Duration = Duration::from_secs(2);
/// Going back in vain is tried so often, after a longer pause each time.
const RESCUES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(10);

/// How a probation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Lasted,
    /// Why it is taken back.
    Broken(String),
}

/// What is seen of the container.
#[derive(Debug, Clone, Copy)]
struct Seen {
    restarts: u64,
    silent: Duration,
}

fn judge(seen: Seen) -> Option<String> {
    if seen.restarts > RESTARTS {
        let restarts = seen.restarts;
        return Some(format!(
            "it did not last: the engine has started it again {restarts} times"
        ));
    }
    (seen.silent > SILENCE).then(|| {
        let seconds = SILENCE.as_secs();
        format!("it did not last: its companion gave no answer for {seconds} s")
    })
}

/// Watches until the probation is over or the container has failed.
///
/// # Errors
/// When the engine goes away for long.
pub(super) async fn watch(site: &Site, entry: &Entry) -> Result<Verdict> {
    tokio::time::sleep(PAUSE * entry.rescues).await;
    let probation = Duration::from_secs(site.charge.bounds.probation);
    let begin = Instant::now();
    let mut heard = begin;
    // By no clock that may be set: it lasts as long as somebody watches.
    while begin.elapsed() < probation {
        let asked = Instant::now();
        let Some(found) = site.find(site.name()).await? else {
            // Somebody has removed it, who may.
            return Ok(Verdict::Lasted);
        };
        let ours = Some(&found.image) == entry.image.as_ref();
        if !ours {
            return Ok(Verdict::Lasted);
        }
        let by_person =
            found.phase == Phase::Paused || (found.restarts == 0 && found.exit.is_some());
        let is_slow = asked.elapsed() > SLOW;
        if by_person || is_slow || site.pulse(&found.id).await? != Pulse::Silent {
            heard = Instant::now();
        }
        let seen = Seen {
            restarts: found.restarts,
            silent: heard.elapsed(),
        };
        if let Some(why) = judge(seen) {
            return Ok(Verdict::Broken(why));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(Verdict::Lasted)
}

/// Whether going back from it is worth another try.
pub(super) fn is_hopeless(entry: &Entry) -> bool {
    entry.rescues >= RESCUES
}

/// The image that a run falls back to beyond what it replaces, which `watched` is: nothing, where
/// that has lasted. `task` is what brought it.
pub(super) fn proven(watched: &Entry, task: Task) -> Option<String> {
    let is_watched = watched.step == Step::Probation;
    match (is_watched, task) {
        (false, _) => None,
        (true, Task::Evolve) => watched.proven.clone().or_else(|| watched.previous.clone()),
        // What is gone back to had lasted once.
        (true, Task::Rollback | Task::Rescue) => None,
    }
}

/// The images that may be gone back to when what `watched` tells of does not last, the best first.
/// `task` is what brought it.
pub(super) fn refuges(watched: &Entry, task: Task, records: &[Record]) -> Vec<String> {
    let before = watched.previous.as_ref();
    let proven = watched.proven.as_ref();
    let brought = brought(records, watched.image.as_deref());
    let all = match task {
        Task::Evolve => [proven, before.filter(|_| proven.is_none()), brought],
        // What somebody has left is better than what does not run at all.
        Task::Rollback => [proven, brought, before],
        // What was left because it did not last is nothing to go back to.
        Task::Rescue => [brought, None, None],
    };
    let mut images: Vec<String> = Vec::new();
    for image in all.into_iter().flatten() {
        if Some(image) != watched.image.as_ref() && !images.contains(image) {
            images.push(image.clone());
        }
    }
    images
}

/// The image that ran before the body which has that image: what went back is no body to go back
/// from, that would lead to the one that was left.
pub(super) fn brought<'a>(records: &'a [Record], image: Option<&str>) -> Option<&'a String> {
    let found = records.iter().find(|r| {
        r.status == Stage::Succeeded
            && !r.dry_run
            && r.task == Task::Evolve
            && r.image.as_deref() == image
            && r.previous != r.image
    });
    found.and_then(|r| r.previous.as_ref())
}

#[cfg(test)]
mod tests {
    use super::{Seen, judge, proven, refuges};
    use crate::keeper::journal::{Entry, Step};
    use crate::keeper::samples;
    use crate::protocol::evolve::{Record, Stage, Task};
    use std::time::Duration;

    fn entry(image: &str, previous: &str) -> Entry {
        Entry {
            previous: Some(previous.into()),
            image: Some(image.into()),
            ..samples::entry(Step::Probation)
        }
    }

    fn brought(image: &str, previous: &str) -> Record {
        samples::record(Stage::Succeeded, image, previous)
    }

    #[test]
    fn what_did_not_last_is_no_refuge_for_what_came_after_it() {
        let second = entry("b", "a");
        assert_eq!(proven(&second, Task::Evolve).as_deref(), Some("a"));
        let mut third = entry("c", "b");
        third.proven = proven(&second, Task::Evolve);
        let records = [brought("c", "b"), brought("b", "a")];
        assert_eq!(refuges(&third, Task::Evolve, &records), ["a", "b"]);
        // However many of them there are.
        assert_eq!(proven(&third, Task::Evolve).as_deref(), Some("a"));
        // One that has lasted is.
        assert_eq!(refuges(&entry("c", "b"), Task::Evolve, &records), ["b"]);
        let over = Entry {
            step: Step::Preparing,
            ..second
        };
        assert_eq!(proven(&over, Task::Evolve), None);
    }

    #[test]
    fn nothing_leads_back_and_forth() {
        let records = [brought("b", "a")];
        // `b` was left for `a`, which does not last, either.
        assert!(refuges(&entry("a", "b"), Task::Rescue, &records).is_empty());
        assert_eq!(proven(&entry("a", "b"), Task::Rescue), None);
        assert_eq!(refuges(&entry("a", "b"), Task::Rollback, &records), ["b"]);
        // The same image in a new container.
        assert_eq!(refuges(&entry("b", "b"), Task::Evolve, &records), ["a"]);
    }

    #[test]
    fn one_restart_is_forgiven_and_a_loop_is_not() {
        let seen = |restarts, seconds| Seen {
            restarts,
            silent: Duration::from_secs(seconds),
        };
        assert_eq!(judge(seen(0, 0)), None);
        assert_eq!(judge(seen(1, 19)), None);
        assert!(judge(seen(2, 0)).unwrap().contains("2 times"));
        assert!(judge(seen(0, 21)).unwrap().contains("no answer"));
    }
}
