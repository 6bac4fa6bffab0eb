//! Records of the actions in a container: what clients ran, called and wrote.

use super::kernel::RunStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Default and maximum number of records in one reply.
pub const DEFAULT_ACTIVITY_RECORDS: usize = 200;
pub const MAX_ACTIVITY_RECORDS: usize = 10_000;

/// Product names in the header `User-Agent`, by which the companion recognizes osctl and notebooks.
pub const CLI_AGENT: &str = "osctl";
pub const NOTEBOOK_AGENT: &str = "notebook";

/// One action, recorded at its end. No field contains output, file content or a secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivityRecord {
    /// Number of the record; it only increases.
    pub seq: u64,
    /// Start of the action, in seconds since 1970.
    pub started: f64,
    pub duration_ms: f64,
    /// The name that the client gave: `clientInfo` of MCP, or the product in `User-Agent`.
    pub client: String,
    pub kind: ActivityKind,
    pub session: Option<String>,
    /// The tool, or the endpoint.
    pub tool: Option<String>,
    /// The first line of the code or of the command, the path or the URL, shortened.
    pub text: String,
    pub verdict: ActivityVerdict,
    /// Bytes of the output, of the tool's answer, or of the file.
    pub bytes: u64,
}

/// The kind of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivityKind {
    /// Python code.
    Exec,
    /// A shell command.
    Shell,
    /// A call of an MCP tool.
    Tool,
    /// A file that was written or removed.
    File,
    /// A terminal that was opened.
    Terminal,
    /// An evolve or a rollback that was requested.
    Evolve,
    /// A browser or an MCP client that signed in.
    SignIn,
}

impl ActivityKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Shell => "shell",
            Self::Tool => "tool",
            Self::File => "file",
            Self::Terminal => "terminal",
            Self::Evolve => "evolve",
            Self::SignIn => "sign_in",
        }
    }
}

/// How an action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivityVerdict {
    Completed,
    Failed,
    Interrupted,
    /// The companion or the server ended first; the action may have happened in part.
    Lost,
    /// The tool has answered, and its code is still running.
    Running,
    /// The request was refused; nothing happened.
    Refused,
    /// The client cancelled the call, or disconnected.
    Cancelled,
}

impl ActivityVerdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
            Self::Running => "running",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
        }
    }
}

impl From<RunStatus> for ActivityVerdict {
    fn from(status: RunStatus) -> Self {
        match status {
            RunStatus::Running => Self::Running,
            RunStatus::Completed => Self::Completed,
            RunStatus::Failed => Self::Failed,
            RunStatus::Interrupted => Self::Interrupted,
            RunStatus::Lost => Self::Lost,
        }
    }
}

/// The query of `GET /activity`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivityQuery {
    /// Only actions that ended at this time or later, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<f64>,
    /// Only records with a greater number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Maximum number of earlier records; the newest ones are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl ActivityQuery {
    pub fn matches(&self, record: &ActivityRecord) -> bool {
        let ended = record.started + record.duration_ms / 1e3;
        let is_client = |name: &String| name.eq_ignore_ascii_case(&record.client);
        self.since.is_none_or(|since| ended >= since)
            && self.after.is_none_or(|after| record.seq > after)
            && self.client.as_ref().is_none_or(is_client)
            && (self.session.is_none() || self.session == record.session)
    }
}

/// `GET /activity`: the records, the oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ActivityList {
    pub records: Vec<ActivityRecord>,
}

/// A line or an event of the stream of records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ActivityEvent {
    Record(ActivityRecord),
    /// The client reads too slowly: this number of records was left out of the stream.
    Skipped {
        count: u64,
    },
    /// No action for a while.
    Heartbeat,
}

#[cfg(test)]
mod tests {
    use super::{ActivityEvent, ActivityKind, ActivityQuery, ActivityRecord, ActivityVerdict};

    fn sample_record(seq: u64) -> ActivityRecord {
        ActivityRecord {
            seq,
            started: 100.0 + seq as f64,
            duration_ms: 500.0,
            client: "claude-code".into(),
            kind: ActivityKind::Exec,
            session: Some("default".into()),
            tool: None,
            text: "1 + 1".into(),
            verdict: ActivityVerdict::Completed,
            bytes: 2,
        }
    }

    #[test]
    fn a_query_selects_by_end_number_client_and_session() {
        let record = sample_record(7);
        let matches = |query: &str| {
            let query: ActivityQuery = serde_json::from_str(query).unwrap();
            query.matches(&record)
        };
        for query in [
            "{}",
            r#"{"since":107.5}"#,
            r#"{"after":6}"#,
            r#"{"client":"Claude-Code"}"#,
            r#"{"session":"default"}"#,
        ] {
            assert!(matches(query), "{query}");
        }
        for query in [
            r#"{"since":107.6}"#,
            r#"{"after":7}"#,
            r#"{"client":"claude"}"#,
            r#"{"session":"b"}"#,
        ] {
            assert!(!matches(query), "{query}");
        }
    }

    #[test]
    fn a_recorded_line_of_version_0_1_is_read() {
        let line = r#"{"type":"record","seq":7,"started":107.0,"duration_ms":500.0,"client":"claude-code","kind":"exec","session":"default","tool":null,"text":"1 + 1","verdict":"completed","bytes":2}"#;
        let event: ActivityEvent = serde_json::from_str(line).unwrap();
        assert_eq!(event, ActivityEvent::Record(sample_record(7)));
        assert_eq!(serde_json::to_string(&event).unwrap(), line);
    }
}
