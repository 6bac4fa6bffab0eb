//! The screen of a terminal: drawn for a client that attaches later, instead of all earlier output.
//!
//! A parser reads all output and keeps the lines, the modes and the title. They are rendered as terminal output: text,
//! colours, positions and modes, and never a query, because the client's terminal would answer the query as if the
//! person had typed the answer. The parser gets whole characters and sequences only; the rendered screen ends there
//! ([`PtyScreen::unparsed_length`]), and the client's output starts with the bytes after.
//!
//! Deliberately left out: character sets, tab stops, scroll regions and pictures. A program that uses them redraws when
//! a writer attaches, because its window changes.

use super::TerminalSize;
use std::num::NonZeroU16;
use std::panic::{AssertUnwindSafe, catch_unwind};
use vt100::{Callbacks, Parser};

/// Lines that are kept above the screen.
const SCROLLBACK_LINES: usize = 1000;
/// Maximum length of each side of a screen: with the scrollback this limit bounds the memory.
const MAX_SCREEN_SIDE: u16 = 1000;
/// Maximum bytes of an unfinished sequence; the parser gets a part of a longer one.
const MAX_UNPARSED_BYTES: usize = 64 << 10;
const MAX_TITLE_CHARS: usize = 256;

pub(super) struct PtyScreen {
    parser: Parser<TerminalTitle>,
    sequences: EscapeSequenceState,
    /// The start of an unfinished character or sequence.
    unparsed: Vec<u8>,
}

impl std::fmt::Debug for PtyScreen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = self.parser.screen().size();
        f.debug_struct("PtyScreen")
            .field("size", &size)
            .finish_non_exhaustive()
    }
}

/// The title of the window.
#[derive(Debug, Default)]
struct TerminalTitle(String);

impl Callbacks for TerminalTitle {
    fn set_window_title(&mut self, _: &mut vt100::Screen, title: &[u8]) {
        let title = String::from_utf8_lossy(title);
        let printable = title.chars().filter(|c| !c.is_control());
        self.0 = printable.take(MAX_TITLE_CHARS).collect();
    }
}

impl PtyScreen {
    pub(super) fn new(size: TerminalSize) -> Self {
        Self {
            parser: new_parser(size),
            sequences: EscapeSequenceState::default(),
            unparsed: Vec::new(),
        }
    }

    /// Parses output.
    pub(super) fn process_output(&mut self, bytes: &[u8]) {
        self.unparsed.extend_from_slice(bytes);
        let begin = self.unparsed.len() - bytes.len();
        let end = match self.sequences.advance(bytes) {
            Some(end) => begin + end,
            None if self.unparsed.len() > MAX_UNPARSED_BYTES => self.unparsed.len(),
            None => return,
        };
        let rest = self.unparsed.split_off(end);
        let whole = std::mem::replace(&mut self.unparsed, rest);
        let parsed = catch_unwind(AssertUnwindSafe(|| self.parser.process(&whole)));
        if parsed.is_err() {
            // A panic of the parser costs the earlier lines, not the terminal.
            let (rows, cols) = self.parser.screen().size();
            let (rows, cols) = (rows.get(), cols.get());
            self.parser = new_parser(TerminalSize { cols, rows });
        }
    }

    /// Bytes at the end of the output that the rendered screen does not include.
    pub(super) fn unparsed_length(&self) -> u64 {
        self.unparsed.len() as u64
    }

    pub(super) fn resize(&mut self, size: TerminalSize) {
        let (rows, cols) = clamp_size(size);
        self.parser.set_size(rows, cols);
    }

    /// Output after which another terminal shows the same screen.
    pub(super) fn render(&self) -> String {
        let screen = self.parser.screen();
        let (rows, cols) = screen.size();
        let mut main = Parser::new(rows, cols, SCROLLBACK_LINES);
        *main.screen_mut() = screen.clone();
        if screen.alternate_screen() {
            main.process(b"\x1b[?47l");
        }
        let mut rendered = String::new();
        let title = &self.parser.callbacks().0;
        if !title.is_empty() {
            rendered.push_str(&format!("\x1b]2;{title}\x07"));
        }
        push_scrollback(&mut rendered, main.screen_mut());
        rendered.push_str(&main.screen().contents_formatted());
        if screen.alternate_screen() {
            rendered.push_str("\x1b[?1049h");
            rendered.push_str(&screen.contents_formatted());
        }
        rendered.push_str(&screen.input_mode_formatted());
        if self.unparsed.is_empty() && self.sequences.is_within_text() {
            // The output continues inside a string. This starts an invalid string, so that the client's terminal skips
            // the rest.
            rendered.push_str("\x1b]_;");
        }
        rendered
    }
}

/// The lines above the screen, and the number of empty lines that moves them above the client's screen.
fn push_scrollback(rendered: &mut String, screen: &mut vt100::Screen) {
    let (rows, cols) = screen.size();
    screen.set_scrollback(usize::MAX);
    let mut above = screen.scrollback();
    if above == 0 {
        return;
    }
    while above > 0 {
        screen.set_scrollback(above);
        let count = above.min(rows.get().into());
        for line in screen.rows_formatted(0, cols.get()).take(count) {
            rendered.push_str("\x1b[m");
            rendered.push_str(&line);
            rendered.push_str("\x1b[m\r\n");
        }
        above -= count;
    }
    screen.set_scrollback(0);
    rendered.push_str(&"\r\n".repeat(usize::from(rows.get()) - 1));
}

fn new_parser(size: TerminalSize) -> Parser<TerminalTitle> {
    let (rows, cols) = clamp_size(size);
    Parser::new_with_callbacks(rows, cols, SCROLLBACK_LINES, TerminalTitle::default())
}

fn clamp_size(size: TerminalSize) -> (NonZeroU16, NonZeroU16) {
    let side =
        |length: u16| NonZeroU16::new(length.min(MAX_SCREEN_SIDE)).unwrap_or(NonZeroU16::MIN);
    (side(size.rows), side(size.cols))
}

/// A state machine that finds the ends of characters and escape sequences.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum EscapeSequenceState {
    #[default]
    Ground,
    /// The number of missing bytes of a character.
    Character(u8),
    Escape,
    Control,
    /// A string for the terminal, such as its title.
    Text,
    /// Inside a string, a possible start of its end.
    TextEscape,
}

impl EscapeSequenceState {
    /// Advances by `bytes`; returns the index after the last byte that ends a character or a sequence.
    fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut end = None;
        for (at, byte) in bytes.iter().enumerate() {
            *self = self.next_state(*byte);
            if *self == Self::Ground {
                end = Some(at + 1);
            }
        }
        end
    }

    fn is_within_text(self) -> bool {
        matches!(self, Self::Text | Self::TextEscape)
    }

    fn next_state(self, byte: u8) -> Self {
        match (self, byte) {
            // Cancels a sequence.
            (_, 0x18 | 0x1a) => Self::Ground,
            (Self::Character(1), 0x80..=0xbf) => Self::Ground,
            (Self::Character(missing), 0x80..=0xbf) => Self::Character(missing - 1),
            (Self::Text, 0x1b) => Self::TextEscape,
            (_, 0x1b) => Self::Escape,
            (Self::Ground | Self::Character(_), 0xc2..=0xdf) => Self::Character(1),
            (Self::Ground | Self::Character(_), 0xe0..=0xef) => Self::Character(2),
            (Self::Ground | Self::Character(_), 0xf0..=0xf4) => Self::Character(3),
            (Self::Ground | Self::Character(_), _) => Self::Ground,
            (Self::Escape | Self::TextEscape, b'[') => Self::Control,
            (Self::Escape | Self::TextEscape, b']' | b'P' | b'X' | b'^' | b'_') => Self::Text,
            (Self::Escape | Self::TextEscape, 0x20..=0x2f) => Self::Escape,
            (Self::Escape | Self::TextEscape, _) => Self::Ground,
            (Self::Control, 0x40..=0x7e) => Self::Ground,
            (Self::Control, _) => Self::Control,
            (Self::Text, 0x07) => Self::Ground,
            (Self::Text, _) => Self::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_UNPARSED_BYTES, PtyScreen, SCROLLBACK_LINES};
    use crate::companion::pty::TerminalSize;
    use proptest::prelude::*;

    const SIZE: TerminalSize = TerminalSize { cols: 20, rows: 5 };

    /// Sequences that terminals answer.
    const QUERIES: [&str; 12] = [
        "\x1b[c",
        "\x1b[>c",
        "\x1b[=c",
        "\x1b[5n",
        "\x1b[6n",
        "\x1b[?2026$p",
        "\x1b[18t",
        "\x1b[?u",
        "\x1b]10;?\x07",
        "\x1b]11;?\x1b\\",
        "\x1bP+q544e\x1b\\",
        "\x1b]52;c;?\x07",
    ];

    fn screen(output: &[u8]) -> PtyScreen {
        let mut screen = PtyScreen::new(SIZE);
        screen.process_output(output);
        screen
    }

    /// A terminal after the rendered screen.
    fn replay_rendered(screen: &PtyScreen) -> PtyScreen {
        let rendered = screen.render();
        for query in QUERIES {
            assert!(!rendered.contains(query), "{rendered:?}");
        }
        self::screen(rendered.as_bytes())
    }

    fn assert_same(a: &PtyScreen, b: &PtyScreen) {
        let (a, b) = (a.parser.screen(), b.parser.screen());
        assert_eq!(a.contents_formatted(), b.contents_formatted());
        assert_eq!(a.input_mode_formatted(), b.input_mode_formatted());
        assert_eq!(a.alternate_screen(), b.alternate_screen());
        assert_eq!(a.cursor_position(), b.cursor_position());
    }

    #[test]
    fn a_later_client_gets_the_same_screen_and_no_query() {
        let text = "one\r\n\x1b[31mred\x1b[m \u{6f22}\u{5b57} e\u{301}\r\n\x1b]2;title\x07$ ";
        let output = format!(
            "{}{text}\x1b[?2004h\x1b[?1h\x1b[?1002h\x1b[?1006h",
            QUERIES.concat()
        );
        let screen = screen(output.as_bytes());
        let later = replay_rendered(&screen);
        assert_same(&screen, &later);
        assert!(later.parser.screen().bracketed_paste());
        assert_eq!(later.parser.callbacks().0, "title");
    }

    #[test]
    fn the_screen_before_a_full_screen_program_returns_at_its_end() {
        let mut screen = screen(b"before\r\n$ vim\x1b[?1049h\x1b[H\x1b[2J~\r\n~\x1b[3;4H");
        let mut later = replay_rendered(&screen);
        assert_same(&screen, &later);
        for screen in [&mut screen, &mut later] {
            screen.process_output(b"\x1b[?1049l");
        }
        assert_same(&screen, &later);
        assert!(
            later
                .parser
                .screen()
                .contents()
                .starts_with("before\n$ vim")
        );
    }

    #[test]
    fn the_lines_above_the_screen_are_above_the_clients() {
        let lines: String = (0..40).map(|n| format!("line {n}\r\n")).collect();
        let screen = screen(lines.as_bytes());
        let mut later = replay_rendered(&screen);
        assert_same(&screen, &later);
        let above = later.parser.screen_mut();
        above.set_scrollback(36);
        assert!(
            above.contents().starts_with("line 0\nline 1\n"),
            "{}",
            above.contents()
        );
        assert_eq!(above.scrollback(), 36);
    }

    #[test]
    fn memory_is_bounded() {
        let mut screen = screen("x\r\n".repeat(3 * SCROLLBACK_LINES).as_bytes());
        screen.parser.screen_mut().set_scrollback(usize::MAX);
        assert_eq!(screen.parser.screen().scrollback(), SCROLLBACK_LINES);
        screen.process_output(b"\x1b]2;");
        for _ in 0..100 {
            screen.process_output(&[b'x'; 4096]);
            assert!(screen.unparsed.len() <= MAX_UNPARSED_BYTES);
        }
        assert!(screen.render().len() < 1 << 20);
        screen.resize(TerminalSize {
            cols: u16::MAX,
            rows: u16::MAX,
        });
        assert_eq!(
            screen.parser.screen().size().0.get(),
            super::MAX_SCREEN_SIDE
        );
        screen.resize(TerminalSize { cols: 0, rows: 0 });
    }

    #[test]
    fn output_continues_where_the_rendered_part_ends() {
        for (whole, part) in [
            ("a\u{6f22}", 2),
            ("a\x1b[31mb", 3),
            ("a\x1b]2;t\x1b\\b", 6),
            ("a\x1b(0b", 3),
        ] {
            let screen = screen(&whole.as_bytes()[..part]);
            let begin = part - usize::try_from(screen.unparsed_length()).unwrap();
            assert_eq!(begin, 1, "{whole:?}");
            let mut later = replay_rendered(&screen);
            later.process_output(&whole.as_bytes()[begin..]);
            assert_same(&self::screen(whole.as_bytes()), &later);
        }
    }

    /// Text, and sequences that move, colour, switch and scroll.
    fn output() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            "[a-z \u{6f22}\u{e9}]{0,8}".prop_map(String::into_bytes),
            "\x1b\\[[0-9;?]{0,6}[A-Za-z]".prop_map(String::into_bytes),
            Just(b"\r\n".to_vec()),
            Just(b"\x1b[?1049h".to_vec()),
            Just(b"\x1b[?1049l".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ];
        proptest::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn output_in_pieces_is_the_same_output(output in output(), at in any::<prop::sample::Index>()) {
            let at = at.index(output.len() + 1);
            let mut pieces = screen(&output[..at]);
            pieces.process_output(&output[at..]);
            assert_same(&pieces, &screen(&output));
        }

        #[test]
        fn any_output_is_rendered_without_a_query(output in output()) {
            let screen = screen(&output);
            let later = replay_rendered(&screen);
            let (before, after) = (screen.parser.screen(), later.parser.screen());
            prop_assert_eq!(before.contents(), after.contents());
            prop_assert_eq!(before.alternate_screen(), after.alternate_screen());
        }
    }
}
