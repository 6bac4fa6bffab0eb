//! Waits for a run on behalf of a tool call: output is sent as progress, and cancelling the call ends the wait, after
//! which the tool interrupts the run.

use super::logging::{LogSeverity, send_log_message};
use super::run_result::char_boundary;
use super::server::OsServer;
use super::tool_error::ToolError;
use crate::companion::runs::{RunKind, TrackedRun};
use crate::protocol::kernel::{OutputStream, RunEventKind};
use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// The shortest interval between two reports; more frequent reports would only load the client.
const TOOL_PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// After this time without output a report says that the run continues, so that the client's own timeout does not end
/// it.
const TOOL_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// The most bytes of output in one report; the answer contains all output.
const MAX_TOOL_PROGRESS_BYTES: usize = 4096;
/// One week: a longer time limit is certainly a mistake of units.
const MAX_TOOL_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

/// How the wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunWaitEnd {
    Ended,
    /// The run continues; the client can wait for it again.
    StillRunning,
    /// The client cancelled the call.
    Cancelled,
}

/// The recipient of progress reports.
struct ToolProgressReporter<'a> {
    server: &'a OsServer,
    cx: &'a RequestContext<RoleServer>,
    started_at: Instant,
    last_report: Instant,
    /// Output that was not reported yet.
    unreported_output: [String; 2],
}

/// Checks a time limit in seconds.
///
/// # Errors
/// Fails when the value is negative, not a number, or longer than a week.
pub(super) fn parse_seconds(
    name: &str,
    requested: Option<f64>,
) -> Result<Option<Duration>, ToolError> {
    let Some(seconds) = requested else {
        return Ok(None);
    };
    if !(0.0..=MAX_TOOL_SECONDS).contains(&seconds) {
        let why = format!("`{name}` is {seconds}: give 0 to {MAX_TOOL_SECONDS} seconds");
        return Err(ToolError::new(why));
    }
    Ok(Some(Duration::from_secs_f64(seconds)))
}

/// Waits for the end of a run, or until `wait` has passed, and reports progress to the caller.
pub(super) async fn wait_with_progress<W: RunKind>(
    server: &OsServer,
    cx: &RequestContext<RoleServer>,
    run: &Arc<TrackedRun<W>>,
    running: impl Fn() -> W::Report,
    wait: Option<Duration>,
) -> RunWaitEnd {
    let started_at = Instant::now();
    let mut caller = ToolProgressReporter {
        server,
        cx,
        started_at,
        last_report: started_at,
        unreported_output: Default::default(),
    };
    let deadline = async {
        match wait {
            Some(wait) => sleep_until(started_at + wait).await,
            None => std::future::pending().await,
        }
    };
    let finished = async {
        match caller.has_report_recipient() {
            true => caller.report_run(run, running).await,
            false => run.wait_finished().await,
        }
    };
    let waited = tokio::select! {
        biased;
        () = finished => RunWaitEnd::Ended,
        () = deadline => RunWaitEnd::StillRunning,
        () = cx.ct.cancelled() => RunWaitEnd::Cancelled,
    };
    if waited == RunWaitEnd::StillRunning {
        run.wait_begin_synced().await;
    }
    waited
}

impl ToolProgressReporter<'_> {
    fn has_report_recipient(&self) -> bool {
        self.cx.meta.get_progress_token().is_some() || self.server.is_log_enabled(LogSeverity::Info)
    }

    /// Reports the output of the run until its end.
    async fn report_run<W: RunKind>(
        &mut self,
        run: &Arc<TrackedRun<W>>,
        running: impl Fn() -> W::Report,
    ) {
        let mut follower = run.follow(0);
        let mut tick = interval(TOOL_PROGRESS_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                events = follower.next_events(&running) => {
                    if events.is_empty() {
                        return self.send_buffered().await;
                    }
                    for event in events {
                        match event.happened {
                            RunEventKind::Stdout { text, .. } => self.buffer_output(OutputStream::Stdout, &text),
                            RunEventKind::Stderr { text, .. } => self.buffer_output(OutputStream::Stderr, &text),
                            _ => {}
                        }
                    }
                }
                _ = tick.tick() => self.send_buffered().await,
            }
        }
    }

    /// Buffers output; of a large amount only the end is kept.
    fn buffer_output(&mut self, stream: OutputStream, text: &str) {
        let unreported = &mut self.unreported_output[stream as usize];
        unreported.push_str(text);
        if unreported.len() > 2 * MAX_TOOL_PROGRESS_BYTES {
            let start = char_boundary(unreported, unreported.len() - MAX_TOOL_PROGRESS_BYTES, true);
            unreported.replace_range(..start, "…");
        }
    }

    async fn send_buffered(&mut self) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let text = std::mem::take(&mut self.unreported_output[stream as usize]);
            if !text.is_empty() {
                self.send_output(stream, text).await;
            }
        }
        if self.last_report.elapsed() >= TOOL_HEARTBEAT_INTERVAL {
            let seconds = self.started_at.elapsed().as_secs();
            self.send_progress(format!("not finished after {seconds} s"))
                .await;
        }
    }

    async fn send_output(&mut self, stream: OutputStream, text: String) {
        if self.cx.meta.get_progress_token().is_some() {
            return self.send_progress(text).await;
        }
        let (weight, logger) = match stream {
            OutputStream::Stdout => (LogSeverity::Info, "stdout"),
            OutputStream::Stderr => (LogSeverity::Warning, "stderr"),
        };
        if self.server.is_log_enabled(weight) {
            send_log_message(self.cx, weight, logger, text).await;
        }
    }

    /// Sends a report; its progress value in seconds always increases.
    async fn send_progress(&mut self, text: String) {
        let Some(token) = self.cx.meta.get_progress_token() else {
            return;
        };
        let so_far = self.started_at.elapsed().as_secs_f64();
        // Two reports at the same moment would have the same value.
        let rising = so_far.max((self.last_report - self.started_at).as_secs_f64() + 1e-6);
        self.last_report = self.started_at + Duration::from_secs_f64(rising);
        let report = ProgressNotificationParam::new(token, rising).with_message(text);
        // The client may have disconnected.
        let _ = self.cx.peer.notify_progress(report).await;
    }
}

#[cfg(test)]
mod tests {
    use super::parse_seconds;
    use std::time::Duration;

    #[test]
    fn a_time_limit_outside_its_range_is_refused() {
        assert_eq!(parse_seconds("wait", None), Ok(None));
        let half = Some(Duration::from_millis(500));
        assert_eq!(parse_seconds("wait", Some(0.5)), Ok(half));
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(parse_seconds("wait", Some(wrong)).is_err(), "{wrong}");
        }
    }
}
