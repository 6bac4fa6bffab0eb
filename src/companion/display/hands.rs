//! What a hand does, on the server: all is checked before anything is done.

use super::connection::{Connection, failed};
use super::keyboard::{Key, Keyboard};
use super::pace::{self, STOP, STOPS};
use super::{Refusal, keys};
use crate::protocol::display::{Action, Button, Place};
use std::thread;
use std::time::Duration;
use x11rb::CURRENT_TIME;
use x11rb::protocol::xproto::{
    BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, ConnectionExt as _, EventMask, GrabMode, GrabStatus,
    KEY_PRESS_EVENT, KEY_RELEASE_EVENT, MOTION_NOTIFY_EVENT,
};
use x11rb::protocol::xtest::ConnectionExt as _;
use xkeysym::Keysym;

/// Characters of one request.
const LONGEST: usize = 20_000;

/// Actions of one request.
const MOST: usize = 1000;

/// Notches of one turn of the wheel.
const FARTHEST: u16 = 200;

/// Looks whether a click has come to its window, and how long between two.
const ARRIVES: u32 = 40;
const ARRIVING: Duration = Duration::from_millis(5);

/// Which button the wheel presses.
const WHEEL: [(u8, u8); 2] = [(4, 5), (6, 7)];

/// Does all of it, and tells where the pointer is then; stops when nobody waits for that any more.
pub(super) fn act(
    connection: &Connection,
    keyboard: &mut Keyboard,
    actions: &[Action],
    is_awaited: impl Fn() -> bool,
) -> Result<Place, Refusal> {
    let root = connection.x.get_geometry(connection.root).map_err(failed)?;
    let root = root.reply().map_err(failed)?;
    check(actions, (root.width, root.height))?;
    pace::check(actions, keyboard)?;
    let mut hands = Hands {
        connection,
        keyboard,
        is_awaited: &is_awaited,
        has_pushed: false,
    };
    for action in actions {
        hands.act(action)?;
    }
    let pointer = connection
        .x
        .query_pointer(connection.root)
        .map_err(failed)?;
    let pointer = pointer.reply().map_err(failed)?;
    Ok(Place {
        x: pointer.root_x.into(),
        y: pointer.root_y.into(),
    })
}

fn check(actions: &[Action], (width, height): (u16, u16)) -> Result<(), Refusal> {
    if actions.len() > MOST {
        let why = format!(
            "there are {} actions, and {MOST} are the most",
            actions.len()
        );
        return Err(Refusal::Invalid(why));
    }
    let on_screen =
        |x: i32, y: i32| match (0..width.into()).contains(&x) && (0..height.into()).contains(&y) {
            true => Ok(()),
            false => Err(Refusal::Invalid(format!(
                "`{x},{y}` is not on the screen, which has {width}x{height} pixels"
            ))),
        };
    let either = |x: &Option<i32>, y: &Option<i32>| match (x, y) {
        (Some(x), Some(y)) => on_screen(*x, *y),
        (None, None) => Ok(()),
        _ => Err(Refusal::Invalid("give `x` and `y`, or neither".into())),
    };
    for action in actions {
        match action {
            Action::Move { x, y } => on_screen(*x, *y)?,
            Action::Click { x, y, keys, .. } => {
                either(x, y)?;
                keys.as_deref().map(keys::parse).transpose()?;
            }
            Action::Drag { from, to } => {
                on_screen(from.x, from.y)?;
                on_screen(to.x, to.y)?;
            }
            Action::Scroll { x, y, down, right } => {
                either(x, y)?;
                if down.unsigned_abs() > FARTHEST || right.unsigned_abs() > FARTHEST {
                    let why = format!("the wheel turns by {FARTHEST} notches at most");
                    return Err(Refusal::Invalid(why));
                }
            }
            Action::Key { keys } | Action::KeyDown { keys } | Action::KeyUp { keys } => {
                keys::parse(keys)?;
            }
            Action::Text { text } if text.chars().count() > LONGEST => {
                return Err(Refusal::Invalid(format!(
                    "the text is longer than {LONGEST} characters: put it on the clipboard"
                )));
            }
            Action::ButtonDown { .. } | Action::ButtonUp { .. } | Action::Text { .. } => {}
        }
    }
    Ok(())
}

struct Hands<'a> {
    connection: &'a Connection,
    keyboard: &'a mut Keyboard,
    is_awaited: &'a dyn Fn() -> bool,
    /// Buttons may not have come to their window yet.
    has_pushed: bool,
}

impl Hands<'_> {
    /// Whoever has given up may ask for all of it again.
    fn go_on(&self) -> Result<(), Refusal> {
        match (self.is_awaited)() {
            true => Ok(()),
            false => Err(Refusal::Unmoved("nobody waits for it any more".into())),
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), Refusal> {
        self.go_on()?;
        match action {
            Action::Key { .. } | Action::KeyDown { .. } | Action::Text { .. } => self.arrive()?,
            Action::Click { .. }
            | Action::ButtonDown { .. }
            | Action::ButtonUp { .. }
            | Action::Drag { .. } => self.has_pushed = true,
            Action::Move { .. } | Action::Scroll { .. } | Action::KeyUp { .. } => {}
        }
        match action {
            Action::Move { x, y } => self.point(*x, *y),
            Action::Click {
                x,
                y,
                button,
                count,
                keys,
            } => {
                self.point_at(*x, *y)?;
                let held = self.parsed(keys.as_deref())?;
                self.press(&held)?;
                for _ in 0..*count {
                    self.push(number(*button))?;
                }
                self.release(&held)
            }
            Action::ButtonDown { button } => self.fake(BUTTON_PRESS_EVENT, number(*button)),
            Action::ButtonUp { button } => self.fake(BUTTON_RELEASE_EVENT, number(*button)),
            Action::Drag { from, to } => self.drag(*from, *to),
            Action::Scroll { x, y, down, right } => {
                self.point_at(*x, *y)?;
                for (notches, (back, forth)) in [*down, *right].into_iter().zip(WHEEL) {
                    let button = if notches < 0 { back } else { forth };
                    for _ in 0..notches.unsigned_abs() {
                        self.push(button)?;
                    }
                }
                Ok(())
            }
            Action::Key { keys } => {
                let keys = self.parsed(Some(keys))?;
                self.press(&keys)?;
                self.release(&keys)
            }
            Action::KeyDown { keys } => {
                let keys = self.parsed(Some(keys))?;
                self.press(&keys)
            }
            Action::KeyUp { keys } => {
                let keys = self.parsed(Some(keys))?;
                self.release(&keys)
            }
            Action::Text { text } => self.write(text),
        }
    }

    /// Waits until what was clicked has come to its window: the window manager looks at it first, and
    /// keys that come meanwhile are before it. It holds the pointer for that time; a menu that holds it
    /// for longer is not waited for.
    fn arrive(&mut self) -> Result<(), Refusal> {
        if !std::mem::take(&mut self.has_pushed) {
            return Ok(());
        }
        let x = &self.connection.x;
        for _ in 0..ARRIVES {
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
            let held = held.map_err(failed)?.reply().map_err(failed)?;
            if held.status == GrabStatus::SUCCESS {
                return x.ungrab_pointer(CURRENT_TIME).map(drop).map_err(failed);
            }
            thread::sleep(ARRIVING);
        }
        Ok(())
    }

    fn drag(&mut self, from: Place, to: Place) -> Result<(), Refusal> {
        self.point(from.x, from.y)?;
        self.fake(BUTTON_PRESS_EVENT, number(Button::Left))?;
        for stop in 1..=STOPS {
            self.connection.sync()?;
            thread::sleep(STOP);
            let on_the_way = |from: i32, to: i32| from + (to - from) * stop / STOPS;
            self.point(on_the_way(from.x, to.x), on_the_way(from.y, to.y))?;
        }
        self.fake(BUTTON_RELEASE_EVENT, number(Button::Left))
    }

    /// Text, key by key. Line breaks of any kind are one key each.
    fn write(&mut self, text: &str) -> Result<(), Refusal> {
        for character in text.replace("\r\n", "\n").chars() {
            self.go_on()?;
            let key = self.key(keys::of_character(character))?;
            self.press(&[key])?;
            self.release(&[key])?;
        }
        Ok(())
    }

    fn parsed(&mut self, text: Option<&str>) -> Result<Vec<Key>, Refusal> {
        let symbols = text.map(keys::parse).transpose()?.unwrap_or_default();
        symbols.into_iter().map(|symbol| self.key(symbol)).collect()
    }

    fn key(&mut self, symbol: u32) -> Result<Key, Refusal> {
        self.keyboard.key(self.connection, symbol)
    }

    fn press(&mut self, keys: &[Key]) -> Result<(), Refusal> {
        self.shift(keys, KEY_PRESS_EVENT)?;
        keys.iter()
            .try_for_each(|key| self.fake(KEY_PRESS_EVENT, key.code))
    }

    fn release(&mut self, keys: &[Key]) -> Result<(), Refusal> {
        let mut back = keys.iter().rev();
        back.try_for_each(|key| self.fake(KEY_RELEASE_EVENT, key.code))?;
        self.shift(keys, KEY_RELEASE_EVENT)
    }

    fn shift(&mut self, keys: &[Key], event: u8) -> Result<(), Refusal> {
        if keys.iter().any(|key| key.shifted) {
            let shift = self.key(Keysym::Shift_L.raw())?;
            self.fake(event, shift.code)?;
        }
        Ok(())
    }

    fn push(&self, button: u8) -> Result<(), Refusal> {
        self.fake(BUTTON_PRESS_EVENT, button)?;
        self.fake(BUTTON_RELEASE_EVENT, button)
    }

    fn point_at(&self, x: Option<i32>, y: Option<i32>) -> Result<(), Refusal> {
        match (x, y) {
            (Some(x), Some(y)) => self.point(x, y),
            _ => Ok(()),
        }
    }

    fn point(&self, x: i32, y: i32) -> Result<(), Refusal> {
        let (x, y) = (x as i16, y as i16);
        let (event, root) = (MOTION_NOTIFY_EVENT, self.connection.root);
        let moved = self
            .connection
            .x
            .xtest_fake_input(event, 0, 0, root, x, y, 0);
        moved.map(drop).map_err(failed)
    }

    fn fake(&self, event: u8, detail: u8) -> Result<(), Refusal> {
        let root = self.connection.root;
        let done = self
            .connection
            .x
            .xtest_fake_input(event, detail, 0, root, 0, 0, 0);
        done.map(drop).map_err(failed)
    }
}

fn number(button: Button) -> u8 {
    match button {
        Button::Left => 1,
        Button::Middle => 2,
        Button::Right => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::protocol::display::{Action, Place};

    #[test]
    fn nothing_is_done_when_one_action_does_not_fit() {
        let fits = Action::Move { x: 9, y: 4 };
        let screen = (10, 5);
        assert!(check(std::slice::from_ref(&fits), screen).is_ok());
        for wrong in [
            Action::Move { x: 10, y: 0 },
            Action::Move { x: 0, y: -1 },
            Action::Drag {
                from: Place { x: 0, y: 0 },
                to: Place { x: 0, y: 5 },
            },
            Action::Scroll {
                x: Some(1),
                y: None,
                down: 1,
                right: 0,
            },
            Action::Key {
                keys: "nokey".into(),
            },
            Action::Text {
                text: "x".repeat(30_000),
            },
        ] {
            assert!(
                check(&[fits.clone(), wrong.clone()], screen).is_err(),
                "{wrong:?}"
            );
        }
    }
}
