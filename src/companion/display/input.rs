//! Mouse and keyboard input. All actions are checked before the first one is performed.

use super::connection::{X11Connection, x11_call_failed};
use super::input_duration::{self, DRAG_STEP_DELAY, DRAG_STEPS};
use super::keyboard::{KeyboardKey, KeyboardMap};
use super::{DisplayRefusal, key_names};
use crate::protocol::display::{Button, InputAction, ScreenPoint};
use std::thread;
use std::time::Duration;
use x11rb::CURRENT_TIME;
use x11rb::protocol::xproto::{
    BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, ConnectionExt as _, EventMask, GrabMode, GrabStatus,
    KEY_PRESS_EVENT, KEY_RELEASE_EVENT, MOTION_NOTIFY_EVENT,
};
use x11rb::protocol::xtest::ConnectionExt as _;
use xkeysym::Keysym;

/// Maximum characters of one request.
const MAX_TYPED_CHARS: usize = 20_000;

/// Maximum actions of one request.
const MAX_INPUT_ACTIONS: usize = 1000;

/// Maximum notches of one turn of the wheel.
const MAX_WHEEL_NOTCHES: u16 = 200;

/// Maximum number of checks whether a click has reached its window, and the time between two checks.
const MAX_CLICK_POLLS: u32 = 40;
const CLICK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The buttons that the wheel presses.
const WHEEL_BUTTONS: [(u8, u8); 2] = [(4, 5), (6, 7)];

/// Performs all actions and returns the position of the pointer; stops when the caller no longer waits.
pub(super) fn perform_actions(
    connection: &X11Connection,
    keyboard: &mut KeyboardMap,
    actions: &[InputAction],
    is_awaited: impl Fn() -> bool,
) -> Result<ScreenPoint, DisplayRefusal> {
    let root = connection
        .x
        .get_geometry(connection.root)
        .map_err(x11_call_failed)?;
    let root = root.reply().map_err(x11_call_failed)?;
    check_actions(actions, (root.width, root.height))?;
    input_duration::check_duration(actions, keyboard)?;
    let mut injector = InputInjector {
        connection,
        keyboard,
        is_caller_waiting: &is_awaited,
        has_pending_click: false,
    };
    for action in actions {
        injector.perform_action(action)?;
    }
    let pointer = connection
        .x
        .query_pointer(connection.root)
        .map_err(x11_call_failed)?;
    let pointer = pointer.reply().map_err(x11_call_failed)?;
    Ok(ScreenPoint {
        x: pointer.root_x.into(),
        y: pointer.root_y.into(),
    })
}

fn check_actions(
    actions: &[InputAction],
    (width, height): (u16, u16),
) -> Result<(), DisplayRefusal> {
    if actions.len() > MAX_INPUT_ACTIONS {
        let why = format!(
            "the request has {} actions, the maximum is {MAX_INPUT_ACTIONS}",
            actions.len()
        );
        return Err(DisplayRefusal::Invalid(why));
    }
    let on_screen =
        |x: i32, y: i32| match (0..width.into()).contains(&x) && (0..height.into()).contains(&y) {
            true => Ok(()),
            false => Err(DisplayRefusal::Invalid(format!(
                "`{x},{y}` is not on the screen, which has {width}x{height} pixels"
            ))),
        };
    let either = |x: &Option<i32>, y: &Option<i32>| match (x, y) {
        (Some(x), Some(y)) => on_screen(*x, *y),
        (None, None) => Ok(()),
        _ => Err(DisplayRefusal::Invalid(
            "give `x` and `y`, or neither".into(),
        )),
    };
    for action in actions {
        match action {
            InputAction::Move { x, y } => on_screen(*x, *y)?,
            InputAction::Click { x, y, keys, .. } => {
                either(x, y)?;
                keys.as_deref().map(key_names::parse_keys).transpose()?;
            }
            InputAction::Drag { from, to } => {
                on_screen(from.x, from.y)?;
                on_screen(to.x, to.y)?;
            }
            InputAction::Scroll { x, y, down, right } => {
                either(x, y)?;
                if down.unsigned_abs() > MAX_WHEEL_NOTCHES
                    || right.unsigned_abs() > MAX_WHEEL_NOTCHES
                {
                    let why = format!("`down` and `right` are at most {MAX_WHEEL_NOTCHES} notches");
                    return Err(DisplayRefusal::Invalid(why));
                }
            }
            InputAction::Key { keys }
            | InputAction::KeyDown { keys }
            | InputAction::KeyUp { keys } => {
                key_names::parse_keys(keys)?;
            }
            InputAction::Text { text } if text.chars().count() > MAX_TYPED_CHARS => {
                return Err(DisplayRefusal::Invalid(format!(
                    "the text is longer than {MAX_TYPED_CHARS} characters; use the clipboard"
                )));
            }
            InputAction::ButtonDown { .. }
            | InputAction::ButtonUp { .. }
            | InputAction::Text { .. } => {}
        }
    }
    Ok(())
}

struct InputInjector<'a> {
    connection: &'a X11Connection,
    keyboard: &'a mut KeyboardMap,
    is_caller_waiting: &'a dyn Fn() -> bool,
    /// Button events may not have reached their window yet.
    has_pending_click: bool,
}

impl InputInjector<'_> {
    /// Stops when the caller no longer waits, because the caller may repeat the whole request.
    fn check_caller_waiting(&self) -> Result<(), DisplayRefusal> {
        match (self.is_caller_waiting)() {
            true => Ok(()),
            false => Err(DisplayRefusal::NotApplied(
                "the caller no longer waits for the reply".into(),
            )),
        }
    }

    fn perform_action(&mut self, action: &InputAction) -> Result<(), DisplayRefusal> {
        self.check_caller_waiting()?;
        match action {
            InputAction::Key { .. } | InputAction::KeyDown { .. } | InputAction::Text { .. } => {
                self.wait_for_click()?
            }
            InputAction::Click { .. }
            | InputAction::ButtonDown { .. }
            | InputAction::ButtonUp { .. }
            | InputAction::Drag { .. } => self.has_pending_click = true,
            InputAction::Move { .. } | InputAction::Scroll { .. } | InputAction::KeyUp { .. } => {}
        }
        match action {
            InputAction::Move { x, y } => self.move_pointer(*x, *y),
            InputAction::Click {
                x,
                y,
                button,
                count,
                keys,
            } => {
                self.move_pointer_if_given(*x, *y)?;
                let held = self.resolve_keys(keys.as_deref())?;
                self.press_keys(&held)?;
                for _ in 0..*count {
                    self.click_button(button_number(*button))?;
                }
                self.release_keys(&held)
            }
            InputAction::ButtonDown { button } => {
                self.fake_input(BUTTON_PRESS_EVENT, button_number(*button))
            }
            InputAction::ButtonUp { button } => {
                self.fake_input(BUTTON_RELEASE_EVENT, button_number(*button))
            }
            InputAction::Drag { from, to } => self.drag_pointer(*from, *to),
            InputAction::Scroll { x, y, down, right } => {
                self.move_pointer_if_given(*x, *y)?;
                for (notches, (back, forth)) in [*down, *right].into_iter().zip(WHEEL_BUTTONS) {
                    let button = if notches < 0 { back } else { forth };
                    for _ in 0..notches.unsigned_abs() {
                        self.click_button(button)?;
                    }
                }
                Ok(())
            }
            InputAction::Key { keys } => {
                let keys = self.resolve_keys(Some(keys))?;
                self.press_keys(&keys)?;
                self.release_keys(&keys)
            }
            InputAction::KeyDown { keys } => {
                let keys = self.resolve_keys(Some(keys))?;
                self.press_keys(&keys)
            }
            InputAction::KeyUp { keys } => {
                let keys = self.resolve_keys(Some(keys))?;
                self.release_keys(&keys)
            }
            InputAction::Text { text } => self.type_text(text),
        }
    }

    /// Waits until a click has reached its window: the window manager handles the click first, and keys sent before
    /// that would overtake the click. The window manager grabs the pointer for that time. The number of checks is
    /// limited, because a menu may grab the pointer for longer.
    fn wait_for_click(&mut self) -> Result<(), DisplayRefusal> {
        if !std::mem::take(&mut self.has_pending_click) {
            return Ok(());
        }
        let x = &self.connection.x;
        for _ in 0..MAX_CLICK_POLLS {
            let (root, mode, none) = (self.connection.root, GrabMode::ASYNC, x11rb::NONE);
            let held = x.grab_pointer(
                true,
                root,
                EventMask::NO_EVENT,
                mode,
                mode,
                none,
                none,
                CURRENT_TIME,
            );
            let held = held
                .map_err(x11_call_failed)?
                .reply()
                .map_err(x11_call_failed)?;
            if held.status == GrabStatus::SUCCESS {
                return x
                    .ungrab_pointer(CURRENT_TIME)
                    .map(drop)
                    .map_err(x11_call_failed);
            }
            thread::sleep(CLICK_POLL_INTERVAL);
        }
        Ok(())
    }

    fn drag_pointer(&mut self, from: ScreenPoint, to: ScreenPoint) -> Result<(), DisplayRefusal> {
        self.move_pointer(from.x, from.y)?;
        self.fake_input(BUTTON_PRESS_EVENT, button_number(Button::Left))?;
        for stop in 1..=DRAG_STEPS {
            self.connection.sync()?;
            thread::sleep(DRAG_STEP_DELAY);
            let on_the_way = |from: i32, to: i32| from + (to - from) * stop / DRAG_STEPS;
            self.move_pointer(on_the_way(from.x, to.x), on_the_way(from.y, to.y))?;
        }
        self.fake_input(BUTTON_RELEASE_EVENT, button_number(Button::Left))
    }

    /// Types text, key by key. A line break of any kind is one key.
    fn type_text(&mut self, text: &str) -> Result<(), DisplayRefusal> {
        for character in text.replace("\r\n", "\n").chars() {
            self.check_caller_waiting()?;
            let key = self.resolve_key(key_names::keysym_for_character(character))?;
            self.press_keys(&[key])?;
            self.release_keys(&[key])?;
        }
        Ok(())
    }

    fn resolve_keys(&mut self, text: Option<&str>) -> Result<Vec<KeyboardKey>, DisplayRefusal> {
        let symbols = text
            .map(key_names::parse_keys)
            .transpose()?
            .unwrap_or_default();
        symbols
            .into_iter()
            .map(|symbol| self.resolve_key(symbol))
            .collect()
    }

    fn resolve_key(&mut self, symbol: u32) -> Result<KeyboardKey, DisplayRefusal> {
        self.keyboard.key_for_keysym(self.connection, symbol)
    }

    fn press_keys(&mut self, keys: &[KeyboardKey]) -> Result<(), DisplayRefusal> {
        self.send_shift(keys, KEY_PRESS_EVENT)?;
        keys.iter()
            .try_for_each(|key| self.fake_input(KEY_PRESS_EVENT, key.keycode))
    }

    fn release_keys(&mut self, keys: &[KeyboardKey]) -> Result<(), DisplayRefusal> {
        let mut back = keys.iter().rev();
        back.try_for_each(|key| self.fake_input(KEY_RELEASE_EVENT, key.keycode))?;
        self.send_shift(keys, KEY_RELEASE_EVENT)
    }

    fn send_shift(&mut self, keys: &[KeyboardKey], event: u8) -> Result<(), DisplayRefusal> {
        if keys.iter().any(|key| key.needs_shift) {
            let shift = self.resolve_key(Keysym::Shift_L.raw())?;
            self.fake_input(event, shift.keycode)?;
        }
        Ok(())
    }

    fn click_button(&self, button: u8) -> Result<(), DisplayRefusal> {
        self.fake_input(BUTTON_PRESS_EVENT, button)?;
        self.fake_input(BUTTON_RELEASE_EVENT, button)
    }

    fn move_pointer_if_given(&self, x: Option<i32>, y: Option<i32>) -> Result<(), DisplayRefusal> {
        match (x, y) {
            (Some(x), Some(y)) => self.move_pointer(x, y),
            _ => Ok(()),
        }
    }

    fn move_pointer(&self, x: i32, y: i32) -> Result<(), DisplayRefusal> {
        let (x, y) = (x as i16, y as i16);
        let (event, root) = (MOTION_NOTIFY_EVENT, self.connection.root);
        let moved = self
            .connection
            .x
            .xtest_fake_input(event, 0, 0, root, x, y, 0);
        moved.map(drop).map_err(x11_call_failed)
    }

    fn fake_input(&self, event: u8, detail: u8) -> Result<(), DisplayRefusal> {
        let root = self.connection.root;
        let done = self
            .connection
            .x
            .xtest_fake_input(event, detail, 0, root, 0, 0, 0);
        done.map(drop).map_err(x11_call_failed)
    }
}

fn button_number(button: Button) -> u8 {
    match button {
        Button::Left => 1,
        Button::Middle => 2,
        Button::Right => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::check_actions;
    use crate::protocol::display::{InputAction, ScreenPoint};

    #[test]
    fn invalid_action_rejects_all() {
        let fits = InputAction::Move { x: 9, y: 4 };
        let screen = (10, 5);
        assert!(check_actions(std::slice::from_ref(&fits), screen).is_ok());
        for wrong in [
            InputAction::Move { x: 10, y: 0 },
            InputAction::Move { x: 0, y: -1 },
            InputAction::Drag {
                from: ScreenPoint { x: 0, y: 0 },
                to: ScreenPoint { x: 0, y: 5 },
            },
            InputAction::Scroll {
                x: Some(1),
                y: None,
                down: 1,
                right: 0,
            },
            InputAction::Key {
                keys: "nokey".into(),
            },
            InputAction::Text {
                text: "x".repeat(30_000),
            },
        ] {
            assert!(
                check_actions(&[fits.clone(), wrong.clone()], screen).is_err(),
                "{wrong:?}"
            );
        }
    }
}
