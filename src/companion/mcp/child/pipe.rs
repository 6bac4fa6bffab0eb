//! The three ways to a server, as one: messages in, messages out, an end.

use super::inside::Inside;
use super::process::Process;
use super::remote::Remote;
use crate::companion::mcp::config::Way;
use crate::companion::mcp::log::Log;
use crate::companion::mcp::os::Os;
use crate::error::Result;
use bytes::Bytes;
use std::sync::Arc;

/// What a server did.
#[derive(Debug)]
pub(super) enum Happened {
    Line(Bytes),
    /// Why it is gone.
    Ended(String),
}

#[derive(Debug)]
pub(super) enum Pipe {
    Process(Box<Process>),
    Remote(Box<Remote>),
    Inside(Inside),
}

impl Pipe {
    /// # Errors
    /// When the process can't be started.
    pub(super) async fn open(way: &Way, os: &Os, log: Arc<Log>) -> Result<Self> {
        match way {
            Way::Child {
                command,
                args,
                env,
                cwd,
            } => {
                let process = Process::start(command, args, env, cwd.as_deref(), log).await?;
                Ok(Self::Process(Box::new(process)))
            }
            Way::Remote { url, headers } => Ok(Self::Remote(Box::new(Remote::open(url, headers)?))),
            Way::Inside => Ok(Self::Inside(Inside::open(os))),
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
    pub(super) async fn next(&mut self) -> Happened {
        match self {
            Self::Process(process) => process.next().await,
            Self::Remote(remote) => remote.next().await,
            Self::Inside(inside) => inside.next().await,
        }
    }

    /// Ends it, and whatever it has started.
    pub(super) async fn end(self) {
        match self {
            Self::Process(process) => process.end().await,
            Self::Remote(remote) => remote.end().await,
            Self::Inside(inside) => drop(inside),
        }
    }
}
