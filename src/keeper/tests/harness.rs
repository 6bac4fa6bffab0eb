//! An instance with a keeper: its folders, a fake engine with a container, and a companion that answers as it should.

use crate::engine::fake_engine::{
    CallEffect, FakeAdmission, FakeContainer, FakeEngine, FakeEngineObjects, FakeExecResult,
    FakeImage,
};
use crate::engine::{ContainerPhase, OWNER_LABEL};
use crate::error::Result;
use crate::image::sample_executable;
use crate::keeper::controller::ControllerHandle;
use crate::keeper::journal::{RunJournal, RunJournalEntry};
use crate::keeper::run::BuildPolicy;
use crate::keeper::run_request::RunRequest;
use crate::keeper::run_store::KeeperRunStore;
use crate::keeper::{KeeperSettings, start_controller};
use crate::protocol::evolve::{
    DEPLOY_CONFIG_FILE, DeployConfig, EvolveCaller, EvolveLimits, EvolveRecord, EvolveRunId,
    ProxyVariables, RunTask,
};
use crate::protocol::spec::{
    ContainerEnv, ContainerLimits, ContainerRestartPolicy, ContainerSpec, Port, Workload,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub(super) const HOST: &str = "os-host";
pub(super) const OLD_IMAGE: &str = "sha256:old";
pub(super) const HOST_PORT: u16 = 8080;
const HOST_NETWORK: &str = "os-net";
/// Seconds that a new container is watched.
const WATCH_SECONDS: u64 = 5;
/// Longer than what a keeper does after a run: a watch period, retries while the engine is away.
const SETTLE_TIME: Duration = Duration::from_secs(60);
/// Longer than any run.
const RUN_TIMEOUT: Duration = Duration::from_secs(3600);

pub(super) struct KeeperHarness {
    folder: TempDir,
    pub(super) engine: FakeEngine,
    pub(super) settings: KeeperSettings,
    pub(super) run_store: KeeperRunStore,
    keeper: Option<(ControllerHandle, JoinHandle<Result<()>>)>,
}

impl KeeperHarness {
    /// An instance whose container runs, and a keeper that is idle.
    pub(super) async fn start() -> Self {
        let mut harness = Self::prepare();
        harness.start_keeper();
        harness.settle().await;
        harness.engine.reset_calls();
        harness
    }

    /// An instance without a keeper.
    pub(super) fn prepare() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["state", "repo/body"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        fs::write(path("repo/body/body.yaml"), body_manifest()).unwrap();
        fs::write(path("osctl"), sample_executable()).unwrap();
        let engine = FakeEngine::start(&path("docker.sock"), answer_verb);
        engine.with(add_instance);
        let harness = Self {
            settings: KeeperSettings {
                state_folder: path("state"),
                socket_folder: path("sockets"),
                project: path("repo"),
                engine_socket: path("docker.sock"),
                keeper_image: None,
                binary: Some(path("osctl")),
            },
            run_store: KeeperRunStore::open(&path("state")).unwrap(),
            engine,
            keeper: None,
            folder,
        };
        harness.write_dockerfile("FROM ${BASE}\n");
        harness.set_watch_period(WATCH_SECONDS);
        harness
    }

    pub(super) fn write_dockerfile(&self, text: &str) {
        self.write_body_file("Dockerfile", text);
    }

    pub(super) fn write_body_file(&self, name: &str, text: &str) {
        let path = self.folder.path().join("repo/body").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Sets the watch period of later runs.
    pub(super) fn set_watch_period(&self, seconds: u64) {
        let mut config = deploy_config();
        config.limits.watch_period = seconds;
        let config = serde_json::to_vec(&config).unwrap();
        fs::write(self.settings.state_folder.join(DEPLOY_CONFIG_FILE), config).unwrap();
    }

    pub(super) fn start_keeper(&mut self) {
        // The keeper of another process has no copy of this one's memory.
        self.run_store = KeeperRunStore::open(&self.settings.state_folder).unwrap();
        let (owner, handle) = start_controller(&self.settings, &self.run_store);
        self.keeper = Some((handle, tokio::spawn(owner.run())));
    }

    pub(super) async fn kill_keeper(&mut self) {
        let (_, task) = self.keeper.take().unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }

    pub(super) fn handle(&self) -> ControllerHandle {
        self.keeper.as_ref().unwrap().0.clone()
    }

    /// The end of a keeper that ends itself.
    pub(super) async fn keeper_end(&mut self) -> Result<()> {
        // The keeper also ends without handles.
        let (_handle, task) = self.keeper.take().unwrap();
        timeout(RUN_TIMEOUT, task).await.unwrap().unwrap()
    }

    pub(super) async fn begin(&self, request: RunRequest) -> EvolveRunId {
        self.handle().begin_run(request).await.unwrap()
    }

    /// Runs an evolve to its end, and waits until its container was watched.
    pub(super) async fn evolve(&self) -> EvolveRecord {
        self.run(evolve_request()).await
    }

    pub(super) async fn run(&self, request: RunRequest) -> EvolveRecord {
        let run = self.begin(request).await;
        self.settle().await;
        self.run_store.read_record(&run).unwrap().unwrap()
    }

    /// Returns when the keeper has ended its run.
    pub(super) async fn run_end(&self) {
        let mut changes = self.run_store.subscribe_changes();
        let ended = changes.wait_for(|_| self.run_store.active_run().is_none());
        timeout(RUN_TIMEOUT, ended).await.unwrap().unwrap();
    }

    /// Waits until the keeper is idle, also after the watch period.
    pub(super) async fn settle(&self) {
        self.run_end().await;
        sleep(SETTLE_TIME).await;
    }

    /// Returns when the keeper has ended the rescue that comes next.
    pub(super) async fn rescue_end(&self) {
        let mut changes = self.run_store.subscribe_changes();
        let ended = changes.wait_for(|_| {
            let rescue = self.latest();
            rescue.task == RunTask::Rescue && self.run_store.active_run().is_none()
        });
        timeout(RUN_TIMEOUT, ended).await.unwrap().unwrap();
    }

    pub(super) fn journal(&self) -> Option<RunJournalEntry> {
        RunJournal::new(&self.settings.state_folder).read().unwrap()
    }

    pub(super) fn latest(&self) -> EvolveRecord {
        self.run_store.list_records().unwrap().remove(0)
    }

    /// The instance's container.
    pub(super) fn container(&self) -> FakeContainer {
        self.engine
            .with(|objects| objects.container(HOST).cloned())
            .expect("the instance has a container")
    }

    /// Asserts the promise of every run: exactly one container exists, which runs, answers requests and has its
    /// ports, and nothing of the run is left.
    #[track_caller]
    pub(super) fn assert_one_runs(&self, image: &str, case: &str) {
        let (all, has_ports, had_two) = self.engine.with(|objects| {
            let all: Vec<_> = objects.containers.values().cloned().collect();
            let published = all.iter().all(|one| objects.publishes(one));
            (all, published, objects.had_two_running)
        });
        let [one] = all.as_slice() else {
            panic!("{case}: not one container: {all:#?}");
        };
        assert_eq!(
            (one.name.as_str(), one.image.as_str()),
            (HOST, image),
            "{case}"
        );
        assert_eq!(one.phase, ContainerPhase::Running, "{case}: {one:?}");
        assert_ne!(one.admission, FakeAdmission::Quiesced, "{case}: {one:?}");
        assert!(one.restarts_automatically && has_ports, "{case}: {one:?}");
        assert!(!had_two, "{case}: two containers ran on the same data");
        assert_eq!(self.journal(), None, "{case}");
        assert!(
            !self.run_store.read_status().unwrap().evolve_in_progress,
            "{case}"
        );
    }
}

pub(super) fn evolve_request() -> RunRequest {
    RunRequest {
        task: RunTask::Evolve,
        by: EvolveCaller::Host,
        reason: Some("a test".into()),
        force: false,
        dry_run: false,
        build_policy: BuildPolicy::Unchecked,
        rollback_run: None,
    }
}

/// The result of a command that prints this text.
pub(super) fn prints_text(text: &str) -> CallEffect {
    CallEffect::Exec(exec_result(0, text.to_owned()))
}

/// The result of a command that prints this document.
pub(super) fn prints(document: &Value) -> CallEffect {
    CallEffect::Exec(exec_result(0, document.to_string()))
}

/// The result of a command that fails.
pub(super) fn fails(code: i64, stderr: &str) -> CallEffect {
    CallEffect::Exec(FakeExecResult {
        stderr: stderr.into(),
        ..exec_result(code, String::new())
    })
}

fn exec_result(code: i64, stdout: String) -> FakeExecResult {
    FakeExecResult {
        code,
        stdout,
        stderr: String::new(),
    }
}

/// The report of a self-test or a verification with one check.
pub(super) fn check_report(passed: bool, detail: &str) -> Value {
    let check = json!({"name": "exec", "passed": passed, "detail": detail, "timing_ms": 1.0});
    json!({"passed": passed, "checks": [check]})
}

/// A companion without faults.
fn answer_verb(
    objects: &mut FakeEngineObjects,
    container: &str,
    command: &[String],
) -> FakeExecResult {
    let found = objects.container(container).unwrap();
    let reply = match command[1].as_str() {
        "health" => return exec_result(0, String::new()),
        // The check of the body's syntax finds nothing.
        "-c" => return exec_result(0, String::new()),
        "remember" => json!({"sessions": {}}),
        "selftest" => check_report(true, "1 + 1 is 2"),
        "quiesce" => {
            found.admission = FakeAdmission::Quiesced;
            json!({"quiesced": true})
        }
        "resume" => {
            found.admission = FakeAdmission::Open;
            json!({"resumed": true})
        }
        "verify" => check_report(true, "all variables are back"),
        other => panic!("no companion has the verb `{other}`"),
    };
    exec_result(0, reply.to_string())
}

fn add_instance(objects: &mut FakeEngineObjects) {
    let image = FakeImage {
        tags: ["os:latest".to_owned()].into(),
        ..FakeImage::default()
    };
    objects.images.insert(OLD_IMAGE.into(), image);
    let container = FakeContainer {
        id: "old".into(),
        name: HOST.into(),
        image: OLD_IMAGE.into(),
        labels: owner_labels(),
        env: Vec::new(),
        phase: ContainerPhase::Running,
        admission: FakeAdmission::Open,
        restarts_automatically: true,
        restart_count: 0,
        networks: [HOST_NETWORK.to_owned()].into(),
        ports: [HOST_PORT].into(),
        exit_code: 0,
        error: String::new(),
    };
    objects.containers.insert("old".into(), container);
}

fn owner_labels() -> BTreeMap<String, String> {
    [(OWNER_LABEL.to_owned(), "os".to_owned())].into()
}

fn deploy_config() -> DeployConfig {
    DeployConfig {
        instance: "os".into(),
        spec: container_spec(),
        ignored_variables: BTreeSet::new(),
        replaced_name: "os-host.old".into(),
        image: "os".into(),
        body: "body".into(),
        repository_root: None,
        base: "base".into(),
        args: BTreeMap::new(),
        proxies: ProxyVariables::default(),
        certificates: Vec::new(),
        classic_builder: true,
        limits: EvolveLimits {
            build: 30,
            start: 20,
            test: 20,
            grace: 5,
            verify: 20,
            watch_period: WATCH_SECONDS,
            ..EvolveLimits::default()
        },
    }
}

fn container_spec() -> ContainerSpec {
    ContainerSpec {
        name: HOST.into(),
        hostname: "os".into(),
        image: "os:latest".into(),
        network: Some(HOST_NETWORK.into()),
        mounts: Vec::new(),
        volumes: Vec::new(),
        ports: vec![Port {
            bind: Ipv4Addr::LOCALHOST.into(),
            host: HOST_PORT,
            container: HOST_PORT,
        }],
        env: ContainerEnv::default(),
        limits: ContainerLimits {
            cpus: None,
            memory: None,
            pids: 100,
            shm: 1,
        },
        workload: Workload::ROOT_USER,
        capabilities: Vec::new(),
        security: Vec::new(),
        labels: owner_labels(),
        health_check: Vec::new(),
        stop_timeout: 1,
        read_only: false,
        restart: ContainerRestartPolicy::default(),
    }
}

fn body_manifest() -> String {
    format!("protocol: {}\n", crate::protocol::BODY_PROTOCOL_VERSION)
}
