//! Inside the container: one process that owns the kernels and the terminals, and answers over HTTP.
//!
//! [`serve`] is its whole life. It is handed its sockets and its reason to stop, so tests and
//! production differ at the call alone.

mod descendants;
mod files;
mod http;
mod kernel;
mod pipe;
mod pty;
pub(crate) mod reaper;
mod runs;
mod settings;
mod shell;

pub(crate) use pty::spawn as spawn_shell;
pub(crate) use settings::Settings;
pub(crate) use shell::guard_command;

use crate::error::Result;
use anyhow::Context;
use files::Files;
use http::Handles;
use kernel::Sessions;
use pty::Terminals;
use shell::Shells;
use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;

/// Between two looks at which sessions are in use; they may be idle for longer.
const TICK: Duration = Duration::from_secs(1);

/// The sockets the companion answers on.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// For everyone who has the token.
    pub(crate) tcp: TcpListener,
    /// For those inside, guarded by the folder's rights.
    pub(crate) unix: UnixListener,
}

/// Opens the sockets and serves until SIGTERM or SIGINT.
///
/// # Errors
/// When a socket can't be opened.
pub(crate) async fn run(settings: Settings) -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    if settings.embedded {
        // Out of the terminal's session, so that closing it does not end the service. It fails
        // when this already is a session's leader, which is as good.
        let _ = nix::unistd::setsid();
    }
    let listeners = Listeners::open(&settings).await?;
    let shutdown = async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    serve(listeners, settings, shutdown).await
}

/// Starts the kernel, answers requests, and when `shutdown` comes lets running code finish and ends
/// the terminals.
///
/// # Errors
/// When serving fails; a failing kernel is no error here but told to those who ask.
pub(crate) async fn serve(
    listeners: Listeners,
    settings: Settings,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), address = %listeners.tcp.local_addr()?, "companion starts");
    let grace = settings.grace;
    let (sessions, owner) = Sessions::start(kernel::Settings::from(&settings));
    let shells = Shells::new(shell::Settings::from(&settings));
    forget_with(&sessions, &shells);
    keep_with(&sessions, &shells);
    let terminals = Terminals::new(settings.terminals);
    let handles = Handles {
        sessions: sessions.clone(),
        shells: shells.clone(),
        terminals: terminals.clone(),
        files: Files::start(settings.data.clone()),
    };
    let server = http::Server::start(listeners, &settings, handles);
    let mut owner = std::pin::pin!(owner);
    tokio::select! {
        () = shutdown => {}
        // Without its owner nothing works: the engine starts everything anew.
        ended = &mut owner => anyhow::bail!("the kernel's owner ended: {ended:?}"),
    }
    tracing::info!(
        "companion stops: running code may finish within {} s",
        grace.as_secs()
    );
    tokio::join!(
        sessions.shutdown(grace),
        shells.shutdown(grace),
        terminals.shutdown()
    );
    server.stop().await;
    owner.await.context("the kernel's owner ended badly")?;
    tracing::info!("companion ended");
    Ok(())
}

/// A session's context and jobs end with it.
fn forget_with(sessions: &Sessions, shells: &Shells) {
    let (mut ends, shells) = (sessions.ends(), shells.clone());
    tokio::spawn(async move {
        loop {
            match ends.recv().await {
                Ok(session) => shells.forget(&session),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
}

/// A session whose commands run is not idle.
fn keep_with(sessions: &Sessions, shells: &Shells) {
    let (sessions, shells) = (sessions.clone(), shells.clone());
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TICK).await;
            for session in shells.in_use() {
                if let Ok(kernel) = sessions.kernel(&session) {
                    kernel.touch();
                }
            }
        }
    });
}

impl Listeners {
    async fn open(settings: &Settings) -> Result<Self> {
        private_folder(&settings.run)?;
        let path = settings.socket();
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).context("removing a stale socket");
            }
            _ => {}
        }
        let unix = UnixListener::bind(&path)
            .with_context(|| format!("listening on `{}`", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let tcp = TcpListener::bind(settings.listen)
            .await
            .with_context(|| format!("listening on {}", settings.listen))?;
        Ok(Self { tcp, unix })
    }
}

fn private_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("making `{}`", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    Ok(())
}

/// Asks the companion of this machine, over its private socket, whether all services are ready.
///
/// # Errors
/// When it does not answer.
pub(crate) async fn is_healthy() -> Result<bool> {
    let socket = Settings::run_folder().join(settings::SOCKET);
    let stream = UnixStream::connect(&socket)
        .await
        .with_context(|| format!("connecting to `{}`", socket.display()))?;
    http::is_healthy(stream).await
}
