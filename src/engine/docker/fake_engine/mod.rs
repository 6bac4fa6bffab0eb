//! An engine in memory for unit tests: the part of the Docker API that the keeper and `up` use, without sockets.
//!
//! bollard sends its requests through a custom transport: each request has its own HTTP connection in memory. No test
//! waits for the kernel, so a test can stop the clock. [`FakeEngine::at`] decides what a call meets: a refusal, a lost
//! connection, or an engine that never answers.
//!
//! ```text
//! Docker ── bollard ── HTTP in memory ──▶ rules ──▶ api ──▶ objects: containers, images, networks
//!                                                    ├────▶ the companion that the test passes
//!                                                    └────▶ published ports, if the test wants any
//! ```

mod api;
mod objects;
mod ports;

pub(crate) use objects::{FakeAdmission, FakeContainer, FakeEngineObjects, FakeImage};
pub(crate) use ports::{FakeHttpAnswer, FakeHttpReply};

use bollard::{API_DEFAULT_VERSION, BollardRequest};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use ports::FakePorts;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;

/// Bytes of a connection that wait to be read.
const FAKE_CONNECTION_BYTES: usize = 64 << 10;

/// The engines by the paths of their sockets, which do not exist.
static FAKE_ENGINES: Mutex<BTreeMap<PathBuf, Arc<FakeEngineCore>>> = Mutex::new(BTreeMap::new());

/// What a call meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallEffect {
    /// The engine acts and answers.
    Act,
    /// The engine does nothing and answers with status 500.
    Refuse,
    /// The connection ends before the engine acts.
    LoseRequest,
    /// The engine acts, and the connection ends without an answer.
    LoseReply,
    /// The engine never acts. [`FakeEngine::hung`] returns.
    HangBefore,
    /// The engine acts and never answers. [`FakeEngine::hung`] returns.
    HangAfter,
    /// The engine acts, and answers after this time.
    ReplyAfter(Duration),
    /// The command of this `exec` has this result.
    Exec(FakeExecResult),
}

/// The result of a command in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FakeExecResult {
    pub(crate) code: i64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command in the container of this ID.
type FakeCompanion = Box<dyn Fn(&mut FakeEngineObjects, &str, &[String]) -> FakeExecResult + Send>;
type CallRule = Box<dyn FnMut(&mut FakeEngineObjects, &str) -> Option<CallEffect> + Send>;

struct FakeEngineCore {
    state: Mutex<FakeEngineState>,
    hung: Notify,
    ports: OnceLock<FakePorts>,
}

struct FakeEngineState {
    objects: FakeEngineObjects,
    companion: FakeCompanion,
    rules: Vec<CallRule>,
    /// All calls, as `VERB OBJECT DETAIL`.
    calls: Vec<String>,
}

/// The test's handle to an engine, which exists as long as the handle.
pub(crate) struct FakeEngine {
    socket: PathBuf,
    core: Arc<FakeEngineCore>,
}

impl fmt::Debug for FakeEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FakeEngine({})", self.socket.display())
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        FAKE_ENGINES.lock().remove(&self.socket);
    }
}

impl FakeEngine {
    /// An engine at this path, whose containers run `companion`.
    pub(crate) fn start(
        socket: &Path,
        companion: impl Fn(&mut FakeEngineObjects, &str, &[String]) -> FakeExecResult + Send + 'static,
    ) -> Self {
        let state = FakeEngineState {
            objects: FakeEngineObjects::default(),
            companion: Box::new(companion),
            rules: Vec::new(),
            calls: Vec::new(),
        };
        let core = Arc::new(FakeEngineCore {
            state: Mutex::new(state),
            hung: Notify::new(),
            ports: OnceLock::new(),
        });
        FAKE_ENGINES
            .lock()
            .insert(socket.to_owned(), Arc::clone(&core));
        Self {
            socket: socket.to_owned(),
            core,
        }
    }

    /// From now on running containers publish their ports on this address, and answer requests so.
    pub(crate) fn publish_ports(&self, address: IpAddr, answer: FakeHttpAnswer) {
        let ports = FakePorts {
            address,
            answer,
            listeners: tokio::sync::Mutex::default(),
        };
        assert!(self.core.ports.set(ports).is_ok(), "the engine has ports");
    }

    /// Reads or changes the objects.
    pub(crate) fn with<T>(&self, use_objects: impl FnOnce(&mut FakeEngineObjects) -> T) -> T {
        use_objects(&mut self.core.state.lock().objects)
    }

    /// The first call that begins with `call` meets what `rule` returns.
    pub(crate) fn at(
        &self,
        call: &'static str,
        rule: impl FnOnce(&mut FakeEngineObjects) -> CallEffect + Send + 'static,
    ) {
        let mut rule = Some(rule);
        self.add_rule(move |objects, named| match begins_with(named, call) {
            true => rule.take().map(|rule| rule(objects)),
            false => None,
        });
    }

    /// Every call that begins with `call` meets this effect.
    pub(crate) fn always_at(&self, call: &'static str, effect: CallEffect) {
        self.add_rule(move |_, named| begins_with(named, call).then(|| effect.clone()));
    }

    /// The call with this number, counted from now, meets this effect.
    pub(crate) fn at_number(&self, number: usize, effect: CallEffect) {
        self.at_number_with(number, move |_| effect);
    }

    /// The call with this number, counted from now, meets what `rule` returns.
    pub(crate) fn at_number_with(
        &self,
        number: usize,
        rule: impl FnOnce(&mut FakeEngineObjects) -> CallEffect + Send + 'static,
    ) {
        let (mut rule, mut seen) = (Some(rule), 0);
        self.add_rule(move |objects, _| {
            seen += 1;
            match seen > number {
                true => rule.take().map(|rule| rule(objects)),
                false => None,
            }
        });
    }

    fn add_rule(
        &self,
        rule: impl FnMut(&mut FakeEngineObjects, &str) -> Option<CallEffect> + Send + 'static,
    ) {
        self.core.state.lock().rules.push(Box::new(rule));
    }

    /// Removes all rules and forgets the calls.
    pub(crate) fn reset_calls(&self) {
        let mut state = self.core.state.lock();
        state.rules.clear();
        state.calls.clear();
    }

    /// The calls since the last reset.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.core.state.lock().calls.clone()
    }

    /// Returns when a call hangs.
    pub(crate) async fn hung(&self) {
        self.core.hung.notified().await;
    }
}

fn begins_with(named: &str, call: &str) -> bool {
    let rest = named.strip_prefix(call);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

impl FakeEngineState {
    /// Records a call and returns what it meets.
    fn meet_call(&mut self, named: &str) -> CallEffect {
        self.calls.push(named.to_owned());
        let Self { rules, objects, .. } = self;
        let mut effects = rules.iter_mut().map(|rule| rule(objects, named));
        let effect = effects.find_map(|effect| effect);
        match effect.unwrap_or(CallEffect::Act) {
            // The rule may have ended the engine.
            CallEffect::Act if self.objects.is_away() => CallEffect::LoseRequest,
            effect => effect,
        }
    }
}

/// A client of the fake engine at this address, if there is one.
pub(super) fn open_fake_client(url: &str) -> Option<bollard::Docker> {
    let socket = Path::new(url.strip_prefix("unix://")?);
    let core = FAKE_ENGINES.lock().get(socket).cloned()?;
    let transport = move |request| send_request(Arc::clone(&core), request);
    let timeout = Duration::from_secs(super::ENGINE_REQUEST_TIMEOUT).as_secs();
    bollard::Docker::connect_with_custom_transport(
        transport,
        Some("http://fake"),
        timeout,
        API_DEFAULT_VERSION,
    )
    .ok()
}

/// Sends a request through a connection of its own.
async fn send_request(
    core: Arc<FakeEngineCore>,
    request: BollardRequest,
) -> Result<Response<Incoming>, bollard::errors::Error> {
    let (near, far) = tokio::io::duplex(FAKE_CONNECTION_BYTES);
    let service = service_fn(move |request| serve_request(Arc::clone(&core), request));
    let served = server::Builder::new()
        .serve_connection(TokioIo::new(far), service)
        .with_upgrades();
    tokio::spawn(served);
    let (mut sender, connection) = client::handshake(TokioIo::new(near)).await?;
    tokio::spawn(connection.with_upgrades());
    Ok(sender.send_request(request).await?)
}

/// Answers a request. An error ends the connection without an answer.
async fn serve_request(
    core: Arc<FakeEngineCore>,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let lost = || Err(io::Error::from(io::ErrorKind::ConnectionReset));
    let call = api::EngineCall::read(request).await?;
    let (effect, reply) = {
        let mut state = core.state.lock();
        let named = call.describe(&state.objects);
        let effect = state.meet_call(&named);
        let reply = match &effect {
            CallEffect::Act
            | CallEffect::LoseReply
            | CallEffect::ReplyAfter(_)
            | CallEffect::HangAfter => Some(call.perform(&mut state, None)),
            CallEffect::Exec(result) => Some(call.perform(&mut state, Some(result.clone()))),
            CallEffect::Refuse => Some(api::refuse(500, "the test refuses this call")),
            CallEffect::LoseRequest | CallEffect::HangBefore => None,
        };
        state.objects.note_two_running();
        (effect, reply)
    };
    core.publish_ports().await;
    match (effect, reply) {
        (CallEffect::HangBefore | CallEffect::HangAfter, _) => {
            core.hung.notify_one();
            std::future::pending().await
        }
        (CallEffect::LoseRequest | CallEffect::LoseReply, _) | (_, None) => lost(),
        (CallEffect::ReplyAfter(time), Some(reply)) => {
            tokio::time::sleep(time).await;
            Ok(reply)
        }
        (_, Some(reply)) => Ok(reply),
    }
}
