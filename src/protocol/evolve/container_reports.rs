//! Calls of the keeper into a container: hidden verbs of `/opt/osctl/bin/osctl`.
//!
//! Each verb prints one JSON document on stdout and exits with 0 if it has a result, whether good or bad. Any other
//! exit is a failed stage, with stderr as its reason. The verbs call the companion over its private socket, so only a
//! caller who may exec in the container can use them.
//!
//! ```text
//! osctl remember --json                           → RememberReply in the old container, before a trial
//! osctl selftest --json [--snapshot DIR]          → SelfTestReply in the trial container
//! osctl quiesce --json --grace S [--force]        → QuiesceReply  in the old container
//! osctl resume --json                             → ResumeReply   in the old container, or in the verified new one
//! osctl verify --json --expected DOC              → VerifyReply   in the new container; DOC is ExpectedState
//! ```

use crate::protocol::cryo::ReceiptRow;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct EvolveCheck {
    /// Short and stable: `services`, `exec`, `shell`, `cryo`, `mcp:linux`, `selftest.d/10-mine`.
    pub(crate) name: String,
    pub(crate) passed: bool,
    /// The finding, in a sentence.
    pub(crate) detail: String,
    /// Duration in milliseconds.
    #[serde(alias = "ms")]
    pub(crate) timing_ms: f64,
}

/// `osctl selftest`: whether this body works, checked in a container with throw-away data.
///
/// `DIR` has the layout of `/data` and is read-only. It holds the state that the body will have to restore.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SelfTestReply {
    pub(crate) passed: bool,
    pub(crate) checks: Vec<EvolveCheck>,
}

/// `osctl remember`: stores idle sessions, so that a trial can restore the current state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RememberReply {
    /// For each session, why it could not be stored, or `null`.
    pub(crate) sessions: BTreeMap<String, Option<String>>,
}

/// `osctl quiesce`: no runs, no writes, the browser closed, every session stored. Requests are refused with 503
/// `evolving` and `Retry-After` until `osctl resume`.
///
/// A repeated call gives the same reply. If the container can't be quiesced within the grace time, nothing has changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct QuiesceReply {
    pub(crate) quiesced: bool,
    /// The reason of a failure, in a sentence.
    #[serde(default)]
    pub(crate) why: Option<String>,
    /// The ids of the runs that were still running at the end of the grace time.
    #[serde(default)]
    pub(crate) running: Vec<String>,
    /// The stored state of each session.
    #[serde(default)]
    pub(crate) receipt: Vec<SessionReceipt>,
    /// The state that is not variables, and what happens to it.
    #[serde(default, alias = "besides")]
    pub(crate) other_state: Vec<NonVariableState>,
    /// The state that the new container must have. The keeper sets `run` and passes all other fields on unchanged.
    #[serde(default)]
    pub(crate) expected: ExpectedState,
}

/// `osctl resume`: whether requests are answered again. Not an error if nothing was quiesced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResumeReply {
    pub(crate) resumed: bool,
}

/// The state of the old container that the new one must have. It is small, because it is passed as an argument.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExpectedState {
    /// The run that creates the new container, which thereby knows its run.
    #[serde(default)]
    pub(crate) run: Option<String>,
    /// The services that were healthy. A container of another version reads these keys, so their names stay.
    pub(crate) healthy_before: Vec<String>,
    /// The sessions that existed.
    pub(crate) sessions: Vec<ExpectedSession>,
    /// The MCP servers whose process ran.
    #[serde(default)]
    pub(crate) servers: Vec<String>,
    /// The working directory of each session's shell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) shells: BTreeMap<String, String>,
    /// The number of MCP client sessions that were stored.
    #[serde(default)]
    pub(crate) clients: u64,
}

/// A session that the new container must restore. A container of an earlier version, to which a run rolls back, reads
/// the keys of the attributes `rename`; this version reads both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExpectedSession {
    pub(crate) session: String,
    /// The kernel's generation; the restored kernel has a later one.
    #[serde(rename = "kernel", alias = "kernel_generation")]
    pub(crate) kernel_generation: u64,
    /// The generation that was stored, if any.
    #[serde(default, rename = "stored", alias = "stored_generation")]
    pub(crate) stored_generation: Option<u64>,
    /// The number of variables that were stored.
    #[serde(default, rename = "variables", alias = "stored_variable_count")]
    pub(crate) stored_variable_count: u64,
    /// The checkpoint of the session's kernel, if it was checkpointed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<String>,
}

/// `osctl verify`: waits until everything that was healthy is healthy again and the state is reloaded and probed, and
/// reports the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct VerifyReply {
    pub(crate) passed: bool,
    pub(crate) checks: Vec<EvolveCheck>,
    /// The restored state of each session.
    #[serde(default)]
    pub(crate) receipt: Vec<SessionReceipt>,
    /// The state that is not variables, as found now. For items that are missing here, the list of the old container
    /// applies.
    #[serde(default, alias = "besides")]
    pub(crate) other_state: Vec<NonVariableState>,
}

/// The result for one session's variables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionReceipt {
    pub(crate) session: String,
    /// `process`: the whole kernel was checkpointed and restored. `objects`: its variables were stored and reloaded.
    /// `nothing`: both failed.
    #[serde(alias = "by")]
    pub(crate) restored_by: RestoreMethod,
    pub(crate) rows: Vec<ReceiptRow>,
    /// Why something is missing, in addition to the rows.
    #[serde(default)]
    pub(crate) why: Option<String>,
}

/// The result for a part of the state that is not a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct NonVariableState {
    /// Short and stable: `shell:default`, `job:default`, `terminals`, `mcp`, `mcp:sse`, `browser`.
    #[serde(alias = "what")]
    pub(crate) name: String,
    pub(crate) kept: bool,
    /// How it is kept, or why it is lost, in a sentence.
    pub(crate) detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RestoreMethod {
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
