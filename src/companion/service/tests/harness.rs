//! Services with their tasks, and the text that describes their states.

use crate::companion::service::fake_processes::{
    FakeService, describe_states, expect_started, fake_service_functions,
};
use crate::companion::service::{ServiceDeclarations, ServiceNeed, Services};
use crate::companion::tests::clock::{StoppedClock, assert_all_ended, settle};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A screen, a window manager that needs the screen, a viewer that needs the screen, and a browser that needs the
/// window manager.
pub(super) const ALL_SERVICES: &str = "
services:
- {name: screen, need: display, command: [x], ready: display}
- {name: windows, need: display, command: [x], after: [screen], ready: {socket: windows}}
- {name: viewer, need: viewer, command: [x], after: [screen], ready: {socket: viewer}}
- {name: browser, need: browser, command: [x], after: [screen, windows], ready: {socket: browser}, restart: on_failure, grace: 10}
";

/// A service that restarts after each end.
pub(super) const ONE_SERVICE: &str =
    "services: [{name: screen, need: display, command: [x], ready: display}]";

/// A service that a user may end.
pub(super) const ONE_CLOSABLE_SERVICE: &str =
    "services: [{name: screen, need: display, command: [x], ready: display, restart: on_failure}]";

pub(super) struct ServiceHarness {
    pub(super) services: Services,
    tasks: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    _clock: StoppedClock,
}

impl ServiceHarness {
    pub(super) fn start(declarations: &str) -> Self {
        let clock = StoppedClock::start();
        let declarations = ServiceDeclarations::parse(declarations, &[]).unwrap();
        let stop = watch::Sender::new(false);
        let functions = fake_service_functions();
        let (services, tasks) = Services::start(&declarations, functions, &stop.subscribe());
        Self {
            services,
            tasks,
            stop,
            _clock: clock,
        }
    }

    /// One service, which was started.
    pub(super) async fn start_one(declarations: &str) -> (Self, FakeService) {
        let harness = Self::start(declarations);
        harness.set_need(ServiceNeed::Display, true).await;
        let service = expect_started("screen").await;
        assert_eq!(harness.states(), "screen: starting");
        (harness, service)
    }

    /// One service, which is ready.
    pub(super) async fn start_one_ready(declarations: &str) -> (Self, FakeService) {
        let (harness, service) = Self::start_one(declarations).await;
        service.become_ready().await;
        assert_eq!(harness.states(), "screen: ready");
        (harness, service)
    }

    pub(super) async fn set_need(&self, need: ServiceNeed, is_needed: bool) {
        self.services.set_need(need, is_needed);
        settle().await;
    }

    /// Name and state of each service.
    pub(super) fn states(&self) -> String {
        describe_states(&self.services.list_services())
    }

    /// The companion ends.
    pub(super) async fn stop(&self) {
        self.stop.send_replace(true);
        settle().await;
    }

    /// Waits until all tasks have ended.
    pub(super) async fn wait_ended(self) {
        assert_all_ended(self.tasks).await;
    }
}
