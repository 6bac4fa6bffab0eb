//! Stored variables: a session's variables, stored on disk and reloaded, with a receipt.
//!
//! [`CryoService`] is the handle. The kernel itself writes and reads the content; no content passes through the
//! companion. This module owns names, numbers and retention ([`store`], [`retention`]), and reads manifests
//! ([`manifest`]).
//!
//! ```text
//! store:  number, synced ─▶ kernel writes NAME/NUMBER.part ─▶ synced, renamed NAME/NUMBER ─▶ checked ─▶ prune ─▶ reply
//! reload: manifest complete? ─▶ kernel checks, reads, verifies ─▶ receipt
//! boot:   previous state not discarded by a request ─▶ the newest of the session's name that can be reloaded
//! ```
//!
//! A store or reload that has started continues when its client disconnects. This module does not store the kernel's
//! process; the `criu` module does.

#[cfg(test)]
mod crash_tests;
mod generation_number;
mod manifest;
#[cfg(test)]
mod model;
mod refusal;
mod reload_record;
mod retention;
mod schedule;
mod settings;
mod store;
mod stored_generations;

pub(crate) use refusal::CryoRefusal;
pub(crate) use settings::CryoSettings;
pub(crate) use store::folder_bytes;
pub(crate) use stored_generations::StoredGenerations;

use crate::companion::kernel::{self, KernelAnswer, KernelQuery, KernelSessions};
use crate::protocol::cryo::{
    CryoRemoved, CryoStore, CryoStored, CryoVerdict, GenerationDetails, GenerationList, ReceiptRow,
    ReloadReply, ReloadRequest, StoreReason,
};
use crate::protocol::kernel::RunError;
use parking_lot::Mutex;
use reload_record::write_reload_record;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::{CryoPins, CryoStorage};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// Name prefix of states that belong to a checkpoint: only the removal of the checkpoint removes them.
pub(crate) const CHECKPOINT_STATE_PREFIX: &str = "criu-";

/// Time after which a pin without renewal expires.
const CRYO_PIN_TIMEOUT: Duration = Duration::from_secs(1800);

/// Service that stores and reloads the variables of sessions.
#[derive(Debug, Clone)]
pub(crate) struct CryoService {
    sessions: KernelSessions,
    store: CryoStorage,
    settings: CryoSettings,
    /// Locks that serialize requests under each name.
    name_locks: Arc<Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>>,
    /// When the namespace of each session was last stored.
    last_stores: Arc<Mutex<BTreeMap<String, Range<Instant>>>>,
    /// Whether the next stop must store variables, and when this was announced.
    announced_stop: Arc<Mutex<Option<(Instant, bool)>>>,
    /// Generations that must not be removed now, and the time of the pin.
    pins: Arc<Mutex<Option<(Instant, CryoPins)>>>,
}

#[derive(Debug, Deserialize)]
struct CryoStoreOutcome {
    receipt: Vec<ReceiptRow>,
    size_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct CryoReloadOutcome {
    receipt: Vec<ReceiptRow>,
    warnings: Vec<String>,
}

impl CryoService {
    /// Removes unfinished generations of earlier companions, and starts the schedule.
    pub(crate) fn start(settings: CryoSettings, sessions: KernelSessions) -> Self {
        let store = CryoStorage::new(settings.folder.clone());
        let cryo = Self {
            sessions,
            store,
            settings,
            name_locks: Arc::default(),
            last_stores: Arc::default(),
            announced_stop: Arc::default(),
            pins: Arc::default(),
        };
        cryo.store.sweep_unfinished();
        if let Some(every) = cryo.settings.snapshot_interval {
            tokio::spawn(cryo.clone().run_schedule(every));
        }
        cryo
    }

    /// Stores a session's variables as the next generation of a name.
    ///
    /// # Errors
    /// Any [`CryoRefusal`]; earlier generations are unchanged.
    pub(crate) async fn store(
        &self,
        request: CryoStore,
        reason: StoreReason,
    ) -> Result<CryoStored, CryoRefusal> {
        let cryo = self.clone();
        // In a separate task: a client that disconnects must not leave an incomplete store.
        let done = tokio::spawn(async move { cryo.store_exclusively(request, reason).await });
        done.await
            .unwrap_or_else(|error| Err(CryoRefusal::Failed(error.to_string())))
    }

    async fn store_exclusively(
        &self,
        request: CryoStore,
        reason: StoreReason,
    ) -> Result<CryoStored, CryoRefusal> {
        let name = self.validate_name(request.name, &request.session)?;
        let lock = self.name_lock(&name);
        let _guard = lock.lock().await;
        let begin = Instant::now();
        let is_trial = request.dry_run;
        let number = move |store: &CryoStorage, name: &str| match is_trial {
            true => store.peek_generation(name),
            false => store.next_generation(name),
        };
        let (generation, path) = self.run_blocking(number, &name).await??;
        let query = KernelQuery::CryoStore {
            folder: path.clone(),
            name: name.clone(),
            generation,
            reason: reason.as_str(),
            session: request.session.clone(),
            strict: request.strict,
            dry_run: request.dry_run,
            files: request.files,
            compress: self.settings.compress,
            runs: 0,
            seen: request.seen,
        };
        let requested_at = Instant::now();
        let answer = self.sessions.query(&request.session, query).await?;
        let written: CryoStoreOutcome =
            parse_kernel_value(answer.value.map_err(CryoRefusal::from_store_error)?)?;
        let mut created = None;
        if !request.dry_run {
            let session = request.session.clone();
            let verify = move |store: &CryoStorage, name: &str| {
                store.verify_stored(name, generation, &session)
            };
            created = Some(self.run_blocking(verify, &name).await??.created);
            self.sessions.sync_records(&request.session).await;
            if name == request.session {
                let stored = requested_at..Instant::now();
                self.last_stores.lock().insert(name.clone(), stored);
            }
            let (limits, pinned) = (self.settings.limits, self.current_pins());
            self.run_blocking(move |store, _| store.prune(limits, &pinned), &name)
                .await?;
        }
        Ok(CryoStored {
            status: "completed".into(),
            message: summarize_receipt(&written.receipt, request.dry_run),
            generation: (!request.dry_run).then_some(generation),
            path: (!request.dry_run).then(|| path.display().to_string()),
            name,
            size_bytes: written.size_bytes,
            timing_ms: begin.elapsed().as_secs_f64() * 1e3,
            receipt: written.receipt,
            created,
            kernel: Some(answer.report),
        })
    }

    /// Reloads a generation into a session. Other variables of the session stay.
    ///
    /// # Errors
    /// Any [`CryoRefusal`]; the session is unchanged then.
    pub(crate) async fn reload(&self, request: ReloadRequest) -> Result<ReloadReply, CryoRefusal> {
        let cryo = self.clone();
        let done = tokio::spawn(async move { cryo.reload_exclusively(request).await });
        done.await
            .unwrap_or_else(|error| Err(CryoRefusal::Failed(error.to_string())))
    }

    async fn reload_exclusively(&self, request: ReloadRequest) -> Result<ReloadReply, CryoRefusal> {
        let name = self.validate_name(request.name, &request.session)?;
        let lock = self.name_lock(&name);
        let _guard = lock.lock().await;
        let begin = Instant::now();
        let wanted = request.generation;
        let found = self
            .run_blocking(
                move |store, name| store.find_generation(name, wanted),
                &name,
            )
            .await??;
        let folder = found.path.clone();
        let answer = self
            .sessions
            .query(&request.session, KernelQuery::CryoReload { folder })
            .await?;
        let KernelAnswer { value, report } = answer;
        let read: CryoReloadOutcome = match value {
            Ok(value) => parse_kernel_value(value)?,
            Err(raised) => return Err(self.reload_refusal(&name, found.generation, raised)),
        };
        if let Some(from) = report.origin.clone() {
            let (path, session) = (found.path.clone(), request.session.clone());
            let keep = move |_: &CryoStorage, _: &str| write_reload_record(&path, &session, &from);
            self.run_blocking(keep, &name).await?;
        }
        Ok(ReloadReply {
            status: "completed".into(),
            message: summarize_receipt(&read.receipt, false),
            name,
            generation: found.generation,
            path: found.path.display().to_string(),
            size_bytes: found.manifest.size_bytes(),
            timing_ms: begin.elapsed().as_secs_f64() * 1e3,
            receipt: read.receipt,
            warnings: read.warnings,
            kernel: report,
        })
    }

    fn reload_refusal(&self, name: &str, generation: u64, raised: RunError) -> CryoRefusal {
        match raised.kind.as_str() {
            "Damaged" | "OtherFormat" => {
                self.store.damaged_refusal(name, generation, raised.message)
            }
            _ => CryoRefusal::UserError(raised),
        }
    }

    /// Bytes that the store or reload of a session has moved up to now.
    pub(crate) fn transferred_bytes(&self, session: &str) -> u64 {
        self.sessions
            .find_kernel(session)
            .map_or(0, |kernel| kernel.view().transferred_bytes)
    }

    /// Bytes that a reload has to move, if known.
    pub(crate) async fn total_bytes(&self, request: &ReloadRequest) -> Option<u64> {
        let name = request
            .name
            .clone()
            .unwrap_or_else(|| request.session.clone());
        let shown = self.show_generation(name, request.generation).await.ok()?;
        Some(shown.generation.size_bytes)
    }

    pub(crate) async fn list_generation_lists(&self) -> Result<Vec<GenerationList>, CryoRefusal> {
        self.run_blocking(|store, _| store.list_generation_lists(), "")
            .await
    }

    /// One generation, or the newest.
    ///
    /// # Errors
    /// When the generation does not exist or is damaged.
    pub(crate) async fn show_generation(
        &self,
        name: String,
        generation: Option<u64>,
    ) -> Result<GenerationDetails, CryoRefusal> {
        let name = self.validate_name(Some(name), "")?;
        self.run_blocking(
            move |store, name| store.show_generation(name, generation),
            &name,
        )
        .await?
    }

    /// Removes one generation, or all of a name.
    ///
    /// # Errors
    /// When no such generation exists.
    pub(crate) async fn remove_generations(
        &self,
        name: String,
        generation: Option<u64>,
    ) -> Result<CryoRemoved, CryoRefusal> {
        let name = self.validate_name(Some(name), "")?;
        let lock = self.name_lock(&name);
        let _guard = lock.lock().await;
        let generations = self
            .run_blocking(
                move |store, name| store.remove_generations(name, generation),
                &name,
            )
            .await??;
        Ok(CryoRemoved {
            status: "completed".into(),
            name,
            generations,
        })
    }

    /// Pins the newest generation of each name and all later ones: another process reads them.
    pub(crate) async fn pin_newest(&self) {
        if let Ok(newest) = self
            .run_blocking(|store, _| store.newest_generations(), "")
            .await
        {
            *self.pins.lock() = Some((Instant::now(), newest));
        }
    }

    pub(crate) fn unpin_all(&self) {
        *self.pins.lock() = None;
    }

    fn current_pins(&self) -> CryoPins {
        let pins = self.pins.lock();
        let current = pins
            .as_ref()
            .filter(|(since, _)| since.elapsed() < CRYO_PIN_TIMEOUT);
        current.map(|(_, pins)| pins.clone()).unwrap_or_default()
    }

    fn validate_name(&self, name: Option<String>, session: &str) -> Result<String, CryoRefusal> {
        let name = name.unwrap_or_else(|| session.to_owned());
        if is_cryo_name(&name) {
            return Ok(name);
        }
        Err(CryoRefusal::Invalid(format!(
            "`{name}` can't be a name: use up to 64 letters, digits, \
             `-`, `_` and `.`, and begin with a letter or digit"
        )))
    }

    fn name_lock(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.name_locks
            .lock()
            .entry(name.to_owned())
            .or_default()
            .clone()
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CryoStorage, &str) -> T + Send + 'static,
        name: &str,
    ) -> Result<T, CryoRefusal> {
        let (store, name) = (self.store.clone(), name.to_owned());
        let done = spawn_blocking(move || work(&store, &name)).await;
        done.map_err(|error| CryoRefusal::Failed(error.to_string()))
    }
}

/// Folders of the generations that the next start may reload into a session, newest first: intact, under the session's
/// name, and stored from the session itself.
pub(crate) fn reloadable_generations(folder: &Path, session: &str) -> Vec<PathBuf> {
    generations_stored_from(folder, session, session)
}

/// Folders of the intact generations of a name that were stored from `session`, newest first.
pub(crate) fn generations_stored_from(folder: &Path, name: &str, session: &str) -> Vec<PathBuf> {
    let store = CryoStorage::new(folder.to_owned());
    let numbers = store.list_generations(name).into_iter();
    let whole = numbers.filter_map(|number| store.find_generation(name, Some(number)).ok());
    let own = whole.filter(|found| found.manifest.session == session);
    own.map(|found| found.path).collect()
}

fn parse_kernel_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, CryoRefusal> {
    serde_json::from_value(value).map_err(|error| {
        tracing::error!(%error, "the kernel's answer can't be parsed");
        CryoRefusal::Failed("the kernel sent an unexpected answer".into())
    })
}

/// Summarizes a receipt in one sentence. Names altered and unverified variables only if there are any.
fn summarize_receipt(receipt: &[ReceiptRow], is_trial: bool) -> String {
    let count = |verdict| receipt.iter().filter(|row| row.verdict == verdict).count();
    let begin = if is_trial {
        "nothing was stored; a store would give: "
    } else {
        ""
    };
    let some = |verdict: CryoVerdict| match count(verdict) {
        0 => String::new(),
        number => format!("{number} {}, ", verdict.as_str()),
    };
    let [saved, recipe, lost] =
        [CryoVerdict::Saved, CryoVerdict::Recipe, CryoVerdict::Lost].map(count);
    let [altered, unverified] = [CryoVerdict::Altered, CryoVerdict::Unverified].map(some);
    format!("{begin}{saved} saved, {recipe} by recipe, {altered}{unverified}{lost} lost")
}

/// Whether a state can have this name, which becomes a folder name. Two suffixes are reserved.
pub(super) fn is_cryo_name(name: &str) -> bool {
    kernel::is_session_name(name) && !name.ends_with(".part") && !name.ends_with(".gone")
}

#[cfg(test)]
mod tests {
    use super::{generations_stored_from, manifest, reloadable_generations};
    use std::fs;
    use std::path::Path;

    /// Writes a generation of `name`, stored from `session`.
    fn write(folder: &Path, name: &str, generation: u64, session: &str) {
        let sample = "tests/kernel/cryo/samples/1/1";
        let path = folder.join(name).join(generation.to_string());
        fs::create_dir_all(&path).unwrap();
        for file in ["objects", "buffers"] {
            fs::copy(Path::new(sample).join(file), path.join(file)).unwrap();
        }
        let text = fs::read_to_string(Path::new(sample).join("manifest.json")).unwrap();
        let was = r#""session":"default""#;
        assert!(text.contains(was));
        let text = text.replace(was, &format!(r#""session":"{session}""#));
        fs::write(path.join("manifest.json"), manifest::add_seal(&text)).unwrap();
    }

    #[test]
    fn a_session_reloads_only_its_own_generations() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "b", 1, "b");
        write(folder.path(), "b", 2, "default");
        write(folder.path(), "copy", 1, "b");
        let found = reloadable_generations(folder.path(), "b");
        assert_eq!(found, [folder.path().join("b/1")]);
        assert!(reloadable_generations(folder.path(), "default").is_empty());
        let copies = generations_stored_from(folder.path(), "copy", "b");
        assert_eq!(copies, [folder.path().join("copy/1")]);
    }
}
