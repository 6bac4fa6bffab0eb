//! Outside of the agent's reach: who replaces `os-host`, and takes it back.
//!
//! The keeper is the same binary in a container of its own. It alone holds the engine's socket, has no
//! network, and does one thing: build the image from the project's body under its rules and replace
//! `os-host` by the specification that the host laid down. Whoever asks can say when and why, and
//! nothing else.
//!
//! ```text
//!                  fails: nothing has changed
//!  building ──▶ testing ──▶ freezing ─────────────▶ failed
//!                             │
//!                             ▼         fails: the old container goes on
//!                          swapping ──▶ verifying ──▶ rolled_back
//!                                          │
//!                                          ▼            ends again and again
//!                                      succeeded ── probation ──▶ a rescue: back to the image before
//! ```
//!
//! Which stage comes next is a pure function ([`stage_transitions`]); each stage is a file beneath `run`. Before a
//! step is done it stands in the [`journal`], on the disk, so that a keeper that is started again goes
//! on to one of the two good ends ([`recovery`]): every step finds what it is about by the engine's
//! ids and labels, and doing it again changes nothing. A keeper that is asked to end while the old
//! container does not answer goes back first. Where no run is on, the keeper starts a container that the engine
//! could not start ([`container_start`]), and adds to the history what the host has made ([`reconcile`]).
//!
//! ```text
//!   door/keeper.sock ── from os-host ──┐
//!                                      ├─▶ desk ─▶ owner ─▶ run: one at a time
//!   state/host.sock ── engine exec ────┘     └────▶ shelf: records and logs, read by everybody
//! ```

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
#[cfg(test)]
mod samples;
mod sanitize;
mod stage_transitions;
mod target;

use crate::error::Result;
use crate::protocol::evolve::KEEPER_IMAGE_VARIABLE;
use anyhow::Context;
use controller::RunController;
use journal::RunJournal;
use port_recovery::UnreachableFile;
use run_store::KeeperRunStore;
use std::env;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

/// Where things lie in the keeper's container.
#[derive(Debug, Clone)]
pub(crate) struct KeeperSettings {
    /// What no other container sees.
    pub(crate) state: PathBuf,
    /// The folder that `os-host` sees, read-only.
    pub(crate) door: PathBuf,
    /// The project, read-only.
    pub(crate) repo: PathBuf,
    /// The engine's socket.
    pub(crate) engine: PathBuf,
    /// The name of the image that the keeper runs from.
    pub(crate) image: Option<String>,
}

impl Default for KeeperSettings {
    fn default() -> Self {
        Self {
            state: "/state".into(),
            door: "/door".into(),
            repo: "/repo".into(),
            engine: "/var/run/docker.sock".into(),
            image: env::var(KEEPER_IMAGE_VARIABLE).ok(),
        }
    }
}

/// Where the host's questions arrive, in the state folder.
const KEEPER_HOST_SOCKET: &str = "host.sock";
/// Where the agent's do, in the door.
const KEEPER_AGENT_SOCKET: &str = "keeper.sock";

/// How long going back may take at the end: the engine ends by force who takes longer than 5 s.
const KEEPER_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// Ends what a keeper before has begun, and serves until `shutdown`; then what does not answer because of
/// the run that is on answers again, if there is time.
///
/// # Errors
/// When a folder or socket can't be had, and when the engine is away for long: whoever starts the keeper
/// again then gives it the socket that the engine has by then.
pub(crate) async fn serve_keeper(
    settings: KeeperSettings,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "keeper starts");
    let shelf = KeeperRunStore::open(&settings.state).context("opening what is kept of runs")?;
    // What is being ended is on until it has.
    let begun = RunJournal::new(&settings.state).read().ok().flatten();
    shelf.set_active_run(begun.and_then(|entry| entry.active_run()));
    UnreachableFile::new(&settings.state).take_over();
    let (owner, handle) = RunController::new(settings.clone(), shelf.clone());
    let desk = api::KeeperServer::new(shelf, handle.clone());
    let sockets = api::bind_sockets(&settings)?;
    let mut owner = pin!(owner.run());
    tokio::select! {
        () = shutdown => {}
        ended = &mut owner => return ended,
        ended = desk.serve(sockets) => return ended,
    }
    tokio::select! {
        () = handle.prepare_shutdown() => Ok(()),
        ended = &mut owner => ended,
        () = tokio::time::sleep(KEEPER_SHUTDOWN_TIMEOUT) => Ok(()),
    }
}

/// Asks the keeper of this container, and hands each line of its answer to `each`.
///
/// # Errors
/// When it does not answer.
pub(crate) async fn send_host_request(
    question: &str,
    each: &mut (dyn FnMut(&str) -> Result<()> + Send),
) -> Result<()> {
    api::send_keeper_request(
        &KeeperSettings::default().state.join(KEEPER_HOST_SOCKET),
        question,
        each,
    )
    .await
}
