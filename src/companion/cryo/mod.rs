//! Objects that survive: a session's variables, stored on disk and brought back, with a receipt.
//!
//! [`Cryo`] is the handle. The kernel writes and reads the content itself, so that no byte of it
//! comes through here; this module owns names, numbers and how many are kept ([`store`],
//! [`retention`]), and reads manifests ([`manifest`]).
//!
//! ```text
//! store:  number, synced ─▶ kernel writes NAME/NUMBER.part ─▶ synced, renamed NAME/NUMBER ─▶ looked at ─▶ prune ─▶ reply
//! reload: manifest whole? ─▶ kernel checks, reads, looks what is there ─▶ receipt
//! boot:   last life not ended by wish ─▶ the newest of the session's name that can be reloaded
//! ```
//!
//! A store or reload that was begun goes on when its client leaves. It does not store the kernel's
//! process: that is criu's.

#[cfg(test)]
mod crashes;
mod manifest;
#[cfg(test)]
mod model;
mod number;
mod refusal;
mod restored;
mod retention;
mod schedule;
mod store;

pub(crate) use refusal::Refusal;
pub(crate) use restored::{damaged_above, keep_reload, number_of, restored};
pub(crate) use retention::Limits;
pub(crate) use store::weight;

use crate::companion::kernel::{self, Answer, Question, Sessions};
use crate::protocol::cryo::{
    Line, Reason, Reload, Reloaded, Removed, Row, Shown, Store as Wish, Stored, Verdict,
};
use crate::protocol::kernel::Raised;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Pins, Store};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// What names of states begin with that belong to a checkpoint: they go with it, and by nothing else.
pub(crate) const BESIDE_CHECKPOINTS: &str = "criu-";

/// Who has not said for so long that it needs no more what is pinned is gone.
const PINNED: Duration = Duration::from_secs(1800);

/// What concerns cryo of the companion's settings.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) folder: PathBuf,
    pub(crate) limits: Limits,
    /// Between two snapshots; none when missing.
    pub(crate) every: Option<Duration>,
    /// Whether the companion stores before it ends, when nobody has said by which verb.
    pub(crate) at_stop: bool,
    pub(crate) compress: bool,
}

impl From<&super::Settings> for Settings {
    fn from(settings: &super::Settings) -> Self {
        settings.cryo.clone()
    }
}

/// Everything that is stored, for everyone who stores and reloads.
#[derive(Debug, Clone)]
pub(crate) struct Cryo {
    sessions: Sessions,
    store: Store,
    settings: Settings,
    /// One after the other under each name.
    turns: Arc<Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>>,
    /// When what a session holds was stored last.
    fresh: Arc<Mutex<BTreeMap<String, Range<Instant>>>>,
    /// Whether the stop that follows is to store, and when that was said.
    said: Arc<Mutex<Option<(Instant, bool)>>>,
    /// What must not go now, and since when.
    pins: Arc<Mutex<Option<(Instant, Pins)>>>,
}

#[derive(Debug, Deserialize)]
struct Written {
    receipt: Vec<Row>,
    size_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Read {
    receipt: Vec<Row>,
    warnings: Vec<String>,
}

impl Cryo {
    /// Clears what an earlier life left half-way, and begins the schedule.
    pub(crate) fn start(settings: Settings, sessions: Sessions) -> Self {
        let store = Store::new(settings.folder.clone());
        let cryo = Self {
            sessions,
            store,
            settings,
            turns: Arc::default(),
            fresh: Arc::default(),
            said: Arc::default(),
            pins: Arc::default(),
        };
        cryo.store.sweep();
        if let Some(every) = cryo.settings.every {
            tokio::spawn(cryo.clone().keep_on_storing(every));
        }
        cryo
    }

    /// Stores a session's variables as the next generation of a name.
    ///
    /// # Errors
    /// Whatever keeps it from being stored; what was stored before is untouched.
    pub(crate) async fn store(&self, wish: Wish, reason: Reason) -> Result<Stored, Refusal> {
        let cryo = self.clone();
        // In a task of its own: a client that leaves must not leave half of it undone.
        let done = tokio::spawn(async move { cryo.store_now(wish, reason).await });
        done.await
            .unwrap_or_else(|error| Err(Refusal::Failed(error.to_string())))
    }

    async fn store_now(&self, wish: Wish, reason: Reason) -> Result<Stored, Refusal> {
        let name = self.named(wish.name, &wish.session)?;
        let turn = self.turn(&name);
        let _turn = turn.lock().await;
        let begin = Instant::now();
        let is_trial = wish.dry_run;
        let number = move |store: &Store, name: &str| match is_trial {
            true => store.likely(name),
            false => store.next(name),
        };
        let (generation, path) = self.blocking(number, &name).await??;
        let question = Question::CryoStore {
            folder: path.clone(),
            name: name.clone(),
            generation,
            reason: reason.word(),
            session: wish.session.clone(),
            strict: wish.strict,
            dry_run: wish.dry_run,
            files: wish.files,
            compress: self.settings.compress,
            runs: 0,
            seen: wish.seen,
        };
        let asked = Instant::now();
        let answer = self.sessions.ask(&wish.session, question).await?;
        let written: Written = told(answer.value.map_err(Refusal::of_store)?)?;
        let mut created = None;
        if !wish.dry_run {
            let session = wish.session.clone();
            let look = move |store: &Store, name: &str| store.stored(name, generation, &session);
            created = Some(self.blocking(look, &name).await??.created);
            self.sessions.sync(&wish.session).await;
            if name == wish.session {
                let stored = asked..Instant::now();
                locked(&self.fresh).insert(name.clone(), stored);
            }
            let (limits, pinned) = (self.settings.limits, self.pinned());
            self.blocking(move |store, _| store.prune(limits, &pinned), &name)
                .await?;
        }
        Ok(Stored {
            status: "completed".into(),
            message: said(&written.receipt, wish.dry_run),
            generation: (!wish.dry_run).then_some(generation),
            path: (!wish.dry_run).then(|| path.display().to_string()),
            name,
            size_bytes: written.size_bytes,
            timing_ms: begin.elapsed().as_secs_f64() * 1e3,
            receipt: written.receipt,
            created,
            kernel: Some(answer.report),
        })
    }

    /// Brings a generation back into a session, whose other variables stay.
    ///
    /// # Errors
    /// Whatever keeps it from being reloaded; the session is as it was then.
    pub(crate) async fn reload(&self, wish: Reload) -> Result<Reloaded, Refusal> {
        let cryo = self.clone();
        let done = tokio::spawn(async move { cryo.reload_now(wish).await });
        done.await
            .unwrap_or_else(|error| Err(Refusal::Failed(error.to_string())))
    }

    async fn reload_now(&self, wish: Reload) -> Result<Reloaded, Refusal> {
        let name = self.named(wish.name, &wish.session)?;
        let turn = self.turn(&name);
        let _turn = turn.lock().await;
        let begin = Instant::now();
        let wanted = wish.generation;
        let found = self
            .blocking(move |store, name| store.find(name, wanted), &name)
            .await??;
        let folder = found.path.clone();
        let answer = self
            .sessions
            .ask(&wish.session, Question::CryoReload { folder })
            .await?;
        let Answer { value, report } = answer;
        let read: Read = match value {
            Ok(value) => told(value)?,
            Err(raised) => return Err(self.refused(&name, found.generation, raised)),
        };
        if let Some(from) = report.origin.clone() {
            let (path, session) = (found.path.clone(), wish.session.clone());
            let keep = move |_: &Store, _: &str| keep_reload(&path, &session, &from);
            self.blocking(keep, &name).await?;
        }
        Ok(Reloaded {
            status: "completed".into(),
            message: said(&read.receipt, false),
            name,
            generation: found.generation,
            path: found.path.display().to_string(),
            size_bytes: found.manifest.size(),
            timing_ms: begin.elapsed().as_secs_f64() * 1e3,
            receipt: read.receipt,
            warnings: read.warnings,
            kernel: report,
        })
    }

    fn refused(&self, name: &str, generation: u64, raised: Raised) -> Refusal {
        match raised.kind.as_str() {
            "Damaged" | "OtherFormat" => self.store.damaged(name, generation, raised.message),
            _ => Refusal::Raised(raised),
        }
    }

    /// Bytes that the store or reload of a session has moved so far.
    pub(crate) fn moved(&self, session: &str) -> u64 {
        self.sessions
            .kernel(session)
            .map_or(0, |kernel| kernel.view().moved)
    }

    /// Bytes that a reload has to move, where it can be told.
    pub(crate) async fn total(&self, wish: &Reload) -> Option<u64> {
        let name = wish.name.clone().unwrap_or_else(|| wish.session.clone());
        let shown = self.show(name, wish.generation).await.ok()?;
        Some(shown.generation.size_bytes)
    }

    pub(crate) async fn list(&self) -> Result<Vec<Line>, Refusal> {
        self.blocking(|store, _| store.lines(), "").await
    }

    /// One generation, or the newest.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub(crate) async fn show(
        &self,
        name: String,
        generation: Option<u64>,
    ) -> Result<Shown, Refusal> {
        let name = self.named(Some(name), "")?;
        self.blocking(move |store, name| store.show(name, generation), &name)
            .await?
    }

    /// Removes one generation, or all of a name.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) async fn remove(
        &self,
        name: String,
        generation: Option<u64>,
    ) -> Result<Removed, Refusal> {
        let name = self.named(Some(name), "")?;
        let turn = self.turn(&name);
        let _turn = turn.lock().await;
        let generations = self
            .blocking(move |store, name| store.remove(name, generation), &name)
            .await??;
        Ok(Removed {
            status: "completed".into(),
            name,
            generations,
        })
    }

    /// Keeps what is newest now, and what comes after it, whatever the limits say: somebody else reads it.
    pub(crate) async fn pin(&self) {
        if let Ok(newest) = self.blocking(|store, _| store.newest(), "").await {
            *locked(&self.pins) = Some((Instant::now(), newest));
        }
    }

    pub(crate) fn unpin(&self) {
        *locked(&self.pins) = None;
    }

    fn pinned(&self) -> Pins {
        let pins = locked(&self.pins);
        let lasting = pins.as_ref().filter(|(since, _)| since.elapsed() < PINNED);
        lasting.map(|(_, pins)| pins.clone()).unwrap_or_default()
    }

    fn named(&self, name: Option<String>, session: &str) -> Result<String, Refusal> {
        let name = name.unwrap_or_else(|| session.to_owned());
        if is_name(&name) {
            return Ok(name);
        }
        Err(Refusal::Invalid(format!(
            "`{name}` can't be a name: use letters, digits, `-`, `_` and `.`, 64 at most, beginning with a letter or digit"
        )))
    }

    fn turn(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        locked(&self.turns)
            .entry(name.to_owned())
            .or_default()
            .clone()
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store, &str) -> T + Send + 'static,
        name: &str,
    ) -> Result<T, Refusal> {
        let (store, name) = (self.store.clone(), name.to_owned());
        let done = spawn_blocking(move || work(&store, &name)).await;
        done.map_err(|error| Refusal::Failed(error.to_string()))
    }
}

/// What a session can be brought back from, the newest first: what bears its name, is whole, and was
/// not stored from another session by somebody.
pub(crate) fn snapshots(folder: &Path, session: &str) -> Vec<PathBuf> {
    stored_from(folder, session, session)
}

/// What is whole of a name and was stored from that session, the newest first.
pub(crate) fn stored_from(folder: &Path, name: &str, session: &str) -> Vec<PathBuf> {
    let store = Store::new(folder.to_owned());
    let numbers = store.generations(name).into_iter();
    let whole = numbers.filter_map(|number| store.find(name, Some(number)).ok());
    let own = whole.filter(|found| found.manifest.session == session);
    own.map(|found| found.path).collect()
}

fn told<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(|error| {
        tracing::error!("the kernel answered something else: {error}");
        Refusal::Failed("the kernel answered what this companion does not understand".into())
    })
}

/// A receipt in a sentence; what is altered or unverified is named where there is some.
fn said(receipt: &[Row], is_trial: bool) -> String {
    let count = |verdict| receipt.iter().filter(|row| row.verdict == verdict).count();
    let begin = if is_trial {
        "nothing was stored; it would be: "
    } else {
        ""
    };
    let some = |verdict: Verdict| match count(verdict) {
        0 => String::new(),
        number => format!("{number} {}, ", verdict.word()),
    };
    let [saved, recipe, lost] = [Verdict::Saved, Verdict::Recipe, Verdict::Lost].map(count);
    let [altered, unverified] = [Verdict::Altered, Verdict::Unverified].map(some);
    format!("{begin}{saved} saved, {recipe} by recipe, {altered}{unverified}{lost} lost")
}

/// Whether a state can have that name, which becomes a folder's; two endings are the store's own.
pub(super) fn is_name(name: &str) -> bool {
    kernel::is_name(name) && !name.ends_with(".part") && !name.ends_with(".gone")
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{manifest, snapshots, stored_from};
    use std::fs;
    use std::path::Path;

    /// A generation of that name, stored from that session.
    fn write(folder: &Path, name: &str, generation: u64, session: &str) {
        let sample = "tests/kernel/cryo/samples/1/1";
        let place = folder.join(name).join(generation.to_string());
        fs::create_dir_all(&place).unwrap();
        for file in ["objects", "buffers"] {
            fs::copy(Path::new(sample).join(file), place.join(file)).unwrap();
        }
        let text = fs::read_to_string(Path::new(sample).join("manifest.json")).unwrap();
        let was = r#""session":"default""#;
        assert!(text.contains(was));
        let text = text.replace(was, &format!(r#""session":"{session}""#));
        fs::write(place.join("manifest.json"), manifest::sealed(&text)).unwrap();
    }

    #[test]
    fn a_session_comes_back_from_what_it_stored_itself() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "b", 1, "b");
        write(folder.path(), "b", 2, "default");
        write(folder.path(), "copy", 1, "b");
        let found = snapshots(folder.path(), "b");
        assert_eq!(found, [folder.path().join("b/1")]);
        assert!(snapshots(folder.path(), "default").is_empty());
        let beside = stored_from(folder.path(), "copy", "b");
        assert_eq!(beside, [folder.path().join("copy/1")]);
    }
}
