//! The output of a service as lines of the container's log, each prefixed with the service's name.
//!
//! Browsers and toolkits write endlessly when something is wrong. Lines beyond a rate limit are only counted, so that
//! no service fills the disk or delays another.

use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

/// Bytes of one read.
const SERVICE_READ_BYTES: usize = 4096;

/// Bytes of a line that are kept.
const MAX_SERVICE_LINE_BYTES: usize = 2048;

/// Lines that are kept within each interval.
const MAX_SERVICE_LOG_LINES: usize = 50;
const SERVICE_LOG_RATE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ServiceLog {
    name: String,
    unfinished: Vec<u8>,
    rate_limit: ServiceLogRateLimit,
}

impl ServiceLog {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            unfinished: Vec::new(),
            rate_limit: ServiceLogRateLimit::new(Instant::now()),
        }
    }

    /// Runs until the last process that writes to the pipe has ended.
    #[tracing::instrument(name = "service", skip_all, fields(service = %self.name))]
    pub(super) async fn follow_output(mut self, mut output: Receiver) {
        let mut piece = vec![0; SERVICE_READ_BYTES];
        while let Ok(count @ 1..) = output.read(&mut piece).await {
            for part in piece[..count].split_inclusive(|byte| *byte == b'\n') {
                let free_bytes = MAX_SERVICE_LINE_BYTES.saturating_sub(self.unfinished.len());
                let retained = &part[..part.len().min(free_bytes)];
                self.unfinished.extend_from_slice(retained);
                if part.ends_with(b"\n") {
                    self.finish_line();
                }
            }
        }
        self.finish_line();
    }

    fn finish_line(&mut self) {
        let line = std::mem::take(&mut self.unfinished);
        let line = plain_line(&String::from_utf8_lossy(&line));
        if line.is_empty() {
            return;
        }
        match self.rate_limit.check_line(Instant::now()) {
            ServiceLogDecision::Drop => {}
            ServiceLogDecision::Log => tracing::info!(message = line),
            ServiceLogDecision::LogAfterDropped(left_out) => {
                tracing::info!(lines = left_out, "lines of the service were dropped");
                tracing::info!(message = line);
            }
        }
    }
}

/// The line without colours and other control characters.
fn plain_line(line: &str) -> String {
    let line = console::strip_ansi_codes(line);
    let line = line.trim().replace('\t', " ");
    line.chars().filter(|c| !c.is_control()).collect()
}

/// A limit of lines for each interval.
#[derive(Debug)]
struct ServiceLogRateLimit {
    interval_start: Instant,
    line_count: usize,
    dropped_count: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum ServiceLogDecision {
    Log,
    Drop,
    /// The first line after this many dropped ones.
    LogAfterDropped(usize),
}

impl ServiceLogRateLimit {
    fn new(now: Instant) -> Self {
        Self {
            interval_start: now,
            line_count: 0,
            dropped_count: 0,
        }
    }

    fn check_line(&mut self, now: Instant) -> ServiceLogDecision {
        if now.duration_since(self.interval_start) >= SERVICE_LOG_RATE_INTERVAL {
            let left_out = self.dropped_count;
            *self = Self::new(now);
            self.line_count = 1;
            return match left_out {
                0 => ServiceLogDecision::Log,
                count => ServiceLogDecision::LogAfterDropped(count),
            };
        }
        if self.line_count < MAX_SERVICE_LOG_LINES {
            self.line_count += 1;
            return ServiceLogDecision::Log;
        }
        self.dropped_count += 1;
        ServiceLogDecision::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::{
        MAX_SERVICE_LOG_LINES, SERVICE_LOG_RATE_INTERVAL, ServiceLogDecision, ServiceLogRateLimit,
        plain_line,
    };
    use tokio::time::Instant;

    #[test]
    fn a_line_has_no_colours() {
        let line = " \u{1b}[1;31mtint2\u{1b}[0m : no\ticon\r";
        assert_eq!(plain_line(line), "tint2 : no icon");
    }

    #[test]
    fn a_flood_is_counted_and_the_next_interval_is_logged() {
        let now = Instant::now();
        let mut allowance = ServiceLogRateLimit::new(now);
        for _ in 0..MAX_SERVICE_LOG_LINES {
            assert_eq!(allowance.check_line(now), ServiceLogDecision::Log);
        }
        assert_eq!(allowance.check_line(now), ServiceLogDecision::Drop);
        assert_eq!(allowance.check_line(now), ServiceLogDecision::Drop);
        assert_eq!(
            allowance.check_line(now + SERVICE_LOG_RATE_INTERVAL),
            ServiceLogDecision::LogAfterDropped(2)
        );
        assert_eq!(
            allowance.check_line(now + SERVICE_LOG_RATE_INTERVAL),
            ServiceLogDecision::Log
        );
    }
}
