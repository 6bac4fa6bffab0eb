//! Texts of strangers, for people.

/// Without control characters but tabs and line ends: a terminal would do what they say.
pub(crate) fn printable(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' | '\n' => plain.push(c),
            // With it progress paints over itself.
            '\r' => plain.push(' '),
            _ if c.is_control() => plain.extend(c.escape_debug()),
            _ => plain.push(c),
        }
    }
    plain
}

/// The same in one line, so that no line of theirs passes for one of ours.
pub(crate) fn line(text: &str) -> String {
    printable(text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::{line, printable};

    #[test]
    fn a_terminal_is_told_nothing() {
        assert_eq!(printable("a\tb\n"), "a\tb\n");
        assert_eq!(printable("\x1b[2J\r\u{9b}x"), "\\u{1b}[2J \\u{9b}x");
        assert_eq!(
            line("a\nstatus    succeeded\x07"),
            "a status    succeeded\\u{7}"
        );
    }
}
