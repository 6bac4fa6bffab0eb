//! The keeper: the process outside of the agent's reach that replaces `os-host` and rolls it back.
//!
//! The keeper is the same binary in its own container. It alone holds the engine's socket, has no network, and
//! does one thing: build the image from the project's body under its rules and replace `os-host` according to the
//! deploy config that the host uploaded. A request contains a reason, `force`, `dry_run`,
//! `rebuild` or the run to roll back to, and nothing else.
//!
//! ```text
//!                  fails: nothing has changed
//!  building ──▶ testing ──▶ quiescing ────────────▶ failed
//!                             │
//!                             ▼         fails: the old container keeps running
//!                          swapping ──▶ verifying ──▶ rolled_back
//!                                          │
//!                                          ▼            crashes repeatedly
//!                                      succeeded ── watch period ──▶ a rescue: roll back to the previous image
//! ```
//!
//! Which stage comes next is a pure function ([`stage_transitions`]); each stage is a file beneath `run`. The keeper
//! writes each step to the [`journal`] on the disk before it starts the step, so that a restarted keeper completes
//! the run or rolls it back ([`recovery`]): every step finds its objects by the engine's ids and labels and is
//! idempotent. A keeper that is stopped while the old container does not answer rolls back first. While no run is
//! active, the keeper starts a container that the engine could not start ([`container_start`]), and adds containers
//! that the host created to the history ([`reconcile`]).
//!
//! ```text
//!   agent-socket/keeper.sock ── from os-host ──┐
//!                                              ├─▶ api ─▶ controller ─▶ run: one at a time
//!   state/host.sock ── engine exec ────────────┘    └───▶ run_store: records and logs, read by every caller
//! ```
//!
//! The agent socket is in the volume `osctl-agent-socket`, which the keeper mounts at `/agent-socket` and `os-host`
//! mounts read-only at `/run/os`.

mod api;
mod cancellation;
mod container_start;
mod controller;
mod gc;
mod git_repository;
mod journal;
#[cfg(test)]
mod model;
mod port_recovery;
mod post_deploy_watch;
mod rate_limit;
mod reconcile;
mod recovery;
mod retry_policy;
mod run;
mod run_diff;
mod run_log;
mod run_request;
mod run_store;
mod sanitize;
mod settings;
mod stage_transitions;
mod target;
#[cfg(test)]
mod test_samples;
#[cfg(test)]
mod tests;
mod unreachable_file;

pub(crate) use settings::KeeperSettings;

use crate::error::Result;
use anyhow::Context;
use controller::{ControllerHandle, RunController};
use journal::RunJournal;
use run_store::KeeperRunStore;
use settings::{KEEPER_AGENT_SOCKET_NAME, KEEPER_HOST_SOCKET_NAME};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use unreachable_file::UnreachableFile;

/// How long a rollback at shutdown may take: the engine kills a container that takes longer than 5 s.
const KEEPER_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// Finishes the run that an earlier keeper started, and serves until `shutdown`. If the active run keeps `os-host`
/// from answering at that point, the keeper rolls back within [`KEEPER_SHUTDOWN_TIMEOUT`].
///
/// # Errors
/// When a folder or socket can't be created, or the engine is away too long: the next start of the keeper's container
/// binds the engine's current socket.
pub(crate) async fn serve_keeper(
    settings: KeeperSettings,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "the keeper starts");
    let run_store =
        KeeperRunStore::open(&settings.state_folder).context("opening the run store")?;
    let (owner, handle) = start_controller(&settings, &run_store);
    let server = api::KeeperServer::new(run_store, handle.clone());
    let sockets = api::bind_sockets(&settings)?;
    let mut owner = pin!(owner.run());
    tokio::select! {
        () = shutdown => {}
        ended = &mut owner => return ended,
        ended = server.serve(sockets) => return ended,
    }
    tokio::select! {
        () = handle.prepare_shutdown() => Ok(()),
        ended = &mut owner => ended,
        () = tokio::time::sleep(KEEPER_SHUTDOWN_TIMEOUT) => Ok(()),
    }
}

/// A controller that first finishes the run that an earlier keeper started.
fn start_controller(
    settings: &KeeperSettings,
    run_store: &KeeperRunStore,
) -> (RunController, ControllerHandle) {
    // A run that is being recovered is active until recovery ends.
    let interrupted = RunJournal::new(&settings.state_folder)
        .read()
        .ok()
        .flatten();
    run_store.set_active_run(interrupted.and_then(|entry| entry.active_run()));
    UnreachableFile::new(&settings.state_folder).mark_as_ended();
    RunController::new(settings.clone(), run_store.clone())
}

/// Sends a request to the keeper of this container, and passes each line of the reply to `on_line`.
///
/// # Errors
/// When the keeper does not answer.
pub(crate) async fn send_host_request(
    question: &str,
    on_line: &mut (dyn FnMut(&str) -> Result<()> + Send),
) -> Result<()> {
    api::send_keeper_request(
        &KeeperSettings::default()
            .state_folder
            .join(KEEPER_HOST_SOCKET_NAME),
        question,
        on_line,
    )
    .await
}
