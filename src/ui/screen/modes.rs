//! Tracker of the terminal modes that programs switch on. It reads their output, so that osctl can switch the modes off
//! when the programs no longer can.
//!
//! Only modes that would make the terminal unusable afterwards are tracked. This module does not draw and keeps no
//! screen content.

use std::collections::BTreeSet;

/// Maximum length of a sequence's parameters; a longer sequence is not tracked.
const MAX_SEQUENCE_BYTES: usize = 64;

/// The alternate screen of full-screen programs, by its three numbers.
const ALTERNATE_SCREEN_MODES: &[u16] = &[47, 1047, 1049];

/// Application cursor keys, mouse reports, focus reports, bracketed paste.
const TRACKED_MODES: &[u16] = &[1, 9, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004];

#[derive(Debug, Default)]
pub(super) struct TerminalModes {
    state: ModeParserState,
    active_modes: BTreeSet<u16>,
    hides_cursor: bool,
    has_keypad: bool,
    has_scroll_region: bool,
    has_graphics_charset: bool,
    /// xterm's `modifyOtherKeys`.
    has_other_keys: bool,
    /// How often Kitty's keyboard protocol was pushed.
    keyboard_pushes: u32,
}

#[derive(Debug, Default)]
enum ModeParserState {
    #[default]
    Text,
    Escape,
    /// `ESC (`: the next byte names a character set.
    CharacterSet,
    /// `CSI`, with its parameters up to now.
    Control(Vec<u8>),
}

impl TerminalModes {
    pub(super) fn track_output(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.parse_byte(*byte);
        }
    }

    /// Whether a full-screen program uses the terminal.
    pub(super) fn is_alternate(&self) -> bool {
        ALTERNATE_SCREEN_MODES
            .iter()
            .any(|mode| self.active_modes.contains(mode))
    }

    /// The sequence that switches off all modes that are on.
    pub(super) fn reset_sequence(&self) -> String {
        let mut off = String::new();
        for mode in TRACKED_MODES
            .iter()
            .filter(|mode| self.active_modes.contains(mode))
        {
            off += &format!("\x1b[?{mode}l");
        }
        for _ in 0..self.keyboard_pushes.min(16) {
            off += "\x1b[<u";
        }
        if self.has_other_keys {
            off += "\x1b[>4m";
        }
        if self.has_keypad {
            off += "\x1b>";
        }
        if self.has_scroll_region {
            // The reset of the scroll region moves the cursor, so the cursor is saved and restored.
            off += "\x1b7\x1b[r\x1b8";
        }
        for mode in ALTERNATE_SCREEN_MODES
            .iter()
            .filter(|mode| self.active_modes.contains(mode))
        {
            off += &format!("\x1b[?{mode}l");
        }
        if self.has_graphics_charset {
            off += "\x1b(B";
        }
        if self.hides_cursor {
            off += "\x1b[?25h";
        }
        off + "\x1b[0m"
    }

    fn parse_byte(&mut self, byte: u8) {
        self.state = match (std::mem::take(&mut self.state), byte) {
            (_, 0x1b) => ModeParserState::Escape,
            (ModeParserState::Escape, b'[') => ModeParserState::Control(Vec::new()),
            (ModeParserState::Escape, b'(') => ModeParserState::CharacterSet,
            (ModeParserState::CharacterSet, set) => {
                self.has_graphics_charset = set != b'B';
                ModeParserState::Text
            }
            (ModeParserState::Escape, other) => {
                match other {
                    b'=' => self.has_keypad = true,
                    b'>' => self.has_keypad = false,
                    // A full reset of the terminal.
                    b'c' => *self = Self::default(),
                    _ => {}
                }
                ModeParserState::Text
            }
            (ModeParserState::Control(mut read), byte @ 0x20..=0x3f)
                if read.len() < MAX_SEQUENCE_BYTES =>
            {
                read.push(byte);
                ModeParserState::Control(read)
            }
            (ModeParserState::Control(read), last @ 0x40..=0x7e) => {
                self.apply_control(&read, last);
                ModeParserState::Text
            }
            (ModeParserState::Text | ModeParserState::Control(_), _) => ModeParserState::Text,
        };
    }

    fn apply_control(&mut self, read: &[u8], last: u8) {
        match (read, last) {
            ([b'?', modes @ ..], b'h' | b'l') => {
                for mode in modes.split(|byte| *byte == b';') {
                    self.set_mode(parse_number(mode), last == b'h');
                }
            }
            ([b'>', b'4', rest @ ..], b'm') => {
                self.has_other_keys = !matches!(rest, [] | [b';'] | [b';', b'0']);
            }
            ([b'>', ..], b'u') => self.keyboard_pushes += 1,
            ([b'<', ..], b'u') => self.keyboard_pushes = self.keyboard_pushes.saturating_sub(1),
            (region, b'r') if region.iter().all(|b| b.is_ascii_digit() || *b == b';') => {
                self.has_scroll_region = !region.is_empty();
            }
            _ => {}
        }
    }

    fn set_mode(&mut self, mode: Option<u16>, is_on: bool) {
        match mode {
            Some(25) => self.hides_cursor = !is_on,
            Some(mode)
                if TRACKED_MODES.contains(&mode) || ALTERNATE_SCREEN_MODES.contains(&mode) =>
            {
                match is_on {
                    true => self.active_modes.insert(mode),
                    false => self.active_modes.remove(&mode),
                };
            }
            _ => {}
        }
    }
}

fn parse_number(digits: &[u8]) -> Option<u16> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::TerminalModes;

    fn off(written: &str) -> String {
        let mut modes = TerminalModes::default();
        modes.track_output(written.as_bytes());
        modes.reset_sequence()
    }

    #[test]
    fn only_active_modes_are_switched_off() {
        assert_eq!(off("text \x1b[31mred\x1b]0;title\x07"), "\x1b[0m");
        assert_eq!(
            off("\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l\x1b[?2004h"),
            "\x1b[?1l\x1b[?2004l\x1b>\x1b[?1049l\x1b[?25h\x1b[0m"
        );
        assert_eq!(off("\x1b[?1000;1006h"), "\x1b[?1000l\x1b[?1006l\x1b[0m");
        assert_eq!(
            off("\x1b[>4;2m\x1b[>1u\x1b[2;20r\x1b(0"),
            "\x1b[<u\x1b[>4m\x1b7\x1b[r\x1b8\x1b(B\x1b[0m"
        );
    }

    #[test]
    fn a_program_that_ended_well_leaves_nothing_to_do() {
        let vim = "\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l\x1b[>4;2m\x1b[1;40r\
                   \x1b[>4;m\x1b[?25h\x1b[r\x1b[?1l\x1b>\x1b[?1049l";
        assert_eq!(off(vim), "\x1b[0m");
        assert_eq!(off("\x1b[?1049h\x1b[?1003h\x1bc"), "\x1b[0m");
    }

    #[test]
    fn sequences_may_come_in_pieces() {
        let mut modes = TerminalModes::default();
        for byte in b"\x1b[?10\x1b[?1049h" {
            modes.track_output(&[*byte]);
        }
        assert!(modes.is_alternate());
        modes.track_output(b"\x1b[?10");
        modes.track_output(b"49l");
        assert!(!modes.is_alternate());
    }
}
