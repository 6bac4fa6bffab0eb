//! Follows a run of the keeper to its end, also across a restart of the keeper.

use super::keeper::KeeperContainer;
use crate::engine::EngineProgress;
use crate::error::Result;
use crate::protocol::evolve::{EvolveRecord, EvolveRunId, KeeperReply, KeeperRequest, RunLogLine};
use crate::protocol::line_buffer::LineBuffer;
use futures_util::future::BoxFuture;
use std::time::Duration;
use tokio::time::Instant;

/// Time limit for a keeper that does not answer, for example while the engine restarts.
const RUN_FOLLOW_TIMEOUT: Duration = Duration::from_secs(120);
const RUN_FOLLOW_RETRY_DELAY: Duration = Duration::from_millis(300);

/// Waits until the person stops following.
pub(crate) type InterruptWait<'a> =
    &'a (dyn Fn() -> BoxFuture<'static, std::io::Result<()>> + Sync);

/// The reason why following ended.
#[derive(Debug)]
pub(crate) enum FollowOutcome {
    /// The run ended, with any result.
    RunEnded(Box<EvolveRecord>),
    /// The person stopped following; the run continues.
    Detached,
}

/// Follows the run until it ends, or `interrupt` does.
///
/// # Errors
/// When the keeper does not answer within [`RUN_FOLLOW_TIMEOUT`].
pub(crate) async fn follow_keeper_run(
    keeper: &KeeperContainer<'_>,
    run: &EvolveRunId,
    interrupt: impl Future<Output = std::io::Result<()>>,
    progress: &dyn EngineProgress,
) -> Result<FollowOutcome> {
    tokio::select! {
        record = wait_for_run_end(keeper, run, progress) => Ok(FollowOutcome::RunEnded(record?)),
        interrupted = interrupt => {
            interrupted?;
            Ok(FollowOutcome::Detached)
        }
    }
}

/// Returns on Ctrl-C or SIGTERM: in both cases the run continues.
pub(crate) async fn wait_for_interrupt() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

/// Follows the run until it ends.
///
/// # Errors
/// When the keeper does not answer within [`RUN_FOLLOW_TIMEOUT`].
pub(crate) async fn wait_for_run_end(
    keeper: &KeeperContainer<'_>,
    run: &EvolveRunId,
    progress: &dyn EngineProgress,
) -> Result<Box<EvolveRecord>> {
    let mut offset = 0;
    let mut printer = RunLogPrinter::default();
    let mut last_reply_at = Instant::now();
    loop {
        let mut ended = None;
        let request = KeeperRequest::Log {
            run: run.clone(),
            offset,
            follow: true,
        };
        let mut on_reply = |reply| {
            last_reply_at = Instant::now();
            match reply {
                KeeperReply::Log { text, next, .. } => {
                    offset = next;
                    printer.push_text(&text, progress);
                }
                KeeperReply::Record(record) => ended = record.status.has_ended().then_some(record),
                _ => {}
            }
            Ok(())
        };
        let outcome = keeper.send_request(&request, &mut on_reply).await;
        match (ended, outcome) {
            (Some(record), _) => return Ok(record),
            (None, Err(error)) if last_reply_at.elapsed() > RUN_FOLLOW_TIMEOUT => {
                return Err(error);
            }
            (None, _) => tokio::time::sleep(RUN_FOLLOW_RETRY_DELAY).await,
        }
    }
}

/// Limit of an incomplete line of the log.
const MAX_RUN_LOG_LINE_BYTES: usize = 1 << 20;

/// Limit of a stage's name, which is repeated with each of its steps.
const MAX_STAGE_CHARS: usize = 200;

/// Prints the log, and tracks the part already printed.
#[derive(Debug, Default)]
struct RunLogPrinter {
    unfinished: LineBuffer,
    stage: String,
}

impl RunLogPrinter {
    fn push_text(&mut self, text: &str, progress: &dyn EngineProgress) {
        self.unfinished.push(text.as_bytes());
        while let Some(line) = self.unfinished.next_line() {
            self.print_line(String::from_utf8_lossy(&line).trim_end(), progress);
        }
        // No stage line is longer.
        if self.unfinished.unread_bytes() > MAX_RUN_LOG_LINE_BYTES {
            self.unfinished.take_unread();
        }
    }

    /// Reports a stage or a step, and prints all other lines of the log.
    fn print_line(&mut self, line: &str, progress: &dyn EngineProgress) {
        match RunLogLine::parse(line) {
            RunLogLine::Stage(stage) => {
                self.stage = stage.chars().take(MAX_STAGE_CHARS).collect();
                progress.report_step(stage);
            }
            RunLogLine::Step(step) => progress.report_step(&format!("{}: {step}", self.stage)),
            RunLogLine::Output(text) => progress.log(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_RUN_LOG_LINE_BYTES, MAX_STAGE_CHARS, RunLogPrinter};
    use crate::engine::EngineProgress;
    use parking_lot::Mutex;

    #[derive(Debug, Default)]
    struct RecordedProgress(Mutex<Vec<String>>);

    impl EngineProgress for RecordedProgress {
        fn report_step(&self, what: &str) {
            self.0.lock().push(format!("step {what}"));
        }

        fn report_amount(&self, _: &str, _: u64, _: Option<u64>) {}

        fn log(&self, line: &str) {
            self.0.lock().push(format!("log {line}"));
        }
    }

    #[test]
    fn a_log_in_pieces_is_printed_in_lines() {
        let (mut printer, progress) = (RunLogPrinter::default(), RecordedProgress::default());
        for piece in [
            "== buil",
            "ding\n-- reading\n",
            "a line\n -- not",
            " ours\n-- x",
        ] {
            printer.push_text(piece, &progress);
        }
        let lines = [
            "step building",
            "step building: reading",
            "log a line",
            "log  -- not ours",
        ];
        assert_eq!(*progress.0.lock(), lines);
    }

    #[test]
    fn a_log_of_many_lines_or_of_an_endless_line_is_printed_within_bounds() {
        let (mut printer, progress) = (RunLogPrinter::default(), RecordedProgress::default());
        printer.push_text(&"\n".repeat(1 << 20), &progress);
        assert_eq!(progress.0.lock().len(), 1 << 20);
        printer.push_text(&"x".repeat(2 * MAX_RUN_LOG_LINE_BYTES), &progress);
        assert!(printer.unfinished.unread_bytes() <= MAX_RUN_LOG_LINE_BYTES);
        progress.0.lock().clear();
        printer.push_text(&format!("\n== {}\n-- x\n", "y".repeat(1000)), &progress);
        let last = progress.0.lock().pop().unwrap();
        assert_eq!(last.len(), MAX_STAGE_CHARS + "step : x".len());
    }
}
