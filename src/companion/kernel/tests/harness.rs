//! A session with its owner task, stored generations in memory, and fake kernels on request.

use super::fake_kernel::FakeKernel;
use crate::companion::environment::EnvironmentHandle;
use crate::companion::kernel::connection::KernelQuery;
use crate::companion::kernel::template::{ForkPoolRequest, KernelTemplate};
use crate::companion::kernel::{
    KernelAnswer, KernelHandle, KernelMessage, KernelRefusal, KernelRun, KernelSettings,
    KernelView, RestoreSource, SessionLimits, SessionRestoring, StopReason,
};
use crate::companion::runs::{RunRegistry, RunStore};
use crate::companion::tests::clock::{StoppedClock, settle};
use crate::protocol::kernel::{Execute, KernelReport, RunError};
use crate::protocol::restored::{LostVariable, RestoredFrom, SkippedGeneration};
use futures_util::FutureExt;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

pub(super) const SESSION: &str = "default";

pub(super) struct OwnerHarness {
    folder: TempDir,
    handle: KernelHandle,
    owner: JoinHandle<()>,
    fork_requests: mpsc::Receiver<ForkPoolRequest>,
    runs: RunRegistry<Execute>,
    pub(super) generations: Arc<FakeGenerations>,
    kernel_count: usize,
    _clock: StoppedClock,
}

impl OwnerHarness {
    /// A session whose owner has requested its first kernel.
    pub(super) fn start() -> Self {
        Self::start_with(FakeGenerations::default(), None)
    }

    pub(super) fn start_with(
        generations: FakeGenerations,
        restoring: Option<SessionRestoring>,
    ) -> Self {
        let clock = StoppedClock::start();
        let folder = tempfile::tempdir().unwrap();
        let generations = Arc::new(generations);
        let (handle, owner, fork_requests) = start_owner(&folder, &generations, restoring);
        Self {
            runs: RunRegistry::open("run", RunStore::disabled()),
            folder,
            handle,
            owner,
            fork_requests,
            generations,
            kernel_count: 0,
            _clock: clock,
        }
    }

    /// A session with an idle kernel.
    pub(super) async fn start_ready() -> (Self, FakeKernel) {
        let mut harness = Self::start();
        let kernel = harness.start_kernel().await;
        assert_eq!(harness.state(), "idle 1");
        (harness, kernel)
    }

    /// The next companion, after this one has ended.
    pub(super) async fn start_next_companion(&mut self) {
        self.wait_ended().await;
        let (handle, owner, fork_requests) = start_owner(&self.folder, &self.generations, None);
        (self.handle, self.owner, self.fork_requests) = (handle, owner, fork_requests);
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Takes the owner's request for a kernel.
    pub(super) async fn next_fork_request(&mut self) -> ForkPoolRequest {
        settle().await;
        let request = self.fork_requests.try_recv();
        request.expect("the owner requested no kernel")
    }

    pub(super) async fn expect_no_fork_request(&mut self) {
        settle().await;
        assert!(self.fork_requests.try_recv().is_err());
    }

    /// Delivers the requested kernel, which is silent.
    pub(super) async fn deliver_kernel(&mut self) -> FakeKernel {
        let request = self.next_fork_request().await;
        let socket = self.next_socket();
        let kernel = FakeKernel::spawn(request, socket);
        settle().await;
        kernel
    }

    /// Delivers the requested kernel, which answers up to the first query.
    pub(super) async fn start_kernel(&mut self) -> FakeKernel {
        let mut kernel = self.deliver_kernel().await;
        kernel.send_hello().await;
        let adopt = kernel.expect("adopt").await;
        assert_eq!(adopt["session"], SESSION);
        kernel.send_reply(Value::Null).await;
        kernel
    }

    /// The socket of another kernel.
    pub(super) fn next_socket(&mut self) -> PathBuf {
        self.kernel_count += 1;
        self.path(&format!("{}.sock", self.kernel_count))
    }

    /// Refuses the requested kernel.
    pub(super) async fn refuse_kernel(&mut self, why: &'static str) {
        let request = self.next_fork_request().await;
        request.spawned.send(Err(anyhow::anyhow!(why))).unwrap();
        settle().await;
    }

    /// The kernel's state as `osctl status` shows it, and its generation.
    pub(super) fn state(&self) -> String {
        let view = self.view();
        format!("{} {}", view.detail, view.report.generation)
    }

    pub(super) fn view(&self) -> KernelView {
        self.handle.view()
    }

    pub(super) fn handle(&self) -> KernelHandle {
        self.handle.clone()
    }

    /// Begins a run in the queue, which may be empty.
    pub(super) async fn execute(&self, code: &str) -> Arc<KernelRun> {
        let request = Execute {
            queue: true,
            ..Execute::new(code)
        };
        self.execute_request(request).await.unwrap()
    }

    pub(super) async fn execute_request(
        &self,
        request: Execute,
    ) -> Result<Arc<KernelRun>, KernelRefusal> {
        let queue = request.queue;
        let (run, _) = self.runs.begin_run(request).unwrap();
        self.handle.execute(run.clone(), queue).await?;
        settle().await;
        Ok(run)
    }

    /// Sends a query; its answer is read later.
    pub(super) async fn query(&self, query: KernelQuery) -> PendingAnswer {
        let handle = self.handle();
        PendingAnswer::start(async move { handle.query(query).await }).await
    }

    pub(super) async fn restart(&self) -> PendingAnswer {
        self.restart_because(StopReason::Restart).await
    }

    pub(super) async fn restart_because(&self, why: StopReason) -> PendingAnswer {
        let handle = self.handle();
        PendingAnswer::start(async move { handle.restart(why).await }).await
    }

    /// Interrupts the current job; the reply is read later.
    pub(super) async fn interrupt(&self) -> PendingAnswer {
        let handle = self.handle();
        let interrupt = async move { handle.interrupt().await };
        PendingAnswer::start(interrupt.map(|report| report.map(KernelAnswer::without_value))).await
    }

    pub(super) async fn interrupt_run(&self, run: &KernelRun) {
        let (done, _) = oneshot::channel();
        let id = Some(run.id.clone());
        let message = KernelMessage::Interrupt { id, done };
        self.handle.send_message(message).await.unwrap();
        settle().await;
    }

    pub(super) async fn check_health(&self) {
        self.handle.check_health();
        settle().await;
    }

    pub(super) async fn shut_down(&self, grace: Duration, why: StopReason) {
        let handle = self.handle();
        tokio::spawn(async move { handle.shutdown(grace, why).await });
        settle().await;
    }

    /// Waits until the owner has ended.
    pub(super) async fn wait_ended(&mut self) {
        settle().await;
        let ended = (&mut self.owner).now_or_never();
        ended.expect("the owner has not ended").unwrap();
    }
}

fn start_owner(
    folder: &TempDir,
    generations: &Arc<FakeGenerations>,
    restoring: Option<SessionRestoring>,
) -> (
    KernelHandle,
    JoinHandle<()>,
    mpsc::Receiver<ForkPoolRequest>,
) {
    let path = |name: &str| folder.path().join(name);
    fs::write(path("memory.events"), "oom_kill 0\n").unwrap();
    let settings = KernelSettings {
        python: path("no-python"),
        program: path("no-kernel"),
        start_folder: folder.path().to_owned(),
        environment: EnvironmentHandle::open(folder.path()),
        socket_folder: path("sockets"),
        record_folder: path("records"),
        restore_source: generations.clone(),
        output_folder: path("output"),
        cgroup_folder: folder.path().to_owned(),
        run_store: RunStore::disabled(),
        limits: SessionLimits {
            max_sessions: 8,
            max_memory_bytes: None,
            idle_timeout: Duration::from_secs(3600),
            probe_interval: Duration::from_secs(30),
        },
    };
    let (template, fork_requests) = KernelTemplate::without_process();
    let (handle, owner) = KernelHandle::start(SESSION, settings, template, restoring);
    (handle, owner, fork_requests)
}

/// The reply to a caller that waits for it.
pub(super) struct PendingAnswer(JoinHandle<Result<KernelAnswer, KernelRefusal>>);

impl PendingAnswer {
    pub(super) async fn start(
        answer: impl Future<Output = Result<KernelAnswer, KernelRefusal>> + Send + 'static,
    ) -> Self {
        let answer = Self(tokio::spawn(answer));
        settle().await;
        answer
    }

    pub(super) async fn text(self) -> String {
        settle().await;
        match self.0.now_or_never() {
            None => "waits".into(),
            Some(answer) => describe_answer(answer.unwrap()),
        }
    }
}

pub(super) fn describe_answer(answer: Result<KernelAnswer, KernelRefusal>) -> String {
    match answer {
        Ok(KernelAnswer { value, report }) => match value {
            Ok(_) => describe_report(&report),
            Err(error) => format!("{}; {}", describe_error(&error), describe_report(&report)),
        },
        Err(refusal) => format!("refused: {refusal:?}"),
    }
}

fn describe_error(error: &RunError) -> String {
    format!("{}: {}", error.kind, error.message)
}

/// The state of the namespace, the generation, and the number of the stored generation that it came from.
fn describe_report(report: &KernelReport) -> String {
    let state = format!("{:?} {}", report.state, report.generation).to_lowercase();
    match &report.restored_from {
        Some(from) => format!("{state} from {}", from.generation),
        None => state,
    }
}

/// The end of a run: its status, its error, and the state of the namespace.
pub(super) fn describe_run(run: &KernelRun) -> String {
    let reply = run.build_reply(KernelReport::lost(0));
    let status = format!("{:?}", reply.status).to_lowercase();
    let error = reply
        .error
        .map(|error| format!("; {}", describe_error(&error)));
    let report = match status.as_str() {
        "running" => String::new(),
        _ => format!("; {}", describe_report(&reply.kernel)),
    };
    format!("{status}{}{report}", error.unwrap_or_default())
}

/// Stored generations without files.
#[derive(Debug, Default)]
pub(super) struct FakeGenerations {
    /// The generations of the session that can be reloaded, newest first.
    pub(super) reloadable: Vec<u64>,
    pub(super) damaged: Vec<SkippedGeneration>,
    /// Generations whose manifest can't be read after the reload.
    pub(super) unreadable: Vec<u64>,
    /// Number of lost variables of a generation.
    pub(super) lost_counts: BTreeMap<u64, u64>,
    /// The reload records that were written.
    pub(super) reload_records: Mutex<Vec<RestoredFrom>>,
}

impl FakeGenerations {
    pub(super) fn folder(generation: u64) -> PathBuf {
        PathBuf::from(format!("/cryo/{SESSION}/{generation}"))
    }
}

impl RestoreSource for FakeGenerations {
    fn reloadable_generations(&self, _session: &str) -> Vec<PathBuf> {
        let generations = self.reloadable.iter();
        generations.map(|number| Self::folder(*number)).collect()
    }

    fn damaged_generations_above(&self, _name: &str, generation: u64) -> Vec<SkippedGeneration> {
        let damaged = self.damaged.iter();
        let above = damaged.filter(|skipped| skipped.generation > generation);
        above.cloned().collect()
    }

    fn describe_restored(
        &self,
        folder: &Path,
        _answer: &Value,
        _counts: &Path,
    ) -> Option<RestoredFrom> {
        let generation = folder.file_name()?.to_str()?.parse().ok()?;
        let lost_count = self.lost_counts.get(&generation).copied().unwrap_or(0);
        let lost = (0..lost_count).map(|number| LostVariable {
            name: format!("v{number}"),
            why: None,
            was_saved: true,
        });
        (!self.unreadable.contains(&generation)).then(|| RestoredFrom {
            name: SESSION.into(),
            generation,
            created: 0.0,
            runs_after: None,
            runs_after_is_estimate: false,
            variables: 1,
            lost_count,
            lost_unexpectedly: lost_count,
            lost: lost.collect(),
            skipped: Vec::new(),
            warnings: Vec::new(),
        })
    }

    fn write_reload_record(&self, _folder: &Path, _session: &str, from: &RestoredFrom) {
        self.reload_records.lock().push(from.clone());
    }
}
