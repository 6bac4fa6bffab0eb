//! How long what was begun is tried to be ended, when it does not succeed at once.

use crate::error::Error;
use std::time::Duration;

/// The first pause; each one is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);
/// How often what an engine refuses that answers is tried: half a minute altogether.
const TRIES: u32 = 10;
/// After this a keeper that is started anew has better chances: the engine's socket may be another one.
const AWAY: Duration = Duration::from_secs(45);

/// What comes after a try in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another one, after a pause.
    Again(Duration),
    /// A person is told.
    GiveUp,
    /// Another keeper tries.
    End,
}

/// `refused` tries were answered by the engine, which gives no answer since `away`, if it gives none.
pub(super) fn next(refused: u32, away: Option<Duration>) -> Next {
    match away {
        Some(away) if away > AWAY => Next::End,
        Some(_) => Next::Again(FIRST),
        None if refused >= TRIES => Next::GiveUp,
        None => {
            let doubled = FIRST * 2u32.saturating_pow(refused.saturating_sub(1).min(10));
            Next::Again(doubled.min(LONGEST))
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
    use super::{Next, next};
    use std::time::Duration;

    #[test]
    fn what_is_refused_is_tried_for_half_a_minute_and_more_seldom_each_time() {
        let mut whole = Duration::ZERO;
        let mut last = Duration::ZERO;
        let mut refused = 1;
        while let Next::Again(pause) = next(refused, None) {
            assert!(
                pause >= last && pause <= Duration::from_secs(5),
                "{pause:?}"
            );
            whole += pause;
            last = pause;
            refused += 1;
        }
        assert_eq!(next(refused, None), Next::GiveUp);
        assert!((20..60).contains(&whole.as_secs()), "{whole:?}");
    }

    #[test]
    fn an_engine_that_is_away_is_waited_for_and_nothing_is_given_up() {
        let away = |seconds| next(50, Some(Duration::from_secs(seconds)));
        assert!(matches!(away(0), Next::Again(_)) && matches!(away(45), Next::Again(_)));
        assert_eq!(away(46), Next::End);
    }
}
