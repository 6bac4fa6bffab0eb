//! Answers about the activity log.

use super::{UtcTime, seconds_from_ms};
use crate::protocol::activity::{ActivityKind, ActivityList, ActivityRecord, ActivityVerdict};
use schemars::JsonSchema;
use serde::Serialize;

/// What clients did, in the order in which the actions ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ActivitiesAnswer {
    actions: Vec<ActivityEntry>,
}

impl From<ActivityList> for ActivitiesAnswer {
    fn from(list: ActivityList) -> Self {
        let actions = list.records.into_iter();
        Self {
            actions: actions.map(ActivityEntry::from).collect(),
        }
    }
}

/// One action of a client. `osctl activity -f` prints one per line.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ActivityEntry {
    /// Number of the record; it only increases.
    seq: u64,
    started_at: UtcTime,
    duration_seconds: f64,
    /// The name that the client gave.
    client: String,
    kind: ActivityKind,
    session: Option<String>,
    /// The MCP tool, or the HTTP method.
    tool: Option<String>,
    /// The first line of the code or of the command, the path or the URL.
    text: String,
    verdict: ActivityVerdict,
    /// Bytes of the output, of the tool's answer, or of the file.
    transferred_bytes: u64,
}

impl From<ActivityRecord> for ActivityEntry {
    fn from(record: ActivityRecord) -> Self {
        let ActivityRecord {
            seq,
            started,
            duration_ms,
            client,
            kind,
            session,
            tool,
            text,
            verdict,
            bytes,
        } = record;
        Self {
            seq,
            started_at: UtcTime::from_seconds(started),
            duration_seconds: seconds_from_ms(duration_ms),
            client,
            kind,
            session,
            tool,
            text,
            verdict,
            transferred_bytes: bytes,
        }
    }
}
