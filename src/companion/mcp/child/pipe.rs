//! The three ways to a server, as one: messages in, messages out, an end.

use super::Known;
use super::inside::Inside;
use super::process::Process;
use super::remote::Remote;
use crate::companion::mcp::config::Way;
use crate::error::Result;
use bytes::Bytes;

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
    pub(super) async fn open(known: &Known) -> Result<Self> {
        match &known.server.way {
            Way::Child {
                command,
                args,
                env,
                cwd,
            } => {
                let log = known.log.clone();
                let process = Process::start(command, args, env, cwd.as_deref(), log).await?;
                Ok(Self::Process(Box::new(process)))
            }
            Way::Remote { url, headers } => {
                let remote = Remote::open(url, headers, known)?;
                Ok(Self::Remote(Box::new(remote)))
            }
            Way::Inside => {
                let inside = Inside::open(&*known.os, &known.server.name);
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
