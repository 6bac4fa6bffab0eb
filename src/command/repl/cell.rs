//! The lines of an input cell while the user types them.

/// The indentation of a block, as in the kernel.
pub(super) const INDENT_STEP: &str = "    ";

#[derive(Debug, Default)]
pub(super) struct InputCell {
    pub(super) code: String,
    /// The indentation of the next line.
    pub(super) indent: String,
    lines: usize,
}

impl InputCell {
    pub(super) fn add_line(&mut self, line: &str) {
        if self.lines > 0 {
            self.code.push('\n');
        }
        // A line with only the automatic indentation is an empty line, which ends a block.
        if !line.trim().is_empty() {
            self.code.push_str(line);
        }
        self.lines += 1;
    }

    /// Whether the cell has no line yet.
    pub(super) fn is_begin(&self) -> bool {
        self.lines == 0
    }

    pub(super) fn is_blank(&self) -> bool {
        self.code.trim().is_empty()
    }

    /// The code before the current line.
    pub(super) fn code_before(&self) -> String {
        if self.is_begin() {
            String::new()
        } else {
            format!("{}\n", self.code)
        }
    }

    /// Guesses whether the cell is complete when the kernel can't be asked: a single line that opens no block is
    /// complete, and so is a block that ends with an empty line. Otherwise sets the indentation of the next line.
    pub(super) fn looks_whole(&mut self) -> bool {
        let last = self.code.rsplit('\n').next().unwrap_or_default();
        let ends_with = |ends: &[char]| last.trim_end().ends_with(ends);
        let opens = ends_with(&[':', '(', '[', '{', ',', '\\']);
        let is_whole = last.is_empty() || (!opens && !self.code.contains('\n'));
        let before = &last[..last.len() - last.trim_start().len()];
        self.indent = match ends_with(&[':']) {
            true => format!("{before}{INDENT_STEP}"),
            false => before.to_owned(),
        };
        is_whole
    }
}

#[cfg(test)]
mod tests {
    use super::InputCell;

    fn cell(lines: &[&str]) -> InputCell {
        let mut cell = InputCell::default();
        for line in lines {
            cell.add_line(line);
        }
        cell
    }

    #[test]
    fn indentation_alone_is_an_empty_line() {
        let block = cell(&["def f():", "    return 1", "    "]);
        assert_eq!(block.code, "def f():\n    return 1\n");
        assert_eq!(block.code_before(), "def f():\n    return 1\n\n");
        assert!(cell(&["   "]).is_blank());
        assert_eq!(cell(&[]).code_before(), "");
    }

    #[test]
    fn without_a_kernel_brackets_and_indentation_end_a_cell() {
        assert!(cell(&["x = 1"]).looks_whole());
        let mut block = cell(&["for x in y:"]);
        assert!(!block.looks_whole());
        assert_eq!(block.indent, "    ");
        block.add_line("    print(x)");
        assert!(!block.looks_whole());
        assert_eq!(block.indent, "    ");
        block.add_line("    ");
        assert!(block.looks_whole());
        assert!(!cell(&["f(1,"]).looks_whole());
    }
}
