//! Supervised services: the programs that `body/desktop/services.yaml` declares.
//!
//! Each service has one task, the [`service_task`], which alone owns its process. [`policy`], a pure function, decides
//! when the service runs. A function of the caller ([`RunServiceProbe`]) asks the service whether it is ready. Its
//! output goes to the container's log under its name. Its descendants end with it, because it runs beneath a supervisor
//! (see `crate::supervise`).
//!
//! [`Services`] is the handle: a client declares its need with [`Services::set_need`] and waits with
//! [`Services::wait_ready`]. The reason for a need is not part of this module.

mod declaration;
#[cfg(test)]
pub(crate) mod fake_processes;
mod log_lines;
mod policy;
mod process;
mod service_task;
#[cfg(test)]
mod tests;

pub(crate) use declaration::{ServiceDeclarations, ServiceNeed, ServiceProbe};

use crate::protocol::service::ServiceStatus;
use crate::supervise::{Supervisor, descendants};
use declaration::ServiceDeclaration;
use futures_util::future::BoxFuture;
use nix::unistd::Pid;
use process::spawn_service;
use service_task::{ServiceShutdownOrder, ServiceTask};
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};

/// How long a client waits for a service, restarts included.
const SERVICE_WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether a service answers its probe.
pub(crate) type RunServiceProbe = fn(&ServiceProbe) -> BoxFuture<'_, bool>;

/// Starts a service; see [`spawn_service`].
type SpawnService = fn(&ServiceDeclaration, u32) -> io::Result<(Supervisor, Receiver)>;

/// How the tasks start a service and ask whether it is ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServiceFunctions {
    spawn: SpawnService,
    probe: RunServiceProbe,
}

impl ServiceFunctions {
    /// Starts real processes.
    pub(crate) fn with_probe(probe: RunServiceProbe) -> Self {
        let spawn = spawn_service;
        Self { spawn, probe }
    }
}

/// The state of a service, as its task publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceView {
    pub(crate) ready: bool,
    /// The number of starts up to now.
    pub(crate) start_count: u64,
    /// A description for people.
    pub(crate) detail: String,
    /// The service does not run, and no client needs it.
    pub(crate) idle: bool,
    /// A user has ended the service.
    pub(crate) finished: bool,
    /// Pid of the supervisor below which the processes of the service run, while they do.
    supervisor_pid: Option<i32>,
}

/// A service and the channel of its state.
#[derive(Debug, Clone)]
struct ServiceSlot {
    declaration: Arc<ServiceDeclaration>,
    view: watch::Receiver<ServiceView>,
    /// Notified when a client gets no answer.
    silence: Arc<Notify>,
}

/// The shared handle of all services.
#[derive(Debug, Clone)]
pub(crate) struct Services {
    slots: Arc<[ServiceSlot]>,
    needs: Arc<watch::Sender<BTreeSet<ServiceNeed>>>,
}

impl Services {
    /// Starts the tasks, but no process yet. The tasks end all processes on `stop`.
    pub(crate) fn start(
        declarations: &ServiceDeclarations,
        functions: ServiceFunctions,
        stop: &watch::Receiver<bool>,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let needs = Arc::new(watch::Sender::new(BTreeSet::new()));
        let mut slots: Vec<ServiceSlot> = Vec::new();
        let mut tasks = Vec::new();
        let mut senders_by_name: BTreeMap<String, mpsc::Sender<()>> = BTreeMap::new();
        for declaration in declarations.all() {
            // A declaration names only services that are declared before it.
            let dependencies = slots
                .iter()
                .filter(|slot| declaration.dependencies.contains(&slot.declaration.name))
                .map(|slot| slot.view.clone())
                .collect();
            let (sender, dependents_ended) = mpsc::channel(1);
            let dependency_senders = declaration
                .dependencies
                .iter()
                .filter_map(|name| senders_by_name.get(name));
            let shutdown_order = ServiceShutdownOrder {
                dependents_ended,
                _dependency_senders: dependency_senders.cloned().collect(),
            };
            senders_by_name.insert(declaration.name.clone(), sender);
            let silence = Arc::new(Notify::new());
            let (owner, view) = ServiceTask::new(
                declaration.clone(),
                functions,
                dependencies,
                needs.clone(),
                silence.clone(),
                shutdown_order,
            );
            tasks.push(tokio::spawn(owner.run(stop.clone())));
            slots.push(ServiceSlot {
                declaration: declaration.clone(),
                view,
                silence,
            });
        }
        let slots = slots.into();
        (Self { slots, needs }, tasks)
    }

    /// Declares whether a client needs the services of that kind.
    pub(crate) fn set_need(&self, need: ServiceNeed, is_needed: bool) {
        self.needs.send_if_modified(|needs| match is_needed {
            true => needs.insert(need),
            false => needs.remove(&need),
        });
    }

    pub(crate) fn is_needed(&self, need: ServiceNeed) -> bool {
        self.needs.borrow().contains(&need)
    }

    /// Waits until all services of that kind and their dependencies are ready. The returned number rises with every
    /// restart of one of them.
    ///
    /// # Errors
    /// A description of a service that is not ready.
    pub(crate) async fn wait_ready(&self, need: ServiceNeed) -> Result<u64, String> {
        self.wait_ready_within(need, SERVICE_WAIT_TIMEOUT).await
    }

    async fn wait_ready_within(
        &self,
        need: ServiceNeed,
        time_limit: Duration,
    ) -> Result<u64, String> {
        let deadline = tokio::time::Instant::now() + time_limit;
        for slot in self.required_slots(need) {
            let mut view = slot.view.clone();
            let ready = view.wait_for(|view| view.ready);
            let waited = tokio::time::timeout_at(deadline, ready).await;
            if !matches!(waited, Ok(Ok(_))) {
                let (name, detail) = (&slot.declaration.name, slot.view.borrow().detail.clone());
                return Err(format!("`{name}` is not ready: {detail}"));
            }
        }
        // A service may have ended while this call waited for another.
        Ok(self.sum_start_counts(need))
    }

    /// The sum of the services' start counts; nothing when one of that kind is not ready now.
    pub(crate) fn start_count_if_ready(&self, need: ServiceNeed) -> Option<u64> {
        let is_ready = self
            .required_slots(need)
            .all(|slot| slot.view.borrow().ready);
        is_ready.then(|| self.sum_start_counts(need))
    }

    /// Waits until the X server is ready with another start count than `after`, and returns this count. Never returns
    /// where no X server is declared.
    pub(crate) async fn wait_next_display_server(&self, after: u64) -> u64 {
        let slots = &mut self.slots.iter();
        let server = slots.find(|slot| slot.declaration.readiness_probe == ServiceProbe::Display);
        let Some(server) = server else {
            return pending().await;
        };
        let mut view = server.view.clone();
        let is_next = |view: &ServiceView| view.ready && view.start_count != after;
        let next = view.wait_for(is_next).await.map(|view| view.start_count);
        match next {
            Ok(start_count) => start_count,
            // The task has ended, because the companion is ending.
            Err(_) => pending().await,
        }
    }

    /// The start count of the X server, whether it is ready or not.
    pub(crate) fn display_server_start_count(&self) -> u64 {
        let mut slots = self.slots.iter();
        let server = slots.find(|slot| slot.declaration.readiness_probe == ServiceProbe::Display);
        server.map_or(0, |slot| slot.view.borrow().start_count)
    }

    fn sum_start_counts(&self, need: ServiceNeed) -> u64 {
        self.required_slots(need)
            .map(|slot| slot.view.borrow().start_count)
            .sum()
    }

    fn required_slots(&self, need: ServiceNeed) -> impl Iterator<Item = &ServiceSlot> {
        self.slots
            .iter()
            .filter(move |slot| need.includes(slot.declaration.need))
    }

    /// Lists all services in the order of their declaration.
    pub(crate) fn list_services(&self) -> Vec<ServiceStatus> {
        let view = |slot: &ServiceSlot| {
            let view = slot.view.borrow();
            ServiceStatus {
                name: slot.declaration.name.clone(),
                ready: view.ready,
                idle: view.idle,
                detail: view.detail.clone(),
            }
        };
        self.slots.iter().map(view).collect()
    }

    /// The services of exactly this need, without those of needs that it includes.
    fn own_slots(&self, need: ServiceNeed) -> impl Iterator<Item = &ServiceSlot> {
        let slots = self.slots.iter();
        slots.filter(move |slot| slot.declaration.need == need)
    }

    /// The need of the service of that name.
    pub(crate) fn find_need(&self, name: &str) -> Option<ServiceNeed> {
        self.find_slot(name).map(|slot| slot.declaration.need)
    }

    /// Waits until the service of that name is ready.
    ///
    /// # Errors
    /// A description of why it is not ready.
    pub(crate) async fn wait_service_ready(&self, name: &str) -> Result<(), String> {
        let slot = self.find_slot(name).ok_or("the service is not declared")?;
        let mut view = slot.view.clone();
        let ready = view.wait_for(|view| view.ready);
        match tokio::time::timeout(SERVICE_WAIT_TIMEOUT, ready).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(slot.view.borrow().detail.clone()),
        }
    }

    /// Waits until no service of exactly this need runs.
    pub(crate) async fn wait_stopped(&self, need: ServiceNeed) {
        for slot in self.own_slots(need) {
            let mut view = slot.view.clone();
            // The task has ended, because the companion is ending.
            let _ = view.wait_for(|view| view.idle).await;
        }
    }

    fn find_slot(&self, name: &str) -> Option<&ServiceSlot> {
        let mut slots = self.slots.iter();
        slots.find(|slot| slot.declaration.name == name)
    }

    /// Describes the state of the services of exactly this need.
    pub(crate) fn describe_state(&self, need: ServiceNeed) -> String {
        let details = self
            .own_slots(need)
            .map(|slot| slot.view.borrow().detail.clone());
        details.collect::<Vec<_>>().join(", ")
    }

    /// Whether a user has closed a service of exactly this need, so that it does not restart automatically.
    pub(crate) fn has_finished(&self, need: ServiceNeed) -> bool {
        self.own_slots(need).any(|slot| slot.view.borrow().finished)
    }

    /// Whether a service of exactly this need has a file open whose name ends with `suffix`.
    pub(crate) async fn has_open_file(&self, need: ServiceNeed, suffix: &'static str) -> bool {
        let supervisors = self
            .own_slots(need)
            .filter_map(|slot| slot.view.borrow().supervisor_pid);
        let supervisors: Vec<Pid> = supervisors.map(Pid::from_raw).collect();
        // The scan covers thousands of files. If it fails, the file counts as open.
        let found = spawn_blocking(move || {
            let mut supervisors = supervisors.into_iter();
            supervisors
                .any(|supervisor| descendants::has_descendant_with_open_file(supervisor, suffix))
        });
        found.await.unwrap_or(true)
    }

    /// Restarts the ready services of exactly this need, because a client gets no answer.
    pub(crate) fn restart_silent(&self, need: ServiceNeed) {
        for slot in self.own_slots(need) {
            slot.silence.notify_waiters();
        }
    }

    /// Withdraws the need and waits until the tasks of the services have processed that.
    pub(crate) async fn reset_finished(&self, need: ServiceNeed) {
        self.set_need(need, false);
        for slot in self.own_slots(need) {
            let mut view = slot.view.clone();
            // The task has ended, because the companion is ending.
            let _ = view.wait_for(|view| !view.finished).await;
        }
    }
}

/// Loads the declarations of a body.
///
/// # Errors
/// A description of why they are invalid.
pub(crate) fn load_declarations(
    body: &Path,
    variables: &[(&str, String)],
) -> Result<ServiceDeclarations, String> {
    let path = body.join("desktop/services.yaml");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("`{}` can't be read: {error}", path.display()))?;
    ServiceDeclarations::parse(&text, variables)
        .map_err(|why| format!("`{}`: {why}", path.display()))
}
