//! The readiness gate: a container that a run has created refuses requests from outside until the keeper reports that
//! the container is verified. If the keeper rolled the container back, the effects of such requests would be lost.
//!
//! ```text
//! start ── a keeper? ──▶ unverified ── `osctl resume`, or no run is swapping or verifying ──▶ verified
//!    └────── none ─────────────────────────────────────────────────────────────────────────▲
//! ```
//!
//! The keeper signals the result with a command, so that no client waits longer than the verification takes. The gate
//! also follows the run, in case the command is missed.

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
/// back.
const EVOLVE_KEEPER_LOST_TIMEOUT: Duration = Duration::from_secs(60);

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
                wait_until_verified(
                    &evolve.parts.admission,
                    &evolve.settings.keeper_socket,
                    EVOLVE_KEEPER_START_TIMEOUT,
                    EVOLVE_KEEPER_LOST_TIMEOUT,
                )
                .await;
                evolve.parts.cryo.unpin_all();
            });
        }
        self.start_restore(checkpoints);
    }
}

async fn wait_until_verified(
    gate: &AdmissionControl,
    keeper: &Path,
    listen_timeout: Duration,
    lease: Duration,
) {
    let run_ended = async {
        // Before the first reply, wait only for the keeper to listen.
        let mut last_reply = (Instant::now(), listen_timeout);
        loop {
            match timeout(EVOLVE_STATUS_TIMEOUT, find_deploying_run(keeper)).await {
                Ok(Ok(Some(run))) => {
                    // Ask again, whatever the reason for the end of the stream.
                    let _ = timeout(lease, wait_evolve_end(keeper, run)).await;
                    last_reply = (Instant::now(), lease);
                }
                Ok(Ok(None)) => return,
                _ if last_reply.0.elapsed() > last_reply.1 => return,
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

/// Returns the run that is in the stage *swapping* or *verifying*.
async fn find_deploying_run(keeper: &Path) -> io::Result<Option<EvolveRunId>> {
    let status = fetch_keeper_status(keeper).await?;
    Ok(status.latest_run.filter(|_| status.restart_pending))
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
    use super::{find_current_run, wait_not_replaced, wait_until_verified};
    use crate::companion::admission::{AdmissionControl, ListenerKind};
    use crate::protocol::evolve::{EvolveStage, EvolveStatus, KeeperReply};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixListener;
    use tokio::time::{sleep, timeout};

    /// A keeper that reports whether it places a container.
    #[derive(Default)]
    struct FakeStatusKeeper {
        is_deploying: AtomicBool,
        request_count: AtomicUsize,
    }

    fn start_fake_keeper(socket: &Path) -> (Arc<FakeStatusKeeper>, tokio::task::JoinHandle<()>) {
        let listener = UnixListener::bind(socket).unwrap();
        let keeper = Arc::new(FakeStatusKeeper::default());
        keeper.is_deploying.store(true, Ordering::SeqCst);
        let fake_keeper = keeper.clone();
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut line = String::new();
                let mut reader = BufReader::new(&mut stream);
                reader.read_line(&mut line).await.unwrap();
                // Close the connection of a client that follows the run.
                if !line.contains("status") {
                    continue;
                }
                fake_keeper.request_count.fetch_add(1, Ordering::SeqCst);
                let is_deploying = fake_keeper.is_deploying.load(Ordering::SeqCst);
                let status = EvolveStatus {
                    evolve_in_progress: is_deploying,
                    latest_status: (!is_deploying).then_some(EvolveStage::RolledBack),
                    restart_pending: is_deploying,
                    latest_run: "20261120-193600".parse().ok(),
                    ..EvolveStatus::default()
                };
                let answer = serde_json::to_string(&KeeperReply::Status(status)).unwrap();
                let answer = format!("{answer}\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (keeper, task)
    }

    /// Waits for two more status requests.
    async fn wait_more_requests(keeper: &FakeStatusKeeper) {
        let twice_more = keeper.request_count.load(Ordering::SeqCst) + 2;
        let waited = timeout(Duration::from_secs(60), async {
            while keeper.request_count.load(Ordering::SeqCst) < twice_more {
                sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.expect("the keeper is asked again");
    }

    fn unverified_admission() -> AdmissionControl {
        let gate = AdmissionControl::default();
        gate.mark_unverified();
        gate
    }

    fn is_open(gate: &AdmissionControl) -> bool {
        gate.admit(ListenerKind::Outside).is_some()
    }

    #[tokio::test]
    async fn gate_opens_after_run_or_verify() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let (keeper, task) = start_fake_keeper(&socket);
        let lease = Duration::from_secs(600);
        for says_so in [true, false] {
            keeper.is_deploying.store(true, Ordering::SeqCst);
            let gate = unverified_admission();
            let (waiting, path) = (gate.clone(), socket.clone());
            let waiter =
                tokio::spawn(
                    async move { wait_until_verified(&waiting, &path, lease, lease).await },
                );
            wait_more_requests(&keeper).await;
            assert!(!is_open(&gate) && gate.admit(ListenerKind::Inside).is_some());
            match says_so {
                true => gate.mark_verified(),
                false => keeper.is_deploying.store(false, Ordering::SeqCst),
            }
            waiter.await.unwrap();
            assert!(is_open(&gate));
        }
        task.abort();
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
        next.is_deploying.store(false, Ordering::SeqCst);
        waiter.await.unwrap();
        assert_eq!(find_current_run(&socket).await, None);
        task.abort();
    }

    #[tokio::test]
    async fn missing_keeper_does_not_block_gate() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let long = Duration::from_secs(600);
        // An ended keeper leaves its socket.
        drop(UnixListener::bind(&socket).unwrap());
        let gate = unverified_admission();
        wait_until_verified(&gate, &socket, Duration::ZERO, long).await;
        assert!(is_open(&gate));
        std::fs::remove_file(&socket).unwrap();
        let (keeper, task) = start_fake_keeper(&socket);
        let gate = unverified_admission();
        let (waiting, path) = (gate.clone(), socket.clone());
        let waiter = tokio::spawn(async move {
            wait_until_verified(&waiting, &path, Duration::ZERO, Duration::ZERO).await
        });
        wait_more_requests(&keeper).await;
        assert!(!is_open(&gate));
        task.abort();
        waiter.await.unwrap();
        assert!(is_open(&gate));
    }
}
