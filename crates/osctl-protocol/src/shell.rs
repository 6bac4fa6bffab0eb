//! Requests and replies of shell commands.

use super::kernel::{DEFAULT_SESSION, RunError, RunStatus, TruncatedOutput};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// `POST /shell`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShellRequest {
    /// The command, as text for bash.
    pub command: String,
    /// The id of the run; generated when missing. A repeated request with the same id and body returns the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The session whose working directory, environment, functions and aliases the command uses and changes.
    #[serde(default = "default_session")]
    pub session: String,
    /// End the command and all processes that it started after this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Answer `running` after this many seconds; the command keeps running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<f64>,
    /// The command's stdin; empty by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Keep stdin open for `POST /shell/{id}/stdin`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// `true` refuses the command if it can't be recorded on disk, `false` does not record it. If missing, the command
    /// is recorded if possible, and `durable` in the reply says whether it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
}

impl ShellRequest {
    pub fn new(command: impl Into<String>) -> Self {
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
pub struct ShellReply {
    pub id: String,
    /// `completed` for any exit code; `interrupted` after a timeout or a stop.
    pub status: RunStatus,
    /// The output as text; bytes that are not UTF-8 are replaced by U+FFFD.
    pub stdout: String,
    pub stderr: String,
    /// The exit code, 128+n for signal n; -1 for a command that was ended from outside.
    pub returncode: Option<i32>,
    /// The working directory of the session's next command.
    pub cwd: String,
    /// Whether the command left background processes: `GET /jobs`.
    pub background: bool,
    pub error: Option<RunError>,
    /// The process id of its bash.
    pub pid: Option<u64>,
    /// Duration in milliseconds.
    pub timing_ms: f64,
    /// Truncated parts, per stream.
    pub truncated: Option<BTreeMap<String, TruncatedOutput>>,
    /// Whether the command is recorded on disk, and therefore survives the end of the companion, of the container or of
    /// the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
}

/// `POST /shell/cd`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeFolder {
    /// Relative to the session's working directory; `~` is its home.
    pub path: String,
    #[serde(default = "default_session")]
    pub session: String,
}

/// `POST /shell/env`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeVariable {
    pub key: String,
    /// `null` unsets it.
    pub value: Option<String>,
    #[serde(default = "default_session")]
    pub session: String,
}

/// The working directory of the session's next command.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ShellLocation {
    pub status: RunStatus,
    pub cwd: String,
}

/// `GET /jobs`: background processes of commands.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    pub jobs: Vec<JobInfo>,
}

/// The processes that one command left in the background.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobInfo {
    /// The process id of its supervisor, for `DELETE /jobs/{pid}`.
    pub pid: i32,
    pub session: String,
    /// The id of the command.
    pub run: String,
    pub command: String,
    pub processes: Vec<JobProcess>,
    /// The end of the output since the command ended, both streams together.
    pub output: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobProcess {
    pub pid: i32,
    pub command: String,
}
