//! What a keeper before has begun comes to one of the two good ends.

use super::Settings;
use super::journal::{Entry, Journal, Step};
use super::leftovers;
use super::patience::is_away;
use super::present;
use super::reach::Mark;
use super::revival::{Revived, revive};
use super::run::Work;
use super::shelf::Shelf;
use super::site::Site;
use super::stop::Stop;
use crate::error::Result;
use crate::protocol::evolve::{Asker, Record, Stage, Task};
use std::time::Duration;

/// What a container that is started again may take.
const HEALTHY: Duration = Duration::from_secs(120);

/// What there is to do once everything has come to its end.
#[derive(Debug)]
pub(super) enum After {
    Nothing,
    /// It is on probation.
    Watch(Box<Entry>),
    /// It was, and can't be started any more: why.
    Broken(String),
}

/// Where a run ends that came so far, if it does not go on by itself.
pub(super) fn end_of(step: Step) -> Option<Stage> {
    match step {
        Step::Preparing | Step::Freezing => Some(Stage::Failed),
        Step::Swapping => Some(Stage::RolledBack),
        // It is proved: what is left to do can't fail for a reason of its own.
        Step::Concluding => Some(Stage::Succeeded),
        Step::Probation => None,
    }
}

/// Ends what the journal tells of, and says what is on probation. `why` is what cut it.
///
/// # Errors
/// When the engine does not do what it takes; it can be called again.
pub(super) async fn recover(
    settings: &Settings,
    shelf: &Shelf,
    site: &Site,
    why: &str,
) -> Result<After> {
    let journal = Journal::new(&settings.state);
    if let Some(entry) = journal.read()?
        && let Some(end) = end_of(entry.step)
    {
        finish(settings, shelf, site, entry, (end, why)).await?;
    } else if let Err(error) = site.remove_trial().await {
        match is_away(&error) {
            true => return Err(error),
            // The next run says so, if it is in its way.
            false => tracing::warn!("what an earlier trial left stays: {error:#}"),
        }
    }
    shelf.attend(None);
    // A disk that is full now holds up nothing else.
    if let Err(error) = shelf.mend() {
        tracing::warn!("writing down which runs have ended: {error:#}");
    }
    let entry = journal.read()?;
    if entry.is_none() {
        present::put_right(settings, shelf, site).await?;
    }
    present::note_image(shelf, site).await?;
    leftovers::remove(site, shelf, entry.as_ref()).await;
    match entry {
        None => Ok(After::Nothing),
        Some(entry) => on_probation(settings, shelf, site, entry).await,
    }
}

/// A port that another program has is no fault of the container, which is watched all the same.
async fn on_probation(
    settings: &Settings,
    shelf: &Shelf,
    site: &Site,
    entry: Entry,
) -> Result<After> {
    let log = shelf.log(&entry.run, site.charge.bounds.log)?;
    let mark = Mark::new(&settings.state);
    let works = match revive(site, &mark, site.name(), Some(&entry.run)).await? {
        Revived::Untouched | Revived::Waits(_) => Ok(()),
        Revived::Started | Revived::WithoutPorts(_) => {
            site.until_healthy(site.name(), HEALTHY, &log).await
        }
        Revived::Refused(error) => Err(error),
    };
    match works {
        Ok(()) => Ok(After::Watch(Box::new(entry))),
        Err(error) if is_away(&error) => Err(error),
        Err(error) => {
            let why = format!("it did not last: it can't be started again: {error:#}");
            Ok(After::Broken(why))
        }
    }
}

async fn finish(
    settings: &Settings,
    shelf: &Shelf,
    site: &Site,
    entry: Entry,
    (end, why): (Stage, &str),
) -> Result<()> {
    tracing::warn!(run = %entry.run, step = ?entry.step, %end, "going on from the journal");
    shelf.attend(Some(entry.run.clone()));
    let record = match shelf.record(&entry.run) {
        Ok(Some(record)) => record,
        // What was not written down yet, or can't be read any more, is to be ended all the same.
        found => {
            tracing::warn!(run = %entry.run, "its record is missing: {found:?}");
            unknown(&entry)
        }
    };
    // Also what was written down as ended may have more to do.
    let stage = record.status;
    let end = if stage.has_ended() { stage } else { end };
    let mut work = Work {
        settings: settings.clone(),
        site: site.clone(),
        shelf: shelf.clone(),
        journal: Journal::new(&settings.state),
        log: shelf.log(&entry.run, site.charge.bounds.log)?,
        record,
        entry,
        refusing: None,
        at_rest: None,
        robbed: None,
        is_displaced: false,
        stop: Stop::default(),
    };
    if end != Stage::Succeeded && !stage.has_ended() {
        work.blame(stage, &anyhow::anyhow!(why.to_owned()));
    }
    work.end(end).await
}

/// What can be said of a run whose record is missing.
fn unknown(entry: &Entry) -> Record {
    Record {
        run: entry.run.clone(),
        task: Task::Evolve,
        reason: None,
        by: Asker::Keeper,
        force: false,
        dry_run: false,
        began: super::shelf::now(),
        status: match entry.step {
            Step::Preparing => Stage::Building,
            Step::Freezing => Stage::Freezing,
            Step::Swapping => Stage::Swapping,
            Step::Concluding | Step::Probation => Stage::Verifying,
        },
        stages: Vec::new(),
        gate: None,
        why: None,
        log_tail: Vec::new(),
        checks: Vec::new(),
        image: entry.image.clone(),
        previous: entry.previous.clone(),
        body: None,
        refused_ms: None,
        receipt: Vec::new(),
        besides: Vec::new(),
        folder: None,
        untold: None,
    }
}

/// Nothing that the keeper can do brings what it has begun to a good end: a person is told, and no verb is
/// held up any longer.
pub(super) fn give_up(settings: &Settings, shelf: &Shelf, error: &anyhow::Error) {
    let journal = Journal::new(&settings.state);
    match journal.read() {
        Ok(Some(entry)) => {
            let record = shelf.record(&entry.run).ok().flatten();
            let record = given_up(record.unwrap_or_else(|| unknown(&entry)), entry.step, error);
            // A disk that is full holds nobody up for ever, and the log has it.
            if let Err(error) = shelf.save(&record) {
                tracing::error!("writing down that a run was given up: {error:#}");
            }
        }
        Ok(None) => {}
        Err(error) => tracing::error!("the journal is lost: {error:#}"),
    }
    shelf.attend(None);
    if let Err(error) = journal.close() {
        tracing::error!("{error:#}");
    }
}

/// What is told of a run that could not be ended: what is known, and nothing beyond.
fn given_up(record: Record, step: Step, error: &anyhow::Error) -> Record {
    let (status, left) = match step {
        // The new container has answered, whatever is left.
        Step::Concluding | Step::Probation => (
            Stage::Succeeded,
            format!("what it has replaced could not be tidied up: {error:#}"),
        ),
        Step::Preparing => (
            Stage::Failed,
            format!("what it has left could not be tidied up: {error:#}"),
        ),
        Step::Freezing | Step::Swapping => (
            Stage::Failed,
            format!("the way back failed: {error:#}; `osctl up` makes it anew"),
        ),
    };
    let why = record.why.iter().cloned().chain([left]);
    Record {
        gate: match status {
            Stage::Succeeded => record.gate,
            _ => record.gate.or(Some(record.status)),
        },
        why: Some(why.collect::<Vec<_>>().join("; and ")),
        status,
        ..record
    }
}

#[cfg(test)]
mod tests {
    use super::{end_of, give_up, given_up, unknown};
    use crate::keeper::Settings;
    use crate::keeper::journal::{Entry, Journal, Step};
    use crate::keeper::samples;
    use crate::keeper::shelf::Shelf;
    use crate::protocol::evolve::Stage;

    fn entry(step: Step) -> Entry {
        Entry {
            old: Some("old".into()),
            previous: Some("before".into()),
            image: Some("new".into()),
            ..samples::entry(step)
        }
    }

    #[test]
    fn every_step_leads_to_a_good_end() {
        for (step, end) in [
            (Step::Preparing, Some(Stage::Failed)),
            (Step::Freezing, Some(Stage::Failed)),
            (Step::Swapping, Some(Stage::RolledBack)),
            (Step::Concluding, Some(Stage::Succeeded)),
            (Step::Probation, None),
        ] {
            assert_eq!(end_of(step), end, "{step:?}");
        }
    }

    #[test]
    fn what_is_given_up_is_told_as_it_is() {
        let error = anyhow::anyhow!("the engine refused it");
        let told = |step| given_up(unknown(&entry(step)), step, &error);
        let back = told(Step::Swapping);
        assert_eq!(
            (back.status, back.gate),
            (Stage::Failed, Some(Stage::Swapping))
        );
        assert!(back.why.unwrap().contains("the way back failed"));
        let tried = told(Step::Preparing);
        assert_eq!(tried.status, Stage::Failed);
        assert!(!tried.why.unwrap().contains("way back"));
        // The new one has answered.
        let done = told(Step::Concluding);
        assert_eq!((done.status, done.gate), (Stage::Succeeded, None));
        assert!(
            done.why
                .unwrap()
                .contains("tidied up: the engine refused it")
        );
    }

    #[test]
    fn a_journal_that_can_not_be_read_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            state: folder.path().into(),
            ..Settings::default()
        };
        let shelf = Shelf::open(folder.path()).unwrap();
        std::fs::write(folder.path().join("journal.json"), "{\"run\":").unwrap();
        give_up(&settings, &shelf, &anyhow::anyhow!("it can't be read"));
        assert_eq!(Journal::new(folder.path()).read().unwrap(), None);
    }
}
