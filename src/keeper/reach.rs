//! The old container goes on without its ports where somebody else has taken them meanwhile. Which one
//! does stands on the disk, and it is tried to be reached again whenever nothing else is on.

use super::journal::replace;
use super::owner::site;
use super::revival::{Revived, revive};
use super::shelf::Shelf;
use super::{Settings, hearsay};
use crate::error::Result;
use crate::protocol::evolve::Run;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The first pause; each one is twice as long as the one before.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// A container that nobody reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unreached {
    /// The run that has gone back to it, if one has.
    pub(super) run: Option<Run>,
    /// Its id.
    pub(super) container: String,
    /// Whether it does not even run: one that has ended gets its ports when it is started.
    pub(super) has_ended: bool,
}

/// The one file.
#[derive(Debug, Clone)]
pub(super) struct Mark(PathBuf);

impl Mark {
    pub(super) fn new(state: &Path) -> Self {
        Self(state.join("unreached.json"))
    }

    /// # Errors
    /// When it can't be written.
    pub(super) fn write(&self, unreached: &Unreached) -> Result<()> {
        let text = serde_json::to_vec(unreached)?;
        replace(&self.0, &text).context("writing down what is not reached")
    }

    fn read(&self) -> Option<Unreached> {
        let text = match fs::read(&self.0) {
            Err(e) if e.kind() == ErrorKind::NotFound => return None,
            read => read.map_err(anyhow::Error::from),
        };
        let read = text.and_then(|text| Ok(serde_json::from_slice(&text)?));
        read.inspect_err(|error| tracing::warn!("what is not reached: {error:#}"))
            .ok()
    }

    /// What has ended while no keeper looked was ended with it, by an engine that was started anew and could
    /// not start it again without its ports: nobody who does not want it.
    pub(super) fn take_over(&self) {
        let Some(found) = self.read() else { return };
        let ended = Unreached {
            has_ended: true,
            ..found
        };
        if let Err(error) = self.write(&ended) {
            tracing::warn!("{error:#}");
        }
    }

    pub(super) fn clear(&self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!("what is reached again: {error}");
        }
    }
}

/// What became of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Reached,
    /// The same, by being started again.
    Renewed,
    /// It is nobody's affair any more.
    Gone,
}

/// Until everything is reached that should be.
pub(super) async fn make_good(settings: &Settings, shelf: &Shelf) {
    let mark = Mark::new(&settings.state);
    let mut pause = FIRST;
    while let Some(unreached) = mark.read() {
        match attempt(settings, &mark, &unreached).await {
            Ok(tried) => {
                match tried {
                    Tried::Reached => tell(shelf, unreached.run.as_ref(), "it has its ports again"),
                    Tried::Renewed => tell(
                        shelf,
                        unreached.run.as_ref(),
                        "it was started again, and has its ports again",
                    ),
                    Tried::Gone => {}
                }
                return mark.clear();
            }
            Err(error) => tracing::info!("not reached yet: {error:#}"),
        }
        tokio::time::sleep(pause).await;
        pause = LONGEST.min(pause * 2);
    }
}

async fn attempt(settings: &Settings, mark: &Mark, unreached: &Unreached) -> Result<Tried> {
    let site = site(settings).await?;
    let id = &unreached.container;
    let present = site.find(site.name()).await?;
    let Some(found) = present.filter(|found| found.id == *id) else {
        return Ok(Tried::Gone);
    };
    match (found.exit.is_some(), unreached.has_ended) {
        // Whoever has ended it since then does not want it.
        (true, false) => return Ok(Tried::Gone),
        (true, true) => {
            let revived = revive(&site, mark, id, unreached.run.as_ref()).await?;
            return match revived {
                Revived::Untouched | Revived::Started => Ok(Tried::Renewed),
                Revived::WithoutPorts(error) | Revived::Waits(error) | Revived::Refused(error) => {
                    Err(error)
                }
            };
        }
        // It runs again, and may be ended by somebody from now on.
        (false, true) => mark.write(&Unreached {
            has_ended: false,
            ..unreached.clone()
        })?,
        (false, false) => {}
    }
    let ended = Unreached {
        has_ended: true,
        ..unreached.clone()
    };
    let again = site.reach_again(&found, || mark.write(&ended));
    match again.await? {
        true => Ok(Tried::Renewed),
        false => Ok(Tried::Reached),
    }
}

/// Says so where people look.
fn tell(shelf: &Shelf, run: Option<&Run>, what: &str) {
    tracing::warn!(?run, "the container: {what}");
    let Some(run) = run else { return };
    let told = || -> Result<()> {
        let Some(mut record) = shelf.record(run)? else {
            return Ok(());
        };
        let why: Vec<String> = record.why.into_iter().chain([what.to_owned()]).collect();
        record.why = Some(hearsay::sentence(&why.join("; ")));
        shelf.save(&record)
    };
    if let Err(error) = told() {
        tracing::warn!("writing down that it has them: {error:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::{Mark, Unreached, tell};
    use crate::keeper::samples::record;
    use crate::keeper::shelf::Shelf;
    use crate::protocol::evolve::Stage;

    #[test]
    fn what_is_not_reached_is_known_to_the_keeper_that_comes_next() {
        let folder = tempfile::tempdir().unwrap();
        let mark = Mark::new(folder.path());
        assert_eq!(mark.read(), None);
        let unreached = Unreached {
            run: "20261120-193600".parse().ok(),
            container: "a".into(),
            has_ended: false,
        };
        mark.take_over();
        assert_eq!(mark.read(), None);
        mark.write(&unreached).unwrap();
        assert_eq!(Mark::new(folder.path()).read(), Some(unreached.clone()));
        mark.take_over();
        let ended = Unreached {
            has_ended: true,
            ..unreached
        };
        assert_eq!(mark.read(), Some(ended));
        mark.clear();
        assert_eq!(mark.read(), None);
    }

    #[test]
    fn the_history_tells_that_ports_were_missing_and_are_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let mut lost = record(Stage::RolledBack, "new", "old");
        lost.run = shelf.make(5.0).unwrap();
        lost.why = Some("a port is taken".into());
        shelf.save(&lost).unwrap();
        tell(&shelf, Some(&lost.run), "it has its ports again");
        let told = shelf.record(&lost.run).unwrap().unwrap();
        assert_eq!(
            told.why.as_deref(),
            Some("a port is taken; it has its ports again")
        );
        // One that is not kept any more holds nothing up.
        tell(&shelf, "20200101-000000".parse().ok().as_ref(), "gone");
    }
}
