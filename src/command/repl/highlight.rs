//! Colors of Python code while the user types it.
//!
//! A scan by words and quotes, not a parser: unfinished code has colors, too.

use nu_ansi_term::{Color, Style};

const PYTHON_KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "case", "class",
    "continue", "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if",
    "import", "in", "is", "lambda", "match", "nonlocal", "not", "or", "pass", "raise", "return",
    "try", "while", "with", "yield",
];

/// The kind of a piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodeToken {
    Keyword,
    Number,
    Text,
    Comment,
    /// A line for IPython: `%magic`, `!command`.
    Magic,
    Other,
}

impl CodeToken {
    fn style(self) -> Style {
        match self {
            Self::Keyword => Color::Blue.bold(),
            Self::Number => Color::Cyan.normal(),
            Self::Text => Color::Yellow.normal(),
            Self::Comment => Style::new().italic().dimmed(),
            Self::Magic => Color::Purple.normal(),
            Self::Other => Style::new(),
        }
    }
}

/// The pieces of the code with their styles; together they are the code.
pub(super) fn highlight_code(code: &str) -> Vec<(Style, String)> {
    let pieces = split_code(code).into_iter();
    pieces
        .map(|(token, text)| (token.style(), text.to_owned()))
        .collect()
}

fn split_code(code: &str) -> Vec<(CodeToken, &str)> {
    let mut pieces: Vec<(CodeToken, &str)> = Vec::new();
    let mut rest = code;
    let mut is_line_start = true;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '%' | '!' if is_line_start => (CodeToken::Magic, line_length(rest)),
            '#' => (CodeToken::Comment, line_length(rest)),
            '"' | '\'' => (CodeToken::Text, quoted_length(rest)),
            _ if first.is_ascii_digit() => (CodeToken::Number, word_length(rest, true)),
            _ if is_word(first) => word_token(rest),
            _ => (CodeToken::Other, first.len_utf8()),
        };
        let (piece, after) = rest.split_at(length);
        is_line_start = match is_line_start || first == '\n' {
            true => piece.trim().is_empty(),
            false => false,
        };
        pieces.push((token, piece));
        rest = after;
    }
    pieces
}

/// A keyword, a name, or a text with a prefix such as `f"…"`.
fn word_token(rest: &str) -> (CodeToken, usize) {
    let length = word_length(rest, false);
    let (word, after) = rest.split_at(length);
    let is_prefix = length <= 2 && word.chars().all(|c| "rbfutRBFUT".contains(c));
    match word {
        _ if is_prefix && after.starts_with(['"', '\'']) => {
            (CodeToken::Text, length + quoted_length(after))
        }
        _ if PYTHON_KEYWORDS.contains(&word) => (CodeToken::Keyword, length),
        _ => (CodeToken::Other, length),
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn word_length(rest: &str, is_number: bool) -> usize {
    rest.find(|c: char| !(is_word(c) || (is_number && c == '.')))
        .unwrap_or(rest.len())
}

fn line_length(rest: &str) -> usize {
    rest.find('\n').unwrap_or(rest.len())
}

/// The length of a text with its quotes, up to the end of the line or of the code if the text is not closed.
fn quoted_length(rest: &str) -> usize {
    let quote = &rest[..1];
    let triple = quote.repeat(3);
    let (end, spans_lines) = match rest.starts_with(&triple) {
        true => (triple.as_str(), true),
        false => (quote, false),
    };
    let mut at = end.len();
    while let Some(next) = rest[at..].chars().next() {
        if rest[at..].starts_with(end) {
            return at + end.len();
        }
        if next == '\n' && !spans_lines {
            return at;
        }
        at += next.len_utf8();
        if next == '\\' {
            at += rest[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::{CodeToken, highlight_code, split_code};
    use proptest::prelude::*;

    fn pieces(code: &str) -> Vec<(CodeToken, &str)> {
        let mut found = split_code(code);
        found.retain(|(token, _)| *token != CodeToken::Other);
        found
    }

    #[test]
    fn words_texts_numbers_and_comments_are_found() {
        use CodeToken::{Comment, Keyword, Magic, Number, Text};
        assert_eq!(
            pieces("for form in rb'a\\'#' + \"it's\": # 'no'\n  x1 = 1.5e3"),
            [
                (Keyword, "for"),
                (Keyword, "in"),
                (Text, "rb'a\\'#'"),
                (Text, "\"it's\""),
                (Comment, "# 'no'"),
                (Number, "1.5e3"),
            ]
        );
        assert_eq!(
            pieces("%time x % y\n!ls\na = '''two\nlines''' % 2"),
            [
                (Magic, "%time x % y"),
                (Magic, "!ls"),
                (Text, "'''two\nlines'''"),
                (Number, "2"),
            ]
        );
    }

    #[test]
    fn text_that_is_not_closed_ends_with_its_line() {
        use CodeToken::{Keyword, Text};
        assert_eq!(pieces("'open\nif"), [(Text, "'open"), (Keyword, "if")]);
        assert_eq!(pieces("'''open\nif"), [(Text, "'''open\nif")]);
        assert_eq!(pieces("'\\"), [(Text, "'\\")]);
    }

    proptest! {
        #[test]
        fn no_character_is_lost(code in "[ -~\\n\u{e4}\u{65e5}]{0,60}") {
            let joined: String = highlight_code(&code).into_iter().map(|(_, text)| text).collect();
            prop_assert_eq!(joined, code);
        }
    }
}
