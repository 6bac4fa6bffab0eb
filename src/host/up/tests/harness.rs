//! An instance on a fake engine: its folders, its configuration, its images, and a companion that answers.

use crate::config::{Config, ConfigSource, ResolvedConfig};
use crate::engine::fake_engine::{
    FakeAdmission, FakeContainer, FakeEngine, FakeEngineObjects, FakeExecResult, FakeHttpReply,
    FakeImage,
};
use crate::engine::{ContainerPhase, Docker, Engine, EngineProgress, IMAGE_LABEL};
use crate::error::Result;
use crate::host::build::load_recipe;
use crate::host::folders::Folders;
use crate::host::instance::Instance;
use crate::host::passed_env::EnvArgs;
use crate::host::up::{UpOutcome, UpRunner};
use crate::image::{
    CompanionBinary, IMAGE_DIGEST_LABEL, binary_image_context, sample_executable,
    single_file_content,
};
use crate::protocol::evolve::{
    DeployConfig, EvolveRecord, EvolveStatus, KeeperReply, KeeperRequest,
};
use crate::protocol::proof::{prove_nonce, sha256_fingerprint};
use crate::protocol::service::{Health, HealthStatus, Ping};
use crate::protocol::{BODY_PROTOCOL_VERSION, PROTOCOL_VERSION, PROTOCOL_VERSION_HEADER};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Notify;

pub(super) const HOST: &str = "os-host";
pub(super) const ASIDE: &str = "os-host.old";
pub(super) const FIRST_IMAGE: &str = "sha256:first";
pub(super) const SECOND_IMAGE: &str = "sha256:second";

/// The keeper's answers in a test.
#[derive(Debug, Default)]
pub(super) struct ScriptedKeeper {
    /// The record at the end of a run; a run that has succeeded has replaced the container.
    pub(super) end: Option<EvolveRecord>,
    /// The reply to the request of a run, if it is not accepted.
    pub(super) denial: Option<KeeperReply>,
}

pub(super) struct UpHarness {
    folder: TempDir,
    folders: Folders,
    pub(super) engine: FakeEngine,
    pub(super) instance: Instance,
    pub(super) config: Config,
    /// Values that count as the user's.
    pub(super) values: BTreeMap<String, (Value, ConfigSource)>,
    pub(super) keeper: Arc<Mutex<ScriptedKeeper>>,
    /// Interrupts an `up` that follows the keeper.
    pub(super) interrupt: Arc<Notify>,
    /// Notified when a companion was asked for its health.
    pub(super) asked_health: Arc<Notify>,
    /// The engine's socket, if `up` may start a keeper.
    socket: Option<PathBuf>,
}

impl UpHarness {
    /// An instance that was never up, whose first image exists.
    pub(super) async fn prepare() -> Self {
        // The client of the companion needs a provider, although it uses no TLS.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["s/default", "repo/body"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        let manifest = format!("protocol: {BODY_PROTOCOL_VERSION}\n");
        fs::write(path("repo/body/body.yaml"), manifest).unwrap();
        fs::write(path("osctl"), sample_executable()).unwrap();
        let folders = Folders::beneath(folder.path());
        let instance = Instance::new("default", &folders).unwrap();
        let digest = sha256_fingerprint(&instance.ensure_token().unwrap());
        let bind = own_address();
        let keeper = Arc::new(Mutex::new(ScriptedKeeper::default()));
        let answers = Arc::clone(&keeper);
        let engine =
            FakeEngine::start(
                &path("docker.sock"),
                move |objects, container, command| match command[1].as_str() {
                    "keeper" => answer_keeper(&answers.lock(), objects, &command[3]),
                    _ => answer_verb(objects, container, command),
                },
            );
        let asked_health = Arc::new(Notify::new());
        let asked = Arc::clone(&asked_health);
        engine.publish_ports(
            bind,
            Box::new(move |objects, container, path| {
                asked.notify_waiters();
                answer_request(&digest, objects, container, path)
            }),
        );
        let config = Config {
            bind,
            companion: Some(path("osctl")),
            ..Config::default()
        };
        let harness = Self {
            folder,
            folders,
            engine,
            instance,
            config,
            values: BTreeMap::new(),
            keeper,
            interrupt: Arc::new(Notify::new()),
            asked_health,
            socket: None,
        };
        harness.use_image(FIRST_IMAGE).await;
        harness
    }

    /// An instance that is up with its first image.
    pub(super) async fn start() -> Self {
        let harness = Self::prepare().await;
        assert_eq!(harness.up().await.unwrap(), UpOutcome::Created);
        harness.engine.reset_calls();
        harness
    }

    /// As [`UpHarness::start`]; the next `up` replaces the container by one of the second image.
    pub(super) async fn start_with_change() -> Self {
        let harness = Self::start().await;
        harness.use_image(SECOND_IMAGE).await;
        harness.engine.reset_calls();
        harness
    }

    /// As [`UpHarness::start_with_change`], with a keeper that does it.
    pub(super) async fn start_with_keeper() -> Self {
        let mut harness = Self::prepare().await;
        let architecture = harness.connect().await.unwrap().architecture().to_owned();
        let companion =
            CompanionBinary::load(harness.config.companion.as_deref(), &architecture).unwrap();
        let (digest, _) = binary_image_context(&companion).unwrap();
        let image = FakeImage {
            tags: [format!("os-keeper:{}", &digest[..16])].into(),
            ..FakeImage::default()
        };
        harness.engine.with(|objects| {
            objects.images.insert("sha256:keeper".into(), image);
        });
        harness.socket = Some("/run/docker.sock".into());
        assert_eq!(harness.up().await.unwrap(), UpOutcome::Created);
        harness.use_image(SECOND_IMAGE).await;
        harness.engine.reset_calls();
        harness
    }

    /// The deploy config that the keeper has.
    pub(super) fn deployed(&self) -> DeployConfig {
        self.engine.with(|objects| deployed_config(objects))
    }

    fn project(&self) -> PathBuf {
        self.folder.path().join("repo")
    }

    async fn connect(&self) -> Result<Docker> {
        Docker::connect_at_socket(&self.folder.path().join("docker.sock")).await
    }

    /// Changes the body, so that this is the image which is built from it.
    pub(super) async fn use_image(&self, id: &str) {
        let dockerfile = self.project().join("body/Dockerfile");
        fs::write(dockerfile, format!("FROM ${{BASE}}\n# {id}\n")).unwrap();
        let docker = self.connect().await.unwrap();
        let recipe = load_recipe(&docker, &self.config, &self.project()).unwrap();
        let label = |key: &str, value: String| (key.to_owned(), value);
        let image = FakeImage {
            labels: [
                label(IMAGE_DIGEST_LABEL, recipe.digest()),
                label(IMAGE_LABEL, self.instance.name.clone()),
            ]
            .into(),
            tags: ["os:latest".to_owned()].into(),
            ..FakeImage::default()
        };
        self.engine.with(|objects| {
            for one in objects.images.values_mut() {
                one.tags.remove("os:latest");
            }
            objects.images.insert(id.into(), image);
        });
    }

    /// Changes the image that `use_image` has added last.
    pub(super) fn change_image(&self, id: &str, change: impl FnOnce(&mut FakeImage)) {
        self.engine
            .with(|objects| change(objects.images.get_mut(id).unwrap()));
    }

    /// One call of `up`, as by a process of its own.
    pub(super) async fn up(&self) -> Result<UpOutcome> {
        let engine = Engine::Docker(self.connect().await?);
        let resolved = ResolvedConfig {
            config: self.config.clone(),
            values: self.values.clone(),
            warnings: Vec::new(),
            sections: Vec::new(),
        };
        let runner = UpRunner {
            instance: &self.instance,
            folders: &self.folders,
            engine: &engine,
            resolved: &resolved,
            install_consent: &|_| Ok(false),
            force: false,
            build: false,
            ports_of_others: &[],
            config_file: None,
            env_args: EnvArgs::default(),
            replace_consent: &|_| Ok(()),
            wait_for_interrupt: &|| {
                let interrupt = Arc::clone(&self.interrupt);
                Box::pin(async move {
                    interrupt.notified().await;
                    Ok(())
                })
            },
            progress: &SilentProgress,
        };
        let result = runner.run(self.project(), self.socket.as_deref()).await?;
        Ok(result.outcome)
    }

    /// A call of `up` during which this time passes after `event`.
    pub(super) async fn up_while_time_passes(
        &self,
        time: Duration,
        event: &Notify,
    ) -> Result<UpOutcome> {
        let passing = async {
            event.notified().await;
            pass_time(time).await;
        };
        tokio::join!(self.up(), passing).0
    }

    /// A call of `up` that is killed when a call of the engine hangs. Returns whether it was killed.
    pub(super) async fn up_until_hung(&self) -> bool {
        tokio::select! {
            _ = self.up() => false,
            () = self.engine.hung() => true,
        }
    }

    pub(super) fn container(&self) -> FakeContainer {
        self.engine
            .with(|objects| objects.container(HOST).cloned())
            .expect("the instance has a container")
    }

    /// Adds a copy of the instance's container under this name.
    pub(super) fn add_copy(&self, name: &str, image: &str, phase: ContainerPhase) {
        let copy = FakeContainer {
            id: format!("copy-{name}"),
            name: name.into(),
            image: image.into(),
            phase,
            ..self.container()
        };
        self.engine.with(|objects| {
            objects.images.entry(image.into()).or_default();
            objects.containers.insert(copy.id.clone(), copy)
        });
    }

    /// Asserts the promise of `up`: exactly one container of the instance exists, in its place, and it runs with its
    /// ports.
    #[track_caller]
    pub(super) fn assert_one_runs(&self, image: &str, case: &str) {
        let names = self.engine.with(|objects| {
            let all = objects.containers.values();
            let all = all.filter(|one| one.name != "os-keeper");
            all.map(|one| one.name.clone()).collect::<Vec<_>>()
        });
        assert_eq!(names, [HOST], "{case}");
        self.assert_runs(image, case);
    }

    /// Asserts that the container in place runs with its ports, and that no other one ran beside it.
    #[track_caller]
    pub(super) fn assert_runs(&self, image: &str, case: &str) {
        let one = self.container();
        let (has_ports, had_two) = self
            .engine
            .with(|objects| (objects.publishes(&one), objects.had_two_running));
        assert_eq!(
            (one.image.as_str(), one.phase),
            (image, ContainerPhase::Running),
            "{case}: {one:?}"
        );
        assert!(one.restarts_automatically && has_ports, "{case}: {one:?}");
        assert!(!had_two, "{case}: two containers ran on the same data");
        let record = self.instance.read_record().unwrap().unwrap();
        assert_eq!(one.ports, record.ports.all().into(), "{case}");
    }
}

/// Lets this time pass at once.
pub(super) async fn pass_time(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// An address of this machine that no other test uses, so that tests with the same ports run side by side.
fn own_address() -> IpAddr {
    static USED: AtomicU32 = AtomicU32::new(0);
    let number = USED.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = number.to_be_bytes();
    let process = u8::try_from(std::process::id() % 250).unwrap();
    Ipv4Addr::new(127, 2 + process, high, low).into()
}

struct SilentProgress;

impl EngineProgress for SilentProgress {
    fn report_step(&self, _what: &str) {}
    fn report_amount(&self, _what: &str, _done: u64, _total: Option<u64>) {}
    fn log(&self, _line: &str) {}
}

/// The verbs of a companion that `up` runs.
fn answer_verb(
    objects: &mut FakeEngineObjects,
    container: &str,
    command: &[String],
) -> FakeExecResult {
    assert_eq!(command[1], "resume");
    let found = objects.container(container).unwrap();
    found.admission = FakeAdmission::Open;
    FakeExecResult {
        code: 0,
        stdout: json!({"resumed": true}).to_string(),
        stderr: String::new(),
    }
}

/// Requests to the keeper.
fn answer_keeper(
    keeper: &ScriptedKeeper,
    objects: &mut FakeEngineObjects,
    request: &str,
) -> FakeExecResult {
    let end = keeper
        .end
        .clone()
        .unwrap_or_else(|| run_record("succeeded", None));
    let reply = match serde_json::from_str(request).unwrap() {
        KeeperRequest::Status {} => KeeperReply::Status(EvolveStatus::default()),
        KeeperRequest::Evolve(_) => match &keeper.denial {
            Some(denial) => denial.clone(),
            None => {
                if end.has_replaced_container() {
                    let spec = deployed_config(objects).spec;
                    let host = objects.container(HOST).unwrap();
                    (host.image, host.labels) = (spec.image, spec.labels);
                    host.ports = spec.ports.iter().map(|port| port.host).collect();
                }
                KeeperReply::Started { run: end.run }
            }
        },
        KeeperRequest::Log { .. } => KeeperReply::Record(Box::new(end)),
        other => panic!("the test expects no {other:?}"),
    };
    FakeExecResult {
        code: 0,
        stdout: format!("{}\n", json!(reply)),
        stderr: String::new(),
    }
}

/// The deploy config that was put into the keeper last.
fn deployed_config(objects: &FakeEngineObjects) -> DeployConfig {
    let archives = objects.archives.iter().rev();
    let mut configs = archives.filter_map(|(_, archive)| {
        serde_json::from_slice(&single_file_content(archive).unwrap()).ok()
    });
    configs.next().expect("a deploy config was uploaded")
}

/// The record of a run with this end.
pub(super) fn run_record(status: &str, failed_stage: Option<&str>) -> EvolveRecord {
    serde_json::from_value(json!({
        "run": "20261121-100000", "task": "evolve", "reason": null, "requested_by": "host",
        "force": false, "dry_run": false, "started": 1.0, "status": status, "stages": [],
        "failed_stage": failed_stage, "why": failed_stage.map(|_| "a reason"), "log_tail": [],
        "image": SECOND_IMAGE, "previous_image": FIRST_IMAGE, "body_digest": null, "refused_ms": null,
    }))
    .unwrap()
}

/// The HTTP API of a companion that `up` calls.
fn answer_request(
    digest: &str,
    objects: &mut FakeEngineObjects,
    container: &str,
    path: &str,
) -> FakeHttpReply {
    let document = match path.strip_prefix("/ping?nonce=") {
        Some(nonce) => json!(Ping {
            status: "ok".into(),
            proof: Some(prove_nonce(digest, nonce)),
        }),
        None => {
            assert_eq!(path, "/health");
            let image = objects.container(container).unwrap().image.clone();
            let image = objects.images[&image].clone();
            let is_healthy = image.kernel_error.is_none() && !image.stays_unhealthy;
            json!(Health {
                status: match is_healthy {
                    true => HealthStatus::Healthy,
                    false => HealthStatus::Starting,
                },
                evolving: false,
                version: env!("CARGO_PKG_VERSION").into(),
                services: Vec::new(),
                failure: image.kernel_error,
            })
        }
    };
    let status = if document["status"] == "starting" {
        503
    } else {
        200
    };
    let headers = vec![
        (PROTOCOL_VERSION_HEADER, PROTOCOL_VERSION.to_string()),
        ("content-type", "application/json".to_owned()),
    ];
    (status, headers, document.to_string())
}
