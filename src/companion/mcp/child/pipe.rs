//! The three ways to a server, as one: messages in, messages out, an end.

use super::ServerSpec;
use super::in_process::InProcessPipe;
use super::process::ServerProcess;
use super::remote::RemoteServer;
use crate::companion::mcp::config::ServerTransport;
use crate::error::Result;
use bytes::Bytes;

/// What a server did.
#[derive(Debug)]
pub(super) enum ServerPipeEvent {
    Line(Bytes),
    /// Why it is gone.
    Ended(String),
}

#[derive(Debug)]
pub(super) enum ServerPipe {
    Process(Box<ServerProcess>),
    Remote(Box<RemoteServer>),
    Inside(InProcessPipe),
}

impl ServerPipe {
    /// # Errors
    /// When the process can't be started.
    pub(super) async fn open(known: &ServerSpec) -> Result<Self> {
        match &known.server.way {
            ServerTransport::Child {
                command,
                args,
                env,
                cwd,
            } => {
                let log = known.log.clone();
                let process = ServerProcess::start(command, args, env, cwd.as_deref(), log).await?;
                Ok(Self::Process(Box::new(process)))
            }
            ServerTransport::Remote { url, headers } => {
                let remote = RemoteServer::open(url, headers, known)?;
                Ok(Self::Remote(Box::new(remote)))
            }
            ServerTransport::Inside => {
                let inside = InProcessPipe::open(&*known.os, &known.server.name);
                Ok(Self::Inside(inside))
            }
        }
    }

    pub(super) fn pid(&self) -> Option<i32> {
        match self {
            Self::Process(process) => Some(process.pid),
            Self::Remote(_) | Self::Inside(_) => None,
        }
    }

    pub(super) fn send(&mut self, text: Bytes) {
        match self {
            Self::Process(process) => process.send(text),
            Self::Remote(remote) => remote.send(text),
            Self::Inside(inside) => inside.send(text),
        }
    }

    /// Bytes that it has not taken yet.
    pub(super) fn backlog(&self) -> usize {
        match self {
            Self::Process(process) => process.backlog(),
            Self::Remote(_) | Self::Inside(_) => 0,
        }
    }

    /// What happens next. Loses nothing when dropped.
    pub(super) async fn next_event(&mut self) -> ServerPipeEvent {
        match self {
            Self::Process(process) => process.next_event().await,
            Self::Remote(remote) => remote.next_event().await,
            Self::Inside(inside) => inside.next_event().await,
        }
    }

    /// Ends it, and whatever it has started.
    pub(super) async fn shutdown(self) {
        match self {
            Self::Process(process) => process.shutdown().await,
            Self::Remote(remote) => remote.shutdown().await,
            Self::Inside(inside) => drop(inside),
        }
    }
}

/// The next event of a pipe; none ever while there is no pipe.
pub(super) async fn next_pipe_event(pipe: &mut Option<ServerPipe>) -> ServerPipeEvent {
    match pipe {
        Some(pipe) => pipe.next_event().await,
        None => std::future::pending().await,
    }
}
