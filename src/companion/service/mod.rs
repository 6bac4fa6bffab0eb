//! Supervised services: the programs that `body/desktop/services.yaml` declares.
//!
//! Each has one task, the [`service_task`], which alone holds its process. When it runs is decided by
//! [`policy`], a pure function; whether it is ready is asked of it by [`probe`], never guessed from
//! time. What it writes goes to the container's log under its name. Its descendants end with it,
//! because it runs below a guard (see `companion::reaper`).
//!
//! [`Services`] is the handle: who needs what says so with [`Services::set_need`], and waits with
//! [`Services::wait_ready`]. Nothing here knows why somebody needs a service.

mod declaration;
mod log_lines;
mod policy;
mod probe;
mod process;
mod service_task;

pub(crate) use declaration::{ServiceDeclarations, ServiceNeed};
pub(crate) use process::spawn_service;

use crate::companion::descendants;
use crate::protocol::service::Service;
use declaration::{Probe, ServiceDeclaration};
use nix::unistd::Pid;
use service_task::{ServiceShutdownOrder, ServiceTask};
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};

/// How long anybody waits for a service, restarts included.
const SERVICE_WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// How a service stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceView {
    pub(crate) ready: bool,
    /// Rises with every start.
    pub(crate) life: u64,
    /// In words.
    pub(crate) detail: String,
    /// It does not run, and nobody needs it.
    pub(crate) idle: bool,
    /// It ended by somebody's wish.
    pub(crate) finished: bool,
    /// The process below which all of it runs, while it does.
    guard: Option<u32>,
}

/// A service and where its state is seen.
#[derive(Debug, Clone)]
struct ServiceSlot {
    declaration: Arc<ServiceDeclaration>,
    view: watch::Receiver<ServiceView>,
}

/// All services, for everyone who needs one.
#[derive(Debug, Clone)]
pub(crate) struct Services {
    seats: Arc<[ServiceSlot]>,
    needs: Arc<watch::Sender<BTreeSet<ServiceNeed>>>,
}

impl Services {
    /// Starts the tasks, and no process yet. They end all processes when `stop` is told.
    pub(crate) fn start(
        declarations: &ServiceDeclarations,
        stop: &watch::Receiver<bool>,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let needs = Arc::new(watch::Sender::new(BTreeSet::new()));
        let mut seats: Vec<ServiceSlot> = Vec::new();
        let mut tasks = Vec::new();
        let mut holds: BTreeMap<String, mpsc::Sender<()>> = BTreeMap::new();
        for declaration in declarations.all() {
            // A declaration names only what stands before it.
            let ground = seats
                .iter()
                .filter(|seat| declaration.after.contains(&seat.declaration.name))
                .map(|seat| seat.view.clone())
                .collect();
            let (hold, held) = mpsc::channel(1);
            let stands_on = declaration.after.iter().filter_map(|name| holds.get(name));
            let order = ServiceShutdownOrder {
                held,
                _holds: stands_on.cloned().collect(),
            };
            holds.insert(declaration.name.clone(), hold);
            let (owner, view) = ServiceTask::new(declaration.clone(), ground, needs.clone(), order);
            tasks.push(tokio::spawn(owner.run(stop.clone())));
            seats.push(ServiceSlot {
                declaration: declaration.clone(),
                view,
            });
        }
        let seats = seats.into();
        (Self { seats, needs }, tasks)
    }

    /// Says whether somebody needs the services of that kind.
    pub(crate) fn set_need(&self, need: ServiceNeed, is_needed: bool) {
        self.needs.send_if_modified(|needs| match is_needed {
            true => needs.insert(need),
            false => needs.remove(&need),
        });
    }

    pub(crate) fn is_needed(&self, need: ServiceNeed) -> bool {
        self.needs.borrow().contains(&need)
    }

    /// Waits until all services of that kind are ready, and what they stand on. The number rises
    /// whenever one of them has started anew.
    ///
    /// # Errors
    /// Why one of them is not, in words.
    pub(crate) async fn wait_ready(&self, need: ServiceNeed) -> Result<u64, String> {
        self.wait_ready_within(need, SERVICE_WAIT_TIMEOUT).await
    }

    async fn wait_ready_within(
        &self,
        need: ServiceNeed,
        patience: Duration,
    ) -> Result<u64, String> {
        let deadline = tokio::time::Instant::now() + patience;
        for seat in self.required_slots(need) {
            let mut view = seat.view.clone();
            let ready = view.wait_for(|view| view.ready);
            let waited = tokio::time::timeout_at(deadline, ready).await;
            if !matches!(waited, Ok(Ok(_))) {
                let (name, detail) = (&seat.declaration.name, seat.view.borrow().detail.clone());
                return Err(format!("`{name}` is not ready: {detail}"));
            }
        }
        // One may have ended while another was waited for.
        Ok(self.sum_generations(need))
    }

    /// The sum of all lives; nothing, when one of that kind is not ready now.
    pub(crate) fn generation_if_ready(&self, need: ServiceNeed) -> Option<u64> {
        let is_ready = self
            .required_slots(need)
            .all(|seat| seat.view.borrow().ready);
        is_ready.then(|| self.sum_generations(need))
    }

    /// Waits for the X server alone to be ready in another life than that one, and tells which.
    /// Never, where none is declared.
    pub(crate) async fn wait_next_display_server(&self, after: u64) -> u64 {
        let seats = &mut self.seats.iter();
        let server = seats.find(|seat| seat.declaration.ready == Probe::Display);
        let Some(server) = server else {
            return pending().await;
        };
        let mut view = server.view.clone();
        let is_next = |view: &ServiceView| view.ready && view.life != after;
        let next = view.wait_for(is_next).await.map(|view| view.life);
        match next {
            Ok(life) => life,
            // Its task is gone: so is the companion.
            Err(_) => pending().await,
        }
    }

    /// The life of the X server, whether it is ready or not.
    pub(crate) fn display_server_generation(&self) -> u64 {
        let mut seats = self.seats.iter();
        let server = seats.find(|seat| seat.declaration.ready == Probe::Display);
        server.map_or(0, |seat| seat.view.borrow().life)
    }

    fn sum_generations(&self, need: ServiceNeed) -> u64 {
        self.required_slots(need)
            .map(|seat| seat.view.borrow().life)
            .sum()
    }

    fn required_slots(&self, need: ServiceNeed) -> impl Iterator<Item = &ServiceSlot> {
        self.seats
            .iter()
            .filter(move |seat| need.includes(seat.declaration.need))
    }

    /// All, in their order.
    pub(crate) fn list_services(&self) -> Vec<Service> {
        let view = |seat: &ServiceSlot| {
            let view = seat.view.borrow();
            Service {
                name: seat.declaration.name.clone(),
                ready: view.ready,
                idle: view.idle,
                detail: view.detail.clone(),
            }
        };
        self.seats.iter().map(view).collect()
    }

    /// Of the services that only who has that need has.
    fn own_slots(&self, need: ServiceNeed) -> impl Iterator<Item = &ServiceSlot> {
        let seats = self.seats.iter();
        seats.filter(move |seat| seat.declaration.need == need)
    }

    /// Who needs the service of that name.
    pub(crate) fn need_of(&self, name: &str) -> Option<ServiceNeed> {
        self.find_slot(name).map(|seat| seat.declaration.need)
    }

    /// Waits until that one is ready.
    ///
    /// # Errors
    /// Why it is not, in words.
    pub(crate) async fn wait_service_ready(&self, name: &str) -> Result<(), String> {
        let seat = self.find_slot(name).ok_or("it is not declared")?;
        let mut view = seat.view.clone();
        let ready = view.wait_for(|view| view.ready);
        match tokio::time::timeout(SERVICE_WAIT_TIMEOUT, ready).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(seat.view.borrow().detail.clone()),
        }
    }

    /// Waits until those that only who has that need has do not run.
    pub(crate) async fn wait_stopped(&self, need: ServiceNeed) {
        for seat in self.own_slots(need) {
            let mut view = seat.view.clone();
            // Its task is gone: so is the companion.
            let _ = view.wait_for(|view| view.idle).await;
        }
    }

    fn find_slot(&self, name: &str) -> Option<&ServiceSlot> {
        let mut seats = self.seats.iter();
        seats.find(|seat| seat.declaration.name == name)
    }

    /// How the services of that need alone stand, in words.
    pub(crate) fn describe_state(&self, need: ServiceNeed) -> String {
        let details = self
            .own_slots(need)
            .map(|seat| seat.view.borrow().detail.clone());
        details.collect::<Vec<_>>().join(", ")
    }

    /// Whether one of them was closed by somebody, and so is not started again by itself.
    pub(crate) fn has_finished(&self, need: ServiceNeed) -> bool {
        self.own_slots(need).any(|seat| seat.view.borrow().finished)
    }

    /// Whether one of them has a file open whose name ends so.
    pub(crate) async fn has_open(&self, need: ServiceNeed, ending: &'static str) -> bool {
        let guards = self
            .own_slots(need)
            .filter_map(|seat| seat.view.borrow().guard);
        let guards: Vec<Pid> = guards.map(|pid| Pid::from_raw(pid.cast_signed())).collect();
        // There are thousands of files to look at. What can't be told may well be.
        let looked = spawn_blocking(move || {
            let mut guards = guards.into_iter();
            guards.any(|guard| descendants::have_file_open(guard, ending))
        });
        looked.await.unwrap_or(true)
    }

    /// Says that nobody needs them any more, and waits until they have heard it.
    pub(crate) async fn reset_finished(&self, need: ServiceNeed) {
        self.set_need(need, false);
        for seat in self.own_slots(need) {
            let mut view = seat.view.clone();
            // Its task is gone: so is the companion.
            let _ = view.wait_for(|view| !view.finished).await;
        }
    }
}

/// The declarations of a body.
///
/// # Errors
/// Why they can't be used, in words.
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
