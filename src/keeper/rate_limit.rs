//! Rate limit of the agent's runs: an agent that evolves in a loop must not wear out a disk.

/// The window in seconds.
const RATE_LIMIT_WINDOW_SECS: f64 = 3600.0;

/// Seconds until the next run may start; `None` if it may start now. `started_at` are the start times of earlier runs.
pub(super) fn seconds_until_allowed(started_at: &[f64], now: f64, hourly: usize) -> Option<f64> {
    // A start time in the future means that the clock was set back; the run's age is not known.
    let mut recent: Vec<f64> = started_at
        .iter()
        .copied()
        .filter(|t| *t > now - RATE_LIMIT_WINDOW_SECS && *t <= now)
        .collect();
    recent.sort_by(f64::total_cmp);
    let over = recent.len().checked_sub(hourly)?;
    let oldest = recent.get(over).copied()?;
    Some(oldest + RATE_LIMIT_WINDOW_SECS - now)
}

#[cfg(test)]
mod tests {
    use super::seconds_until_allowed;

    #[test]
    fn a_run_is_allowed_when_the_oldest_is_an_hour_old() {
        assert_eq!(seconds_until_allowed(&[], 10_000.0, 2), None);
        assert_eq!(seconds_until_allowed(&[9_000.0], 10_000.0, 2), None);
        assert_eq!(
            seconds_until_allowed(&[9_500.0, 9_000.0], 10_000.0, 2),
            Some(2600.0)
        );
        assert_eq!(
            seconds_until_allowed(&[9_000.0, 9_500.0], 12_600.5, 2),
            None
        );
        assert_eq!(
            seconds_until_allowed(&[900_000.0, 900_001.0], 10_000.0, 2),
            None
        );
        assert_eq!(
            seconds_until_allowed(&[9_000.0, 9_100.0, 9_200.0], 10_000.0, 2),
            Some(2700.0)
        );
    }
}
