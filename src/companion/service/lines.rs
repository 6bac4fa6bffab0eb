//! What a service writes, as lines of the container's log under its name.
//!
//! Browsers and toolkits write without end when something is wrong. What nobody could read is
//! counted instead, so that no service fills the disk or holds up another.

use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

/// Bytes read at once.
const PIECE: usize = 4096;

/// Bytes of a line that are kept.
const LENGTH: usize = 2048;

/// Lines that are kept within each span.
const COUNT: usize = 50;
const SPAN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Lines {
    name: String,
    unfinished: Vec<u8>,
    allowance: Allowance,
}

impl Lines {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            unfinished: Vec::new(),
            allowance: Allowance::new(Instant::now()),
        }
    }

    /// Until the last process that writes there has ended.
    pub(super) async fn follow(mut self, mut output: Receiver) {
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = output.read(&mut piece).await {
            for part in piece[..count].split_inclusive(|byte| *byte == b'\n') {
                let room = LENGTH.saturating_sub(self.unfinished.len());
                let kept = &part[..part.len().min(room)];
                self.unfinished.extend_from_slice(kept);
                if part.ends_with(b"\n") {
                    self.finish();
                }
            }
        }
        self.finish();
    }

    fn finish(&mut self) {
        let line = std::mem::take(&mut self.unfinished);
        let line = String::from_utf8_lossy(&line);
        let line: String = line.trim().chars().filter(|c| !c.is_control()).collect();
        if line.is_empty() {
            return;
        }
        match self.allowance.take(Instant::now()) {
            Taken::No => {}
            Taken::Yes => tracing::info!("{}: {line}", self.name),
            Taken::After(left_out) => {
                tracing::info!("{}: ({left_out} lines were left out)", self.name);
                tracing::info!("{}: {line}", self.name);
            }
        }
    }
}

/// So many in each span of time.
#[derive(Debug)]
struct Allowance {
    since: Instant,
    taken: usize,
    left_out: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Yes,
    No,
    /// The first one after so many that were not.
    After(usize),
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            taken: 0,
            left_out: 0,
        }
    }

    fn take(&mut self, now: Instant) -> Taken {
        if now.duration_since(self.since) >= SPAN {
            let left_out = self.left_out;
            *self = Self::new(now);
            self.taken = 1;
            return match left_out {
                0 => Taken::Yes,
                count => Taken::After(count),
            };
        }
        if self.taken < COUNT {
            self.taken += 1;
            return Taken::Yes;
        }
        self.left_out += 1;
        Taken::No
    }
}

#[cfg(test)]
mod tests {
    use super::{Allowance, COUNT, SPAN, Taken};
    use tokio::time::Instant;

    #[test]
    fn a_flood_is_counted_and_the_next_span_is_heard() {
        let now = Instant::now();
        let mut allowance = Allowance::new(now);
        for _ in 0..COUNT {
            assert_eq!(allowance.take(now), Taken::Yes);
        }
        assert_eq!(allowance.take(now), Taken::No);
        assert_eq!(allowance.take(now), Taken::No);
        assert_eq!(allowance.take(now + SPAN), Taken::After(2));
        assert_eq!(allowance.take(now + SPAN), Taken::Yes);
    }
}
