//! Removes the codes by which programs move the cursor and colour text, and which a model can't use. Pure.

use std::iter::Peekable;
use std::str::Chars;

const ESCAPE_CHAR: char = '\u{1b}';
const BELL_CHAR: char = '\u{7}';

/// The text without escape sequences and control characters; line breaks and tabs stay.
pub(super) fn without_terminal_codes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            ESCAPE_CHAR => skip_sequence(&mut characters),
            '\n' | '\t' => plain.push(c),
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}

/// Skips the rest of an escape sequence (ECMA-48).
fn skip_sequence(characters: &mut Peekable<Chars<'_>>) {
    match characters.next_if(|c| matches!(c, ' '..='~')) {
        // A control sequence ends with a letter or a sign behind `?`.
        Some('[') => {
            while characters.next_if(|c| matches!(c, ' '..='?')).is_some() {}
            characters.next_if(|c| matches!(c, '@'..='~'));
        }
        // A string ends with a bell, or with an escape and a backslash.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = characters.next_if(|c| *c != '\n') {
                if c == BELL_CHAR || c == ESCAPE_CHAR && characters.next_if_eq(&'\\').is_some() {
                    return;
                }
            }
        }
        // Others have signs before their last character.
        Some(' '..='/') => {
            while characters.next_if(|c| matches!(c, ' '..='/')).is_some() {}
            characters.next_if(|c| matches!(c, '0'..='~'));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::without_terminal_codes;

    #[test]
    fn the_text_stays_without_its_codes() {
        for (text, plain) in [
            ("a\n\tbä", "a\n\tbä"),
            (
                "\u{1b}[?1049h\u{1b}[1;24r\u{1b}[32mgreen\u{1b}[m\r\nnext",
                "green\nnext",
            ),
            (
                "\u{1b}]0;title\u{7}a\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\",
                "alink",
            ),
            ("\u{1b}(Bx\u{1b}7y\u{1b}=z\u{8}\u{9b}", "xyz"),
            // Sequences that end with the text, or are invalid.
            ("a\u{1b}", "a"),
            ("a\u{1b}[12", "a"),
            ("a\u{1b}]0;x\nb", "a\nb"),
            ("a\u{1b}[1äb", "aäb"),
        ] {
            assert_eq!(without_terminal_codes(text), plain, "{text:?}");
        }
    }
}
