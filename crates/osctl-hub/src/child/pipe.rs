//! The connection to a server, with one interface for its three kinds: messages to the server, messages from it, its
//! end.

use super::ServerSpec;
use super::event::ServerPipeEvent;
use super::in_process::InProcessPipe;
use super::process::{ServerProcess, server_environment};
use super::remote::RemoteServer;
use crate::config::ServerTransport;
use crate::message::RpcMessage;
use anyhow::Result;

#[derive(Debug)]
pub(super) enum ServerPipe {
    Process(Box<ServerProcess>),
    Remote(Box<RemoteServer>),
    InProcess(InProcessPipe),
}

impl ServerPipe {
    /// # Errors
    /// Fails when the process can't be started.
    pub(super) async fn open(spec: &ServerSpec) -> Result<Self> {
        match &spec.config.transport {
            ServerTransport::Child {
                command,
                args,
                env,
                cwd,
            } => {
                let log = spec.log.clone();
                let user = spec.context.user_environment();
                let env = server_environment(&spec.inherited_environment, env, &user);
                let process = ServerProcess::start(command, args, env, cwd.as_deref(), log).await?;
                Ok(Self::Process(Box::new(process)))
            }
            ServerTransport::Remote { url, headers } => {
                let remote = RemoteServer::open(url, headers, spec)?;
                Ok(Self::Remote(Box::new(remote)))
            }
            ServerTransport::Inside => {
                let inside = InProcessPipe::open(&*spec.built_in_server, &spec.config.name);
                Ok(Self::InProcess(inside))
            }
        }
    }

    pub(super) fn pid(&self) -> Option<i32> {
        match self {
            Self::Process(process) => Some(process.pid),
            Self::Remote(_) | Self::InProcess(_) => None,
        }
    }

    pub(super) fn send(&mut self, message: RpcMessage) {
        match self {
            Self::Process(process) => process.send(message.into_text()),
            Self::Remote(remote) => remote.send(message),
            Self::InProcess(inside) => inside.send(message.into_text()),
        }
    }

    /// The bytes that the server has not read yet.
    pub(super) fn backlog(&self) -> usize {
        match self {
            Self::Process(process) => process.backlog(),
            Self::Remote(_) | Self::InProcess(_) => 0,
        }
    }

    /// Waits for the next event. Cancel-safe: a dropped call loses no event.
    pub(super) async fn next_event(&mut self) -> ServerPipeEvent {
        match self {
            Self::Process(process) => process.next_event().await,
            Self::Remote(remote) => remote.next_event().await,
            Self::InProcess(inside) => inside.next_event().await,
        }
    }

    /// Ends the server and every process that it started.
    pub(super) async fn shutdown(self) {
        match self {
            Self::Process(process) => process.shutdown().await,
            Self::Remote(remote) => remote.shutdown().await,
            Self::InProcess(inside) => drop(inside),
        }
    }
}

/// Waits for the next event of a pipe; never returns while there is no pipe.
pub(super) async fn next_pipe_event(pipe: &mut Option<ServerPipe>) -> ServerPipeEvent {
    match pipe {
        Some(pipe) => pipe.next_event().await,
        None => std::future::pending().await,
    }
}
