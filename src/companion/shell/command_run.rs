//! A command as a run: the fields of its reply besides those of every run.

use crate::companion::runs::{self, RunKind, RunSnapshot};
use crate::protocol::shell::{ShellReply, ShellRequest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(crate) type CommandRun = runs::TrackedRun<ShellRequest>;

/// The state of a command besides its output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CommandReport {
    /// `None` while the command runs.
    pub(super) returncode: Option<i32>,
    pub(super) cwd: String,
    pub(super) background: bool,
}

impl RunKind for ShellRequest {
    type Reply = ShellReply;
    type Report = CommandReport;

    const RUN_API_PATH: &'static str = "/shell";

    fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    fn text(&self) -> &str {
        &self.command
    }

    fn session(&self) -> &str {
        &self.session
    }

    fn bytes(&self) -> usize {
        self.command.len() + self.stdin.as_ref().map_or(0, String::len)
    }

    fn durable(&self) -> Option<bool> {
        self.durable
    }

    fn is_private(&self) -> bool {
        false
    }

    fn is_failure(report: &CommandReport) -> bool {
        report.returncode.is_some_and(|code| code != 0)
    }

    /// The command's input may be a secret, so the hash covers only whether there is any.
    fn hash_request(&self, hash: &mut Sha256) {
        for part in [&self.session, &self.command] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        let timeout = self.timeout.map(f64::to_bits);
        hash.update(format!(
            "{timeout:?} {} {}",
            self.stdin.is_some(),
            self.stdin_open
        ));
    }

    fn from_recovered(id: String, session: String, line: String) -> Self {
        Self {
            id: Some(id),
            session,
            ..Self::new(line)
        }
    }

    fn is_same_request(&self, other: &Self) -> bool {
        (&self.command, &self.session, &self.stdin)
            == (&other.command, &other.session, &other.stdin)
            && self.timeout == other.timeout
            && self.stdin_open == other.stdin_open
    }

    fn reply(
        &self,
        so_far: RunSnapshot,
        ended: Option<CommandReport>,
        running: CommandReport,
    ) -> ShellReply {
        let report = ended.unwrap_or(running);
        ShellReply {
            id: so_far.id,
            status: so_far.status,
            stdout: so_far.stdout,
            stderr: so_far.stderr,
            returncode: report.returncode,
            cwd: report.cwd,
            background: report.background,
            error: so_far.error,
            pid: so_far.number,
            timing_ms: so_far.timing_ms,
            truncated: so_far.truncated,
            durable: Some(so_far.durable),
        }
    }
}
