//! Delays between attempts: each failure doubles the delay, up to a maximum.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    pub max: Duration,
}

impl Backoff {
    /// The delay after this many failures in a row; none without a failure.
    pub fn delay_after(self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use std::time::Duration;

    #[test]
    fn each_failure_doubles_the_delay_up_to_the_maximum() {
        // The first delay, the maximum, and the delays after 0, 1, 2… failures, in milliseconds.
        let table: &[(u64, u64, &[u64])] = &[
            (50, 1000, &[0, 50, 100, 200, 400, 800, 1000, 1000]),
            (200, 10_000, &[0, 200, 400, 800, 1600, 3200, 6400, 10_000]),
            (1000, 10_000, &[0, 1000, 2000, 4000, 8000, 10_000, 10_000]),
            (10_000, 30_000, &[0, 10_000, 20_000, 30_000, 30_000]),
            (500, 100, &[0, 100, 100]),
        ];
        for (first, max, delays) in table {
            let backoff = Backoff {
                first: Duration::from_millis(*first),
                max: Duration::from_millis(*max),
            };
            for (failures, delay) in (0..).zip(*delays) {
                let found = backoff.delay_after(failures);
                assert_eq!(found, Duration::from_millis(*delay), "{first} {failures}");
            }
            for failures in [32, 33, 34, u32::MAX] {
                assert_eq!(backoff.delay_after(failures), backoff.max, "{failures}");
            }
        }
    }

    #[test]
    fn a_delay_without_a_maximum_does_not_overflow() {
        let backoff = Backoff {
            first: Duration::MAX / 2,
            max: Duration::MAX,
        };
        assert_eq!(backoff.delay_after(9), Duration::MAX);
    }
}
