//! How the tests reach the outside: the binary, an instance of their own, raw HTTP.

use crate::commands::Ran;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nothing that a test waits for takes longer, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A home folder, a project and an instance that no person uses.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) folder: PathBuf,
    pub(crate) project: PathBuf,
    pub(crate) instance: String,
    /// Further variables for every call.
    pub(crate) env: BTreeMap<String, String>,
}

impl Home {
    /// Beneath the build's temporary folder, emptied first.
    ///
    /// `OSCTL_TEST_SUFFIX` tells apart the instances of two checkouts that are tested at once.
    pub(crate) fn new(instance: &str) -> Self {
        let suffix = std::env::var("OSCTL_TEST_SUFFIX").unwrap_or_default();
        let instance = &format!("{instance}{suffix}");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("home-{instance}"));
        if folder.exists() {
            // What the container wrote belongs to whom the container ran as, which is root here.
            fs::remove_dir_all(&folder).unwrap();
        }
        let project = folder.join("project");
        fs::create_dir_all(&project).unwrap();
        Self {
            folder,
            project,
            instance: instance.into(),
            env: BTreeMap::new(),
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

    /// `osctl --instance NAME ARGS…` in the project, without the person's environment of osctl.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osctl"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OSCTL_")) {
            command.env_remove(name);
        }
        command
            .env("HOST_HOME", &self.folder)
            .env_remove("HOST_PWD")
            .envs(&self.env);
        command
            .current_dir(&self.project)
            .args(["--instance", &self.instance])
            .args(args);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    /// The command, which must succeed.
    pub(crate) fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    }

    pub(crate) fn up(&self) {
        self.ok(["up", "--yes", "--auto-ports"]);
    }

    /// Removes the instance and everything it left, as a person would.
    pub(crate) fn down(&self) {
        let ran = self.run(["down", "--purge", "--yes"]);
        // 3: it was never up.
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
        let status = self.json(["status"]);
        let address = status["endpoints"]["kernel"]
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

static SHARED: OnceLock<Home> = OnceLock::new();

/// Removes what the tests share; the image's build cache stays for the next time.
pub(crate) fn clean_up() {
    if let Some(home) = SHARED.get() {
        home.down();
    }
}

/// The instance that most tests share; made at the first call.
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

/// The companion's HTTP, spoken by hand, so that nothing is tidied up on the way.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) address: String,
    pub(crate) token: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The error's type and message, of an answer that is a failure in the agreed form.
    #[track_caller]
    pub(crate) fn error(&self) -> (u16, String, String) {
        let body = self.json();
        assert_eq!(body["status"], "failed", "{body}");
        let text = |key: &str| body["error"][key].as_str().unwrap().to_owned();
        (self.status, text("type"), text("message"))
    }
}

impl Api {
    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection {
            reader: BufReader::new(stream),
            address: self.address.clone(),
            token: self.token.clone(),
        }
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

    /// Executes code, queueing; the reply of a run that was taken.
    #[track_caller]
    pub(crate) fn exec(&self, code: &str) -> Value {
        self.exec_with(json!({"code": code}))
    }

    #[track_caller]
    pub(crate) fn exec_with(&self, mut request: Value) -> Value {
        request["queue"] = true.into();
        let response = self.post("/exec", &request);
        assert_eq!(
            response.status,
            200,
            "{}",
            String::from_utf8_lossy(&response.body)
        );
        response.json()
    }

    /// Waits until `question` gives an answer.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, mut question: impl FnMut(&Self) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(answer) = question(self) {
                return answer;
            }
            assert!(begin.elapsed() < PATIENCE, "{what} did not happen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The engine's own API, to look behind what osctl says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Engine;

impl Engine {
    #[track_caller]
    pub(crate) fn get(self, path: &str) -> Response {
        self.send("GET", path, &Value::Null)
    }

    #[track_caller]
    pub(crate) fn send(self, method: &str, path: &str, body: &Value) -> Response {
        EngineAt("/var/run/docker.sock".into()).send(method, path, body)
    }
}

/// The API of an engine that listens elsewhere.
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

/// One keep-alive connection.
#[derive(Debug)]
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    address: String,
    token: String,
}

impl Connection {
    /// A request with the right `Host` and token, unless `headers` say otherwise.
    #[track_caller]
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        self.write(method, path, headers, body);
        self.receive()
    }

    fn write(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let given = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !given("host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        if !given("authorization") && !given("x-api-key") {
            head += &format!("Authorization: Bearer {}\r\n", self.token);
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            head += &format!("{name}: {value}\r\n");
        }
        if !given("content-length") {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        // A server may refuse a body before it has read it.
        let _ = self.reader.get_mut().write_all(&bytes);
    }

    /// Asks for events, which [`Events`] then brings.
    #[track_caller]
    pub(crate) fn events(
        mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Events {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.write(method, path, headers, body.as_bytes());
        let (status, headers) = head(&mut self.reader);
        assert_eq!(status, 200);
        Events {
            reader: self.reader,
            kind: headers["content-type"].clone(),
            unread: Vec::new(),
        }
    }

    pub(crate) fn write_raw(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// What one read brings of the answer.
    pub(crate) fn first_bytes(&mut self, method: &str, path: &str) -> Vec<u8> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
            self.address, self.token
        );
        self.write_raw(head.as_bytes());
        let mut bytes = vec![0; 65536];
        let length = self.reader.get_mut().read(&mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }

    #[track_caller]
    pub(crate) fn receive(&mut self) -> Response {
        receive(&mut self.reader)
    }
}

/// The events of a run, as they come.
#[derive(Debug)]
pub(crate) struct Events {
    reader: BufReader<TcpStream>,
    pub(crate) kind: String,
    unread: Vec<u8>,
}

impl Events {
    /// The next line; nothing at the end.
    pub(crate) fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap().trim_end().to_owned());
            }
            self.unread.append(&mut chunk(&mut self.reader)?);
        }
    }
}

impl Iterator for Events {
    type Item = Value;

    /// The next event of NDJSON.
    fn next(&mut self) -> Option<Value> {
        let line = self.line()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}")))
    }
}

#[track_caller]
fn head(reader: &mut impl BufRead) -> (u16, BTreeMap<String, String>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    (status, headers)
}

#[track_caller]
fn receive(reader: &mut impl BufRead) -> Response {
    let (status, headers) = head(reader);
    let mut body = Vec::new();
    if headers
        .get("transfer-encoding")
        .is_some_and(|t| t == "chunked")
    {
        while let Some(mut chunk) = chunk(reader) {
            body.append(&mut chunk);
        }
    } else {
        body.resize(
            headers
                .get("content-length")
                .map_or(0, |l| l.parse().unwrap()),
            0,
        );
        reader.read_exact(&mut body).unwrap();
    }
    Response {
        status,
        headers,
        body,
    }
}

fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let length = usize::from_str_radix(line.trim(), 16).unwrap();
    let mut bytes = vec![0; length + 2];
    reader.read_exact(&mut bytes).unwrap();
    bytes.truncate(length);
    (length > 0).then_some(bytes)
}
