//! Sanitizer of untrusted text for display: escapes characters that control a terminal or deceive a reader.
//!
//! Control characters (C0, DEL and C1), marks and overrides of the writing direction, and characters without a width
//! are escaped as `\u{…}`. The zero-width joiner and non-joiner stay between two characters that are not ASCII, because
//! emoji and several scripts need them there.

/// Sanitizes a text of several lines; tabs and line ends stay.
pub fn sanitize_text(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut before = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\t' | '\n' => plain.push(c),
            // Progress bars overwrite their line with a carriage return.
            '\r' => plain.push(' '),
            '\u{200c}' | '\u{200d}' if joins_letters(before, characters.peek().copied()) => {
                plain.push(c)
            }
            _ if is_deceptive(c) => plain.extend(c.escape_unicode()),
            _ => plain.push(c),
        }
        before = Some(c);
    }
    plain
}

/// Sanitizes a text and joins its lines, so that no untrusted line passes for a line of osctl.
pub fn sanitize_line(text: &str) -> String {
    sanitize_text(text).replace('\n', " ")
}

/// Whether a line needs no sanitizing.
pub fn is_printable(text: &str) -> bool {
    !text.contains(['\t', '\n']) && sanitize_line(text) == text
}

/// Escapes the same characters in the strings of a JSON document. The values do not change.
pub fn sanitize_json(document: &str) -> String {
    let mut plain = String::with_capacity(document.len());
    for c in document.chars() {
        // Within strings, the serializer has already escaped characters below U+0020; the rest of a document is ASCII.
        match c {
            '\t' | '\n' | '\r' => plain.push(c),
            _ if is_deceptive(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    plain.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => plain.push(c),
        }
    }
    plain
}

/// Whether a terminal interprets the character or a reader does not see it.
fn is_deceptive(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
        || c.is_control()
}

fn joins_letters(before: Option<char>, after: Option<char>) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(|c| !c.is_ascii() && !is_deceptive(c));
    is_letter(before) && is_letter(after)
}

#[cfg(test)]
mod tests {
    use super::{is_printable, sanitize_json, sanitize_line, sanitize_text};
    use proptest::prelude::any;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(sanitize_text("a\tb\n"), "a\tb\n");
        assert_eq!(sanitize_text("\x1b[2J\r\u{9b}x"), "\\u{1b}[2J \\u{9b}x");
        assert_eq!(
            sanitize_line("a\nstatus    succeeded\x07"),
            "a status    succeeded\\u{7}"
        );
    }

    #[test]
    fn invisible_and_bidirectional_characters_are_escaped() {
        assert_eq!(sanitize_text("\u{202e}gpj.exe"), "\\u{202e}gpj.exe");
        assert_eq!(
            sanitize_text("a\u{200b}b\u{e0041}"),
            "a\\u{200b}b\\u{e0041}"
        );
        assert_eq!(sanitize_text("os\u{200d}ctl"), "os\\u{200d}ctl");
        for hidden in [
            "\u{2800}",
            "\u{1bca0}",
            "\u{1bca3}",
            "\u{1d173}",
            "\u{1d17a}",
        ] {
            assert!(!is_printable(hidden), "{}", hidden.escape_unicode());
        }
        assert!(is_printable("⠋⣿𝅘𝅥𝅯𝅻"));
        for fine in ["👩\u{200d}🚀", "می\u{200c}خواهم", "größe", "❤\u{fe0f}"] {
            assert!(is_printable(fine), "{fine}");
        }
        assert!(!is_printable("a\nb") && !is_printable("\u{2066}"));
    }

    proptest::proptest! {
        #[test]
        fn sanitized_text_stays_unchanged(text in any::<String>()) {
            let once = sanitize_line(&text);
            assert!(is_printable(&once.replace('\t', " ")));
            assert_eq!(sanitize_line(&once), once);
        }

        #[test]
        fn a_document_keeps_its_values(text in any::<String>()) {
            let text = format!("{text}\u{9b}\u{202e}\u{e0041}\x7f\x1b");
            let document = sanitize_json(&serde_json::to_string(&text).unwrap());
            assert!(document.chars().all(|c| !c.is_control() && c != '\u{202e}'));
            assert_eq!(serde_json::from_str::<String>(&document).unwrap(), text);
        }
    }
}
