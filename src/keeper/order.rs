//! What somebody wants of the keeper, and the run that it becomes: whether it may begin, what it goes
//! back to, and what is written down of it first of all.

use super::journal::{Entry, Journal, Step};
use super::owner::site;
use super::run::Work;
use super::shelf::{Shelf, now};
use super::site::Site;
use super::stop::Stop;
use super::{Settings, frequency, hearsay, policy, probation, repository};
use crate::engine::{Phase, Progress};
use crate::error::Result;
use crate::protocol::evolve::inside::Expected;
use crate::protocol::evolve::{Asker, Record, Run, Stage, Task, refusal};
use crate::protocol::fault::Fault;

/// What somebody wants.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) task: Task,
    pub(super) by: Asker,
    pub(super) reason: Option<String>,
    pub(super) force: bool,
    pub(super) dry_run: bool,
    /// The run whose image is gone back to.
    pub(super) to: Option<Run>,
}

/// Why it is not done.
#[derive(Debug)]
pub(super) enum No {
    Busy(Run),
    Refused(Fault),
}

impl From<anyhow::Error> for No {
    fn from(error: anyhow::Error) -> Self {
        Self::Refused(Fault::new(refusal::NOT_READY, format!("{error:#}")))
    }
}

/// The run, written down and ready to begin.
///
/// # Errors
/// When it may not begin, or can't be written down; nothing is left of it then.
pub(super) async fn prepare(
    settings: &Settings,
    shelf: &Shelf,
    order: Order,
) -> std::result::Result<Work, No> {
    let site = site(settings).await?;
    let records = shelf.records()?;
    if order.by == Asker::Agent {
        let begun = records.iter().filter(|r| r.by == Asker::Agent);
        let begun: Vec<f64> = begun.map(|r| r.began).collect();
        if let Some(wait) = frequency::wait(&begun, now(), site.charge.bounds.hourly) {
            let hourly = site.charge.bounds.hourly;
            let message = format!("no more than {hourly} runs may begin from inside in an hour");
            let hint = format!("try again in {wait:.0} s");
            return Err(No::Refused(
                Fault::new(refusal::TOO_OFTEN, message).hint(hint),
            ));
        }
    }
    let old = site.find(site.name()).await?;
    let previous = old.as_ref().map(|found| found.image.clone());
    let journal = Journal::new(&settings.state);
    // What is not the container on probation has another one's.
    let watched = journal
        .read()?
        .filter(|entry| entry.step == Step::Probation && entry.image == previous);
    let task_of = |entry: &Entry| {
        let found = records.iter().find(|record| record.run == entry.run);
        found.map_or(Task::Evolve, |record| record.task)
    };
    let image = match (order.task, &watched) {
        (Task::Evolve, _) => None,
        (Task::Rescue, Some(entry)) => {
            let refuges = probation::refuges(entry, task_of(entry), &records);
            Some(first_kept(&site, refuges).await?)
        }
        (Task::Rollback | Task::Rescue, _) => {
            Some(goal(&site, &records, order.to.as_ref(), previous.as_deref()).await?)
        }
    };
    let run = shelf.make(now())?;
    let record = Record {
        run: run.clone(),
        task: order.task,
        reason: order.reason,
        by: order.by,
        force: order.force,
        dry_run: order.dry_run,
        began: now(),
        status: policy::first(order.task),
        stages: Vec::new(),
        gate: None,
        why: None,
        log_tail: Vec::new(),
        checks: Vec::new(),
        image: image.clone(),
        previous: previous.clone(),
        body: None,
        refused_ms: None,
        receipt: Vec::new(),
        besides: Vec::new(),
        folder: site.charge.body.to_str().map(str::to_owned),
        untold: match order.dry_run {
            true => None,
            false => repository::untold(&settings.repo, site.charge.above.as_deref())
                .map(|why| hearsay::sentence(&why)),
        },
    };
    let entry = Entry {
        run: run.clone(),
        step: Step::Preparing,
        running: old.as_ref().is_some_and(|old| {
            // One that crashes again and again is there to the engine, and one that it could not start is to run.
            matches!(old.phase, Phase::Running | Phase::Restarting) || old.failed_to_start
        }),
        old: old.map(|found| found.id),
        previous,
        image,
        expected: Expected::default(),
        proven: match (order.task, &watched) {
            (Task::Evolve, Some(entry)) => probation::proven(entry, task_of(entry)),
            _ => None,
        },
        after: watched.map(|before| {
            Box::new(Entry {
                // Deeper it matters no more.
                after: None,
                rescues: before.rescues + u32::from(order.task == Task::Rescue),
                ..before
            })
        }),
        rescues: 0,
    };
    let begun = || -> Result<_> {
        // First of all, so that whatever is written of the run has its end.
        journal.write(&entry)?;
        shelf.save(&record)?;
        shelf.log(&run, site.charge.bounds.log)
    };
    let log = match begun() {
        Ok(log) => log,
        Err(error) => {
            // A keeper that is started again undoes what can't be undone now.
            if let Err(error) = journal.restore(&entry) {
                tracing::error!("taking back a run that has not begun: {error:#}");
            }
            shelf.unmake(&run);
            return Err(error.into());
        }
    };
    if let Some(why) = &record.untold {
        log.log(&format!("this run becomes no commit: {why}"));
    }
    // Without it, it can't be told later what has changed.
    if let Err(error) = shelf.keep_before(&record) {
        tracing::warn!("{error:#}");
    }
    shelf.attend(Some(run));
    Ok(Work {
        settings: settings.clone(),
        log,
        site,
        shelf: shelf.clone(),
        journal,
        record,
        entry,
        refusing: None,
        at_rest: None,
        robbed: None,
        is_displaced: false,
        stop: Stop::default(),
    })
}

fn none(message: impl Into<String>) -> No {
    let fault = Fault::new(refusal::NO_SUCH_RUN, message);
    No::Refused(fault.hint("`osctl evolve history` lists the runs"))
}

/// The image to go back to.
async fn goal(
    site: &Site,
    records: &[Record],
    to: Option<&Run>,
    present: Option<&str>,
) -> std::result::Result<String, No> {
    let image = match to {
        Some(run) => {
            let succeeded = |r: &&Record| r.status == Stage::Succeeded && !r.dry_run;
            let mut worth = records.iter().filter(succeeded);
            let found = worth.find(|r| r.run == *run);
            let found = found.ok_or_else(|| none(format!("run `{run}` did not succeed")))?;
            found.image.clone()
        }
        None => probation::brought(records, present).cloned(),
    };
    first_kept(site, image.into_iter().collect()).await
}

/// The first of the images that the engine still has.
async fn first_kept(site: &Site, images: Vec<String>) -> std::result::Result<String, No> {
    if images.is_empty() {
        return Err(none("there is no image before to go back to"));
    }
    for image in images {
        if site.docker.image(&image).await?.is_some() {
            return Ok(image);
        }
    }
    Err(none("the image to go back to is not kept any more"))
}
