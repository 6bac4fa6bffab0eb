//! Replaces a text in a file's content, and describes the change. Pure.

use similar::TextDiff;

/// The most lines of a difference in an answer.
const MAX_DIFFERENCE_LINES: usize = 200;
/// The most occurrences that a refusal lists.
const MAX_LISTED_OCCURRENCES: usize = 10;

/// Replaces `old`, which must occur once, or `all` its occurrences. The line breaks of `old` and `new` adapt to those
/// of the content.
///
/// # Errors
/// Why nothing was replaced, and what to do.
pub(super) fn replace_text(
    content: &str,
    old: &str,
    new: &str,
    all: bool,
) -> Result<String, String> {
    if old.is_empty() {
        return Err("`old_text` is empty; `write_file` creates or replaces a file".into());
    }
    if old == new {
        return Err("`old_text` and `new_text` are equal".into());
    }
    let to_file_breaks = |text: &str| text.replace("\r\n", "\n").replace('\n', "\r\n");
    let has_other_breaks =
        !content.contains(old) && content.contains("\r\n") && !old.contains("\r\n");
    let (old, new) = match has_other_breaks {
        true => (to_file_breaks(old), to_file_breaks(new)),
        false => (old.to_owned(), new.to_owned()),
    };
    let places: Vec<usize> = content.match_indices(&old).map(|(at, _)| at).collect();
    match places.len() {
        0 => Err(absent_text(content, &old)),
        2.. if !all => {
            let lines = places.iter().take(MAX_LISTED_OCCURRENCES).map(|at| {
                let line = content[..*at].matches('\n').count() + 1;
                line.to_string()
            });
            Err(format!(
                "`old_text` occurs {} times, at the lines {}; include more lines around the text, or set `replace_all`",
                places.len(),
                lines.collect::<Vec<_>>().join(", ")
            ))
        }
        _ => Ok(content.replace(&old, &new)),
    }
}

fn absent_text(content: &str, old: &str) -> String {
    let why = "`old_text` does not occur in the file";
    let trimmed = |text: &str| -> Vec<String> { text.lines().map(|l| l.trim().into()).collect() };
    let (lines, wanted) = (trimmed(content), trimmed(old));
    let is_blank = wanted.iter().all(String::is_empty);
    let similar = lines.windows(wanted.len().max(1)).position(|w| w == wanted);
    match similar.filter(|_| !is_blank) {
        Some(line) => format!(
            "{why}; the text at line {} differs only in white space",
            line + 1
        ),
        None => format!("{why}; `read_file` shows the current content"),
    }
}

/// The changed lines with three lines around them, as a unified diff.
pub(super) fn difference(name: &str, before: &str, after: &str) -> String {
    let text = TextDiff::from_lines(before, after)
        .unified_diff()
        .header(&format!("a/{name}"), &format!("b/{name}"))
        .to_string();
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= MAX_DIFFERENCE_LINES {
        return text;
    }
    let left_out = lines.len() - MAX_DIFFERENCE_LINES;
    let shown = lines[..MAX_DIFFERENCE_LINES].join("\n");
    format!("{shown}\n… {left_out} more lines …")
}

#[cfg(test)]
mod tests {
    use super::{difference, replace_text};

    #[test]
    fn a_text_is_replaced_only_if_the_place_is_certain() {
        let replace = |old: &str, new: &str| replace_text("a = 1\nb = 1\n", old, new, false);
        assert_eq!(replace("a = 1", "a = 2").unwrap(), "a = 2\nb = 1\n");
        for (old, new, why) in [
            ("", "x", "`old_text` is empty"),
            ("a", "a", "are equal"),
            ("= 1", "= 2", "occurs 2 times, at the lines 1, 2;"),
            ("c", "d", "`read_file` shows"),
            ("  a = 1", "x", "at line 1 differs only in white space"),
            ("a = 1\n\tb = 1", "x", "at line 1 differs only"),
        ] {
            let refused = replace(old, new).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let all = replace_text("a a", "a", "b", true);
        assert_eq!(all.unwrap(), "b b");
    }

    #[test]
    fn line_breaks_of_the_file_stay() {
        let replaced = replace_text("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", false);
        assert_eq!(replaced.unwrap(), "x\r\ny\r\nz\r\nc\r\n");
    }

    #[test]
    fn a_change_is_described_with_lines_around_it() {
        let before: String = (0..20).map(|number| format!("{number}\n")).collect();
        let shown = difference("x", &before, &before.replace("10\n", "ten\n"));
        let expected = "--- a/x\n+++ b/x\n@@ -8,7 +8,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n";
        assert_eq!(shown, expected);
        let long = difference("x", "", &"x\n".repeat(1000));
        assert!(long.ends_with("… 803 more lines …"), "{long}");
    }
}
