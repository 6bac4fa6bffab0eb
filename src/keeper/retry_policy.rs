//! Retry policy for finishing an interrupted run.

use crate::error::Error;
use std::time::Duration;

/// The first pause; each pause is twice as long as the one before.
const FIRST_ENGINE_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_ENGINE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// How many refusals of an engine that answers are allowed: 30 seconds altogether.
const MAX_ENGINE_REFUSALS: u32 = 10;
/// How long the engine may be away. After that the keeper ends: its next start may bind another engine socket.
const ENGINE_AWAY_TIMEOUT: Duration = Duration::from_secs(45);

/// The decision after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineRetryDecision {
    /// Try again after a pause.
    Retry(Duration),
    /// Stop trying and tell a person.
    GiveUp,
    /// End the keeper, so that the next keeper tries.
    ExitKeeper,
}

/// `refused` counts the attempts that the engine answered with a refusal. `away` is for how long the engine gives no
/// answer, if it gives none.
pub(super) fn decide_retry(refused: u32, away: Option<Duration>) -> EngineRetryDecision {
    match away {
        Some(away) if away > ENGINE_AWAY_TIMEOUT => EngineRetryDecision::ExitKeeper,
        Some(_) => EngineRetryDecision::Retry(FIRST_ENGINE_RETRY_DELAY),
        None if refused >= MAX_ENGINE_REFUSALS => EngineRetryDecision::GiveUp,
        None => {
            let doubled =
                FIRST_ENGINE_RETRY_DELAY * 2u32.saturating_pow(refused.saturating_sub(1).min(10));
            EngineRetryDecision::Retry(doubled.min(MAX_ENGINE_RETRY_DELAY))
        }
    }
}

/// Whether the error means that the engine gave no answer, so that a later attempt may succeed.
pub(super) fn is_engine_away(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(Error::EngineLost { .. } | Error::EngineUnreachable { .. })
    )
}

#[cfg(test)]
mod tests {
    use super::{EngineRetryDecision, decide_retry};
    use std::time::Duration;

    #[test]
    fn what_is_refused_is_tried_for_half_a_minute_and_more_seldom_each_time() {
        let mut whole = Duration::ZERO;
        let mut last = Duration::ZERO;
        let mut refused = 1;
        while let EngineRetryDecision::Retry(pause) = decide_retry(refused, None) {
            assert!(
                pause >= last && pause <= Duration::from_secs(5),
                "{pause:?}"
            );
            whole += pause;
            last = pause;
            refused += 1;
        }
        assert_eq!(decide_retry(refused, None), EngineRetryDecision::GiveUp);
        assert!((20..60).contains(&whole.as_secs()), "{whole:?}");
    }

    #[test]
    fn an_engine_that_is_away_is_waited_for_and_nothing_is_given_up() {
        let away = |seconds| decide_retry(50, Some(Duration::from_secs(seconds)));
        assert!(
            matches!(away(0), EngineRetryDecision::Retry(_))
                && matches!(away(45), EngineRetryDecision::Retry(_))
        );
        assert_eq!(away(46), EngineRetryDecision::ExitKeeper);
    }
}
