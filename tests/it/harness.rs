//! What the tests use to reach the product: the binary, a separate instance, raw HTTP.

use crate::commands::Ran;
use crate::connection::receive;
pub(crate) use crate::connection::{Connection, Events, Response};
use nix::libc;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The socket of the machine's engine.
const ENGINE_SOCKET: &str = "/var/run/docker.sock";
/// The longest time that a test waits for anything before it fails.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A static program starts another one in another folder without a copy of its memory map only if this function is
/// linked: the standard library looks for it when it runs.
#[used]
static START_WITHOUT_COPY: unsafe extern "C" fn(
    *mut libc::posix_spawn_file_actions_t,
    *const libc::c_char,
) -> libc::c_int = libc::posix_spawn_file_actions_addchdir_np;

/// Removes what a killed earlier run left of the instance: it belongs to folders that are
/// created again, or that no longer exist.
pub(crate) fn forget(instance: &str) {
    if !engine_with_containers() {
        return;
    }
    let paths = [
        format!("/containers/os-keeper-{instance}?force=true"),
        format!("/containers/os-host-{instance}?force=true"),
        format!("/volumes/osctl-keeper-{instance}"),
        format!("/volumes/osctl-agent-socket-{instance}"),
        format!("/volumes/osctl-door-{instance}"),
        format!("/networks/osctl-{instance}"),
    ];
    for path in paths {
        // A missing object is not a failure.
        Engine.send("DELETE", &path, &Value::Null);
    }
}

/// Whether an engine runs. An engine that does not run but has containers is started first: the containers of a killed
/// earlier run start again with it.
fn engine_with_containers() -> bool {
    static START: Once = Once::new();
    let answers = || UnixStream::connect(ENGINE_SOCKET).is_ok();
    let containers = fs::read_dir("/var/lib/docker/containers");
    if !answers() && containers.is_ok_and(|mut found| found.next().is_some()) {
        START.call_once(|| {
            // Another process may have the id of the killed engine by now.
            let _ = fs::remove_file("/var/run/docker.pid");
            let mut daemon = Command::new("setsid");
            daemon.args(["--fork", "dockerd"]).stdin(Stdio::null());
            daemon.stdout(Stdio::null()).stderr(Stdio::null());
            assert!(daemon.status().unwrap().success());
            let deadline = Instant::now() + TEST_TIMEOUT;
            while !answers() {
                assert!(Instant::now() < deadline, "`dockerd` does not start");
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    }
    // Tests of the installation run without an engine.
    answers()
}

/// A home folder, a project and an instance for tests only.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) folder: PathBuf,
    pub(crate) project: PathBuf,
    pub(crate) instance: String,
    /// More variables for every call.
    pub(crate) env: BTreeMap<String, String>,
    /// The command that starts every call, if not `osctl` itself.
    pub(crate) wrapper: Vec<String>,
}

impl Home {
    /// A folder below the build's temporary folder, emptied first.
    ///
    /// `OSCTL_TEST_SUFFIX` separates the instances of two checkouts that are tested at the same time.
    pub(crate) fn new(instance: &str) -> Self {
        let suffix = std::env::var("OSCTL_TEST_SUFFIX").unwrap_or_default();
        let instance = &format!("{instance}{suffix}");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("home-{instance}"));
        // A run of another checkout may have left the instance.
        forget(instance);
        if folder.exists() {
            // What the container wrote belongs to the user of the container, here root.
            fs::remove_dir_all(&folder).unwrap();
        }
        let project = folder.join("project");
        fs::create_dir_all(&project).unwrap();
        Self {
            folder,
            project,
            instance: instance.into(),
            env: BTreeMap::new(),
            wrapper: Vec::new(),
        }
    }

    pub(crate) fn container(&self) -> String {
        format!("os-host-{}", self.instance)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join(format!(".mcp-state-{}", self.instance))
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.folder
            .join(format!("projects/docker_persistence-{}", self.instance))
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.join(".local/state/osctl").join(&self.instance)
    }

    pub(crate) fn write_config(&self, text: &str) {
        let folder = self.folder.join(".config/osctl");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("osctl.yaml"), text).unwrap();
    }

    /// `osctl --instance NAME ARGS…` in the project, without the `OSCTL_` variables of the environment.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let args: Vec<S> = args.into_iter().collect();
        let is_auto = args.iter().any(|arg| arg.as_ref() == "--auto-ports");
        let named = ["--instance", &self.instance].map(OsStr::new);
        let args = named.into_iter().chain(args.iter().map(AsRef::as_ref));
        let mut command = self.command_without_instance(args);
        if is_auto && !self.state().join("instance.json").exists() {
            let ports = first_ports(&self.instance).into_iter();
            command.envs(ports.filter(|(name, _)| !self.env.contains_key(*name)));
        }
        command
    }

    /// `osctl ARGS…` in the project.
    pub(crate) fn command_without_instance<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let binary = env!("CARGO_BIN_EXE_osctl").to_owned();
        let mut words = self.wrapper.iter().chain([&binary]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OSCTL_")) {
            command.env_remove(name);
        }
        command
            .env("HOST_HOME", &self.folder)
            .env_remove("HOST_PWD")
            .envs(&self.env);
        command.current_dir(&self.project).args(args);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    /// Runs the command, which must succeed.
    pub(crate) fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    }

    pub(crate) fn up(&self) {
        self.ok(["up", "--yes", "--auto-ports"]);
    }

    /// Removes the instance and its data.
    pub(crate) fn down(&self) {
        let ran = self.run(["down", "--purge", "--yes"]);
        // 3: the instance does not exist.
        assert!([0, 3].contains(&ran.code), "{ran:?}");
    }

    pub(crate) fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        let args: Vec<_> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
        let ran = Ran::from(
            self.command([OsStr::new("--json")])
                .args(args)
                .output()
                .unwrap(),
        );
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"))
    }

    /// The API of the running instance.
    pub(crate) fn api(&self) -> Api {
        self.api_at("kernel")
    }

    /// The hub of MCP servers of the running instance.
    pub(crate) fn hub(&self) -> Api {
        self.api_at("mcp")
    }

    /// The memory of the companion in KiB, without the pages of files, which come and go.
    pub(crate) fn companion_memory_kib(&self) -> u64 {
        let script = "for each in /proc/[0-9]*; do \
            if tr '\\0' ' ' < $each/cmdline 2>/dev/null | grep -q 'osctl companion'; then \
            awk '/RssAnon/ {print $2}' $each/status; fi; done";
        let shown = self.ok(["shell", script]).stdout;
        let numbers = shown.lines().map(|line| line.parse().unwrap());
        numbers.max().unwrap_or_else(|| panic!("{shown}"))
    }

    fn api_at(&self, endpoint: &str) -> Api {
        let status = self.json(["status"]);
        let address = status["endpoints"][endpoint]
            .as_str()
            .unwrap()
            .trim_start_matches("http://")
            .to_owned();
        let token = fs::read_to_string(status["token_file"].as_str().unwrap()).unwrap();
        Api {
            address,
            token: token.trim().to_owned(),
        }
    }
}

/// Where an instance's first `up` looks for free ports: each instance has its own range.
///
/// `--auto-ports` takes the first free port. Without this, an `up` of one lane takes the ports of an
/// instance that another lane stops or replaces at that moment.
fn first_ports(instance: &str) -> [(&'static str, String); 3] {
    let number = instance.bytes().fold(0_u64, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    // Above the ports of services, and below the ephemeral ports.
    let first = 10_000 + number % 1_000 * 10;
    [
        ("OSCTL_PORTS_KERNEL", first.to_string()),
        ("OSCTL_PORTS_MCP", (first + 1).to_string()),
        ("OSCTL_PORTS_VNC", (first + 2).to_string()),
    ]
}

static SHARED: OnceLock<Home> = OnceLock::new();
static SERVERS: OnceLock<Home> = OnceLock::new();

/// Removes what the tests share, except the image's build cache.
pub(crate) fn clean_up() {
    for home in [SHARED.get(), SERVERS.get()].into_iter().flatten() {
        home.down();
    }
}

/// Most tests of the server `os` have their own session.
pub(crate) const SERVERS_CONFIG: &str = "sessions:\n  max: 64\n";

/// The instance of the tests with MCP servers, a browser among them; created at the first call.
pub(crate) fn servers() -> &'static Home {
    SERVERS.get_or_init(|| {
        let home = Home::new("it-mcp");
        home.write_config(SERVERS_CONFIG);
        fs::create_dir_all(home.data()).unwrap();
        for script in ["echo.py", "modern.mjs", "stock.mjs"] {
            let from = Path::new("tests/mcp").join(script);
            fs::copy(from, home.project.join(script)).unwrap();
        }
        fs::write(
            home.data().join("mcp.json"),
            include_str!("../mcp/mcp.json"),
        )
        .unwrap();
        home.up();
        home
    })
}

/// The instance that most tests share; created at the first call.
pub(crate) fn shared() -> &'static Home {
    SHARED.get_or_init(|| {
        let home = Home::new("it");
        home.write_config(
            "limits:\n  memory: 1g\n  pids: 512\nsessions:\n  max: 24\nterminals:\n  max: 8\n",
        );
        home.up();
        home
    })
}

/// Locks `apt-get`, which does not wait for another `apt-get`: trials of several lanes may need it at the same time.
pub(crate) fn hold_apt() -> MutexGuard<'static, ()> {
    static APT: Mutex<()> = Mutex::new(());
    APT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs Debian packages where the machine lacks `program`.
pub(crate) fn provide(program: &str, packages: &[&str]) {
    provide_unless(|| which::which(program).is_ok(), packages);
}

fn provide_unless(is_there: impl FnOnce() -> bool, packages: &[&str]) {
    let _apt = hold_apt();
    if is_there() {
        return;
    }
    let script = format!(
        "export DEBIAN_FRONTEND=noninteractive; apt-get -q update\n\
         apt-get -q install -y --no-install-recommends {}",
        packages.join(" ")
    );
    let ran = Command::new("sh").args(["-ec", &script]).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

/// A Python environment with the packages of `tests/NAME/requirements.txt`.
pub(crate) fn python(name: &str) -> PathBuf {
    python_with(name, &format!("tests/{name}/requirements.txt"))
}

/// A Python environment with the packages of `requirements`.
pub(crate) fn python_with(name: &str, requirements: &str) -> PathBuf {
    let succeeds = |program: &str, args: &[&str]| {
        let status = Command::new(program).args(args).status();
        status.is_ok_and(|status| status.success())
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-python"));
    let path = folder.to_str().unwrap();
    let make = || succeeds("python3", &["-m", "venv", "--clear", path]);
    provide_unless(make, &["python3-venv"]);
    assert!(
        folder.join("bin/pip").exists() || make(),
        "python3 -m venv failed"
    );
    let bin = |name: &str| folder.join("bin").join(name).display().to_string();
    // uv installs the same wheels in a third of pip's time.
    let (pip, uv, interpreter) = (bin("pip"), bin("uv"), bin("python"));
    let common = ["install", "-q", "--require-hashes", "-r"];
    let of_pip = [&common[..], &["body/requirements/uv.txt"]].concat();
    let of_uv = [
        &["pip"],
        &common[..],
        &[requirements, "--python", &interpreter],
    ]
    .concat();
    assert!(
        succeeds(&pip, &of_pip) && succeeds(&uv, &of_uv),
        "the packages of `{requirements}` could not be installed"
    );
    folder
}

/// The companion's HTTP API, by raw requests.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) address: String,
    pub(crate) token: String,
}

impl Api {
    pub(crate) fn connect(&self) -> Connection {
        Connection::open_to(&self.address, &self.token)
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Response {
        self.connect().send("GET", path, &[], b"")
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.connect()
            .send("POST", path, &[], body.to_string().as_bytes())
    }

    /// Executes code, and waits for earlier code; the reply of an accepted run.
    #[track_caller]
    pub(crate) fn exec(&self, code: &str) -> Value {
        self.exec_with(json!({"code": code}))
    }

    #[track_caller]
    pub(crate) fn exec_with(&self, mut request: Value) -> Value {
        request["queue"] = true.into();
        self.done("/exec", &request)
    }

    /// The answer to a request, which must succeed.
    #[track_caller]
    pub(crate) fn done(&self, path: &str, request: &Value) -> Value {
        let response = self.post(path, request);
        let said = String::from_utf8_lossy(&response.body);
        assert_eq!(response.status, 200, "{said}");
        response.json()
    }

    /// Waits until `question` gives an answer.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, question: impl FnMut(&Self) -> Option<T>) -> T {
        self.until_within(TEST_TIMEOUT, what, question)
    }

    /// Waits until `question` gives an answer, at most `timeout`.
    #[track_caller]
    pub(crate) fn until_within<T>(
        &self,
        timeout: Duration,
        what: &str,
        mut question: impl FnMut(&Self) -> Option<T>,
    ) -> T {
        let begin = Instant::now();
        loop {
            if let Some(answer) = question(self) {
                return answer;
            }
            assert!(begin.elapsed() < timeout, "{what} did not happen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The engine's own API, to check what osctl reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Engine;

impl Engine {
    #[track_caller]
    pub(crate) fn get(self, path: &str) -> Response {
        self.send("GET", path, &Value::Null)
    }

    #[track_caller]
    pub(crate) fn send(self, method: &str, path: &str, body: &Value) -> Response {
        EngineAt(ENGINE_SOCKET.into()).send(method, path, body)
    }
}

/// The API of an engine at another socket.
#[derive(Debug, Clone)]
pub(crate) struct EngineAt(pub(crate) PathBuf);

impl EngineAt {
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, &Value::Null)
    }

    #[track_caller]
    pub(crate) fn send(&self, method: &str, path: &str, body: &Value) -> Response {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.send_bytes(method, path, "application/json", body.as_bytes())
    }

    #[track_caller]
    pub(crate) fn send_bytes(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Response {
        let mut stream = UnixStream::connect(&self.0).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        receive(&mut BufReader::new(stream))
    }
}
