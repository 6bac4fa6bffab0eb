//! How long what was begun is tried to be ended, when it does not succeed at once.

use crate::error::Error;
use std::time::Duration;

/// The first pause; each one is twice as long as the one before.
const FIRST_ENGINE_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_ENGINE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// How often what an engine refuses that answers is tried: half a minute altogether.
const MAX_ENGINE_REFUSALS: u32 = 10;
/// After this a keeper that is started anew has better chances: the engine's socket may be another one.
const ENGINE_AWAY_TIMEOUT: Duration = Duration::from_secs(45);

/// What comes after a try in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineRetryDecision {
    /// Another one, after a pause.
    Again(Duration),
    /// A person is told.
    GiveUp,
    /// Another keeper tries.
    End,
}

/// `refused` tries were answered by the engine, which gives no answer since `away`, if it gives none.
pub(super) fn decide_retry(refused: u32, away: Option<Duration>) -> EngineRetryDecision {
    match away {
        Some(away) if away > ENGINE_AWAY_TIMEOUT => EngineRetryDecision::End,
        Some(_) => EngineRetryDecision::Again(FIRST_ENGINE_RETRY_DELAY),
        None if refused >= MAX_ENGINE_REFUSALS => EngineRetryDecision::GiveUp,
        None => {
            let doubled =
                FIRST_ENGINE_RETRY_DELAY * 2u32.saturating_pow(refused.saturating_sub(1).min(10));
            EngineRetryDecision::Again(doubled.min(MAX_ENGINE_RETRY_DELAY))
        }
    }
}

/// Whether the engine gave no answer, so that it may do so later.
pub(super) fn is_away(error: &anyhow::Error) -> bool {
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
        while let EngineRetryDecision::Again(pause) = decide_retry(refused, None) {
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
            matches!(away(0), EngineRetryDecision::Again(_))
                && matches!(away(45), EngineRetryDecision::Again(_))
        );
        assert_eq!(away(46), EngineRetryDecision::End);
    }
}
