//! Each expected failure: a sentence, a hint with the cure, and an exit code.
//!
//! What is not named here is a bug, and ends with [`BUG`].

use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) use anyhow::Result;

/// The answer is no, or the user's code raised.
pub(crate) const NO: u8 = 1;
const USAGE: u8 = 2;
const UNREACHABLE: u8 = 3;
const PRECONDITION: u8 = 4;
/// Timed out or interrupted.
pub(crate) const INTERRUPTED: u8 = 5;
const BUG: u8 = 70;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    // Usage
    #[error("{message}")]
    Usage { message: String, hint: String },
    #[error("the configuration key `{key}` in {place} is unknown")]
    UnknownKey {
        key: String,
        place: String,
        nearest: Option<String>,
    },
    #[error("the value of `{key}` in {place} does not fit: {why}")]
    BadValue {
        key: String,
        place: String,
        why: String,
    },
    #[error("`{project}` can't be the project: {why}")]
    UnfitProject { project: PathBuf, why: String },
    #[error("instance `{instance}` belongs to the project `{project}`")]
    OtherProject { instance: String, project: PathBuf },

    // Not running
    #[error("`{container}` is not running")]
    NotRunning { container: String, up: String },
    #[error("`{container}` does not answer at {address}: {why}")]
    Unreachable {
        container: String,
        address: String,
        why: String,
    },
    #[error("the companion in `{container}` speaks protocol {theirs}, this osctl speaks {ours}")]
    OtherProtocol {
        container: String,
        theirs: String,
        ours: u32,
    },

    #[error("terminal `{id}` is gone: it has ended, or its container was started anew")]
    TerminalGone { id: String },

    // Preconditions
    #[error("no container engine answers ({tried})")]
    NoEngine { tried: String, hint: String },
    #[error("the engine at {address} does not answer: {why}")]
    EngineUnreachable { address: String, why: String },
    #[error("the engine went away while {doing}: {why}")]
    EngineLost { doing: String, why: String },
    #[error("port {port} on {bind} is taken{owner}")]
    PortTaken {
        bind: String,
        port: u16,
        owner: String,
    },
    #[error("a {what} named `{name}` exists that is not osctl's; it was not touched")]
    Foreign { what: &'static str, name: String },
    #[error("the image could not be built: {why}")]
    BuildFailed { why: String, log: Vec<String> },
    #[error("the disk is full: {why}")]
    DiskFull { why: String },
    #[error("the body in `{body}` speaks protocol {theirs}, this osctl speaks {ours}")]
    OtherBody {
        body: PathBuf,
        theirs: u32,
        ours: u32,
    },
    #[error("the body in `{body}` can't be used: {why}")]
    UnfitBody { body: PathBuf, why: String },
    #[error("`{container}` did not become healthy: {why}")]
    Unhealthy {
        container: String,
        why: String,
        log: Vec<String>,
        logs: String,
    },
    #[error("another osctl is working on instance `{instance}`")]
    Locked { instance: String },
    #[error("{message}")]
    Precondition { message: String, hint: String },

    // Ended from outside
    #[error("interrupted")]
    Interrupted,

    // The companion refused
    #[error("{message}")]
    Refused {
        status: u16,
        kind: String,
        message: String,
        hint: Option<String>,
    },
}

impl Error {
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage {
            message: message.into(),
            hint: hint.into(),
        }
    }

    pub(crate) fn precondition(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Precondition {
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// What to do about it: one line, with the exact command.
    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Usage { hint, .. }
            | Self::NoEngine { hint, .. }
            | Self::Precondition { hint, .. } => hint.clone(),
            Self::UnknownKey {
                nearest: Some(nearest),
                ..
            } => format!("did you mean `{nearest}`?"),
            Self::UnknownKey { .. } => "`osctl config show` lists every key".into(),
            Self::BadValue { .. } => {
                "`osctl config show` prints each value with where it came from".into()
            }
            Self::UnfitProject { .. } => {
                "give a folder of its own: `osctl up --project PATH`".into()
            }
            Self::OtherProject { project, .. } => format!(
                "run it there, or `osctl --instance NAME up` for a second one; to stay: `osctl up --project {}`",
                project.display()
            ),
            Self::NotRunning { up, .. } => format!("`{up}` starts it"),
            Self::Unreachable { .. } => "`osctl doctor` tells what is wrong".into(),
            Self::TerminalGone { .. } => "`osctl shell` opens another one".into(),
            Self::OtherProtocol { .. } => "`osctl up` replaces it by this version".into(),
            Self::EngineUnreachable { .. } => {
                "start the engine, or name another: `DOCKER_HOST=unix:///PATH osctl up`".into()
            }
            Self::EngineLost { .. } => {
                "start the engine again, then `osctl up`; nothing was lost".into()
            }
            Self::PortTaken { .. } => "`osctl up --auto-ports` takes the next free one".into(),
            Self::Foreign { .. } => {
                "`osctl --instance NAME up` uses another name; or remove it yourself".into()
            }
            Self::BuildFailed { .. } => "`osctl -v build` shows the whole output".into(),
            Self::DiskFull { .. } => {
                "make room (`docker system df` shows what the engine holds), then run it again"
                    .into()
            }
            Self::OtherBody { .. } | Self::UnfitBody { .. } => {
                "`osctl init --update` brings it up to date and keeps your edits".into()
            }
            Self::Unhealthy { logs, .. } => format!("`{logs}` shows its log"),
            Self::Locked { .. } => "wait until it has finished, then run it again".into(),
            Self::Interrupted => "run it again to go on; nothing was lost".into(),
            Self::Refused { hint, .. } => return hint.clone(),
        })
    }

    fn code(&self) -> u8 {
        match self {
            Self::Usage { .. }
            | Self::UnknownKey { .. }
            | Self::BadValue { .. }
            | Self::UnfitProject { .. }
            | Self::OtherProject { .. } => USAGE,
            Self::NotRunning { .. }
            | Self::Unreachable { .. }
            | Self::TerminalGone { .. }
            | Self::OtherProtocol { .. } => UNREACHABLE,
            Self::NoEngine { .. }
            | Self::EngineUnreachable { .. }
            | Self::EngineLost { .. }
            | Self::PortTaken { .. }
            | Self::Foreign { .. }
            | Self::BuildFailed { .. }
            | Self::DiskFull { .. }
            | Self::OtherBody { .. }
            | Self::UnfitBody { .. }
            | Self::Unhealthy { .. }
            | Self::Locked { .. }
            | Self::Precondition { .. } => PRECONDITION,
            Self::Interrupted => INTERRUPTED,
            Self::Refused {
                status: 401 | 403, ..
            } => UNREACHABLE,
            Self::Refused { status: 429, .. } => NO,
            Self::Refused { status: 507, .. } => PRECONDITION,
            Self::Refused {
                status: 400..=499, ..
            } => USAGE,
            Self::Refused { .. } => UNREACHABLE,
        }
    }

    /// Its name for programs.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::Refused { kind, .. } => kind,
            Self::NotRunning { .. } => "not_running",
            Self::Interrupted => "interrupted",
            _ => match self.code() {
                USAGE => "usage",
                UNREACHABLE => "unreachable",
                _ => "precondition",
            },
        }
    }

    /// The last lines of a log that explain the failure.
    pub(crate) fn log(&self) -> &[String] {
        match self {
            Self::BuildFailed { log, .. } | Self::Unhealthy { log, .. } => log,
            _ => &[],
        }
    }
}

/// How a verb ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Code(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Code(code) => Self::from(code),
        }
    }
}

/// The exit code of what ended a verb early.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Error>() {
        Some(expected) => expected.code(),
        None => BUG,
    }
}
