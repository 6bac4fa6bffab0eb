//! The kernels by name: the default one, which is always there, and those that people made.
//!
//! One that nothing was asked of for long, or that takes more memory than it may, is released; a
//! running cell is never idle. Nothing of a session is kept but its generation.

use super::template::Template;
use super::{
    Answer, Kernel, Limits, Message, Question, Refusal, Run, Settings, Stop, View, Waking, ledger,
    run_count,
};
use crate::companion::descendants;
use crate::companion::runs::{NotRecorded, OtherRun, Runs};
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
const LOOK: Duration = Duration::from_secs(2);

/// Ends that may wait to be heard of.
const ENDS: usize = 1024;

/// Characters of a name.
const LONGEST: usize = 64;

/// All kernels and all runs, for everyone who uses them.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    settings: Settings,
    template: Template,
    kernels: Arc<Mutex<BTreeMap<String, Kernel>>>,
    /// Deleted ones that have not ended: their names are not free yet.
    ending: Arc<Mutex<BTreeMap<String, Kernel>>>,
    runs: Runs<Execute>,
    ends: broadcast::Sender<String>,
}

impl Sessions {
    /// Starts the default session, whose owner ends after [`Sessions::shutdown`], and those that lay in
    /// a checkpoint when the last life ended.
    pub(crate) fn start(
        settings: Settings,
        mut waking: BTreeMap<String, Waking>,
    ) -> (Self, JoinHandle<()>) {
        let store = settings.store.clone();
        let template = Template::start(settings.clone());
        let start = |session: &str, waking| {
            Kernel::start(session, settings.clone(), template.clone(), waking)
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
            runs: Runs::open("run", store),
            ends: broadcast::Sender::new(ENDS),
        };
        tokio::spawn(sessions.clone().release());
        (sessions, owner)
    }

    /// # Errors
    /// [`Refusal::NoSession`].
    pub(crate) fn kernel(&self, session: &str) -> Result<Kernel, Refusal> {
        let found = self.lock().get(session).cloned();
        found.ok_or_else(|| Refusal::NoSession(session.into()))
    }

    /// How the default session stands.
    pub(crate) fn view(&self) -> View {
        let kernels = self.lock();
        kernels[DEFAULT_SESSION].view()
    }

    /// All of them, the default one first.
    pub(crate) fn all(&self) -> Vec<(String, View)> {
        let mut all: Vec<_> = self
            .lock()
            .iter()
            .map(|(name, kernel)| (name.clone(), kernel.view()))
            .collect();
        all.sort_by_key(|(name, _)| (name != DEFAULT_SESSION, name.clone()));
        all
    }

    /// A session of that name, made now unless it exists.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] or [`Refusal::TooManySessions`].
    pub(crate) async fn create(&self, name: Option<String>) -> Result<(String, Kernel), Refusal> {
        // Two kernels of one name would share a record of generations.
        while let Some(kernel) = name
            .as_ref()
            .and_then(|name| locked(&self.ending).get(name).cloned())
        {
            kernel.ended().await;
            // Who ended it takes it out in a moment.
            yield_now().await;
        }
        let mut kernels = self.lock();
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
                "`{name}` can't be a session's name: use letters, digits, `-`, `_` and `.`, {LONGEST} at most, beginning with a letter or digit"
            );
            return Err(Refusal::Invalid(message));
        }
        let Limits { count, .. } = self.settings.limits;
        if kernels.len() >= count {
            return Err(Refusal::TooManySessions(count));
        }
        let (settings, template) = (self.settings.clone(), self.template.clone());
        let (kernel, _owner) = Kernel::start(&name, settings, template, None);
        kernels.insert(name.clone(), kernel.clone());
        Ok((name, kernel))
    }

    /// Ends a session and all that it runs.
    ///
    /// # Errors
    /// [`Refusal::NoSession`], or [`Refusal::Invalid`] for the default session.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), Refusal> {
        if name == DEFAULT_SESSION {
            let message = "the default session can't be deleted".into();
            return Err(Refusal::Invalid(message));
        }
        let kernel = {
            let mut kernels = self.lock();
            let kernel = kernels.remove(name);
            let kernel = kernel.ok_or_else(|| Refusal::NoSession(name.into()))?;
            locked(&self.ending).insert(name.into(), kernel.clone());
            kernel
        };
        // In a task of its own: whoever asked may leave, and the name must be free in the end.
        let (ending, name) = (self.ending.clone(), name.to_owned());
        // Nobody may listen.
        let _ = self.ends.send(name.clone());
        let ended = tokio::spawn(async move {
            kernel.shutdown(Duration::ZERO, Stop::Deleted).await;
            locked(&ending).remove(&name);
        });
        ended.await.map_err(|_| Refusal::Stopping)
    }

    /// The names of sessions, as they end.
    pub(crate) fn ends(&self) -> broadcast::Receiver<String> {
        self.ends.subscribe()
    }

    /// Begins a run, or finds the one of that id again.
    ///
    /// # Errors
    /// Every [`Refusal`] but [`Refusal::NoRun`]; nothing was executed then.
    pub(crate) async fn execute(&self, request: Execute) -> Result<Arc<Run>, Refusal> {
        // Its session may be gone.
        let known = self.runs.known(&request).await;
        if let Some(run) = known.map_err(|OtherRun(id)| Refusal::OtherRun(id))? {
            return Ok(run);
        }
        let kernel = self.kernel(&request.session)?;
        let (queue, session) = (request.queue, request.session.clone());
        let begun = self.runs.begin(request);
        let (run, is_new) = begun.map_err(|OtherRun(id)| Refusal::OtherRun(id))?;
        if !is_new {
            return match run.taken().await {
                true => Ok(run),
                false => Box::pin(self.execute(run.work.clone())).await,
            };
        }
        // In a task of its own: a client that leaves now must not leave half a run behind.
        let runs = self.runs.clone();
        let admitted = tokio::spawn(async move {
            let taken = match run.recorded().await {
                Ok(()) => kernel.execute(run.clone(), queue).await,
                Err(NotRecorded) => Err(Refusal::NotRecorded),
            };
            match taken {
                Ok(()) => {
                    run.admitted();
                    runs.admitted();
                    Ok(run)
                }
                Err(refusal) => {
                    runs.forget(&run);
                    run.refused(kernel.view().report);
                    Err(refusal)
                }
            }
        });
        let admitted = admitted.await.unwrap_or(Err(Refusal::Stopping));
        admitted.map_err(|refusal| self.told(&session, refusal))
    }

    /// An owner that has ended can't say why: a session that is gone was deleted.
    fn told(&self, session: &str, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::Stopping => self.kernel(session).err().unwrap_or(refusal),
            other => other,
        }
    }

    /// # Errors
    /// [`Refusal::NoRun`].
    pub(crate) fn run(&self, id: &str) -> Result<Arc<Run>, Refusal> {
        self.runs.find(id).ok_or_else(|| Refusal::NoRun(id.into()))
    }

    /// The runs that can be found, the oldest first.
    pub(crate) fn runs(&self) -> Vec<Arc<Run>> {
        self.runs.all()
    }

    /// The runs themselves, for who records them.
    pub(crate) fn registry(&self) -> &Runs<Execute> {
        &self.runs
    }

    /// What to say of the kernel of a run that goes on.
    pub(crate) fn report(&self, run: &Run) -> KernelReport {
        let kernel = self.kernel(&run.work.session);
        kernel.map_or_else(|_| self.view().report, |kernel| kernel.view().report)
    }

    /// Interrupts a run, and waits until it has ended.
    ///
    /// # Errors
    /// [`Refusal::NoRun`], or [`Refusal::Stopping`].
    pub(crate) async fn interrupt(&self, id: &str) -> Result<Arc<Run>, Refusal> {
        let run = self.run(id)?;
        run.taken().await;
        if let Ok(kernel) = self.kernel(&run.work.session) {
            let id = Some(id.to_owned());
            // The run tells its end itself.
            let (done, _) = oneshot::channel();
            kernel.send(Message::Interrupt { id, done }).await?;
        }
        run.finished().await;
        Ok(run)
    }

    /// Another container may have had the sessions meanwhile: their generations go on from there.
    pub(crate) async fn overtake(&self) {
        let kernels: Vec<Kernel> = self.lock().values().cloned().collect();
        futures_util::future::join_all(kernels.iter().map(Kernel::overtake)).await;
    }

    /// Asks a session.
    ///
    /// # Errors
    /// [`Refusal::NoSession`] and those of [`Kernel::ask`].
    pub(crate) async fn ask(&self, session: &str, question: Question) -> Result<Answer, Refusal> {
        let answer = self.kernel(session)?.ask(question).await;
        answer.map_err(|refusal| self.told(session, refusal))
    }

    /// Puts what the session's record and count of runs say onto the disk, so that a generation that is acknowledged
    /// comes back by itself also after a loss of power.
    pub(crate) async fn sync(&self, session: &str) {
        let (folder, session) = (self.settings.data.clone(), session.to_owned());
        let sync = move || {
            run_count::sync(&folder, &session).and_then(|()| ledger::sync(&folder, &session))
        };
        if let Ok(Err(error)) = spawn_blocking(sync).await {
            tracing::warn!("the record of a session may not outlast a loss of power: {error}");
        }
    }

    /// Takes no more requests, lets what runs finish within `grace`, then ends all processes.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        let kernels: Vec<Kernel> = self.lock().values().cloned().collect();
        futures_util::future::join_all(kernels.iter().map(|k| k.shutdown(grace, Stop::Shutdown)))
            .await;
    }

    /// Releases sessions that are idle or too large, and looks whether kernels are well, for ever.
    async fn release(self) {
        let Limits {
            memory,
            idle,
            check,
            ..
        } = self.settings.limits;
        let mut checked = Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            let names: Vec<String> = self.lock().keys().cloned().collect();
            let is_check = checked.elapsed() >= check;
            if is_check {
                checked = Instant::now();
            }
            for name in names {
                // Looked at now: much may have happened since the one before.
                let Ok(kernel) = self.kernel(&name) else {
                    continue;
                };
                let view = kernel.view();
                let rests = !view.busy && view.queued == 0;
                if is_check && rests && view.used.elapsed() >= check {
                    kernel.check();
                }
                let is_idle = rests && view.used.elapsed() >= idle;
                if is_idle && name != DEFAULT_SESSION {
                    self.release_one(&name, &kernel, idle).await;
                } else if let Some(limit) = memory
                    && let Some(used) = self.memory(&view).await
                    && used > limit
                {
                    tracing::warn!(
                        session = name,
                        used,
                        limit,
                        "ended: it takes too much memory"
                    );
                    // What ran is told; what became of the state, too.
                    tokio::spawn(async move { kernel.restart(Stop::Memory(limit)).await });
                }
            }
        }
    }

    /// Ends an idle session. Only its owner knows whether it still is: a request may be on its way.
    async fn release_one(&self, name: &str, kernel: &Kernel, idle: Duration) {
        if kernel.release(idle).await {
            tracing::info!(session = name, "released: nothing was asked of it for long");
            // Somebody may have deleted it meanwhile.
            let _ = self.delete(name).await;
        }
    }

    /// Bytes that the processes of a session take; those shared with others count in part.
    pub(crate) async fn memory(&self, view: &View) -> Option<u64> {
        let root = Pid::from_raw(view.root?);
        let measured = spawn_blocking(move || {
            let below = descendants::of(root).into_iter().map(|d| d.pid);
            below.filter_map(proportional_share).sum()
        });
        measured.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kernel>> {
        locked(&self.kernels)
    }
}

fn locked(kernels: &Mutex<BTreeMap<String, Kernel>>) -> MutexGuard<'_, BTreeMap<String, Kernel>> {
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
    (1..=LONGEST).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::{Limits, Sessions, Settings, is_name};
    use crate::companion::kernel::{Frozen, Question, Refusal, Waking};
    use crate::companion::runs::RunStore;
    use crate::protocol::kernel::{DEFAULT_SESSION, Execute};
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(3600);

    /// Of kernels that can't be started.
    fn without_python(folder: &Path) -> Settings {
        Settings {
            python: folder.join("no-python"),
            program: folder.join("kernel"),
            run: folder.join("run"),
            data: folder.join("data"),
            cryo: folder.join("cryo"),
            runs: folder.join("runs"),
            store: RunStore::none(),
            limits: Limits {
                count: 8,
                memory: None,
                idle: LONG,
                check: LONG,
            },
        }
    }

    #[tokio::test]
    async fn a_session_that_was_asked_something_meanwhile_is_not_released() {
        let folder = tempfile::tempdir().unwrap();
        let (sessions, _owner) = Sessions::start(without_python(folder.path()), BTreeMap::new());
        let (_, kernel) = sessions.create(Some("a".into())).await.unwrap();
        // What it looked like before does not count.
        assert!(!kernel.release(LONG).await);
        sessions.release_one("a", &kernel, LONG).await;
        assert!(sessions.kernel("a").is_ok());
        sessions.release_one("a", &kernel, Duration::ZERO).await;
        assert!(sessions.kernel("a").is_err());
    }

    #[tokio::test]
    async fn a_session_that_ends_is_gone_and_the_companion_is_not_stopping() {
        let folder = tempfile::tempdir().unwrap();
        let (sessions, _owner) = Sessions::start(without_python(folder.path()), BTreeMap::new());
        let (_, kernel) = sessions.create(Some("a".into())).await.unwrap();
        let gone = Refusal::NoSession("a".into());
        // The question lies behind the release in the mailbox.
        let released = kernel.release(Duration::ZERO);
        let (released, answer) = tokio::join!(released, kernel.ask(Question::Probe));
        assert!(released);
        assert_eq!(answer, Err(gone.clone()));
        sessions.delete("a").await.unwrap();
        // Who had found it before hears of it as those do who look for it now.
        assert_eq!(sessions.told("a", Refusal::Stopping), gone);
        let (_, stays) = sessions.create(Some("a".into())).await.unwrap();
        assert_eq!(sessions.told("a", Refusal::Stopping), Refusal::Stopping);
        drop(stays);
    }

    #[tokio::test]
    async fn a_session_that_lay_in_a_checkpoint_still_does_until_it_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let mark = |session: &str| folder.path().join(format!("{session}.json"));
        let waking = [DEFAULT_SESSION, "second"].map(|session| {
            fs::write(mark(session), "{}").unwrap();
            let frozen = Frozen {
                checkpoint: format!("/data/criu/{session}/1"),
                mark: Some(mark(session)),
            };
            (session.to_owned(), Waking::Sleeping(frozen))
        });
        let waking = BTreeMap::from(waking);
        let (sessions, _owner) = Sessions::start(without_python(folder.path()), waking);
        for session in [DEFAULT_SESSION, "second"] {
            let request = Execute {
                session: session.into(),
                ..Execute::new("1")
            };
            let refused = sessions.execute(request).await.unwrap_err();
            let checkpoint = format!("/data/criu/{session}/1");
            let session = session.to_owned();
            let expected = Refusal::Checkpointed {
                session,
                checkpoint,
            };
            assert_eq!(refused, expected);
        }
        // It takes nothing, so it may lie there for ever; and no stop gives it up.
        let kernel = sessions.kernel("second").unwrap();
        assert!(!kernel.release(Duration::ZERO).await && kernel.view().ready);
        kernel.close(Duration::ZERO).await;
        assert!(mark("second").exists());
        sessions.delete("second").await.unwrap();
        assert!(!mark("second").exists() && mark(DEFAULT_SESSION).exists());
        sessions.shutdown(Duration::ZERO).await;
        assert!(mark(DEFAULT_SESSION).exists());
    }

    #[test]
    fn names_fit_into_paths_and_file_names() {
        assert!(is_name("agent-1.a_B"));
        for name in ["", ".", "..", "-a", "a/b", "ä", "a b", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
