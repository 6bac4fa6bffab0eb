//! Services without processes: a test answers their probes and ends them.
//!
//! [`ServiceFunctions`] holds plain functions, so the fake services are in a thread-local value. The runtime of a test
//! runs in the thread of the test.

use super::declaration::{ServiceDeclaration, ServiceProbe};
use super::{ServiceFunctions, ServiceStatus, SpawnService};
use crate::companion::tests::clock::{advance, settle};
use crate::companion::tests::fake_supervisor::FakeSupervisor;
use crate::supervise::{Supervisor, SupervisorEvent};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending, ready};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, PipeWriter};
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;

thread_local! {
    static FAKE_SERVICES: RefCell<FakeServiceState> = RefCell::default();
}

#[derive(Debug, Default)]
struct FakeServiceState {
    /// The started services that the test has not taken.
    started: VecDeque<FakeService>,
    answering: Vec<ServiceProbe>,
    /// Whether a probe without an answer waits for one.
    holds_probes: bool,
    /// The next starts fail with this error.
    start_error: Option<io::ErrorKind>,
}

/// A service that was started.
#[derive(Debug)]
pub(crate) struct FakeService {
    pub(crate) name: String,
    /// The number of failures before this start.
    pub(crate) failures: u32,
    pub(crate) supervisor: FakeSupervisor,
    probe: ServiceProbe,
    _output: PipeWriter,
}

/// Removes the services of an earlier test in this thread, and returns the functions that start new ones.
pub(crate) fn fake_service_functions() -> ServiceFunctions {
    with_state(|state| *state = FakeServiceState::default());
    let spawn: SpawnService = spawn_fake_service;
    let probe = probe_fake_service;
    ServiceFunctions { spawn, probe }
}

fn with_state<T>(action: impl FnOnce(&mut FakeServiceState) -> T) -> T {
    FAKE_SERVICES.with_borrow_mut(action)
}

fn spawn_fake_service(
    declaration: &ServiceDeclaration,
    failures: u32,
) -> io::Result<(Supervisor, Receiver)> {
    if let Some(error) = with_state(|state| state.start_error) {
        return Err(error.into());
    }
    let (output, written) = io::pipe()?;
    let (supervisor, theirs) = FakeSupervisor::start();
    let service = FakeService {
        name: declaration.name.clone(),
        failures,
        supervisor,
        probe: declaration.readiness_probe.clone(),
        _output: written,
    };
    with_state(|state| state.started.push_back(service));
    Ok((theirs, Receiver::from_owned_fd(output.into())?))
}

fn probe_fake_service(probe: &ServiceProbe) -> BoxFuture<'_, bool> {
    with_state(|state| match state.answering.contains(probe) {
        false if state.holds_probes => pending().boxed(),
        does_answer => ready(does_answer).boxed(),
    })
}

/// Probes without an answer wait for one from now on.
pub(crate) fn hold_probes() {
    with_state(|state| state.holds_probes = true);
}

/// Lets starts fail, or succeed again.
pub(crate) fn refuse_starts(error: Option<io::ErrorKind>) {
    with_state(|state| state.start_error = error);
}

/// The next service that was started; `None` when there is none.
pub(crate) async fn next_started() -> Option<FakeService> {
    settle().await;
    with_state(|state| state.started.pop_front())
}

/// The next service that was started, which must have this name.
pub(crate) async fn expect_started(name: &str) -> FakeService {
    let service = next_started().await;
    let service = service.unwrap_or_else(|| panic!("`{name}` was not started"));
    assert_eq!(service.name, name);
    service
}

/// Starts all services that are needed: each becomes ready when it was started.
pub(crate) async fn start_needed() -> Vec<FakeService> {
    let mut services = Vec::new();
    while let Some(service) = next_started().await {
        service.become_ready().await;
        services.push(service);
    }
    services
}

/// Takes the service of this name out of `services`.
pub(crate) fn take_service(services: &mut Vec<FakeService>, name: &str) -> FakeService {
    let at = services.iter().position(|service| service.name == name);
    services.remove(at.unwrap())
}

/// Name and state of each service.
pub(crate) fn describe_states(services: &[ServiceStatus]) -> String {
    let states = services.iter().map(|service| {
        assert_eq!(service.ready, service.detail == "ready");
        format!("{}: {}", service.name, service.detail)
    });
    states.collect::<Vec<_>>().join("; ")
}

impl FakeService {
    /// Answers the next probe.
    pub(crate) async fn become_ready(&self) {
        with_state(|state| state.answering.push(self.probe.clone()));
        // The time between two probes.
        advance(Duration::from_millis(10)).await;
    }

    /// Ends with this code, or 128+n for signal n.
    pub(crate) async fn exit(&mut self, code: u8) {
        self.stop_answering();
        self.supervisor.exit(code).await;
    }

    /// Ends with its supervisor, which reports nothing.
    pub(crate) async fn kill_supervisor(&mut self) {
        self.stop_answering();
        self.supervisor.end().await;
    }

    /// Reports that the program can't be started, with this errno.
    pub(crate) async fn fail_start(&mut self, errno: i32) {
        self.stop_answering();
        self.supervisor
            .report(SupervisorEvent::NotStarted(errno))
            .await;
        self.supervisor.end().await;
    }

    /// Ends as the companion has requested.
    pub(crate) async fn exit_when_shut_down(&mut self) {
        self.supervisor.expect_shut_down().await;
        self.exit(0).await;
    }

    pub(crate) async fn exit_when_killed(&mut self) {
        self.supervisor.expect_kill().await;
        self.exit(137).await;
    }

    fn stop_answering(&self) {
        with_state(|state| state.answering.retain(|probe| *probe != self.probe));
    }
}
