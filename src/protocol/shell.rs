//! Commands of the shell and the context they share.

use super::kernel::{DEFAULT_SESSION, RunError, RunStatus, Truncated};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// `POST /shell`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    /// Text for bash.
    pub(crate) command: String,
    /// Name of the run; made up when missing. The same id with the same body finds the run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// Whose working directory, environment, functions and aliases are used and changed.
    #[serde(default = "default_session")]
    pub(crate) session: String,
    /// End the command, and all that it started, after this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<f64>,
    /// Answer `running` after this many seconds; the command goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wait: Option<f64>,
    /// What the command reads; nothing, unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stdin: Option<String>,
    /// Keep stdin open for `POST /shell/{id}/stdin`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stdin_open: bool,
    /// `true` refuses the command when it can't be recorded on disk, `false` does not record it. Without it, the
    /// command is recorded where that is possible, and `durable` of the reply tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) durable: Option<bool>,
}

impl Command {
    pub(crate) fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            id: None,
            session: default_session(),
            timeout: None,
            wait: None,
            stdin: None,
            stdin_open: false,
            durable: None,
        }
    }
}

/// The reply to `POST /shell` and `GET /shell/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ShellReply {
    pub(crate) id: String,
    /// `completed` whatever the code; `interrupted` when it ran into its timeout or was stopped.
    pub(crate) status: RunStatus,
    /// What was written, as text; bytes that are not UTF-8 are replaced by U+FFFD.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The exit code, 128+n for signal n; -1 for a command that was ended from outside.
    pub(crate) returncode: Option<i32>,
    /// Where the session's next command starts.
    pub(crate) cwd: String,
    /// Whether it left processes in the background: `GET /jobs`.
    pub(crate) background: bool,
    pub(crate) error: Option<RunError>,
    /// The process id of its bash.
    pub(crate) pid: Option<u64>,
    /// From the start to the end, in milliseconds.
    pub(crate) timing_ms: f64,
    /// What did not fit, per stream.
    pub(crate) truncated: Option<BTreeMap<String, Truncated>>,
    /// Whether the command is recorded on disk, so that it is found again after the death of the companion, of the
    /// container or of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) durable: Option<bool>,
}

/// `POST /shell/cd`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeFolder {
    /// Relative to where the session is; `~` is its home.
    pub(crate) path: String,
    #[serde(default = "default_session")]
    pub(crate) session: String,
}

/// `POST /shell/env`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeVariable {
    pub(crate) key: String,
    /// `null` unsets it.
    pub(crate) value: Option<String>,
    #[serde(default = "default_session")]
    pub(crate) session: String,
}

/// Where the session's next command starts.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Located {
    pub(crate) status: RunStatus,
    pub(crate) cwd: String,
}

/// `GET /jobs`: what commands left running.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct JobList {
    pub(crate) jobs: Vec<JobInfo>,
}

/// The processes that one command left in the background.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct JobInfo {
    /// The id of its guard, by which it is ended: `DELETE /jobs/{pid}`.
    pub(crate) pid: i32,
    pub(crate) session: String,
    /// The id of the command.
    pub(crate) run: String,
    pub(crate) command: String,
    pub(crate) processes: Vec<JobProcess>,
    /// The end of what they wrote since, both streams together.
    pub(crate) output: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct JobProcess {
    pub(crate) pid: i32,
    pub(crate) command: String,
}
