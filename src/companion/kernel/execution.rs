//! Executing code as a run: what the reply says beside what every run tells.

use crate::companion::runs::{self, SoFar, Work};
use crate::protocol::kernel::{Execute, KernelReport, Reply, Summary};

/// One execution, from its acceptance to its end and beyond.
pub(crate) type Run = runs::Run<Execute>;

impl Work for Execute {
    type Reply = Reply;
    type Report = KernelReport;

    fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    fn text(&self) -> &str {
        &self.code
    }

    fn is_same(&self, other: &Self) -> bool {
        self.code == other.code
            && self.session == other.session
            && self.timeout == other.timeout
            && (self.silent, self.store_history) == (other.silent, other.store_history)
    }

    fn reply(&self, so_far: SoFar, ended: Option<KernelReport>, running: KernelReport) -> Reply {
        Reply {
            id: so_far.id,
            status: so_far.status,
            stdout: so_far.stdout,
            stderr: so_far.stderr,
            result: so_far.result,
            data: so_far.data,
            error: so_far.error,
            execution_count: so_far.number,
            timing_ms: so_far.timing_ms,
            kernel: ended.unwrap_or_else(|| running.to(self.seen)),
            truncated: so_far.truncated,
        }
    }
}

/// A run in the list of those that can be found.
pub(crate) fn summary(run: &Run) -> Summary {
    let outline = run.outline();
    let [stdout, stderr] = outline.written;
    Summary {
        id: run.id.clone(),
        session: run.work.session.clone(),
        status: run.status(),
        code: outline.line,
        execution_count: outline.number,
        created: outline.created,
        timing_ms: outline.timing_ms,
        stdout,
        stderr,
    }
}
