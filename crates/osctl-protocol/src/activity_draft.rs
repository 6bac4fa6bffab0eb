//! The draft of an activity record: an action that has begun.

use super::activity::{ActivityKind, ActivityRecord, ActivityVerdict};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// An action that has begun.
#[derive(Debug, Clone)]
pub struct ActivityDraft {
    pub client: Arc<str>,
    pub kind: ActivityKind,
    pub session: Option<String>,
    pub tool: Option<String>,
    /// The text, of which the record gets the first line.
    pub text: String,
    pub started: SystemTime,
    pub began: Instant,
}

impl ActivityDraft {
    pub fn begin(kind: ActivityKind, client: Arc<str>) -> Self {
        Self {
            client,
            kind,
            session: None,
            tool: None,
            text: String::new(),
            started: SystemTime::now(),
            began: Instant::now(),
        }
    }

    /// The record of the action, which ends now. The activity log sets the number and shortens the text.
    pub fn finish(self, verdict: ActivityVerdict, bytes: u64) -> ActivityRecord {
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        ActivityRecord {
            seq: 0,
            started: started.as_secs_f64(),
            duration_ms: self.began.elapsed().as_secs_f64() * 1e3,
            client: self.client.as_ref().into(),
            kind: self.kind,
            session: self.session,
            tool: self.tool,
            text: self.text,
            verdict,
            bytes,
        }
    }
}
