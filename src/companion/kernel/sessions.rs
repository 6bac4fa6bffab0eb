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
use crate::companion::runs::{RunNotRecorded, RunRegistry};
use crate::protocol::kernel::{DEFAULT_SESSION, Execute, KernelReport};
use crate::supervise::descendants;
use nix::unistd::Pid;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, oneshot};
use tokio::task::{JoinHandle, spawn_blocking, yield_now};
use tokio::time::Instant;

/// Interval at which the companion measures sessions.
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Session ends that a slow subscriber may fall behind.
const MAX_PENDING_SESSION_ENDS: usize = 1024;

/// Maximum number of characters of a session name.
const MAX_SESSION_NAME_LENGTH: usize = 64;

/// All kernels and all runs.
#[derive(Debug, Clone)]
pub(crate) struct KernelSessions {
    settings: KernelSettings,
    template: KernelTemplate,
    kernels: Arc<Mutex<BTreeMap<String, KernelHandle>>>,
    /// Deleted sessions that have not ended; their names are not free yet.
    ending_kernels: Arc<Mutex<BTreeMap<String, KernelHandle>>>,
    runs: RunRegistry<Execute>,
    session_ends: broadcast::Sender<String>,
}

impl KernelSessions {
    /// Starts the default session, whose owner ends after [`KernelSessions::shutdown_all`], and the sessions that were
    /// in a checkpoint when the last companion ended.
    pub(crate) fn start(
        settings: KernelSettings,
        restoring: BTreeMap<String, SessionRestoring>,
    ) -> (Self, JoinHandle<()>) {
        let template = KernelTemplate::start(settings.clone());
        Self::start_with(template, settings, restoring)
    }

    /// The default session, whose kernel has no process: each request for one stays without an answer.
    #[cfg(test)]
    pub(crate) fn without_kernels(settings: KernelSettings) -> Self {
        let (template, requests) = KernelTemplate::without_process();
        tokio::spawn(async move {
            let _requests = requests;
            std::future::pending::<()>().await;
        });
        Self::start_with(template, settings, BTreeMap::new()).0
    }

    fn start_with(
        template: KernelTemplate,
        settings: KernelSettings,
        mut restoring: BTreeMap<String, SessionRestoring>,
    ) -> (Self, JoinHandle<()>) {
        let store = settings.run_store.clone();
        let start = |session: &str, restoring| {
            KernelHandle::start(session, settings.clone(), template.clone(), restoring)
        };
        let (kernel, owner) = start(DEFAULT_SESSION, restoring.remove(DEFAULT_SESSION));
        let mut kernels = BTreeMap::from([(DEFAULT_SESSION.into(), kernel)]);
        for (session, restoring) in restoring {
            let (kernel, _owner) = start(&session, Some(restoring));
            kernels.insert(session, kernel);
        }
        let sessions = Self {
            settings,
            template,
            kernels: Arc::new(Mutex::new(kernels)),
            ending_kernels: Arc::default(),
            runs: RunRegistry::open("run", store),
            session_ends: broadcast::Sender::new(MAX_PENDING_SESSION_ENDS),
        };
        tokio::spawn(sessions.clone().monitor_sessions());
        (sessions, owner)
    }

    /// # Errors
    /// [`KernelRefusal::NoSession`].
    pub(crate) fn find_kernel(&self, session: &str) -> Result<KernelHandle, KernelRefusal> {
        let found = self.kernels.lock().get(session).cloned();
        found.ok_or_else(|| KernelRefusal::NoSession(session.into()))
    }

    /// State of the default session.
    pub(crate) fn default_view(&self) -> KernelView {
        let kernels = self.kernels.lock();
        kernels[DEFAULT_SESSION].view()
    }

    /// Lists all sessions, the default session first.
    pub(crate) fn list_sessions(&self) -> Vec<(String, KernelView)> {
        let mut all: Vec<_> = self
            .kernels
            .lock()
            .iter()
            .map(|(name, kernel)| (name.clone(), kernel.view()))
            .collect();
        all.sort_by_key(|(name, _)| (name != DEFAULT_SESSION, name.clone()));
        all
    }

    /// Finds the session `name`, or creates it. Without a name, creates a session with a generated name.
    ///
    /// # Errors
    /// [`KernelRefusal::Invalid`] or [`KernelRefusal::TooManySessions`].
    pub(crate) async fn create_session(
        &self,
        name: Option<String>,
    ) -> Result<(String, KernelHandle), KernelRefusal> {
        // Two kernels of one name would share a generation record.
        while let Some(kernel) = name
            .as_ref()
            .and_then(|name| self.ending_kernels.lock().get(name).cloned())
        {
            kernel.wait_ended().await;
            // The task that ended the session removes the name from the map soon.
            yield_now().await;
        }
        let mut kernels = self.kernels.lock();
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
        if !is_session_name(&name) {
            let message = format!(
                "`{name}` can't be a session's name: use up to {MAX_SESSION_NAME_LENGTH} letters, \
                 digits, `-`, `_` and `.`, and begin with a letter or digit"
            );
            return Err(KernelRefusal::Invalid(message));
        }
        let SessionLimits { max_sessions, .. } = self.settings.limits;
        if kernels.len() >= max_sessions {
            return Err(KernelRefusal::TooManySessions(max_sessions));
        }
        let (settings, template) = (self.settings.clone(), self.template.clone());
        let (kernel, _owner) = KernelHandle::start(&name, settings, template, None);
        kernels.insert(name.clone(), kernel.clone());
        Ok((name, kernel))
    }

    /// Ends a session and its run.
    ///
    /// # Errors
    /// [`KernelRefusal::NoSession`], or [`KernelRefusal::Invalid`] for the default session.
    pub(crate) async fn delete_session(&self, name: &str) -> Result<(), KernelRefusal> {
        if name == DEFAULT_SESSION {
            let message = "the default session can't be deleted".into();
            return Err(KernelRefusal::Invalid(message));
        }
        let kernel = {
            let mut kernels = self.kernels.lock();
            let kernel = kernels.remove(name);
            let kernel = kernel.ok_or_else(|| KernelRefusal::NoSession(name.into()))?;
            self.ending_kernels
                .lock()
                .insert(name.into(), kernel.clone());
            kernel
        };
        // In a separate task: the caller may disconnect, and the name must become free in any case.
        let (ending_kernels, name) = (self.ending_kernels.clone(), name.to_owned());
        // There may be no subscriber.
        let _ = self.session_ends.send(name.clone());
        let ended = tokio::spawn(async move {
            kernel.shutdown(Duration::ZERO, StopReason::Deleted).await;
            kernel.run_store.wait_synced().await;
            ending_kernels.lock().remove(&name);
        });
        ended.await.map_err(|_| KernelRefusal::ShuttingDown)
    }

    /// Subscribes to the names of sessions that end.
    pub(crate) fn subscribe_session_ends(&self) -> broadcast::Receiver<String> {
        self.session_ends.subscribe()
    }

    /// Starts a run, or finds the existing run with the same id.
    ///
    /// # Errors
    /// Every [`KernelRefusal`] except [`KernelRefusal::NoRun`]. No code was executed then.
    pub(crate) async fn execute(&self, request: Execute) -> Result<Arc<KernelRun>, KernelRefusal> {
        // The session of a known run may have ended.
        if let Some(run) = self.runs.find_same_request(&request).await? {
            return Ok(run);
        }
        let kernel = self.find_kernel(&request.session)?;
        let (queue, session) = (request.queue, request.session.clone());
        let (run, is_new) = self.runs.begin_run(request)?;
        if !is_new {
            return match run.wait_admitted().await {
                true => Ok(run),
                false => Box::pin(self.execute(run.request.clone())).await,
            };
        }
        // In a separate task: a client that disconnects now must not leave an incomplete run.
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
        let admitted = admitted.await.unwrap_or(Err(KernelRefusal::ShuttingDown));
        admitted.map_err(|refusal| self.refusal_if_deleted(&session, refusal))
    }

    /// The refusal of an owner that has ended: if the session does not exist any more, it was deleted.
    fn refusal_if_deleted(&self, session: &str, refusal: KernelRefusal) -> KernelRefusal {
        match refusal {
            KernelRefusal::ShuttingDown => self.find_kernel(session).err().unwrap_or(refusal),
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

    /// Lists the runs that can be found, oldest first.
    pub(crate) fn list_runs(&self) -> Vec<Arc<KernelRun>> {
        self.runs.list_runs()
    }

    /// The registry of all runs.
    pub(crate) fn run_registry(&self) -> &RunRegistry<Execute> {
        &self.runs
    }

    /// State report for the reply of a run that has not ended.
    pub(crate) fn kernel_report(&self, run: &KernelRun) -> KernelReport {
        let kernel = self.find_kernel(&run.request.session);
        kernel.map_or_else(
            |_| self.default_view().report,
            |kernel| kernel.view().report,
        )
    }

    /// Interrupts a run, and waits until it has ended.
    ///
    /// # Errors
    /// [`KernelRefusal::NoRun`], or [`KernelRefusal::ShuttingDown`].
    pub(crate) async fn interrupt_run(&self, id: &str) -> Result<Arc<KernelRun>, KernelRefusal> {
        let run = self.find_run(id)?;
        run.wait_admitted().await;
        if let Ok(kernel) = self.find_kernel(&run.request.session) {
            let id = Some(id.to_owned());
            // The end of the run is the answer.
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
        let kernels: Vec<KernelHandle> = self.kernels.lock().values().cloned().collect();
        futures_util::future::join_all(kernels.iter().map(KernelHandle::adopt_newer_state)).await;
    }

    /// Sends a query to a session.
    ///
    /// # Errors
    /// [`KernelRefusal::NoSession`] and those of [`KernelHandle::query`].
    pub(crate) async fn query(
        &self,
        session: &str,
        query: KernelQuery,
    ) -> Result<KernelAnswer, KernelRefusal> {
        let answer = self.find_kernel(session)?.query(query).await;
        answer.map_err(|refusal| self.refusal_if_deleted(session, refusal))
    }

    /// Syncs the session's generation record and run count to disk, so that the next start reloads an acknowledged
    /// generation also after a power loss.
    pub(crate) async fn sync_records(&self, session: &str) {
        let (folder, session) = (self.settings.record_folder.clone(), session.to_owned());
        let sync = move || {
            run_count::sync_count(&folder, &session)
                .and_then(|()| generation_store::sync_record(&folder, &session))
        };
        if let Ok(Err(error)) = spawn_blocking(sync).await {
            tracing::warn!(%error, "the record of a session may be lost after a power loss");
        }
    }

    /// Refuses new requests, lets current runs finish within `grace`, then ends all processes.
    pub(crate) async fn shutdown_all(&self, grace: Duration) {
        let kernels: Vec<KernelHandle> = self.kernels.lock().values().cloned().collect();
        futures_util::future::join_all(
            kernels
                .iter()
                .map(|k| k.shutdown(grace, StopReason::Shutdown)),
        )
        .await;
    }

    /// Releases sessions that are idle or too large, and probes kernels, until the companion ends.
    async fn monitor_sessions(self) {
        let SessionLimits {
            max_memory_bytes,
            idle_timeout,
            probe_interval,
            ..
        } = self.settings.limits;
        let mut checked = Instant::now();
        loop {
            tokio::time::sleep(SESSION_CHECK_INTERVAL).await;
            let names: Vec<String> = self.kernels.lock().keys().cloned().collect();
            let is_check = checked.elapsed() >= probe_interval;
            if is_check {
                checked = Instant::now();
            }
            for name in names {
                // Read the state now: it may have changed since the previous session was handled.
                let Ok(kernel) = self.find_kernel(&name) else {
                    continue;
                };
                let view = kernel.view();
                let is_quiet = !view.busy && view.queued == 0;
                if is_check && is_quiet && view.last_used.elapsed() >= probe_interval {
                    kernel.check_health();
                }
                let is_idle = is_quiet && view.last_used.elapsed() >= idle_timeout;
                if is_idle && name != DEFAULT_SESSION {
                    self.release_idle_session(&name, &kernel, idle_timeout)
                        .await;
                } else if let Some(limit) = max_memory_bytes
                    && let Some(used) = self.measure_memory(&view).await
                    && used > limit
                {
                    tracing::warn!(
                        session = name,
                        used,
                        limit,
                        "the companion restarts the kernel, which exceeds its memory limit"
                    );
                    // The run's reply names the reason and the lost state.
                    tokio::spawn(
                        async move { kernel.restart(StopReason::MemoryLimit(limit)).await },
                    );
                }
            }
        }
    }

    /// Ends an idle session. Only the owner knows whether the session is still idle: a request may be in its mailbox.
    async fn release_idle_session(&self, name: &str, kernel: &KernelHandle, idle: Duration) {
        if kernel.release_if_idle(idle).await {
            tracing::info!(session = name, "the companion releases the idle session");
            // Another caller may have deleted the session in between.
            let _ = self.delete_session(name).await;
        }
    }

    /// Bytes of memory of the session's processes; pages shared with others count in part.
    pub(crate) async fn measure_memory(&self, view: &KernelView) -> Option<u64> {
        let root = Pid::from_raw(view.root_pid?);
        let measured = spawn_blocking(move || {
            let below = descendants::list_descendants(root)
                .into_iter()
                .map(|d| d.pid);
            below.filter_map(read_pss_bytes).sum()
        });
        measured.await.ok()
    }
}

fn read_pss_bytes(pid: Pid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Checks a session name. Names are used as file names and in URLs.
pub(crate) fn is_session_name(name: &str) -> bool {
    (1..=MAX_SESSION_NAME_LENGTH).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests;
