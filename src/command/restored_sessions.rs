//! The report of the sessions that were restored with their container.

use super::CommandContext;
use crate::host::client::CompanionClient;
use crate::protocol::kernel::KernelState;
use crate::protocol::restored::RestoredFrom;
use crate::protocol::session::SessionInfo;
use std::time::{Duration, Instant};

/// How long to wait for sessions other than the default one.
const SESSIONS_TIMEOUT: Duration = Duration::from_secs(10);
const SESSIONS_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A session in `osctl status`.
#[derive(Debug, Clone)]
pub(crate) struct SessionStatus {
    pub(crate) name: String,
    /// The generation of the kernel.
    pub(crate) generation: u64,
    /// Whether the next caller finds the variables that the last caller left.
    pub(crate) state: KernelState,
    pub(crate) ready: bool,
    pub(crate) detail: String,
    /// The stored generation from which the session was restored, until the kernel's generation changes.
    pub(crate) restored_from: Option<RestoredFrom>,
}

impl From<SessionInfo> for SessionStatus {
    fn from(session: SessionInfo) -> Self {
        Self {
            generation: session.kernel.generation,
            state: session.kernel.state,
            name: session.name,
            ready: session.ready,
            detail: session.detail,
            restored_from: session.restored_from,
        }
    }
}

impl SessionStatus {
    /// A sentence about the restored state, and whether something is missing.
    fn describe_restored(&self) -> Option<(String, bool)> {
        let name = &self.name;
        let source = match (&self.restored_from, self.state) {
            _ if !self.ready => (
                format!("session `{name}` is not ready yet: {}", self.detail),
                true,
            ),
            (Some(from), _) => {
                let count = match from.variables {
                    1 => "1 variable is".to_owned(),
                    count => format!("{count} variables are"),
                };
                let is_less = from.lost_count > 0
                    || from.runs_after.is_none_or(|runs| runs > 0)
                    || !from.skipped.is_empty()
                    || !from.warnings.is_empty();
                let words = from.describe();
                (
                    format!("session `{name}`: {count} back from {words}"),
                    is_less,
                )
            }
            (None, KernelState::Lost) => {
                let failed = self.detail.contains("can't be reloaded");
                let why = match failed {
                    true => format!("; the kernel is {}", self.detail),
                    false => String::new(),
                };
                (
                    format!("session `{name}`: no variables were restored{why}"),
                    failed,
                )
            }
            (None, KernelState::Restored) => {
                (format!("session `{name}`: its process was restored"), false)
            }
            // The earlier content of the session is unknown.
            (None, KernelState::Kept) => return None,
        };
        Some(source)
    }

    /// Whether variables are lost that the store had called saved, or a recipe.
    fn has_unexpected_loss(&self) -> bool {
        self.restored_from
            .as_ref()
            .is_some_and(|from| from.lost_unexpectedly > 0)
    }

    /// The row for `osctl status`.
    pub(crate) fn status_row(&self) -> Option<String> {
        self.restored_from.as_ref()?;
        self.describe_restored().map(|(words, _)| words)
    }
}

/// The status of the sessions; empty if the companion does not report it.
pub(super) async fn fetch_sessions(client: &CompanionClient) -> Vec<SessionStatus> {
    let status = client.fetch_status().await;
    let sessions = status.map(|status| status.sessions).unwrap_or_default();
    sessions.into_iter().map(SessionStatus::from).collect()
}

/// Waits until all sessions are restored, reports them, and returns whether saved variables are lost.
pub(super) async fn report_when_restored(client: &CompanionClient, cx: &CommandContext) -> bool {
    let sessions = wait_for_sessions(client).await;
    if !cx.ui.json {
        report_sessions(&sessions, cx);
    }
    sessions.iter().any(SessionStatus::has_unexpected_loss)
}

/// Waits until all sessions are restored, and returns their status.
async fn wait_for_sessions(client: &CompanionClient) -> Vec<SessionStatus> {
    let started_at = Instant::now();
    loop {
        let found = fetch_sessions(client).await;
        if found.iter().all(|session| session.ready) || started_at.elapsed() > SESSIONS_TIMEOUT {
            return found;
        }
        tokio::time::sleep(SESSIONS_POLL_INTERVAL).await;
    }
}

/// Reports the restored sessions, and warns of losses.
fn report_sessions(sessions: &[SessionStatus], cx: &CommandContext) {
    for (words, is_less) in sessions.iter().filter_map(SessionStatus::describe_restored) {
        match is_less {
            true => cx.ui.print_warning(words),
            false => cx.ui.print_message(words),
        }
    }
}
