//! The task that owns one service: it turns wake-ups into events and executes the actions of the policy.

use super::declaration::{ServiceDeclaration, ServiceNeed, ServiceRestartPolicy};
use super::log_lines::ServiceLog;
use super::policy::{ServiceAction, ServiceEvent, ServiceState};
use super::{RunServiceProbe, ServiceFunctions, ServiceView};
use crate::supervise::{SupervisedExit, Supervisor};
use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, timeout};

/// How long a service may take to become ready.
const SERVICE_START_TIMEOUT: Duration = Duration::from_secs(15);

/// Time limit of a supervisor to kill its processes; a supervisor that exceeds the limit is killed.
const SERVICE_REAP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two probes; many services are ready after a few of them.
const SERVICE_PROBE_INTERVAL: Duration = Duration::from_millis(10);

/// A service that does not answer within this time is not ready.
const SERVICE_PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The order in which services end with the companion: a service ends before its dependencies.
#[derive(Debug)]
pub(super) struct ServiceShutdownOrder {
    /// Closed when all services that depend on this one have ended.
    pub(super) dependents_ended: mpsc::Receiver<()>,
    /// Dropped when this service has ended.
    pub(super) _dependency_senders: Vec<mpsc::Sender<()>>,
}

#[derive(Debug)]
pub(super) struct ServiceTask {
    declaration: Arc<ServiceDeclaration>,
    functions: ServiceFunctions,
    dependencies: Vec<watch::Receiver<ServiceView>>,
    needs: watch::Receiver<BTreeSet<ServiceNeed>>,
    silence: Arc<Notify>,
    view: watch::Sender<ServiceView>,
    state: ServiceState,
    process: Option<Supervisor>,
    /// The dependencies' start counts when this process started.
    dependency_start_count: u64,
    started: Instant,
    /// When the process must have ended, or when the service may restart.
    deadline: Option<Instant>,
    last_exit: String,
    start_count: u64,
    shutdown_order: ServiceShutdownOrder,
}

impl ServiceTask {
    pub(super) fn new(
        declaration: Arc<ServiceDeclaration>,
        functions: ServiceFunctions,
        dependencies: Vec<watch::Receiver<ServiceView>>,
        needs: Arc<watch::Sender<BTreeSet<ServiceNeed>>>,
        silence: Arc<Notify>,
        shutdown_order: ServiceShutdownOrder,
    ) -> (Self, watch::Receiver<ServiceView>) {
        let (view, seen) = watch::channel(ServiceView {
            ready: false,
            start_count: 0,
            detail: "on demand".into(),
            idle: true,
            finished: false,
            supervisor_pid: None,
        });
        let owner = Self {
            declaration,
            functions,
            dependencies,
            needs: needs.subscribe(),
            silence,
            view,
            state: ServiceState::Off,
            process: None,
            dependency_start_count: 0,
            started: Instant::now(),
            deadline: None,
            last_exit: String::new(),
            start_count: 0,
            shutdown_order,
        };
        (owner, seen)
    }

    /// Runs until `stop`; returns after the process has ended.
    #[tracing::instrument(name = "service", skip_all, fields(service = %self.declaration.name))]
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            self.apply_needs();
            let event = tokio::select! {
                // The wait also ends when the sender is dropped, because the companion is ending.
                _ = stop.wait_for(|stop| *stop) => break,
                event = self.next_event() => event,
            };
            if let Some(event) = event {
                self.apply_event(event);
            }
        }
        // The channel carries no messages; it closes when the last sender is dropped.
        while self.shutdown_order.dependents_ended.recv().await.is_some() {}
        if let Some(mut process) = self.process.take() {
            let grace = self.declaration.grace;
            process.shut_down(grace);
            let end = timeout(grace + SERVICE_REAP_TIMEOUT, process.wait_exit());
            if end.await.is_err() {
                process.kill_supervisor();
                process.wait_exit().await;
            }
        }
    }

    /// Turns changes of needs and dependencies into events that are valid in the current state.
    fn apply_needs(&mut self) {
        let is_needed = (self.needs.borrow_and_update().iter())
            .any(|need| need.includes(self.declaration.need));
        match (self.state, is_needed) {
            (ServiceState::Off | ServiceState::Stopping { restarts: false }, true) => {
                self.apply_event(ServiceEvent::Needed)
            }
            (ServiceState::Off | ServiceState::Stopping { restarts: false }, false) => {}
            (_, false) => self.apply_event(ServiceEvent::NotNeeded),
            (_, true) => {}
        }
        let dependencies = self.read_dependencies();
        match self.state {
            ServiceState::Waiting { .. } if dependencies.is_some() => {
                self.apply_event(ServiceEvent::DependenciesReady)
            }
            ServiceState::Starting { .. } | ServiceState::Ready { .. }
                if dependencies != Some(self.dependency_start_count) =>
            {
                self.apply_event(ServiceEvent::DependenciesLost);
            }
            _ => {}
        }
    }

    /// The sum of the dependencies' start counts; nothing when one is not ready.
    fn read_dependencies(&mut self) -> Option<u64> {
        let mut start_counts = 0;
        let mut is_ready = true;
        for view in &mut self.dependencies {
            let view = view.borrow_and_update();
            is_ready &= view.ready;
            start_counts += view.start_count;
        }
        is_ready.then_some(start_counts)
    }

    /// Waits for the next event; returns nothing when the task should only check its inputs again.
    async fn next_event(&mut self) -> Option<ServiceEvent> {
        let is_starting = matches!(self.state, ServiceState::Starting { .. });
        let is_ready = matches!(self.state, ServiceState::Ready { .. });
        let start_deadline = self.started + SERVICE_START_TIMEOUT;
        tokio::select! {
            biased;
            end = wait_exit(&mut self.process) => Some(self.handle_exit(&end)),
            () = wait_input_change(&mut self.needs, &mut self.dependencies) => None,
            () = wait_deadline(self.deadline) => {
                self.deadline = None;
                match &mut self.process {
                    Some(process) => {
                        process.kill_supervisor();
                        None
                    }
                    None => Some(ServiceEvent::BackOffElapsed),
                }
            }
            () = wait_probe_success(&self.declaration, self.functions.probe), if is_starting => Some(ServiceEvent::ProbeSucceeded),
            () = tokio::time::sleep_until(start_deadline), if is_starting => Some(ServiceEvent::StartTimedOut),
            () = self.silence.notified(), if is_ready => Some(ServiceEvent::StartTimedOut),
        }
    }

    fn handle_exit(&mut self, exit: &SupervisedExit) -> ServiceEvent {
        self.process = None;
        self.deadline = None;
        let is_user_exit =
            exit.code() == 0 && self.declaration.restart == ServiceRestartPolicy::OnFailure;
        self.last_exit = match exit {
            SupervisedExit::Code(code @ 129..) => format!("ended by signal {}", code - 128),
            SupervisedExit::Code(code) => format!("ended with exit code {code}"),
            SupervisedExit::SupervisorKilled => "ended, because its supervisor was killed".into(),
            SupervisedExit::NotStarted(why) => format!("can't be started: {why}"),
        };
        if !matches!(self.state, ServiceState::Stopping { .. }) {
            tracing::warn!(exit = %self.last_exit, "the service ended");
        }
        let uptime = self.started.elapsed();
        ServiceEvent::Exited {
            uptime,
            is_user_exit,
        }
    }

    fn apply_event(&mut self, event: ServiceEvent) {
        let (state, action) = self.state.next_state(event);
        tracing::debug!(?event, ?state, "the service changes its state");
        self.state = state;
        match action {
            ServiceAction::NoAction => {}
            ServiceAction::Start => self.start_process(),
            ServiceAction::Stop => {
                let grace = self.declaration.grace;
                self.deadline = Some(Instant::now() + grace + SERVICE_REAP_TIMEOUT);
                if let Some(process) = &self.process {
                    process.shut_down(grace);
                }
            }
            ServiceAction::Kill => {
                if event == ServiceEvent::StartTimedOut {
                    tracing::warn!("the companion ends the service, which does not answer");
                    // The reset keeps the timeout from firing again; the task waits for the end.
                    self.started = Instant::now();
                }
                self.deadline = Some(Instant::now() + SERVICE_REAP_TIMEOUT);
                self.process.iter().for_each(Supervisor::kill_tree);
            }
            ServiceAction::BackOff(pause) => self.deadline = Some(Instant::now() + pause),
        }
        self.publish_view();
    }

    fn start_process(&mut self) {
        self.dependency_start_count = self.read_dependencies().unwrap_or_default();
        self.started = Instant::now();
        self.start_count += 1;
        for path in &self.declaration.stale_files {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "the companion can't remove a file of the service");
                }
                _ => {}
            }
        }
        let failures = match self.state {
            ServiceState::Starting { failures } => failures,
            _ => 0,
        };
        match (self.functions.spawn)(&self.declaration, failures) {
            Ok((process, output)) => {
                tracing::info!("the service started");
                tokio::spawn(ServiceLog::new(&self.declaration.name).follow_output(output));
                self.process = Some(process);
            }
            Err(error) => {
                self.last_exit = format!("can't be started: {error}");
                tracing::warn!(%error, "the service can't be started");
                self.apply_event(ServiceEvent::Exited {
                    uptime: Duration::ZERO,
                    is_user_exit: false,
                });
            }
        }
    }

    fn publish_view(&self) {
        let detail = match self.state {
            ServiceState::Off => "on demand".into(),
            ServiceState::Waiting { .. } => "waiting for the services in `after`".into(),
            ServiceState::Starting { failures: 0 } => "starting".into(),
            ServiceState::Starting { .. } => format!("restarting: {}", self.last_exit),
            ServiceState::Ready { .. } => "ready".into(),
            ServiceState::BackingOff { .. } => format!("restarting soon: {}", self.last_exit),
            ServiceState::Stopping { .. } => "ending".into(),
            ServiceState::Finished => "closed".into(),
        };
        self.view.send_replace(ServiceView {
            ready: matches!(self.state, ServiceState::Ready { .. }),
            start_count: self.start_count,
            detail,
            idle: matches!(self.state, ServiceState::Off | ServiceState::Finished),
            finished: self.state == ServiceState::Finished,
            supervisor_pid: self.process.as_ref().map(Supervisor::pid),
        });
    }
}

async fn wait_exit(process: &mut Option<Supervisor>) -> SupervisedExit {
    match process {
        Some(process) => process.wait_exit().await,
        None => pending().await,
    }
}

async fn wait_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Waits until a need or a dependency changes.
async fn wait_input_change(
    needs: &mut watch::Receiver<BTreeSet<ServiceNeed>>,
    dependencies: &mut [watch::Receiver<ServiceView>],
) {
    tokio::select! {
        _ = needs.changed() => {}
        () = wait_dependency_change(dependencies) => {}
    }
}

async fn wait_dependency_change(dependencies: &mut [watch::Receiver<ServiceView>]) {
    if dependencies.is_empty() {
        return pending().await;
    }
    let changes = dependencies.iter_mut().map(|view| Box::pin(view.changed()));
    let (_, _, _) = futures_util::future::select_all(changes).await;
}

async fn wait_probe_success(declaration: &ServiceDeclaration, run_probe: RunServiceProbe) {
    let probe = || run_probe(&declaration.readiness_probe);
    while timeout(SERVICE_PROBE_TIMEOUT, probe()).await != Ok(true) {
        tokio::time::sleep(SERVICE_PROBE_INTERVAL).await;
    }
}
