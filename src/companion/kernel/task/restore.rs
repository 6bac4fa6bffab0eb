//! Reload of a kernel's variables before the first request, once per owner task.
//!
//! If a generation can't be reloaded, the task tries the previous one. If none can be reloaded, the kernel is empty,
//! and its replies say so.

use super::KernelOwner;
use super::job::KernelJob;
use crate::companion::cryo;
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
    left: VecDeque<PathBuf>,
    /// The generation that is being reloaded.
    folder: PathBuf,
    /// The answer to the reload query.
    on: Option<oneshot::Receiver<Result<KernelAnswer, KernelRefusal>>>,
    /// The generation during whose reload a kernel has ended.
    fatal: PathBuf,
    /// Generations that could not be reloaded.
    skipped: Vec<SkippedGeneration>,
}

impl KernelRestore {
    /// The folders in `first`, and after them every stored generation, unless a request discarded the stored state.
    pub(super) fn from_stored(
        ledger: &GenerationStore,
        settings: &KernelSettings,
        session: &str,
        first: Vec<PathBuf>,
    ) -> Self {
        let mut left = VecDeque::from(first);
        if ledger.is_stored() {
            left.extend(cryo::reloadable_generations(&settings.cryo, session));
        }
        let skipped = match left.is_empty() && ledger.is_stored() {
            true => cryo::damaged_generations_above(&settings.cryo, session, 0),
            false => Vec::new(),
        };
        Self {
            left,
            skipped,
            ..Self::empty()
        }
    }

    /// No automatic reload.
    pub(super) fn empty() -> Self {
        Self {
            left: VecDeque::new(),
            folder: PathBuf::new(),
            on: None,
            fatal: PathBuf::new(),
            skipped: Vec::new(),
        }
    }

    /// Why no generation could be reloaded.
    pub(super) fn failure_reason(&self) -> Option<&str> {
        self.skipped.first().map(|first| &*first.why)
    }

    /// Discards the failures.
    pub(super) fn forget_failure(&mut self) {
        self.skipped.clear();
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.is_some()
    }

    fn skip_current(&mut self, why: String) {
        if let Some(generation) = cryo::generation_number_of(&self.folder) {
            self.skipped.push(SkippedGeneration { generation, why });
        }
    }

    /// The kernel has ended during the reload. The reload need not be the cause: the next kernel tries it once more.
    fn retry_after_exit(&mut self) {
        if self.fatal == self.folder {
            return self.skip_current("the kernel ended twice during the reload".into());
        }
        self.fatal.clone_from(&self.folder);
        self.left.push_front(self.folder.clone());
    }
}

impl KernelOwner {
    pub(super) fn restore_next(&mut self) {
        if self.thaw.on.take().is_some() {
            self.thaw.retry_after_exit();
        }
        let Some(folder) = self.thaw.left.pop_front() else {
            // No generation is left: later starts reload nothing, unless the state is stored again.
            if !self.ledger.is_restore_settled() {
                self.ledger.note_stored(false);
            }
            return;
        };
        let (done, answer) = oneshot::channel();
        tracing::info!(
            session = self.session,
            "the companion reloads `{}`",
            folder.display()
        );
        self.thaw.folder.clone_from(&folder);
        let question = KernelQuery::CryoReload { folder };
        self.queue.push_front(KernelJob::Ask {
            question,
            quiet: true,
            done,
        });
        self.thaw.on = Some(answer);
    }

    /// Handles the answer to the reload query; called when a job has ended.
    pub(super) fn check_restore(&mut self) {
        let Some(answer) = &mut self.thaw.on else {
            return;
        };
        match answer.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => {}
            Ok(Ok(KernelAnswer { value: Ok(_), .. })) => {
                self.thaw.left.clear();
                self.thaw.on = None;
            }
            Ok(Ok(KernelAnswer {
                value: Err(error), ..
            })) => {
                self.thaw.on = None;
                self.thaw.skip_current(error.message.clone());
                tracing::error!(
                    "the generation can't be reloaded: {}: {}",
                    error.kind,
                    error.message
                );
                // After a timeout or an interrupt, older generations are not tried.
                if matches!(error.kind.as_str(), "Timeout" | "Interrupted") {
                    self.thaw.left.clear();
                }
                self.restore_next();
            }
            // The next kernel starts with this generation when it is ready.
            Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {
                self.thaw.on = None;
                self.thaw.retry_after_exit();
            }
        }
    }

    /// Discards the stored state: the next start does not reload it.
    pub(super) fn forget_stored(&mut self) {
        self.thaw = KernelRestore::empty();
        self.ledger.note_stored(false);
    }

    /// The origin of a reloaded state, with the generations that were skipped.
    pub(super) fn restored_origin(&mut self, folder: &Path, value: &Value) -> Option<RestoredFrom> {
        let mut from = cryo::describe_restored(folder, value, &self.settings.data)?;
        if self.thaw.is_on() {
            from.skipped =
                cryo::damaged_generations_above(&self.settings.cryo, &from.name, from.generation);
            let tried = self.thaw.skipped.iter();
            from.skipped
                .extend(tried.filter(|t| t.generation > from.generation).cloned());
            cryo::write_reload_record(folder, &self.session, &from);
        }
        self.thaw.forget_failure();
        let session = &self.session;
        let (generation, lost) = (from.generation, from.lost_count);
        tracing::info!(
            session,
            generation,
            lost,
            "the kernel reloaded its variables"
        );
        Some(from)
    }

    /// Binds a store to the current kernel generation, unless a kernel is starting: the next kernel may be empty.
    pub(super) fn bind_generation(&self, question: &mut KernelQuery) {
        if let KernelQuery::CryoStore { seen, .. } = question
            && !matches!(self.state, KernelPolicyState::Starting { .. })
            && !self.thaw.is_on()
        {
            seen.get_or_insert(self.ledger.generation());
        }
    }

    /// Completes a store that is about to start.
    ///
    /// # Errors
    /// [`KernelRefusal::OtherGeneration`] when the store is for another generation.
    pub(super) fn prepare_store(&self, job: &mut KernelJob) -> Result<(), KernelRefusal> {
        let KernelJob::Ask {
            question: KernelQuery::CryoStore { runs, seen, .. },
            ..
        } = job
        else {
            return Ok(());
        };
        *runs = self.run_count.count();
        let generation = self.ledger.generation();
        match *seen {
            Some(seen) if seen != generation => {
                Err(KernelRefusal::OtherGeneration { seen, generation })
            }
            _ => Ok(()),
        }
    }
}
