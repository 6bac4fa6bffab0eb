//! Kernels by session name: the default session, which always exists, and the sessions that users created.
//!
//! The companion releases a session that is idle for too long, or that exceeds its memory limit. A session with a
//! running cell is never idle. Of a released session, only the generation record is kept.

use super::template::KernelTemplate;
use super::{
    KernelAnswer, KernelHandle, KernelMessage, KernelQuery, KernelRefusal, KernelRun,
    KernelSettings, KernelView, SessionLimits, SessionRestoring, StopReason, generation_store,
    run_count,
};
use crate::companion::descendants;
use crate::companion::runs::{RunIdConflict, RunNotRecorded, RunRegistry};
use crate::protocol::kernel::{DEFAULT_SESSION, Execute, KernelReport};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, oneshot};
use tokio::task::{JoinHandle, spawn_blocking, yield_now};
use tokio::time::Instant;

/// Between two looks at what sessions take.
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Ends that may wait to be heard of.
const MAX_PENDING_SESSION_ENDS: usize = 1024;

/// Characters of a name.
const MAX_SESSION_NAME_LENGTH: usize = 64;

/// All kernels and all runs, for everyone who uses them.
#[derive(Debug, Clone)]
pub(crate) struct KernelSessions {
    settings: KernelSettings,
    template: KernelTemplate,
    kernels: Arc<Mutex<BTreeMap<String, KernelHandle>>>,
    /// Deleted ones that have not ended: their names are not free yet.
    ending: Arc<Mutex<BTreeMap<String, KernelHandle>>>,
    runs: RunRegistry<Execute>,
    ends: broadcast::Sender<String>,
}

impl KernelSessions {
    /// Starts the default session, whose owner ends after [`KernelSessions::shutdown_all`], and those that lay in
    /// a checkpoint when the last life ended.
    pub(crate) fn start(
        settings: KernelSettings,
        mut waking: BTreeMap<String, SessionRestoring>,
    ) -> (Self, JoinHandle<()>) {
        let store = settings.store.clone();
        let template = KernelTemplate::start(settings.clone());
        let start = |session: &str, waking| {
            KernelHandle::start(session, settings.clone(), template.clone(), waking)
        };
        let (kernel, owner) = start(DEFAULT_SESSION, waking.remove(DEFAULT_SESSION));
        let mut kernels = BTreeMap::from([(DEFAULT_SESSION.into(), kernel)]);
        for (session, waking) in waking {
            let (kernel, _owner) = start(&session, Some(waking));
            kernels.insert(session, kernel);
        }
        let sessions = Self {
            settings,
            template,
            kernels: Arc::new(Mutex::new(kernels)),
            ending: Arc::default(),
            runs: RunRegistry::open("run", store),
            ends: broadcast::Sender::new(MAX_PENDING_SESSION_ENDS),
        };
        tokio::spawn(sessions.clone().monitor_sessions());
        (sessions, owner)
    }

    /// # Errors
    /// [`KernelRefusal::NoSession`].
    pub(crate) fn find_kernel(&self, session: &str) -> Result<KernelHandle, KernelRefusal> {
        let found = self.lock_kernels().get(session).cloned();
        found.ok_or_else(|| KernelRefusal::NoSession(session.into()))
    }

    /// How the default session stands.
    pub(crate) fn default_view(&self) -> KernelView {
        let kernels = self.lock_kernels();
        kernels[DEFAULT_SESSION].view()
    }

    /// All of them, the default one first.
    pub(crate) fn list_sessions(&self) -> Vec<(String, KernelView)> {
        let mut all: Vec<_> = self
            .lock_kernels()
            .iter()
            .map(|(name, kernel)| (name.clone(), kernel.view()))
            .collect();
        all.sort_by_key(|(name, _)| (name != DEFAULT_SESSION, name.clone()));
        all
    }

    /// A session of that name, made now unless it exists.
    ///
    /// # Errors
    /// [`KernelRefusal::Invalid`] or [`KernelRefusal::TooManySessions`].
    pub(crate) async fn create_session(
        &self,
        name: Option<String>,
    ) -> Result<(String, KernelHandle), KernelRefusal> {
        // Two kernels of one name would share a record of generations.
        while let Some(kernel) = name
            .as_ref()
            .and_then(|name| lock_unpoisoned(&self.ending).get(name).cloned())
        {
            kernel.wait_ended().await;
            // Who ended it takes it out in a moment.
            yield_now().await;
        }
        let mut kernels = self.lock_kernels();
        let name = match name {
            Some(name) => name,
            None => (1..)
                .map(|number| format!("session-{number}"))
                .find(|name| !kernels.contains_key(name))
                .unwrap_or_default(),
        };
        if let Some(kernel) = kernels.get(&name) {
            return Ok((name, kernel.clone()));
        }
        if !is_name(&name) {
            let message = format!(
                "`{name}` can't be a session's name: use letters, digits, `-`, `_` and `.`, {MAX_SESSION_NAME_LENGTH} at most, beginning with a letter or digit"
            );
            return Err(KernelRefusal::Invalid(message));
        }
        let SessionLimits { count, .. } = self.settings.limits;
        if kernels.len() >= count {
            return Err(KernelRefusal::TooManySessions(count));
        }
        let (settings, template) = (self.settings.clone(), self.template.clone());
        let (kernel, _owner) = KernelHandle::start(&name, settings, template, None);
        kernels.insert(name.clone(), kernel.clone());
        Ok((name, kernel))
    }

    /// Ends a session and all that it runs.
    ///
    /// # Errors
    /// [`KernelRefusal::NoSession`], or [`KernelRefusal::Invalid`] for the default session.
    pub(crate) async fn delete_session(&self, name: &str) -> Result<(), KernelRefusal> {
        if name == DEFAULT_SESSION {
            let message = "the default session can't be deleted".into();
            return Err(KernelRefusal::Invalid(message));
        }
        let kernel = {
            let mut kernels = self.lock_kernels();
            let kernel = kernels.remove(name);
            let kernel = kernel.ok_or_else(|| KernelRefusal::NoSession(name.into()))?;
            lock_unpoisoned(&self.ending).insert(name.into(), kernel.clone());
            kernel
        };
        // In a separate task: the caller may disconnect, and the name must become free in any case.
        let (ending, name) = (self.ending.clone(), name.to_owned());
        // There may be no subscriber.
        let _ = self.ends.send(name.clone());
        let ended = tokio::spawn(async move {
            kernel.shutdown(Duration::ZERO, StopReason::Deleted).await;
            lock_unpoisoned(&ending).remove(&name);
        });
        ended.await.map_err(|_| KernelRefusal::Stopping)
    }

    /// The names of sessions, as they end.
    pub(crate) fn subscribe_ends(&self) -> broadcast::Receiver<String> {
        self.ends.subscribe()
    }

    /// Begins a run, or finds the one of that id again.
    ///
    /// # Errors
    /// Every [`KernelRefusal`] but [`KernelRefusal::NoRun`]; nothing was executed then.
    pub(crate) async fn execute(&self, request: Execute) -> Result<Arc<KernelRun>, KernelRefusal> {
        // Its session may be gone.
        let known = self.runs.find_same(&request).await;
        if let Some(run) = known.map_err(|RunIdConflict(id)| KernelRefusal::OtherRun(id))? {
            return Ok(run);
        }
        let kernel = self.find_kernel(&request.session)?;
        let (queue, session) = (request.queue, request.session.clone());
        let begun = self.runs.begin_run(request);
        let (run, is_new) = begun.map_err(|RunIdConflict(id)| KernelRefusal::OtherRun(id))?;
        if !is_new {
            return match run.wait_admitted().await {
                true => Ok(run),
                false => Box::pin(self.execute(run.work.clone())).await,
            };
        }
        // In a task of its own: a client that leaves now must not leave half a run behind.
        let runs = self.runs.clone();
        let admitted = tokio::spawn(async move {
            let taken = match run.wait_recorded().await {
                Ok(()) => kernel.execute(run.clone(), queue).await,
                Err(RunNotRecorded) => Err(KernelRefusal::NotRecorded),
            };
            match taken {
                Ok(()) => {
                    run.mark_admitted();
                    runs.prune_excess();
                    Ok(run)
                }
                Err(refusal) => {
                    runs.forget_run(&run);
                    run.finish_refused(kernel.view().report);
                    Err(refusal)
                }
            }
        });
        let admitted = admitted.await.unwrap_or(Err(KernelRefusal::Stopping));
        admitted.map_err(|refusal| self.refusal_if_deleted(&session, refusal))
    }

    /// An owner that has ended can't say why: a session that is gone was deleted.
    fn refusal_if_deleted(&self, session: &str, refusal: KernelRefusal) -> KernelRefusal {
        match refusal {
            KernelRefusal::Stopping => self.find_kernel(session).err().unwrap_or(refusal),
            other => other,
        }
    }

    /// # Errors
    /// [`KernelRefusal::NoRun`].
    pub(crate) fn find_run(&self, id: &str) -> Result<Arc<KernelRun>, KernelRefusal> {
        self.runs
            .find_run(id)
            .ok_or_else(|| KernelRefusal::NoRun(id.into()))
    }

    /// The runs that can be found, the oldest first.
    pub(crate) fn list_runs(&self) -> Vec<Arc<KernelRun>> {
        self.runs.list_runs()
    }

    /// The runs themselves, for who records them.
    pub(crate) fn run_registry(&self) -> &RunRegistry<Execute> {
        &self.runs
    }

    /// What to say of the kernel of a run that goes on.
    pub(crate) fn kernel_report(&self, run: &KernelRun) -> KernelReport {
        let kernel = self.find_kernel(&run.work.session);
        kernel.map_or_else(
            |_| self.default_view().report,
            |kernel| kernel.view().report,
        )
    }

    /// Interrupts a run, and waits until it has ended.
    ///
    /// # Errors
    /// [`KernelRefusal::NoRun`], or [`KernelRefusal::Stopping`].
    pub(crate) async fn interrupt_run(&self, id: &str) -> Result<Arc<KernelRun>, KernelRefusal> {
        let run = self.find_run(id)?;
        run.wait_admitted().await;
        if let Ok(kernel) = self.find_kernel(&run.work.session) {
            let id = Some(id.to_owned());
            // The run tells its end itself.
            let (done, _) = oneshot::channel();
            kernel
                .send_message(KernelMessage::Interrupt { id, done })
                .await?;
        }
        run.wait_finished().await;
        Ok(run)
    }

    /// Reads all records again: another container may have advanced the generations of the sessions.
    pub(crate) async fn adopt_newer_state(&self) {
        let kernels: Vec<KernelHandle> = self.lock_kernels().values().cloned().collect();
        futures_util::future::join_all(kernels.iter().map(KernelHandle::adopt_newer_state)).await;
    }

    /// Asks a session.
    ///
    /// # Errors
    /// [`KernelRefusal::NoSession`] and those of [`KernelHandle::query`].
    pub(crate) async fn query(
        &self,
        session: &str,
        question: KernelQuery,
    ) -> Result<KernelAnswer, KernelRefusal> {
        let answer = self.find_kernel(session)?.query(question).await;
        answer.map_err(|refusal| self.refusal_if_deleted(session, refusal))
    }

    /// Puts what the session's record and count of runs say onto the disk, so that a generation that is acknowledged
    /// comes back by itself also after a loss of power.
    pub(crate) async fn sync_records(&self, session: &str) {
        let (folder, session) = (self.settings.data.clone(), session.to_owned());
        let sync = move || {
            run_count::sync_count(&folder, &session)
                .and_then(|()| generation_store::sync_record(&folder, &session))
        };
        if let Ok(Err(error)) = spawn_blocking(sync).await {
            tracing::warn!("the record of a session may not outlast a loss of power: {error}");
        }
    }

    /// Takes no more requests, lets what runs finish within `grace`, then ends all processes.
    pub(crate) async fn shutdown_all(&self, grace: Duration) {
        let kernels: Vec<KernelHandle> = self.lock_kernels().values().cloned().collect();
        futures_util::future::join_all(
            kernels
                .iter()
                .map(|k| k.shutdown(grace, StopReason::Shutdown)),
        )
        .await;
    }

    /// Releases sessions that are idle or too large, and looks whether kernels are well, for ever.
    async fn monitor_sessions(self) {
        let SessionLimits {
            memory,
            idle,
            check,
            ..
        } = self.settings.limits;
        let mut checked = Instant::now();
        loop {
            tokio::time::sleep(SESSION_CHECK_INTERVAL).await;
            let names: Vec<String> = self.lock_kernels().keys().cloned().collect();
            let is_check = checked.elapsed() >= check;
            if is_check {
                checked = Instant::now();
            }
            for name in names {
                // Looked at now: much may have happened since the one before.
                let Ok(kernel) = self.find_kernel(&name) else {
                    continue;
                };
                let view = kernel.view();
                let rests = !view.busy && view.queued == 0;
                if is_check && rests && view.used.elapsed() >= check {
                    kernel.check_health();
                }
                let is_idle = rests && view.used.elapsed() >= idle;
                if is_idle && name != DEFAULT_SESSION {
                    self.release_one(&name, &kernel, idle).await;
                } else if let Some(limit) = memory
                    && let Some(used) = self.measure_memory(&view).await
                    && used > limit
                {
                    tracing::warn!(
                        session = name,
                        used,
                        limit,
                        "ended: it takes too much memory"
                    );
                    // What ran is told; what became of the state, too.
                    tokio::spawn(async move { kernel.restart(StopReason::Memory(limit)).await });
                }
            }
        }
    }

    /// Ends an idle session. Only its owner knows whether it still is: a request may be on its way.
    async fn release_one(&self, name: &str, kernel: &KernelHandle, idle: Duration) {
        if kernel.release_if_idle(idle).await {
            tracing::info!(session = name, "released: nothing was asked of it for long");
            // Another caller may have deleted the session in between.
            let _ = self.delete_session(name).await;
        }
    }

    /// Bytes that the processes of a session take; those shared with others count in part.
    pub(crate) async fn measure_memory(&self, view: &KernelView) -> Option<u64> {
        let root = Pid::from_raw(view.root?);
        let measured = spawn_blocking(move || {
            let below = descendants::list_descendants(root)
                .into_iter()
                .map(|d| d.pid);
            below.filter_map(proportional_share).sum()
        });
        measured.await.ok()
    }

    fn lock_kernels(&self) -> MutexGuard<'_, BTreeMap<String, KernelHandle>> {
        lock_unpoisoned(&self.kernels)
    }
}

fn lock_unpoisoned(
    kernels: &Mutex<BTreeMap<String, KernelHandle>>,
) -> MutexGuard<'_, BTreeMap<String, KernelHandle>> {
    kernels.lock().unwrap_or_else(PoisonError::into_inner)
}

fn proportional_share(pid: Pid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Names are file names, and parts of addresses.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_SESSION_NAME_LENGTH).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests;
