//! The lines of an input cell while the user types them.

/// The indentation of a block, as in the kernel.
pub(super) const INDENT_STEP: &str = "    ";

/// The code without the indentation that the console has added to an empty last line.
pub(super) fn trim_last_line(code: &str) -> &str {
    let last = code.rfind('\n').map_or(0, |at| at + 1);
    match code[last..].trim().is_empty() {
        true => &code[..last],
        false => code,
    }
}

/// Whether the cursor is above the last line of the code.
pub(super) fn is_above_last_line(code: &str, cursor: usize) -> bool {
    code.get(cursor..).is_some_and(|rest| rest.contains('\n'))
}

/// Guesses whether the cell is complete when the kernel can't be asked: a single line that opens no block is complete,
/// and so is a block that ends with an empty line.
pub(super) fn looks_whole(code: &str) -> bool {
    let last = last_line(code);
    let opens = last.trim_end().ends_with([':', '(', '[', '{', ',', '\\']);
    last.is_empty() || (!opens && !code.contains('\n'))
}

/// The indentation of a line after the code: that of the last line, and one step more in a block that this line opens.
pub(super) fn next_indent(code: &str) -> String {
    let last = last_line(code);
    let indent = &last[..last.len() - last.trim_start().len()];
    match last.trim_end().ends_with(':') {
        true => format!("{indent}{INDENT_STEP}"),
        false => indent.to_owned(),
    }
}

fn last_line(code: &str) -> &str {
    code.rsplit('\n').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{is_above_last_line, looks_whole, next_indent, trim_last_line};

    #[test]
    fn indentation_alone_is_an_empty_line() {
        let block = "def f():\n    return 1\n";
        assert_eq!(trim_last_line(&format!("{block}    ")), block);
        assert_eq!(trim_last_line("   "), "");
        assert_eq!(trim_last_line("x  "), "x  ");
        assert_eq!(trim_last_line("x\n y"), "x\n y");
    }

    #[test]
    fn without_a_kernel_brackets_and_indentation_end_a_cell() {
        assert!(looks_whole("x = 1"));
        assert!(!looks_whole("for x in y:"));
        assert!(!looks_whole("for x in y:\n    print(x)"));
        assert!(looks_whole("for x in y:\n    print(x)\n"));
        assert!(!looks_whole("f(1,"));
    }

    #[test]
    fn a_line_has_the_indentation_of_its_block() {
        assert_eq!(next_indent("for x in y:"), "    ");
        assert_eq!(next_indent("for x in y:\n    if x: "), "        ");
        assert_eq!(next_indent("for x in y:\n    print(x)"), "    ");
    }

    #[test]
    fn the_cursor_is_above_the_last_line_or_in_it() {
        let code = "a\nb";
        assert!(is_above_last_line(code, 0) && is_above_last_line(code, 1));
        assert!(!is_above_last_line(code, 2) && !is_above_last_line(code, 9));
    }
}
