//! The container in place where no run is on: it runs, no other one of the instance waits beside it, and the history
//! names its image.

use super::Settings;
use super::patience::is_away;
use super::reach::Mark;
use super::revival::{Revived, revive};
use super::shelf::{Shelf, now};
use super::site::Site;
use crate::engine::Phase;
use crate::error::Result;
use crate::protocol::evolve::{Asker, Record, Stage, Task};

/// For the history.
const REASON: &str = "`osctl up`, or another program, has made this container outside of a run";

/// Puts right what an earlier run, an engine that was killed or the host has left.
///
/// # Errors
/// When the engine is away. What it refuses is logged: a run says so, if it is in its way.
pub(super) async fn put_right(settings: &Settings, shelf: &Shelf, site: &Site) -> Result<()> {
    let done = async {
        settle(shelf, site).await?;
        start(settings, shelf, site).await
    };
    tolerate(done.await)
}

/// Adds a record where the image of the container is not the one that the history names.
///
/// # Errors
/// When the engine is away.
pub(super) async fn note_image(shelf: &Shelf, site: &Site) -> Result<()> {
    let noted = async {
        let Some(present) = site.find(site.name()).await? else {
            return Ok(());
        };
        let records = shelf.records()?;
        let Some(latest) = records.first() else {
            return Ok(());
        };
        let before = named(latest);
        if before == Some(present.image.as_str()) {
            return Ok(());
        }
        let record = brought_by_host(shelf, &present.image, before)?;
        tracing::info!(run = %record.run, image = present.image, "the container was made outside of a run");
        shelf.save(&record)
    };
    tolerate(noted.await)
}

fn tolerate(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if !is_away(&error) => {
            tracing::warn!("the container in place: {error:#}");
            Ok(())
        }
        done => done,
    }
}

/// The image that runs by the word of that record, which has ended.
pub(super) fn named(latest: &Record) -> Option<&str> {
    let brings = latest.status == Stage::Succeeded && !latest.dry_run;
    match brings {
        true => latest.image.as_deref(),
        false => latest.previous.as_deref(),
    }
}

/// A container that waits under the other name takes its place again where none is there, or where the history names
/// its image. Otherwise it goes.
async fn settle(shelf: &Shelf, site: &Site) -> Result<()> {
    let Some(aside) = site.find(&site.charge.aside).await? else {
        return Ok(());
    };
    let docker = &site.docker;
    if let Some(present) = site.find(site.name()).await? {
        let records = shelf.records()?;
        let named = records.first().and_then(named);
        let is_named = |image: &str| named == Some(image);
        let stays = is_named(&present.image) || !is_named(&aside.image);
        if stays && present.phase != Phase::Created {
            tracing::warn!("removing `{}`, which no run needs", site.charge.aside);
            return docker.remove(&aside.id).await;
        }
        docker.remove(&present.id).await?;
    }
    tracing::warn!("`{}` takes its place again", site.charge.aside);
    docker.let_restart(&aside.id, true).await?;
    let started = match aside.phase {
        Phase::Paused => docker.unpause(&aside.id).await,
        Phase::Running | Phase::Restarting => Ok(()),
        Phase::Created | Phase::Stopped | Phase::Dead => docker.start(&aside.id).await,
    };
    let reached = match started {
        Ok(()) => site.reach(&aside).await,
        refused => refused,
    };
    // Last, so that a keeper that is started again in between finds it aside and does all of this again.
    docker.rename(&aside.id, site.name()).await?;
    reached?;
    site.resume(&aside.id).await
}

/// Starts a container that the engine could not start itself. One that a person has stopped stays as it is.
async fn start(settings: &Settings, shelf: &Shelf, site: &Site) -> Result<()> {
    let present = site.find(site.name()).await?;
    let Some(failed) = present.filter(|found| found.failed_to_start) else {
        return Ok(());
    };
    let latest = shelf.records()?.into_iter().next().map(|record| record.run);
    let mark = Mark::new(&settings.state);
    match revive(site, &mark, &failed.id, latest.as_ref()).await? {
        Revived::Untouched | Revived::Started => {}
        Revived::WithoutPorts(error) => tracing::warn!("it runs without its ports: {error:#}"),
        Revived::Waits(error) | Revived::Refused(error) => {
            tracing::warn!("it can't be started: {error:#}");
        }
    }
    Ok(())
}

/// What is known of a container that the host has made.
fn brought_by_host(shelf: &Shelf, image: &str, before: Option<&str>) -> Result<Record> {
    let began = now();
    Ok(Record {
        run: shelf.make(began)?,
        task: Task::Evolve,
        reason: Some(REASON.into()),
        by: Asker::Host,
        force: false,
        dry_run: false,
        began,
        status: Stage::Succeeded,
        stages: Vec::new(),
        gate: None,
        why: None,
        log_tail: Vec::new(),
        checks: Vec::new(),
        image: Some(image.into()),
        previous: before.map(str::to_owned),
        body: None,
        refused_ms: None,
        receipt: Vec::new(),
        besides: Vec::new(),
        folder: None,
        untold: None,
    })
}

#[cfg(test)]
mod tests {
    use super::{brought_by_host, named};
    use crate::keeper::samples::record;
    use crate::keeper::shelf::Shelf;
    use crate::protocol::evolve::{Record, Stage};

    #[test]
    fn the_history_names_what_a_run_has_brought_or_what_it_has_gone_back_to() {
        for (status, dry_run, image) in [
            (Stage::Succeeded, false, "new"),
            (Stage::Succeeded, true, "old"),
            (Stage::RolledBack, false, "old"),
            (Stage::Failed, false, "old"),
        ] {
            let latest = Record {
                dry_run,
                ..record(status, "new", "old")
            };
            assert_eq!(named(&latest), Some(image), "{status}");
        }
    }

    #[test]
    fn what_the_host_has_made_is_the_latest_of_the_history() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let mut failed = record(Stage::Failed, "new", "old");
        failed.run = shelf.make(5.0).unwrap();
        shelf.save(&failed).unwrap();
        let record = brought_by_host(&shelf, "other", named(&failed)).unwrap();
        shelf.save(&record).unwrap();
        let latest = shelf.records().unwrap().remove(0);
        assert_eq!(named(&latest), Some("other"));
        assert_eq!(latest.previous.as_deref(), Some("old"));
    }
}
