//! Retry policy for finishing an interrupted run.

use crate::backoff::Backoff;
use crate::error::Error;
use std::time::Duration;

/// The delays after refusals; an engine that is away is asked with the first delay.
const ENGINE_RETRY_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    max: Duration::from_secs(5),
};
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
        Some(_) => EngineRetryDecision::Retry(ENGINE_RETRY_BACKOFF.first),
        None if refused >= MAX_ENGINE_REFUSALS => EngineRetryDecision::GiveUp,
        None => EngineRetryDecision::Retry(ENGINE_RETRY_BACKOFF.delay_after(refused)),
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
    fn refused_requests_are_retried_with_growing_pauses_up_to_a_limit() {
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
    fn an_unreachable_engine_is_retried_until_the_keeper_exits() {
        let away = |seconds| decide_retry(50, Some(Duration::from_secs(seconds)));
        assert!(
            matches!(away(0), EngineRetryDecision::Retry(_))
                && matches!(away(45), EngineRetryDecision::Retry(_))
        );
        assert_eq!(away(46), EngineRetryDecision::ExitKeeper);
    }
}
