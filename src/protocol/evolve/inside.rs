//! What the keeper asks of a container, by hidden verbs of `/opt/osctl/bin/osctl` in it.
//!
//! Each prints one JSON document on stdout and ends with 0 when it has one, whatever that says; any
//! other end is a failed gate, with stderr as its reason. They reach the companion over its private
//! socket, so that only who may exec in the container can ask.
//!
//! ```text
//! osctl remember --json                           → Remembered in the old one, before a trial
//! osctl selftest --json [--snapshot DIR]          → SelfTest   in the trial container
//! osctl quiesce --json --grace S [--force]        → Quiesced   in the old one
//! osctl resume --json                             → Resumed    in the old one
//! osctl verify --json --expected DOC              → Verified   in the new one, DOC is Expected
//! ```

use crate::protocol::cryo::ReceiptRow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct EvolveCheck {
    /// Short and stable: `services`, `exec`, `shell`, `cryo`, `mcp:linux`, `selftest.d/10-mine`.
    pub(crate) name: String,
    pub(crate) passed: bool,
    /// What was found, in a sentence.
    pub(crate) detail: String,
    /// How long it took, in milliseconds.
    pub(crate) ms: f64,
}

/// `osctl selftest`: whether this body works, asked of a container with throw-away data.
///
/// `DIR` has the form of `/data` and is read-only: the state that the body will have to bring back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SelfTest {
    pub(crate) passed: bool,
    pub(crate) checks: Vec<EvolveCheck>,
}

/// `osctl remember`: what is idle is stored, so that a trial has the present state to bring back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    /// Of each session, why it could not be stored now, if it could not.
    pub(crate) sessions: BTreeMap<String, Option<String>>,
}

/// `osctl quiesce`: no runs, no writes, the browser closed, every session stored; requests are
/// refused with 503 `evolving` and `Retry-After` until `osctl resume`.
///
/// Asked again it answers again. When it can't be done within the grace time, nothing has changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quiesced {
    pub(crate) quiesced: bool,
    /// Why not, in a sentence.
    #[serde(default)]
    pub(crate) why: Option<String>,
    /// The ids of the runs that were on when the grace time was over.
    #[serde(default)]
    pub(crate) running: Vec<String>,
    /// What was stored of each session.
    #[serde(default)]
    pub(crate) receipt: Vec<SessionReceipt>,
    /// What becomes of all else.
    #[serde(default)]
    pub(crate) besides: Vec<NonVariableState>,
    /// What the new container has to live up to; the keeper hands it on as it is, with the run's name.
    #[serde(default)]
    pub(crate) expected: ExpectedState,
}

/// `osctl resume`: whether requests are answered again. Not an error when nothing was quiesced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EvolveResumed {
    pub(crate) resumed: bool,
}

/// What the old container had, which the new one must have. It is small: an argument carries it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExpectedState {
    /// The run that brings the new container, so that it can tell which one made it.
    #[serde(default)]
    pub(crate) run: Option<String>,
    /// The services that were ready.
    pub(crate) healthy_before: Vec<String>,
    /// The sessions that were there.
    pub(crate) sessions: Vec<ExpectedSession>,
    /// The MCP servers that answered.
    #[serde(default)]
    pub(crate) servers: Vec<String>,
    /// The folder of each session's shell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) shells: BTreeMap<String, String>,
    /// How many sessions of MCP clients were kept.
    #[serde(default)]
    pub(crate) clients: u64,
}

/// A session that has to come back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExpectedSession {
    pub(crate) session: String,
    /// The kernel's generation; a later one answers afterwards.
    pub(crate) kernel: u64,
    /// What was stored of it, if anything was.
    #[serde(default)]
    pub(crate) stored: Option<u64>,
    /// How many of its variables were stored.
    #[serde(default)]
    pub(crate) variables: u64,
    /// The checkpoint that it lay in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<String>,
}

/// `osctl verify`: waits until everything that was healthy is healthy, the state is reloaded and
/// probed, and says what it found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verified {
    pub(crate) passed: bool,
    pub(crate) checks: Vec<EvolveCheck>,
    /// What came back of each session.
    #[serde(default)]
    pub(crate) receipt: Vec<SessionReceipt>,
    /// What it found of all else; what it does not speak of is as the old container said.
    #[serde(default)]
    pub(crate) besides: Vec<NonVariableState>,
}

/// What became of one session's variables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionReceipt {
    pub(crate) session: String,
    /// `process` when the whole kernel was frozen and thawed, `objects` when its variables were
    /// stored and reloaded, `nothing` when neither could be.
    pub(crate) by: KeptBy,
    pub(crate) rows: Vec<ReceiptRow>,
    /// Why something is missing, beyond what the rows tell.
    #[serde(default)]
    pub(crate) why: Option<String>,
}

/// What became of something that is no variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct NonVariableState {
    /// Short and stable: `shell:default`, `job:default`, `terminals`, `mcp`, `mcp:sse`, `browser`.
    pub(crate) what: String,
    pub(crate) kept: bool,
    /// How it is kept, or why it is not, in a sentence.
    pub(crate) detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeptBy {
    Process,
    Objects,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::{EvolveResumed, ExpectedState, Quiesced, SelfTest, Verified};

    #[test]
    fn the_shortest_answers_can_be_read() {
        let read: SelfTest = serde_json::from_str(r#"{"passed":true,"checks":[]}"#).unwrap();
        assert!(read.passed);
        let read: Quiesced =
            serde_json::from_str(r#"{"quiesced":false,"why":"a run is on"}"#).unwrap();
        assert_eq!(read.expected, ExpectedState::default());
        let read: Verified = serde_json::from_str(r#"{"passed":false,"checks":[]}"#).unwrap();
        assert!(!read.passed && read.receipt.is_empty());
        let read: EvolveResumed = serde_json::from_str(r#"{"resumed":true}"#).unwrap();
        assert!(read.resumed);
    }
}
