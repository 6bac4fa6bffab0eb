//! The expected failures: a sentence, a hint with the fix, and an exit code for each.
//!
//! A failure that is not named here is a bug, with exit code [`EXIT_BUG`].

pub(crate) use crate::protocol::nearest_name::nearest_name;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) use anyhow::Result;

/// The result is negative, or the user's code raised an exception.
pub(crate) const EXIT_NEGATIVE: u8 = 1;
pub(crate) const EXIT_USAGE: u8 = 2;
const EXIT_UNREACHABLE: u8 = 3;
pub(crate) const EXIT_PRECONDITION: u8 = 4;
/// Timed out or interrupted.
pub(crate) const EXIT_INTERRUPTED: u8 = 5;
const EXIT_BUG: u8 = 70;

/// Refusals of well-formed requests: the state to store or to restore does not permit the operation.
const NEGATIVE_RESULT_KINDS: [&str; 13] = [
    "losses",
    "damaged",
    "damaged_checkpoint",
    "not_checkpointed",
    "not_restored",
    "files_changed",
    "process_ids_in_use",
    "in_use",
    "resource_held",
    // The words of companions before 0.1.0.
    "not_frozen",
    "other_files",
    "taken_ids",
    "held",
];

/// The exit code of shells for a program whose reader has closed the pipe (SIGPIPE).
const EXIT_BROKEN_PIPE: u8 = 141;

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
    #[error("invalid value of `{key}` in {place}: {why}")]
    BadValue {
        key: String,
        place: String,
        why: String,
        /// A valid value.
        example: Option<&'static str>,
    },
    #[error("a project can't set the configuration key `{key}` in {place}")]
    Forbidden { key: String, place: String },
    #[error("`{project}` can't be the project: {why}")]
    InvalidProject { project: PathBuf, why: String },
    #[error("instance `{instance}` belongs to the project `{project}`")]
    ProjectMismatch { instance: String, project: PathBuf },

    // Not running
    #[error("`{container}` is not running")]
    NotRunning { container: String, up: String },
    #[error("`{container}` is not running, and its instance was never up")]
    NeverUp { container: String, hint: String },
    #[error("`{container}` is paused")]
    Paused { container: String, up: String },
    #[error("`{container}` does not answer at {address}: {why}")]
    Unreachable {
        container: String,
        address: String,
        why: String,
    },
    #[error(
        "the companion in `{container}` uses protocol {theirs}, this osctl uses protocol {ours}"
    )]
    ProtocolMismatch {
        container: String,
        theirs: String,
        ours: u32,
    },

    #[error(
        "the companion in `{container}` belongs to an earlier osctl and can't prove that it knows the token; osctl did not send the token"
    )]
    OlderCompanion { container: String, up: String },
    #[error(
        "port {port} does not belong to the container `{container}`{owner}; osctl did not send the token"
    )]
    ListenerUnproven {
        container: String,
        port: u16,
        owner: String,
        up: String,
        /// Whether the listener tried to prove that it knows the token.
        has_proof: bool,
    },

    #[error("run `{run}` no longer exists: newer runs replaced it, or the container was restarted")]
    RunNotFound { run: String },
    #[error("terminal `{id}` no longer exists: it ended, or the container was restarted")]
    TerminalNotFound { id: String },

    // Preconditions
    #[error("no container engine answers ({tried})")]
    NoEngine { tried: String, hint: String },
    #[error("the engine at {address} does not answer: {why}")]
    EngineUnreachable { address: String, why: String },
    #[error("permission denied by the engine at {address}")]
    EnginePermissionDenied { address: String },
    #[error("the connection to the engine was lost while {doing}: {why}")]
    EngineLost { doing: String, why: String },
    #[error("port {port} on {bind} is taken{owner}")]
    PortTaken {
        bind: String,
        port: u16,
        owner: String,
    },
    #[error(
        "a {what} named `{name}` already exists and does not belong to osctl; it was not changed"
    )]
    ForeignObject { what: &'static str, name: String },
    #[error("the image could not be built: {why}")]
    BuildFailed {
        why: String,
        /// The failed step, as the builder names it.
        step: Option<String>,
        /// The last lines of the step's output.
        log: Vec<String>,
    },
    #[error("the disk is full: {why}")]
    DiskFull { why: String },
    #[error("the body in `{body}` uses protocol {theirs}, this osctl uses protocol {ours}")]
    BodyProtocolMismatch {
        body: PathBuf,
        theirs: u32,
        ours: u32,
    },
    #[error("the body in `{body}` can't be used: {why}")]
    InvalidBody { body: PathBuf, why: String },
    #[error("`{container}` did not become healthy: {why}")]
    Unhealthy {
        container: String,
        why: String,
        log: Vec<String>,
        logs: String,
    },
    #[error("the keeper did not replace `{container}`: the stage `{stage}` failed: {why}")]
    NotReplaced {
        container: String,
        stage: &'static str,
        why: String,
        log: Vec<String>,
        hint: String,
    },
    #[error("another osctl is working on instance `{instance}`")]
    Locked { instance: String },
    #[error("{message}")]
    Precondition { message: String, hint: String },

    // Output
    #[error("the program that reads the output closed the pipe")]
    OutputClosed,
    #[error("the output can't be written: {why}")]
    OutputFailed { why: String },

    // Ended from outside
    #[error("interrupted")]
    Interrupted,
    /// A verb that a repetition completes was interrupted.
    #[error("interrupted")]
    InterruptedRepeatable,
    /// A change of the packages was interrupted.
    #[error("interrupted; `osctl.yaml` and `osctl.lock` were not changed")]
    PackagesInterrupted,
    #[error("interrupted; the keeper continues evolve `{run}`")]
    RunContinues { run: String, logs: String },

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

    /// The fix: one line, with the exact command.
    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Usage { hint, .. }
            | Self::NeverUp { hint, .. }
            | Self::NoEngine { hint, .. }
            | Self::Precondition { hint, .. }
            | Self::NotReplaced { hint, .. } => hint.clone(),
            Self::UnknownKey {
                nearest: Some(nearest),
                ..
            } => format!("did you mean `{nearest}`?"),
            Self::UnknownKey { .. } => {
                "remove the key; `osctl config edit` opens your own file".into()
            }
            Self::Forbidden { .. } => {
                "remove the key; `osctl config edit` opens your own file, which can set it".into()
            }
            Self::BadValue { place, example, .. } if place.starts_with("OSCTL_") => {
                let set = example.map(|value| format!("`export {place}={value}` sets a valid value; "));
                let set = set.unwrap_or_default();
                format!("{set}`unset {place}` removes the variable")
            }
            Self::BadValue { example, .. } => {
                let such = example.map(|value| format!(", for example to `{value}`"));
                let such = such.unwrap_or_default();
                format!("correct the value there{such}; `osctl config edit` opens your own file")
            }
            Self::InvalidProject { .. } => {
                "choose a separate folder: `osctl up --project PATH`".into()
            }
            Self::ProjectMismatch { .. } => "`osctl up --move` binds the instance to this folder and keeps its state; without `--instance` and `OSCTL_INSTANCE`, `up` uses the instance of this folder".into(),
            Self::NotRunning { up, .. } => format!("`{up}` starts it"),
            Self::Paused { up, .. } => format!("`{up}` unpauses the container, which keeps its memory"),
            Self::OlderCompanion { up, .. } => format!("`{up}` replaces the companion"),
            Self::ListenerUnproven { up, .. } => {
                format!("`{up}` starts the container, or replaces an older one")
            }
            Self::Unreachable { .. } => "`osctl doctor` finds the cause".into(),
            Self::RunNotFound { .. } => "`osctl runs` lists the known runs".into(),
            Self::TerminalNotFound { .. } => "`osctl shell` opens a new terminal".into(),
            Self::ProtocolMismatch { .. } => "`osctl up` replaces the companion with this version".into(),
            Self::EngineUnreachable { .. } => {
                "start the engine, or name another engine: `DOCKER_HOST=unix:///PATH osctl up`".into()
            }
            Self::EnginePermissionDenied { .. } => {
                "add yourself to the group `docker`, whose members are equivalent to root: `sudo usermod -aG docker $USER`, then log in again; or run osctl as the owner of the socket".into()
            }
            Self::EngineLost { .. } => {
                "start the engine, then run `osctl up`; no data was lost".into()
            }
            Self::PortTaken { .. } => "`osctl up --auto-ports` uses the next free port".into(),
            Self::ForeignObject { .. } => {
                "use another name (`osctl --instance NAME up`), or remove it yourself".into()
            }
            Self::BuildFailed { .. } => "`osctl -v build` shows the whole output".into(),
            Self::DiskFull { .. } => {
                "free disk space (`docker system df` shows the engine's usage), then run the command again"
                    .into()
            }
            Self::BodyProtocolMismatch { .. } | Self::InvalidBody { .. } => {
                "`osctl init --update` updates the body and keeps your edits".into()
            }
            Self::Unhealthy { logs, .. } => format!("`{logs}` shows the log"),
            Self::Locked { .. } => "wait until the other osctl has finished, then run the command again".into(),
            Self::OutputFailed { .. } => {
                "free disk space, or redirect the output; `osctl runs` lists the runs that `osctl attach` can show again"
                    .into()
            }
            Self::RunContinues { logs, .. } => format!("`{logs}` follows it again"),
            Self::InterruptedRepeatable => "run the command again to continue".into(),
            Self::PackagesInterrupted => "`osctl packages` lists the project's packages".into(),
            Self::Interrupted | Self::OutputClosed => return None,
            Self::Refused { hint, .. } => return hint.clone(),
        })
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. }
            | Self::UnknownKey { .. }
            | Self::BadValue { .. }
            | Self::Forbidden { .. }
            | Self::InvalidProject { .. }
            | Self::ProjectMismatch { .. } => EXIT_USAGE,
            Self::NotRunning { .. }
            | Self::NeverUp { .. }
            | Self::Unreachable { .. }
            | Self::Paused { .. }
            | Self::RunNotFound { .. }
            | Self::TerminalNotFound { .. }
            | Self::ProtocolMismatch { .. }
            | Self::OlderCompanion { .. } => EXIT_UNREACHABLE,
            Self::NoEngine { .. }
            | Self::EngineUnreachable { .. }
            | Self::EnginePermissionDenied { .. }
            | Self::EngineLost { .. }
            | Self::PortTaken { .. }
            | Self::ListenerUnproven { .. }
            | Self::ForeignObject { .. }
            | Self::BuildFailed { .. }
            | Self::DiskFull { .. }
            | Self::BodyProtocolMismatch { .. }
            | Self::InvalidBody { .. }
            | Self::Unhealthy { .. }
            | Self::NotReplaced { .. }
            | Self::Locked { .. }
            | Self::OutputFailed { .. }
            | Self::Precondition { .. } => EXIT_PRECONDITION,
            Self::OutputClosed => EXIT_BROKEN_PIPE,
            Self::Interrupted
            | Self::InterruptedRepeatable
            | Self::PackagesInterrupted
            | Self::RunContinues { .. } => EXIT_INTERRUPTED,
            Self::Refused {
                status: 401 | 403, ..
            } => EXIT_UNREACHABLE,
            Self::Refused { status: 429, .. } => EXIT_NEGATIVE,
            Self::Refused { kind, .. } if NEGATIVE_RESULT_KINDS.contains(&&**kind) => EXIT_NEGATIVE,
            Self::Refused {
                status: 501 | 507, ..
            } => EXIT_PRECONDITION,
            Self::Refused {
                status: 400..=499, ..
            } => EXIT_USAGE,
            Self::Refused { .. } => EXIT_UNREACHABLE,
        }
    }

    /// The error type for programs.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::Refused { kind, .. } => kind,
            Self::NotRunning { .. } | Self::NeverUp { .. } => "not_running",
            Self::Interrupted
            | Self::InterruptedRepeatable
            | Self::PackagesInterrupted
            | Self::RunContinues { .. } => "interrupted",
            Self::OutputClosed => "output_closed",
            _ => match self.exit_code() {
                EXIT_USAGE => "usage",
                EXIT_UNREACHABLE => "unreachable",
                _ => "precondition",
            },
        }
    }

    /// The last lines of a log that explain the failure.
    pub(crate) fn log_tail(&self) -> &[String] {
        match self {
            Self::BuildFailed { log, .. }
            | Self::Unhealthy { log, .. }
            | Self::NotReplaced { log, .. } => log,
            _ => &[],
        }
    }
}

impl From<io::Error> for Error {
    /// Converts an error of writing to stdout or stderr.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::OutputFailed {
                why: error.to_string(),
            },
        }
    }
}

/// Adds the instance, if hints name it, to the commands of a hint, which are in backticks.
pub(crate) fn hint_for_instance(hint: &str, instance: Option<&str>) -> String {
    let Some(instance) = instance else {
        return hint.into();
    };
    let parts = hint.split('`').enumerate();
    let parts: Vec<String> = parts
        .map(|(number, part)| match number % 2 {
            1 => add_instance_flag(part, instance),
            _ => part.into(),
        })
        .collect();
    parts.join("`")
}

fn add_instance_flag(command: &str, instance: &str) -> String {
    let mut words: Vec<&str> = command.split(' ').collect();
    let Some(own) = words.iter().position(|word| *word == "osctl") else {
        return command.into();
    };
    // `ls` applies to all instances.
    let is_of_all = words.get(own + 1).is_none_or(|verb| *verb == "ls");
    if is_of_all || words.contains(&"--instance") {
        return command.into();
    }
    words.splice(own + 1..own + 1, ["--instance", instance]);
    words.join(" ")
}

/// Whether the error is a closed stdout or stderr.
pub(crate) fn is_output_closed(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::OutputClosed))
}

/// How a verb ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerbOutcome {
    Done,
    Code(u8),
}

impl From<VerbOutcome> for ExitCode {
    fn from(outcome: VerbOutcome) -> Self {
        match outcome {
            VerbOutcome::Done => Self::SUCCESS,
            VerbOutcome::Code(code) => Self::from(code),
        }
    }
}

/// The exit code of an error that ended a verb.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Error>() {
        Some(expected) => expected.exit_code(),
        None => EXIT_BUG,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        EXIT_NEGATIVE, EXIT_PRECONDITION, EXIT_UNREACHABLE, EXIT_USAGE, Error, hint_for_instance,
    };

    #[test]
    fn a_hint_names_the_instance_that_it_is_for() {
        for (hint, for_blue) in [
            (
                "`osctl up --auto-ports` uses the next free port",
                "`osctl --instance blue up --auto-ports` uses the next free port",
            ),
            (
                "`osctl -v build` shows it, or `DOCKER_HOST=unix:///PATH osctl up`",
                "`osctl --instance blue -v build` shows it, or `DOCKER_HOST=unix:///PATH osctl --instance blue up`",
            ),
            (
                "`ssh -t far osctl up`; `docker context use default`",
                "`ssh -t far osctl --instance blue up`; `docker context use default`",
            ),
        ] {
            assert_eq!(hint_for_instance(hint, Some("blue")), for_blue);
            assert_eq!(hint_for_instance(hint, None), hint);
        }
        for hint in [
            "`osctl --instance NAME up` for a second one",
            "`osctl ls` lists them",
            "the newest osctl up to now, of `osctl`",
            "`osctl.yaml` and `--engine embedded`",
        ] {
            assert_eq!(hint_for_instance(hint, Some("blue")), hint);
        }
    }

    #[test]
    fn the_hint_for_a_value_names_its_source_and_an_example() {
        let hint = |place: &str, example| {
            let (key, why) = ("limits.memory".into(), String::new());
            let place = place.into();
            let bad = Error::BadValue {
                key,
                place,
                why,
                example,
            };
            bad.hint().unwrap()
        };
        assert_eq!(
            hint("OSCTL_LIMITS_MEMORY", Some("4g")),
            "`export OSCTL_LIMITS_MEMORY=4g` sets a valid value; `unset OSCTL_LIMITS_MEMORY` removes the variable"
        );
        assert_eq!(
            hint("OSCTL_BIND", None),
            "`unset OSCTL_BIND` removes the variable"
        );
        assert_eq!(
            hint("own.yaml", Some("4g")),
            "correct the value there, for example to `4g`; `osctl config edit` opens your own file"
        );
    }

    #[test]
    fn the_kind_of_a_refusal_determines_the_exit_code() {
        let code = |status, kind: &str| {
            let (kind, message) = (kind.into(), String::new());
            let refused = Error::Refused {
                status,
                kind,
                message,
                hint: None,
            };
            refused.exit_code()
        };
        assert_eq!(code(409, "losses"), EXIT_NEGATIVE);
        assert_eq!(
            (code(422, "damaged"), code(429, "busy")),
            (EXIT_NEGATIVE, EXIT_NEGATIVE)
        );
        for former in ["not_frozen", "other_files", "taken_ids", "held"] {
            assert_eq!(code(409, former), EXIT_NEGATIVE, "{former}");
        }
        assert_eq!(code(409, "no_folder"), EXIT_USAGE);
        assert_eq!(code(404, "nothing_stored"), EXIT_USAGE);
        assert_eq!(code(507, "disk_full"), EXIT_PRECONDITION);
    }

    #[test]
    fn a_missing_run_has_the_exit_code_of_unreachable() {
        assert_eq!(
            Error::RunNotFound { run: "r".into() }.exit_code(),
            EXIT_UNREACHABLE
        );
    }
}
