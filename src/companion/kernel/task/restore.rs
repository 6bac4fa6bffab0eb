//! Reload of a kernel's variables before the first request, once per owner task.
//!
//! If a generation can't be reloaded, the task tries the previous one. If none can be reloaded, the kernel is empty,
//! and its replies say so.

use super::KernelOwner;
use super::job::KernelJob;
use crate::companion::kernel::connection::KernelQuery;
use crate::companion::kernel::generation_store::GenerationStore;
use crate::companion::kernel::policy::KernelPolicyState;
use crate::companion::kernel::{KernelAnswer, KernelRefusal, KernelSettings};
use crate::protocol::restored::{RestoredFrom, SkippedGeneration};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// Time limit of an automatic reload. `osctl up` waits for two minutes at most, and a reload that hangs must not
/// prevent the start. A requested reload has no limit.
pub(super) const AUTO_RELOAD_TIMEOUT: Duration = Duration::from_secs(90);

/// The reload at the start: generations that are left, and those that failed.
#[derive(Debug)]
pub(super) struct KernelRestore {
    remaining: VecDeque<PathBuf>,
    /// The generation that is being reloaded.
    current_folder: PathBuf,
    /// The answer to the reload query.
    answer: Option<oneshot::Receiver<Result<KernelAnswer, KernelRefusal>>>,
    /// The generation during whose reload a kernel has ended.
    retried_folder: PathBuf,
    /// Generations that could not be reloaded.
    skipped: Vec<SkippedGeneration>,
}

impl KernelRestore {
    /// The folders in `first`, and after them every stored generation, unless a request discarded the stored state.
    pub(super) fn from_stored(
        generation_store: &GenerationStore,
        settings: &KernelSettings,
        session: &str,
        first: Vec<PathBuf>,
    ) -> Self {
        let mut remaining = VecDeque::from(first);
        if generation_store.is_stored() {
            remaining.extend(settings.restore_source.reloadable_generations(session));
        }
        let skipped = match remaining.is_empty() && generation_store.is_stored() {
            true => settings
                .restore_source
                .damaged_generations_above(session, 0),
            false => Vec::new(),
        };
        Self {
            remaining,
            skipped,
            ..Self::empty()
        }
    }

    /// No automatic reload.
    pub(super) fn empty() -> Self {
        Self {
            remaining: VecDeque::new(),
            current_folder: PathBuf::new(),
            answer: None,
            retried_folder: PathBuf::new(),
            skipped: Vec::new(),
        }
    }

    /// Why no generation could be reloaded.
    pub(super) fn failure_reason(&self) -> Option<&str> {
        self.skipped.first().map(|first| &*first.why)
    }

    /// Discards the failures.
    pub(super) fn clear_failures(&mut self) {
        self.skipped.clear();
    }

    pub(super) fn is_running(&self) -> bool {
        self.answer.is_some()
    }

    fn skip_current(&mut self, why: String) {
        let number = self
            .current_folder
            .file_name()
            .and_then(|name| name.to_str());
        if let Some(generation) = number.and_then(|number| number.parse().ok()) {
            self.skipped.push(SkippedGeneration { generation, why });
        }
    }

    /// The kernel has ended during the reload. The reload need not be the cause: the next kernel tries it once more.
    fn retry_after_exit(&mut self) {
        if self.retried_folder == self.current_folder {
            return self.skip_current("the kernel ended twice during the reload".into());
        }
        self.retried_folder.clone_from(&self.current_folder);
        self.remaining.push_front(self.current_folder.clone());
    }
}

impl KernelOwner {
    pub(super) fn restore_next(&mut self) {
        if self.restore.answer.take().is_some() {
            self.restore.retry_after_exit();
        }
        let Some(folder) = self.restore.remaining.pop_front() else {
            // No generation is left: later starts reload nothing, unless the state is stored again.
            if !self.generation_store.is_restore_settled() {
                self.generation_store.set_stored(false);
            }
            return;
        };
        let (done, answer) = oneshot::channel();
        tracing::info!(path = %folder.display(), "the companion reloads a stored generation");
        self.restore.current_folder.clone_from(&folder);
        let query = KernelQuery::CryoReload { folder };
        self.queue.push_front(KernelJob::Query {
            query,
            quiet: true,
            done,
        });
        self.restore.answer = Some(answer);
    }

    /// Handles the answer to the reload query; called when a job has ended.
    pub(super) fn check_restore(&mut self) {
        let Some(answer) = &mut self.restore.answer else {
            return;
        };
        match answer.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => {}
            Ok(Ok(KernelAnswer { value: Ok(_), .. })) => {
                self.restore.remaining.clear();
                self.restore.answer = None;
            }
            Ok(Ok(KernelAnswer {
                value: Err(error), ..
            })) => {
                self.restore.answer = None;
                self.restore.skip_current(error.message.clone());
                tracing::error!(
                    kind = error.kind,
                    why = error.message,
                    "the generation can't be reloaded"
                );
                // After a timeout or an interrupt, older generations are not tried.
                if matches!(error.kind.as_str(), "Timeout" | "Interrupted") {
                    self.restore.remaining.clear();
                }
                self.restore_next();
            }
            // The next kernel starts with this generation when it is ready.
            Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {
                self.restore.answer = None;
                self.restore.retry_after_exit();
            }
        }
    }

    /// Discards the stored state: the next start does not reload it.
    pub(super) fn discard_stored_state(&mut self) {
        self.restore = KernelRestore::empty();
        self.generation_store.set_stored(false);
    }

    /// The origin of a reloaded state, with the generations that were skipped.
    pub(super) fn restored_origin(&mut self, folder: &Path, value: &Value) -> Option<RestoredFrom> {
        let source = &self.settings.restore_source;
        let tried = std::mem::take(&mut self.restore.skipped);
        let mut from = source.describe_restored(folder, value, &self.settings.record_folder)?;
        if self.restore.is_running() {
            from.skipped = source.damaged_generations_above(&from.name, from.generation);
            let newer = tried.into_iter().filter(|t| t.generation > from.generation);
            from.skipped.extend(newer);
            source.write_reload_record(folder, &self.session, &from);
        }
        let (generation, lost) = (from.generation, from.lost_count);
        tracing::info!(
            stored_generation = generation,
            lost,
            "the kernel reloaded its variables"
        );
        Some(from)
    }

    /// Binds a store to the current kernel generation, unless a kernel is starting: the next kernel may be empty.
    pub(super) fn bind_generation(&self, query: &mut KernelQuery) {
        if let KernelQuery::CryoStore { seen, .. } = query
            && !matches!(self.state, KernelPolicyState::Starting { .. })
            && !self.restore.is_running()
        {
            seen.get_or_insert(self.generation_store.generation());
        }
    }

    /// Completes a store that is about to start.
    ///
    /// # Errors
    /// [`KernelRefusal::GenerationMismatch`] when the store is for another generation.
    pub(super) fn prepare_store(&self, job: &mut KernelJob) -> Result<(), KernelRefusal> {
        let KernelJob::Query {
            query: KernelQuery::CryoStore { runs, seen, .. },
            ..
        } = job
        else {
            return Ok(());
        };
        *runs = self.run_count.count();
        let generation = self.generation_store.generation();
        match *seen {
            Some(seen) if seen != generation => {
                Err(KernelRefusal::GenerationMismatch { seen, generation })
            }
            _ => Ok(()),
        }
    }
}
