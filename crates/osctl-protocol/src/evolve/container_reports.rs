//! Calls of the keeper into a container: hidden verbs of `/opt/osctl/bin/osctl`.
//!
//! Each verb prints one JSON document on stdout and exits with 0 if it has a result, whether good or bad. Any other
//! exit is a failed stage, with stderr as its reason. The verbs call the companion over its private socket, so only a
//! caller who may exec in the container can use them.
//!
//! ```text
//! osctl remember --json                           → RememberReply in the old container, before a trial
//! osctl selftest --json [--snapshot DIR] [--same-image] → SelfTestReply in the trial container
//! osctl quiesce --json --grace S [--force]        → QuiesceReply  in the old container
//! osctl resume --json                             → ResumeReply   in the old container, or in the verified new one
//! osctl verify --json --expected DOC              → VerifyReply   in the new container; DOC is ExpectedState
//! ```

use crate::cryo::ReceiptRow;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The names of checks that run a script of the body begin with this.
pub const SCRIPT_CHECK_PREFIX: &str = "selftest.d/";

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EvolveCheck {
    /// Short and stable: `services`, `exec`, `shell`, `cryo`, `mcp:linux`, `selftest.d/10-mine`.
    pub name: String,
    pub passed: bool,
    /// The finding, in a sentence.
    pub detail: String,
    /// Duration in milliseconds.
    #[serde(alias = "ms")]
    pub timing_ms: f64,
}

/// `osctl selftest`: whether this body works, checked in a container with throw-away data.
///
/// `DIR` has the layout of `/data` and is read-only. It holds the state that the body will have to restore.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfTestReply {
    pub passed: bool,
    pub checks: Vec<EvolveCheck>,
}

/// `osctl remember`: stores idle sessions, so that a trial can restore the current state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberReply {
    /// For each session, why it could not be stored, or `null`.
    pub sessions: BTreeMap<String, Option<String>>,
}

/// `osctl quiesce`: no runs, no writes, the browser closed, every session stored. Requests are refused with 503
/// `evolving` and `Retry-After` until `osctl resume`.
///
/// A repeated call gives the same reply. If the container can't be quiesced within the grace time, nothing has changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuiesceReply {
    pub quiesced: bool,
    /// The reason of a failure, in a sentence.
    #[serde(default)]
    pub why: Option<String>,
    /// The ids of the runs that were still running at the end of the grace time.
    #[serde(default)]
    pub running: Vec<String>,
    /// The stored state of each session.
    #[serde(default)]
    pub receipt: Vec<SessionReceipt>,
    /// The state that is not variables, and what happens to it.
    #[serde(default, alias = "besides")]
    pub other_state: Vec<NonVariableState>,
    /// The state that the new container must have. The keeper sets `run` and `same_image`, and passes all other
    /// fields on unchanged.
    #[serde(default)]
    pub expected: ExpectedState,
}

/// `osctl resume`: whether requests are answered again. Not an error if nothing was quiesced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeReply {
    pub resumed: bool,
}

/// The state of the old container that the new one must have. It is small, because it is passed as an argument.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpectedState {
    /// The run that creates the new container, which thereby knows its run.
    #[serde(default)]
    pub run: Option<String>,
    /// Whether the new container has the image of the old one, whose MCP servers were tested when it was built.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_image: bool,
    /// The services that were healthy. A container of another version reads these keys, so their names stay.
    pub healthy_before: Vec<String>,
    /// The sessions that existed.
    pub sessions: Vec<ExpectedSession>,
    /// The MCP servers whose process ran.
    #[serde(default)]
    pub servers: Vec<String>,
    /// The working directory of each session's shell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shells: BTreeMap<String, String>,
    /// The number of MCP client sessions that were stored.
    #[serde(default)]
    pub clients: u64,
}

/// A session that the new container must restore. A container of an earlier version, to which a run rolls back, reads
/// the keys of the attributes `rename`; this version reads both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpectedSession {
    pub session: String,
    /// The kernel's generation; the restored kernel has a later one.
    #[serde(rename = "kernel", alias = "kernel_generation")]
    pub kernel_generation: u64,
    /// The generation that was stored, if any.
    #[serde(default, rename = "stored", alias = "stored_generation")]
    pub stored_generation: Option<u64>,
    /// The number of variables that were stored.
    #[serde(default, rename = "variables", alias = "stored_variable_count")]
    pub stored_variable_count: u64,
    /// The checkpoint of the session's kernel, if it was checkpointed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

/// `osctl verify`: waits until everything that was healthy is healthy again and the state is reloaded and probed, and
/// reports the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifyReply {
    pub passed: bool,
    pub checks: Vec<EvolveCheck>,
    /// The restored state of each session.
    #[serde(default)]
    pub receipt: Vec<SessionReceipt>,
    /// The state that is not variables, as found now. For items that are missing here, the list of the old container
    /// applies.
    #[serde(default, alias = "besides")]
    pub other_state: Vec<NonVariableState>,
}

/// The result for one session's variables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionReceipt {
    pub session: String,
    /// `process`: the whole kernel was checkpointed and restored. `objects`: its variables were stored and reloaded.
    /// `nothing`: both failed.
    #[serde(alias = "by")]
    pub restored_by: RestoreMethod,
    pub rows: Vec<ReceiptRow>,
    /// Why something is missing, in addition to the rows.
    #[serde(default)]
    pub why: Option<String>,
}

/// The result for a part of the state that is not a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct NonVariableState {
    /// Short and stable: `shell:default`, `job:default`, `terminals`, `mcp`, `mcp:sse`, `browser`.
    #[serde(alias = "what")]
    pub name: String,
    pub kept: bool,
    /// How it is kept, or why it is lost, in a sentence.
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestoreMethod {
    /// The whole process.
    Process,
    /// The variables.
    Objects,
    /// The session starts empty.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::{
        ExpectedSession, ExpectedState, QuiesceReply, ResumeReply, SelfTestReply, VerifyReply,
    };

    #[test]
    fn an_expected_session_is_written_with_the_keys_of_earlier_versions() {
        let former = r#"{"session":"default","kernel":2,"stored":3,"variables":4}"#;
        let today = r#"{"session":"default","kernel_generation":2,"stored_generation":3,"stored_variable_count":4}"#;
        let read: ExpectedSession = serde_json::from_str(former).unwrap();
        assert_eq!(
            (read.kernel_generation, read.stored_generation),
            (2, Some(3))
        );
        assert_eq!(serde_json::to_string(&read).unwrap(), former);
        assert_eq!(
            serde_json::from_str::<ExpectedSession>(today).unwrap(),
            read
        );
    }

    #[test]
    fn the_shortest_answers_can_be_read() {
        let read: SelfTestReply = serde_json::from_str(r#"{"passed":true,"checks":[]}"#).unwrap();
        assert!(read.passed);
        let read: QuiesceReply =
            serde_json::from_str(r#"{"quiesced":false,"why":"a run is on"}"#).unwrap();
        assert_eq!(read.expected, ExpectedState::default());
        let read: VerifyReply = serde_json::from_str(r#"{"passed":false,"checks":[]}"#).unwrap();
        assert!(!read.passed && read.receipt.is_empty());
        let read: ResumeReply = serde_json::from_str(r#"{"resumed":true}"#).unwrap();
        assert!(read.resumed);
    }
}
