//! Estimated duration of input: a request that would take too long is refused before its first action.

use super::keyboard::KeyboardMap;
use super::{DisplayRefusal, key_names};
use crate::protocol::display::InputAction;
use std::time::Duration;

/// Number of steps of the pointer during a drag, and the time between two steps: programs watch the path of the
/// pointer.
pub(super) const DRAG_STEPS: i32 = 12;
pub(super) const DRAG_STEP_DELAY: Duration = Duration::from_millis(8);

/// Time of one press and release of a key or button, on a busy machine.
const KEY_PRESS_DURATION: Duration = Duration::from_micros(100);

/// Maximum duration of one request; the caller waits at most half as long again.
const MAX_INPUT_DURATION: Duration = Duration::from_secs(10);

/// # Errors
/// When the actions would take too long.
pub(super) fn check_duration(
    actions: &[InputAction],
    keyboard: &KeyboardMap,
) -> Result<(), DisplayRefusal> {
    let needed = estimate_duration(actions, keyboard);
    if needed <= MAX_INPUT_DURATION {
        return Ok(());
    }
    Err(DisplayRefusal::Invalid(format!(
        "the actions take about {} seconds, the maximum is {}; split them into several requests",
        needed.as_secs(),
        MAX_INPUT_DURATION.as_secs()
    )))
}

/// The duration of all actions in sequence. When the actions alone exceed the limit, pauses of the keyboard are not
/// added.
fn estimate_duration(actions: &[InputAction], keyboard: &KeyboardMap) -> Duration {
    let rest: Duration = actions.iter().map(action_duration).sum();
    match rest > MAX_INPUT_DURATION {
        true => rest,
        false => rest + keyboard.remap_delay(actions.iter().flat_map(action_keysyms)),
    }
}

/// The duration of an action without pauses of the keyboard.
fn action_duration(action: &InputAction) -> Duration {
    match action {
        InputAction::Drag { .. } => DRAG_STEPS.unsigned_abs() * DRAG_STEP_DELAY,
        InputAction::Click { count, .. } => u32::from(*count) * KEY_PRESS_DURATION,
        InputAction::Scroll { down, right, .. } => {
            (u32::from(down.unsigned_abs()) + u32::from(right.unsigned_abs())) * KEY_PRESS_DURATION
        }
        InputAction::Text { text } => {
            u32::try_from(text.chars().count()).unwrap_or(u32::MAX) * KEY_PRESS_DURATION
        }
        InputAction::Move { .. }
        | InputAction::ButtonDown { .. }
        | InputAction::ButtonUp { .. }
        | InputAction::Key { .. }
        | InputAction::KeyDown { .. }
        | InputAction::KeyUp { .. } => KEY_PRESS_DURATION,
    }
}

/// The keysyms that an action needs, in order.
fn action_keysyms(action: &InputAction) -> Vec<u32> {
    match action {
        InputAction::Text { text } => text.chars().map(key_names::keysym_for_character).collect(),
        InputAction::Key { keys } | InputAction::KeyDown { keys } | InputAction::KeyUp { keys } => {
            key_names::parse_keys(keys).unwrap_or_default()
        }
        InputAction::Click { keys, .. } => {
            let keys = keys.as_deref().map(key_names::parse_keys);
            keys.and_then(Result::ok).unwrap_or_default()
        }
        InputAction::Move { .. }
        | InputAction::Drag { .. }
        | InputAction::Scroll { .. }
        | InputAction::ButtonDown { .. }
        | InputAction::ButtonUp { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        DRAG_STEP_DELAY, DRAG_STEPS, KEY_PRESS_DURATION, MAX_INPUT_DURATION, check_duration,
        estimate_duration,
    };
    use crate::companion::display::keyboard::KeyboardMap;
    use crate::protocol::display::{InputAction, ScreenPoint};
    use std::time::Duration;

    /// Types `a`, and has ten spare keys.
    fn keyboard() -> KeyboardMap {
        let own = [u32::from('a')];
        KeyboardMap::from_keysyms(8, 1, own.into_iter().chain([0; 10]).collect())
    }

    fn text(text: String) -> InputAction {
        InputAction::Text { text }
    }

    #[test]
    fn drags_and_key_remaps_take_time() {
        let keyboard = keyboard();
        let point = ScreenPoint { x: 0, y: 0 };
        let drag = InputAction::Drag {
            from: point,
            to: point,
        };
        let drags = [drag.clone(), drag];
        let expected = 2 * DRAG_STEPS.unsigned_abs() * DRAG_STEP_DELAY;
        assert_eq!(estimate_duration(&drags, &keyboard), expected);
        let usual = [text("a".repeat(20_000))];
        assert_eq!(
            estimate_duration(&usual, &keyboard),
            20_000 * KEY_PRESS_DURATION
        );
        // As many characters as there are spare keys need no pause; then each further round of them does.
        let letters = |count: u32| (0..count).filter_map(|n| char::from_u32(0x4e00 + n));
        let foreign = |count| [text(letters(count).collect())];
        assert_eq!(
            estimate_duration(&foreign(10), &keyboard),
            10 * KEY_PRESS_DURATION
        );
        assert!(estimate_duration(&foreign(100), &keyboard) > Duration::from_secs(2));
    }

    #[test]
    fn a_request_that_outlasts_the_caller_is_refused() {
        let keyboard = keyboard();
        let point = ScreenPoint { x: 0, y: 0 };
        let drag = InputAction::Drag {
            from: point,
            to: point,
        };
        let max_drags = MAX_INPUT_DURATION.as_millis()
            / (DRAG_STEPS.unsigned_abs() * DRAG_STEP_DELAY).as_millis();
        let max_drags = usize::try_from(max_drags).unwrap();
        assert!(check_duration(&vec![drag.clone(); max_drags], &keyboard).is_ok());
        assert!(check_duration(&vec![drag; max_drags + 1], &keyboard).is_err());
        let letters = |count: u32| (0..count).filter_map(|n| char::from_u32(0x4e00 + n));
        assert!(check_duration(&[text(letters(300).collect())], &keyboard).is_ok());
        assert!(check_duration(&[text(letters(500).collect())], &keyboard).is_err());
    }
}
