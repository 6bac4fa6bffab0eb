//! Flow control of a terminal's output: output is read no faster than the writer reads it, so that a normal flood loses
//! nothing, and a writer that reads nothing delays the output only for a limited time.
//!
//! ```text
//!            the writer has acknowledged enough
//!   reading ◀───────────────────────── waiting ──── SLOW_WRITER_TIMEOUT ───▶ reading, output may be lost
//!      └── FLOW_WINDOW_BYTES ahead ──────▲
//!          of the writer
//! ```
//!
//! Output waits in the same way for a writer that lost its connection, because it may reconnect.

use std::time::Duration;
use tokio::time::Instant;

/// Maximum bytes of output ahead of the writer's last acknowledgement. Far less than the retained output, so that a
/// writer that reconnects finds all of it.
pub(super) const FLOW_WINDOW_BYTES: u64 = 256 << 10;

/// Maximum time that a program waits for a writer that reads nothing.
const SLOW_WRITER_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub(super) struct PtyFlowControl {
    /// The offset that the writer has seen; `None` while output waits for no writer.
    acknowledged: Option<u64>,
    /// When output started to wait.
    held_since: Option<Instant>,
}

impl PtyFlowControl {
    /// The writer has seen everything up to this offset.
    pub(super) fn acknowledge(&mut self, offset: u64) {
        if self.acknowledged.is_none_or(|seen| seen < offset) {
            (self.acknowledged, self.held_since) = (Some(offset), None);
        }
    }

    /// Sets a new writer, which starts at `offset`.
    pub(super) fn set_writer(&mut self, offset: u64) {
        (self.acknowledged, self.held_since) = (Some(offset), None);
    }

    /// Removes the writer.
    pub(super) fn clear_writer(&mut self) {
        *self = Self::default();
    }

    /// `None` when output after `end` may be read; otherwise the latest time of the next check.
    pub(super) fn hold_until(&mut self, end: u64, now: Instant) -> Option<Instant> {
        let ahead = end.saturating_sub(self.acknowledged?);
        if ahead < FLOW_WINDOW_BYTES {
            self.held_since = None;
            return None;
        }
        let until = *self.held_since.get_or_insert(now) + SLOW_WRITER_TIMEOUT;
        if now < until {
            return Some(until);
        }
        self.clear_writer();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{FLOW_WINDOW_BYTES, PtyFlowControl, SLOW_WRITER_TIMEOUT};
    use tokio::time::Instant;

    #[test]
    fn a_flood_waits_until_its_writer_has_acknowledged_enough() {
        let (mut pace, now) = (PtyFlowControl::default(), Instant::now());
        pace.set_writer(0);
        assert_eq!(pace.hold_until(FLOW_WINDOW_BYTES - 1, now), None);
        assert_eq!(
            pace.hold_until(FLOW_WINDOW_BYTES, now),
            Some(now + SLOW_WRITER_TIMEOUT)
        );
        pace.acknowledge(1);
        assert_eq!(pace.hold_until(FLOW_WINDOW_BYTES, now), None);
    }

    #[test]
    fn output_waits_once_and_for_a_limited_time_for_a_writer_that_reads_nothing() {
        let (mut pace, now) = (PtyFlowControl::default(), Instant::now());
        pace.set_writer(0);
        assert_eq!(
            pace.hold_until(FLOW_WINDOW_BYTES, now),
            Some(now + SLOW_WRITER_TIMEOUT)
        );
        let later = now + SLOW_WRITER_TIMEOUT / 2;
        assert_eq!(
            pace.hold_until(FLOW_WINDOW_BYTES, later),
            Some(now + SLOW_WRITER_TIMEOUT)
        );
        assert_eq!(
            pace.hold_until(FLOW_WINDOW_BYTES, now + SLOW_WRITER_TIMEOUT),
            None
        );
        assert_eq!(
            pace.hold_until(FLOW_WINDOW_BYTES << 10, now + SLOW_WRITER_TIMEOUT),
            None
        );
        // Output waits again for a writer that returns.
        pace.acknowledge(5);
        assert!(
            pace.hold_until(FLOW_WINDOW_BYTES << 10, now + SLOW_WRITER_TIMEOUT)
                .is_some()
        );
    }

    #[test]
    fn without_a_writer_output_does_not_wait() {
        let (mut pace, now) = (PtyFlowControl::default(), Instant::now());
        assert_eq!(pace.hold_until(u64::MAX, now), None);
        pace.set_writer(0);
        pace.clear_writer();
        assert_eq!(pace.hold_until(u64::MAX, now), None);
    }
}
