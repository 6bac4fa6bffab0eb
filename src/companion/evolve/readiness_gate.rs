//! The readiness gate: a container that a run has created refuses requests from outside until the keeper reports that
//! the container is verified. If the keeper rolled the container back, the effects of such requests would be lost.
//!
//! ```text
//! start ── a keeper? ──▶ unverified ── `osctl resume`, or no run is swapping or verifying ──▶ verified
//!    └────── none ─────────────────────────────────────────────────────────────────────────▲
//! ```
//!
//! The keeper signals the result with a command, so that no client waits longer than the verification takes. The gate
//! also asks for the state of the run, in case the command is missed. The gate also opens when the keeper gives no
//! reply for [`EVOLVE_KEEPER_SILENCE_TIMEOUT`], because the keeper has ended or hangs.

use super::EvolveHandle;
use super::keeper_client::send_keeper_request;
use crate::companion::admission::AdmissionControl;
use crate::companion::session_state::EvolveCheckpoints;
use crate::protocol::evolve::{EvolveRunId, EvolveStage, EvolveStatus, KeeperReply, KeeperRequest};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Time between two requests to the keeper.
const EVOLVE_STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// How long one reply may take.
const EVOLVE_STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the keeper may take to listen: the engine starts both containers together when it starts.
const EVOLVE_KEEPER_START_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a keeper that placed this container may give no reply: it may be restarting, and then rolls the container
/// back. With the last request, the gate is open within 30 s.
const EVOLVE_KEEPER_SILENCE_TIMEOUT: Duration = Duration::from_secs(25);

impl EvolveHandle {
    /// Restores the state of the last container, and opens the gate when that is done and the keeper has verified this
    /// container.
    pub(crate) fn start_readiness_gate(&self, checkpoints: EvolveCheckpoints) {
        if !self.settings.is_embedded && self.settings.keeper_socket.exists() {
            self.parts.admission.mark_unverified();
            let evolve = self.clone();
            tokio::spawn(async move {
                // Pin the generation that this container started from, because the verification compares with it.
                evolve.parts.cryo.pin_newest().await;
                let parts = &evolve.parts;
                wait_until_verified(&parts.admission, &evolve.settings.keeper_socket).await;
                evolve.parts.cryo.unpin_all();
            });
        }
        self.start_restore(checkpoints);
    }
}

async fn wait_until_verified(gate: &AdmissionControl, keeper: &Path) {
    let run_ended = async {
        // Before the first reply, wait only for the keeper to listen.
        let mut silence_end = Instant::now() + EVOLVE_KEEPER_START_TIMEOUT;
        loop {
            match timeout(EVOLVE_STATUS_TIMEOUT, fetch_keeper_status(keeper)).await {
                // A run is in the stage *swapping* or *verifying*.
                Ok(Ok(status)) if status.restart_pending => {
                    silence_end = Instant::now() + EVOLVE_KEEPER_SILENCE_TIMEOUT;
                }
                Ok(Ok(_)) => return,
                _ if Instant::now() > silence_end => return,
                _ => {}
            }
            sleep(EVOLVE_STATUS_INTERVAL).await;
        }
    };
    tokio::select! {
        () = gate.wait_verified() => {}
        () = run_ended => gate.mark_verified(),
    }
    tracing::info!("the readiness gate is open");
}

/// Asks the keeper for the status of its latest run.
async fn fetch_keeper_status(keeper: &Path) -> io::Result<EvolveStatus> {
    match send_keeper_request(keeper, &KeeperRequest::Status {}).await? {
        Some((KeeperReply::Status(status), _)) => Ok(status),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the run in progress, if a keeper reports one.
pub(super) async fn find_current_run(keeper: &Path) -> Option<EvolveRunId> {
    let status = timeout(EVOLVE_STATUS_TIMEOUT, fetch_keeper_status(keeper))
        .await
        .ok()?
        .ok()?;
    status.latest_run.filter(|_| status.evolve_in_progress)
}

/// Returns when the keeper says that the run has ended and left the container in place; without a run, when none has
/// started for a while. Without a reply of the keeper, the call does not return.
pub(super) async fn wait_not_replaced(keeper: &Path, run: Option<&EvolveRunId>) {
    match run {
        Some(run) => drop(wait_evolve_end(keeper, run.clone()).await),
        None => sleep(EVOLVE_KEEPER_START_TIMEOUT).await,
    }
    loop {
        if let Ok(Ok(status)) = timeout(EVOLVE_STATUS_TIMEOUT, fetch_keeper_status(keeper)).await {
            let is_on = status.evolve_in_progress;
            let is_replaced = run.is_some() && status.latest_status == Some(EvolveStage::Succeeded);
            if !is_on && !is_replaced {
                return;
            }
        }
        sleep(EVOLVE_STATUS_INTERVAL).await;
    }
}

/// Waits until the run has ended or the keeper ends the stream.
async fn wait_evolve_end(keeper: &Path, run: EvolveRunId) -> io::Result<()> {
    let request = KeeperRequest::Log {
        run,
        offset: 0,
        follow: true,
    };
    let Some((mut reply, mut answer)) = send_keeper_request(keeper, &request).await? else {
        return Ok(());
    };
    loop {
        match reply {
            KeeperReply::Record(record) if record.status.has_ended() => return Ok(()),
            KeeperReply::Record(_) | KeeperReply::Log { .. } => {}
            _ => return Ok(()),
        }
        match answer.next_reply().await? {
            Some(next) => reply = next,
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        EVOLVE_KEEPER_SILENCE_TIMEOUT, EVOLVE_KEEPER_START_TIMEOUT, find_current_run,
        wait_not_replaced, wait_until_verified,
    };
    use crate::companion::admission::{AdmissionControl, ListenerKind};
    use crate::companion::evolve::tests::fake_keeper::FakeStatusKeeper;
    use crate::protocol::evolve::EvolveStage;
    use std::path::{Path, PathBuf};
    use std::time::Duration;
    use tempfile::TempDir;
    use tokio::net::UnixListener;
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, sleep, timeout};

    /// No container waits longer for a keeper that gives no reply.
    const MAX_CLOSED: Duration = Duration::from_secs(30);
    /// Longer than a keeper takes to verify a container.
    const LONG_RUN: Duration = Duration::from_secs(150);

    /// Starts a keeper that places a container.
    fn start_fake_keeper(socket: &Path) -> (FakeStatusKeeper, JoinHandle<()>) {
        let (keeper, task) = FakeStatusKeeper::start_with_task(socket);
        keeper.begin_deploy();
        (keeper, task)
    }

    /// Waits for two more status requests.
    async fn wait_more_requests(keeper: &FakeStatusKeeper) {
        let twice_more = keeper.request_count() + 2;
        let waited = timeout(Duration::from_secs(60), async {
            while keeper.request_count() < twice_more {
                sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.expect("the keeper is asked again");
    }

    /// An unverified container, which asks the keeper at this socket.
    struct WaitingContainer {
        gate: AdmissionControl,
        waiter: JoinHandle<()>,
    }

    impl WaitingContainer {
        fn start(socket: &Path) -> Self {
            let gate = AdmissionControl::default();
            gate.mark_unverified();
            let (waiting, path) = (gate.clone(), socket.to_owned());
            let waiter = tokio::spawn(async move { wait_until_verified(&waiting, &path).await });
            Self { gate, waiter }
        }

        fn is_open(&self) -> bool {
            self.gate.admit(ListenerKind::Outside).is_some()
        }

        /// Waits until the gate is open. Returns the time that this took.
        async fn open_time(self) -> Duration {
            let started_at = Instant::now();
            assert!(!self.is_open() && self.gate.admit(ListenerKind::Inside).is_some());
            timeout(LONG_RUN, self.waiter).await.unwrap().unwrap();
            assert!(self.gate.admit(ListenerKind::Outside).is_some());
            started_at.elapsed()
        }
    }

    /// A keeper that verifies the container, which waits.
    async fn start_verifying() -> (TempDir, PathBuf, WaitingContainer, FakeKeeperTask) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let (keeper, task) = start_fake_keeper(&socket);
        let container = WaitingContainer::start(&socket);
        wait_more_requests(&keeper).await;
        (folder, socket, container, FakeKeeperTask { keeper, task })
    }

    struct FakeKeeperTask {
        keeper: FakeStatusKeeper,
        task: JoinHandle<()>,
    }

    impl FakeKeeperTask {
        /// Ends the keeper, whose socket stays.
        async fn kill(self) {
            self.task.abort();
            assert!(self.task.await.unwrap_err().is_cancelled());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_opens_immediately_at_the_end_of_the_run_or_the_keepers_command() {
        for is_command in [true, false] {
            let (_folder, _socket, container, fake) = start_verifying().await;
            sleep(LONG_RUN).await;
            assert!(!container.is_open(), "the run has not ended");
            match is_command {
                true => container.gate.mark_verified(),
                false => fake.keeper.end_run(EvolveStage::RolledBack),
            }
            container.waiter.await.unwrap();
            assert!(container.gate.admit(ListenerKind::Outside).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_dies_after_the_record_of_the_end_closes_the_gate_for_30_s_at_most() {
        let (_folder, _socket, container, fake) = start_verifying().await;
        fake.kill().await;
        let time = container.open_time().await;
        assert!(
            time > EVOLVE_KEEPER_SILENCE_TIMEOUT / 2 && time < MAX_CLOSED,
            "{time:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_accepts_and_stays_silent_closes_the_gate_for_30_s_at_most() {
        let (_folder, _socket, container, fake) = start_verifying().await;
        fake.keeper.stop_replying();
        let time = container.open_time().await;
        assert!(time < MAX_CLOSED, "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_restarts_decides_about_the_gate() {
        let (_folder, socket, container, fake) = start_verifying().await;
        fake.kill().await;
        sleep(EVOLVE_KEEPER_SILENCE_TIMEOUT / 2).await;
        std::fs::remove_file(&socket).unwrap();
        let (next, _task) = start_fake_keeper(&socket);
        // The next keeper rolls the container back: no request may be accepted until then.
        sleep(LONG_RUN).await;
        assert!(!container.is_open());
        next.end_run(EvolveStage::RolledBack);
        assert!(container.open_time().await < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_keeper_does_not_block_the_gate() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        // An ended keeper leaves its socket.
        drop(UnixListener::bind(&socket).unwrap());
        let time = WaitingContainer::start(&socket).open_time().await;
        assert!(
            time > EVOLVE_KEEPER_START_TIMEOUT && time < EVOLVE_KEEPER_SILENCE_TIMEOUT,
            "{time:?}"
        );
    }

    #[tokio::test]
    async fn a_quiesced_container_detects_the_end_of_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        assert_eq!(find_current_run(&socket).await, None);
        let (first, task) = start_fake_keeper(&socket);
        let run = find_current_run(&socket).await.unwrap();
        let waiter = {
            let socket = socket.clone();
            tokio::spawn(async move { wait_not_replaced(&socket, Some(&run)).await })
        };
        wait_more_requests(&first).await;
        task.abort();
        std::fs::remove_file(&socket).unwrap();
        let (next, task) = start_fake_keeper(&socket);
        wait_more_requests(&next).await;
        assert!(!waiter.is_finished());
        next.end_run(EvolveStage::RolledBack);
        waiter.await.unwrap();
        assert_eq!(find_current_run(&socket).await, None);
        task.abort();
    }
}
