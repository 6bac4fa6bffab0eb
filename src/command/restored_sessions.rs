//! The report of the sessions that were restored with their container.

use super::CommandContext;
use crate::error::Result;
use crate::host::client::CompanionClient;
use crate::protocol::kernel::KernelState;
use crate::protocol::restored::RestoredFrom;
use crate::protocol::session::{RELOADING_DETAIL, STARTING_DETAIL, SessionInfo};
use std::time::{Duration, Instant};

/// How long to wait for sessions that the companion starts or reloads. The companion's own limits are shorter: 60 s for
/// a start, then 90 s for a reload.
const SESSIONS_TIMEOUT: Duration = Duration::from_secs(180);
/// How long to wait while the companion reports no progress.
const SESSIONS_PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
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
                let words = from.describe();
                (
                    format!("session `{name}`: {count} back from {words}"),
                    !from.is_complete(),
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

    /// Whether variables that the store kept are lost, or came back with an unreported difference.
    fn has_unexpected_loss(&self) -> bool {
        self.restored_from
            .as_ref()
            .is_some_and(|from| from.lost_unexpectedly > 0)
    }

    /// Whether the companion starts the kernel or reloads its variables.
    fn is_in_progress(&self) -> bool {
        [STARTING_DETAIL, RELOADING_DETAIL].contains(&&*self.detail)
    }

    /// The row for `osctl status`.
    pub(crate) fn status_row(&self) -> Option<String> {
        self.restored_from.as_ref()?;
        self.describe_restored().map(|(words, _)| words)
    }
}

/// The status of the sessions; empty if the companion does not report it.
pub(super) async fn fetch_sessions(client: &CompanionClient) -> Vec<SessionStatus> {
    try_fetch_sessions(client).await.unwrap_or_default()
}

async fn try_fetch_sessions(client: &CompanionClient) -> Result<Vec<SessionStatus>> {
    let status = client.fetch_status().await?;
    Ok(status
        .sessions
        .into_iter()
        .map(SessionStatus::from)
        .collect())
}

/// Waits until all sessions are restored, reports them, and returns whether saved variables are lost, or may be lost
/// because a session is not restored.
pub(super) async fn report_when_restored(client: &CompanionClient, cx: &CommandContext) -> bool {
    let status = cx.instance.osctl_command("status");
    match wait_for_sessions(client).await {
        Ok(sessions) => {
            if !cx.ui.json {
                report_sessions(&sessions, cx);
            }
            if sessions.iter().any(|one| !one.ready) {
                cx.ui
                    .print_warning(format!("`{status}` shows when each session is ready"));
            }
            let is_bad = |one: &SessionStatus| !one.ready || one.has_unexpected_loss();
            sessions.iter().any(is_bad)
        }
        Err(error) => {
            cx.ui.print_warning(format!(
                "the companion does not report its sessions: {error:#}; `{status}` shows them"
            ));
            true
        }
    }
}

/// Waits until all sessions are ready, or until [`SessionsWait`] gives up. Returns the last reply of the companion.
async fn wait_for_sessions(client: &CompanionClient) -> Result<Vec<SessionStatus>> {
    let mut wait = SessionsWait::start(Instant::now());
    loop {
        let found = try_fetch_sessions(client).await;
        if wait.is_over(found.as_deref().ok(), Instant::now()) {
            return found;
        }
        tokio::time::sleep(SESSIONS_POLL_INTERVAL).await;
    }
}

/// Decides how long a command waits for sessions.
struct SessionsWait {
    started_at: Instant,
    /// When the companion reported progress last.
    progress_at: Instant,
}

impl SessionsWait {
    fn start(now: Instant) -> Self {
        Self {
            started_at: now,
            progress_at: now,
        }
    }

    /// Whether the wait is over; `found` is `None` if the companion did not answer.
    fn is_over(&mut self, found: Option<&[SessionStatus]>, now: Instant) -> bool {
        let sessions = found.unwrap_or_default();
        if sessions.iter().any(SessionStatus::is_in_progress) {
            self.progress_at = now;
        }
        let is_ready = found.is_some() && sessions.iter().all(|session| session.ready);
        is_ready
            || now - self.progress_at > SESSIONS_PROGRESS_TIMEOUT
            || now - self.started_at > SESSIONS_TIMEOUT
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

#[cfg(test)]
mod tests {
    use super::{SESSIONS_PROGRESS_TIMEOUT, SESSIONS_TIMEOUT, SessionStatus, SessionsWait};
    use crate::protocol::kernel::KernelState;
    use crate::protocol::session::{RELOADING_DETAIL, STARTING_DETAIL};
    use std::time::{Duration, Instant};

    fn session(ready: bool, detail: &str) -> SessionStatus {
        SessionStatus {
            name: "second".into(),
            generation: 1,
            state: KernelState::Lost,
            ready,
            detail: detail.into(),
            restored_from: None,
        }
    }

    /// The seconds until the wait is over, with the answer that the companion gives each second.
    fn seconds(answer: impl Fn(u64) -> Option<Vec<SessionStatus>>) -> u64 {
        let start = Instant::now();
        let mut wait = SessionsWait::start(start);
        (0..)
            .find(|second| {
                let now = start + Duration::from_secs(*second);
                wait.is_over(answer(*second).as_deref(), now)
            })
            .unwrap()
    }

    #[test]
    fn a_command_waits_for_a_session_while_the_companion_reports_progress() {
        let ready = || session(true, "idle");
        assert_eq!(seconds(|_| Some(vec![ready()])), 0);
        // A start of 55 s and a reload of 85 s, which the companion's limits allow.
        let slow = |second| match second {
            0..55 => session(false, STARTING_DETAIL),
            55..140 => session(false, RELOADING_DETAIL),
            _ => ready(),
        };
        assert_eq!(seconds(|second| Some(vec![ready(), slow(second)])), 140);
    }

    #[test]
    fn a_command_does_not_wait_for_a_session_without_progress() {
        let limit = SESSIONS_PROGRESS_TIMEOUT.as_secs() + 1;
        let failed = || session(false, "can't be started, retrying: it ended");
        assert_eq!(seconds(|_| Some(vec![failed()])), limit);
        assert_eq!(seconds(|_| None), limit, "the companion does not answer");
        // A kernel that fails is started again and again.
        let again = |second| match second % 5 {
            0 => session(false, STARTING_DETAIL),
            _ => failed(),
        };
        let longest = SESSIONS_TIMEOUT.as_secs() + 1;
        assert_eq!(seconds(|second| Some(vec![again(second)])), longest);
        let (words, is_less) = failed().describe_restored().unwrap();
        assert!(words.contains("is not ready yet") && is_less, "{words}");
    }
}
