//! The keyboard map: which key types which character, and spare keys for characters that no key types.
//!
//! A character that the keyboard lacks is mapped to a spare key. Programs learn of a changed mapping by an event that
//! arrives before the key event, and then read the mapping as it is at that moment. Therefore a spare key keeps its
//! character as long as possible, and gets another character only after a pause.

use super::DisplayRefusal;
use super::connection::{X11Connection, x11_call_failed};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{ConnectionExt as _, Keycode};

/// Time in which programs have read the mapping after a change.
const KEY_REMAP_DELAY: Duration = Duration::from_millis(250);

/// A key, and whether shift must be held with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyboardKey {
    pub(super) keycode: Keycode,
    pub(super) needs_shift: bool,
}

#[derive(Debug)]
pub(super) struct KeyboardMap {
    first_keycode: Keycode,
    keysyms_per_keycode: usize,
    keysyms: Vec<u32>,
    /// Spare keys with a character, the least recently used first.
    remapped_keys: VecDeque<RemappedKey>,
}

#[derive(Debug)]
struct RemappedKey {
    keycode: Keycode,
    keysym: u32,
    last_used: Instant,
}

impl KeyboardMap {
    pub(super) fn read(connection: &X11Connection) -> Result<Self, DisplayRefusal> {
        let setup = connection.x.setup();
        let (first, last) = (setup.min_keycode, setup.max_keycode);
        let mapping = connection
            .x
            .get_keyboard_mapping(first, last - first + 1)
            .map_err(x11_call_failed)?
            .reply()
            .map_err(x11_call_failed)?;
        let width = mapping.keysyms_per_keycode.into();
        Ok(Self::from_keysyms(first, width, mapping.keysyms))
    }

    /// Builds the map from the keysyms of each key, starting at `first_keycode`.
    pub(super) fn from_keysyms(
        first_keycode: Keycode,
        keysyms_per_keycode: usize,
        keysyms: Vec<u32>,
    ) -> Self {
        let mut keyboard = Self {
            first_keycode,
            keysyms_per_keycode,
            keysyms,
            remapped_keys: VecDeque::new(),
        };
        let long_ago = Instant::now();
        keyboard.remapped_keys = keyboard
            .unused_keycodes()
            .map(|keycode| RemappedKey {
                keycode,
                keysym: 0,
                last_used: long_ago,
            })
            .collect();
        keyboard
    }

    fn unused_keycodes(&self) -> impl Iterator<Item = Keycode> {
        let keys = self
            .keysyms
            .chunks(self.keysyms_per_keycode.max(1))
            .zip(self.first_keycode..=Keycode::MAX);
        keys.filter(|(symbols, _)| symbols.iter().all(|symbol| *symbol == 0))
            .map(|(_, code)| code)
    }

    /// The key that types `symbol`; maps a spare key when no key does.
    pub(super) fn key_for_keysym(
        &mut self,
        connection: &X11Connection,
        symbol: u32,
    ) -> Result<KeyboardKey, DisplayRefusal> {
        if let Some(key) = self.find_mapped_key(symbol) {
            return Ok(key);
        }
        let key_to_remap = self
            .remapped_keys
            .iter()
            .position(|key| key.keysym == symbol);
        let mut key_to_remap = match key_to_remap.and_then(|at| self.remapped_keys.remove(at)) {
            Some(key_to_remap) => key_to_remap,
            None => self.remap_key(connection, symbol)?,
        };
        key_to_remap.last_used = Instant::now();
        let key = KeyboardKey {
            keycode: key_to_remap.keycode,
            needs_shift: false,
        };
        self.remapped_keys.push_back(key_to_remap);
        Ok(key)
    }

    /// Whether this key still types the character that this map put on it.
    pub(super) fn is_remapped(&self, code: Keycode, symbol: u32) -> bool {
        let mut remapped = self.remapped_keys.iter();
        symbol != 0 && remapped.any(|key| (key.keycode, key.keysym) == (code, symbol))
    }

    /// Total pause for typing all of these keysyms in sequence without delay: the time until spare keys may get another
    /// character.
    pub(super) fn remap_delay(&self, symbols: impl IntoIterator<Item = u32>) -> Duration {
        let begin = Instant::now();
        let mut now = begin;
        let remapped = self
            .remapped_keys
            .iter()
            .map(|key| (key.keysym, key.last_used));
        let mut remapped: VecDeque<(u32, Instant)> = remapped.collect();
        for symbol in symbols {
            if self.find_mapped_key(symbol).is_some() {
                continue;
            }
            if let Some(at) = remapped.iter().position(|(other, _)| *other == symbol) {
                remapped.remove(at);
            } else if let Some((before, used)) = remapped.pop_front()
                && before != 0
            {
                now += KEY_REMAP_DELAY.saturating_sub(now.saturating_duration_since(used));
            }
            remapped.push_back((symbol, now));
        }
        now - begin
    }

    /// The key of the original keyboard.
    fn find_mapped_key(&self, symbol: u32) -> Option<KeyboardKey> {
        let keys = self
            .keysyms
            .chunks(self.keysyms_per_keycode.max(1))
            .zip(self.first_keycode..=Keycode::MAX);
        let mut found = keys.filter_map(|(symbols, keycode)| {
            // Further columns belong to another group.
            let column = symbols.iter().take(2).position(|s| *s == symbol)?;
            let needs_shift = column == 1;
            Some(KeyboardKey {
                keycode,
                needs_shift,
            })
        });
        found.next()
    }

    fn remap_key(
        &mut self,
        connection: &X11Connection,
        keysym: u32,
    ) -> Result<RemappedKey, DisplayRefusal> {
        let key_to_remap = self.remapped_keys.pop_front();
        let key_to_remap = key_to_remap.ok_or_else(|| {
            DisplayRefusal::Unavailable("the keyboard has no unused key code".into())
        })?;
        if key_to_remap.keysym != 0 {
            std::thread::sleep(KEY_REMAP_DELAY.saturating_sub(key_to_remap.last_used.elapsed()));
        }
        let symbols = [keysym, keysym];
        connection
            .x
            .change_keyboard_mapping(1, key_to_remap.keycode, 2, &symbols)
            .map_err(x11_call_failed)?
            .check()
            .map_err(x11_call_failed)?;
        Ok(RemappedKey {
            keysym,
            ..key_to_remap
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{KEY_REMAP_DELAY, KeyboardKey, KeyboardMap};
    use std::time::{Duration, Instant};
    use xkeysym::Keysym;

    #[test]
    fn a_key_is_found_with_its_shift_and_unused_keys_are_listed() {
        let (a, big) = (Keysym::a.raw(), Keysym::A.raw());
        let symbols = [[0, 0, 0, 0], [a, big, Keysym::ae.raw(), 0], [0, 0, 0, 0]];
        let keyboard = KeyboardMap::from_keysyms(8, 4, symbols.concat());
        let key = |keycode, needs_shift| {
            Some(KeyboardKey {
                keycode,
                needs_shift,
            })
        };
        assert_eq!(keyboard.find_mapped_key(a), key(9, false));
        assert_eq!(keyboard.find_mapped_key(big), key(9, true));
        assert_eq!(keyboard.find_mapped_key(Keysym::ae.raw()), None);
        assert_eq!(keyboard.unused_keycodes().collect::<Vec<_>>(), [8, 10]);
    }

    #[test]
    fn a_key_pauses_only_before_it_gets_another_character() {
        // One mapped key, and two spare keys.
        let keyboard = KeyboardMap::from_keysyms(8, 1, vec![97, 0, 0]);
        let pauses = |text: &str| keyboard.remap_delay(text.chars().map(u32::from));
        assert_eq!(pauses("aaaa"), Duration::ZERO);
        assert_eq!(pauses("xaxyyaxy"), Duration::ZERO);
        assert_eq!(pauses("xyz"), KEY_REMAP_DELAY);
        // Both spare keys have waited for the pause.
        assert_eq!(pauses("xyzu"), KEY_REMAP_DELAY);
        assert_eq!(pauses("xyzuv"), 2 * KEY_REMAP_DELAY);
    }

    #[test]
    fn remapped_key_is_recognized() {
        let mut keyboard = KeyboardMap::from_keysyms(8, 1, vec![97, 0, 0]);
        keyboard.remapped_keys[0].keysym = 120;
        keyboard.remapped_keys[0].last_used = Instant::now();
        let code = keyboard.remapped_keys[0].keycode;
        assert!(keyboard.is_remapped(code, 120));
        // Another program has changed the key, or a key that this map has not changed.
        assert!(!keyboard.is_remapped(code, 121));
        assert!(!keyboard.is_remapped(code + 1, 120) && !keyboard.is_remapped(code + 1, 0));
    }
}
