//! The journal of runs: what is on disk of them, so that they are found again after the companion's
//! death.
//!
//! A [`RunStore`] is the handle. Each life of the companion writes a journal of its own, in its own
//! folder, and begins with a copy of what the journals before it hold ([`recovery`]); so two
//! companions, of which one waits while the other takes its place, never write to one file. Records
//! ([`record`]) are written by one thread ([`writer`]), several at once and with one sync for all
//! ([`queue`]), as frames that tell where a crash has cut them ([`frame`]).
//!
//! What was written outlasts the death of the companion and of the container. What was synced
//! outlasts a loss of power: that a run began, before the run is acknowledged, and its end with all that is
//! in the journal by then, before the end is published. Text of a running run is written within ten
//! milliseconds and synced within a second or so. Text beyond the first half MiB of a stream is in
//! files beside the journal, which are not waited for: after a loss of power their end may be missing.

mod frame;
#[cfg(test)]
mod model;
mod queue;
mod record;
mod recovery;
#[cfg(test)]
mod tests;
mod writer;

pub(super) use queue::{Kept, Urgency};
pub(super) use record::{Begin, End, Record};
pub(super) use writer::make_private;

use super::lives::Lives;
use queue::Shared;
use recovery::Found;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use writer::Writer;

/// Where the boot of the machine has its name.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A run of an earlier life, and its place in this journal.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) found: Found,
    pub(super) kept: Arc<Kept>,
}

/// The handle of the journal; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct RunStore(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    lives: Lives,
    boot: String,
    recovered: Mutex<Vec<Recovered>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl RunStore {
    /// Begins this life's journal with what earlier ones hold. A disk that can't be written is no
    /// reason to fail: runs are not durable then.
    pub(crate) fn open(lives: &Lives) -> Self {
        let shared = Arc::new(Shared::new(lives.own()));
        let writer = Writer::new(Arc::clone(&shared));
        let writer = thread::Builder::new()
            .name("runs".into())
            .spawn(|| writer.run());
        let writer = match writer {
            Ok(writer) => writer,
            Err(error) => {
                tracing::error!("runs are not recorded on disk: {error}");
                return Self::none();
            }
        };
        let store = Self(Some(Arc::new(Inner {
            shared,
            lives: lives.clone(),
            boot: fs::read_to_string(BOOT).unwrap_or_default().trim().into(),
            recovered: Mutex::default(),
            writer: Mutex::new(Some(writer)),
        })));
        store.recover();
        store
    }

    /// None: no run is durable.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Reads what other lives have left; blocks while it does.
    pub(crate) fn recover(&self) {
        let Some(inner) = &self.0 else { return };
        let own = inner.lives.own();
        for mut found in recovery::read(&inner.lives.others()) {
            bring_files(&mut found, &own);
            let first = Record::Begin(found.begin.clone());
            // What was left out before is not there to be written now.
            let kept = inner.shared.begin(&first, false);
            for record in &found.records {
                kept.push(record, Urgency::Later);
            }
            // So that no more waits than may.
            inner.shared.make_room();
            inner.recovered().push(Recovered { found, kept });
        }
    }

    /// The runs of one kind that were found, each once.
    pub(super) fn take(&self, place: &str) -> Vec<Recovered> {
        let Some(inner) = &self.0 else {
            return Vec::new();
        };
        let mut recovered = inner.recovered();
        let (own, others) = std::mem::take(&mut *recovered)
            .into_iter()
            .partition(|one| one.found.begin.place == place);
        *recovered = others;
        own
    }

    /// Where a file is that the journal names.
    pub(super) fn file(&self, name: &str) -> Option<PathBuf> {
        let inner = self.0.as_ref()?;
        Some(inner.shared.folder.join(name))
    }

    /// Whether that boot of the machine is over.
    pub(super) fn is_other_boot(&self, boot: &str) -> bool {
        let own = self.0.as_ref().map_or("", |inner| &inner.boot);
        !own.is_empty() && !boot.is_empty() && own != boot
    }

    pub(super) fn boot(&self) -> String {
        self.0
            .as_ref()
            .map(|inner| inner.boot.clone())
            .unwrap_or_default()
    }

    /// Records that a run begins, which is not on the disk yet.
    pub(super) fn begin(&self, begin: Begin, is_private: bool) -> Option<Arc<Kept>> {
        let inner = self.0.as_ref()?;
        Some(inner.shared.begin(&Record::Begin(begin), is_private))
    }

    /// Waits until all that was recorded before is on the disk; whether it is, and all before that.
    pub(crate) async fn settle(&self) -> bool {
        let Some(inner) = &self.0 else { return false };
        inner.shared.settle().await;
        !inner.shared.has_failed()
    }

    /// Writes what waits, and ends; blocks meanwhile.
    pub(crate) fn close(&self) {
        let Some(inner) = &self.0 else { return };
        inner.shared.close();
        let writer = inner
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the journal of runs was not written to its end");
        }
    }
}

impl Inner {
    fn recovered(&self) -> MutexGuard<'_, Vec<Recovered>> {
        self.recovered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Brings the files of a run into our folder; those of a life that waits stay there, too.
fn bring_files(found: &mut Found, own: &Path) {
    let (folder, begin) = (found.folder.clone(), found.begin.clone());
    found.records.retain_mut(|record| {
        let Record::File { stream, name } = record else {
            return true;
        };
        let from = folder.join(&*name);
        let kind = begin.place.trim_start_matches('/');
        let to = format!("{kind}.{}.{stream:?}.{}", begin.id, begin.created).to_lowercase();
        let brought = make_private(own).and_then(|()| link(&from, &own.join(&to)));
        if let Err(error) = &brought {
            let from = from.display();
            tracing::warn!("output of run `{}` in `{from}` is lost: {error}", begin.id);
        }
        *name = to;
        brought.is_ok()
    });
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Not every file system has links.
        Err(error) if error.kind() != io::ErrorKind::NotFound => fs::copy(from, to).map(drop),
        linked => linked,
    }
}
