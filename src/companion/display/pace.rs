//! How long hands take: more than anybody waits for is refused before anything is done.

use super::keyboard::Keyboard;
use super::{Refusal, keys};
use crate::protocol::display::Action;
use std::time::Duration;

/// Stops of the pointer on its way when it drags, and between them: programs look where it passes.
pub(super) const STOPS: i32 = 12;
pub(super) const STOP: Duration = Duration::from_millis(8);

/// Of one press and release of a key or button, on a busy machine.
const PRESS: Duration = Duration::from_micros(100);

/// Of one request; whoever has asked waits for half as long again at most.
const LONGEST: Duration = Duration::from_secs(10);

/// # Errors
/// When it would take too long.
pub(super) fn check(actions: &[Action], keyboard: &Keyboard) -> Result<(), Refusal> {
    let needed = estimate(actions, keyboard);
    if needed <= LONGEST {
        return Ok(());
    }
    Err(Refusal::Invalid(format!(
        "it would take about {} seconds, and {} are the most: split it into several requests",
        needed.as_secs(),
        LONGEST.as_secs()
    )))
}

/// What all of it takes, one after the other; not to the end where it is too long already.
fn estimate(actions: &[Action], keyboard: &Keyboard) -> Duration {
    let rest: Duration = actions.iter().map(alone).sum();
    match rest > LONGEST {
        true => rest,
        false => rest + keyboard.pauses(actions.iter().flat_map(symbols)),
    }
}

/// Without pauses of the keyboard.
fn alone(action: &Action) -> Duration {
    match action {
        Action::Drag { .. } => STOPS.unsigned_abs() * STOP,
        Action::Click { count, .. } => u32::from(*count) * PRESS,
        Action::Scroll { down, right, .. } => {
            (u32::from(down.unsigned_abs()) + u32::from(right.unsigned_abs())) * PRESS
        }
        Action::Text { text } => u32::try_from(text.chars().count()).unwrap_or(u32::MAX) * PRESS,
        Action::Move { .. }
        | Action::ButtonDown { .. }
        | Action::ButtonUp { .. }
        | Action::Key { .. }
        | Action::KeyDown { .. }
        | Action::KeyUp { .. } => PRESS,
    }
}

/// What of the keyboard it needs, in that order.
fn symbols(action: &Action) -> Vec<u32> {
    match action {
        Action::Text { text } => text.chars().map(keys::of_character).collect(),
        Action::Key { keys } | Action::KeyDown { keys } | Action::KeyUp { keys } => {
            keys::parse(keys).unwrap_or_default()
        }
        Action::Click { keys, .. } => {
            let keys = keys.as_deref().map(keys::parse);
            keys.and_then(Result::ok).unwrap_or_default()
        }
        Action::Move { .. }
        | Action::Drag { .. }
        | Action::Scroll { .. }
        | Action::ButtonDown { .. }
        | Action::ButtonUp { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, PRESS, STOP, STOPS, check, estimate};
    use crate::companion::display::keyboard::Keyboard;
    use crate::protocol::display::{Action, Place};
    use std::time::Duration;

    /// Types `a`, and has ten keys to lend.
    fn keyboard() -> Keyboard {
        let own = [u32::from('a')];
        Keyboard::of(8, 1, own.into_iter().chain([0; 10]).collect())
    }

    fn text(text: String) -> Action {
        Action::Text { text }
    }

    #[test]
    fn drags_and_foreign_letters_take_their_time_and_usual_ones_hardly_any() {
        let keyboard = keyboard();
        let place = Place { x: 0, y: 0 };
        let drag = Action::Drag {
            from: place,
            to: place,
        };
        let drags = [drag.clone(), drag];
        let expected = 2 * STOPS.unsigned_abs() * STOP;
        assert_eq!(estimate(&drags, &keyboard), expected);
        let usual = [text("a".repeat(20_000))];
        assert_eq!(estimate(&usual, &keyboard), 20_000 * PRESS);
        // As many as there are keys to lend wait for nothing; then each round of them does.
        let letters = |count: u32| (0..count).filter_map(|n| char::from_u32(0x4e00 + n));
        let foreign = |count| [text(letters(count).collect())];
        assert_eq!(estimate(&foreign(10), &keyboard), 10 * PRESS);
        assert!(estimate(&foreign(100), &keyboard) > Duration::from_secs(2));
    }

    #[test]
    fn what_would_outlast_whoever_asks_is_refused() {
        let keyboard = keyboard();
        let place = Place { x: 0, y: 0 };
        let drag = Action::Drag {
            from: place,
            to: place,
        };
        let most = LONGEST.as_millis() / (STOPS.unsigned_abs() * STOP).as_millis();
        let most = usize::try_from(most).unwrap();
        assert!(check(&vec![drag.clone(); most], &keyboard).is_ok());
        assert!(check(&vec![drag; most + 1], &keyboard).is_err());
        let letters = |count: u32| (0..count).filter_map(|n| char::from_u32(0x4e00 + n));
        assert!(check(&[text(letters(300).collect())], &keyboard).is_ok());
        assert!(check(&[text(letters(500).collect())], &keyboard).is_err());
    }
}
