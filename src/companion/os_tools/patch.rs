//! Patches of several files: unified diffs, and the form with `*** Begin Patch`. Pure.
//!
//! Models miscount lines, so the numbers in a hunk's header are only a hint: a hunk is placed where its lines are.

/// The change of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FilePatch {
    /// Path before the change; `None` for a new file.
    pub(super) old_path: Option<String>,
    /// Path after the change; `None` for a deleted file.
    pub(super) new_path: Option<String>,
    hunks: Vec<Hunk>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Hunk {
    /// The number of the first line, if the header has one.
    line: Option<usize>,
    lines: Vec<HunkLine>,
    /// The patched file has no line break at its end.
    has_no_final_break: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HunkLine {
    Context(String),
    Removed(String),
    Added(String),
}

impl HunkLine {
    /// The line before the change.
    fn old_text(&self) -> Option<&str> {
        match self {
            Self::Context(text) | Self::Removed(text) => Some(text),
            Self::Added(_) => None,
        }
    }
}

/// # Errors
/// Names the line of the patch that can't be read.
pub(super) fn parse_patch(text: &str) -> Result<Vec<FilePatch>, String> {
    let lines: Vec<&str> = text.lines().map(|l| l.trim_end_matches('\r')).collect();
    let mut files: Vec<FilePatch> = Vec::new();
    let mut at = 0;
    // Whether lines belong to the last hunk of the last file.
    let mut is_in_hunk = false;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        let next = lines.get(at).copied().unwrap_or_default();
        if let Some(old) = line.strip_prefix("--- ")
            && let Some(new) = next.strip_prefix("+++ ")
        {
            at += 1;
            let (old_path, new_path) = header_paths(old, new);
            // A header of git's precedes, with the paths of a renamed file.
            match files.last_mut().filter(|file| {
                file.hunks.is_empty() && old_path.is_some() && file.old_path == old_path
            }) {
                Some(_) => {}
                None => files.push(FilePatch {
                    old_path,
                    new_path,
                    hunks: Vec::new(),
                }),
            }
            is_in_hunk = false;
        } else if let Some(old) = line.strip_prefix("rename from ") {
            files.push(FilePatch {
                old_path: Some(old.into()),
                ..FilePatch::default()
            });
        } else if let (Some(new), Some(file)) = (line.strip_prefix("rename to "), files.last_mut())
        {
            file.new_path = Some(new.into());
        } else if let Some(section) = line.strip_prefix("*** ") {
            is_in_hunk = parse_section(section, &mut files);
        } else if line.starts_with("@@") {
            let file = files.last_mut().ok_or_else(|| no_file(at, line))?;
            file.hunks.push(Hunk {
                line: hunk_line(line),
                ..Hunk::default()
            });
            is_in_hunk = true;
        } else if line.starts_with("diff --git ") {
            is_in_hunk = false;
        } else if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
            return Err(format!(
                "line {at} of the patch: binary files can't be patched"
            ));
        } else if is_in_hunk && let Some(file) = files.last_mut() {
            if file.hunks.is_empty() {
                file.hunks.push(Hunk::default());
            }
            let hunk = file.hunks.last_mut();
            let read = hunk.is_some_and(|hunk| hunk.add_line(line));
            if !read {
                return Err(format!(
                    "line {at} of the patch begins with neither ` `, `-` nor `+`: `{line}`"
                ));
            }
        }
    }
    files.retain(|file| file.old_path != file.new_path || !file.hunks.is_empty());
    match files.is_empty() {
        true => Err(
            "the patch changes no file: give a unified diff with `--- PATH`, `+++ PATH` and `@@`"
                .into(),
        ),
        false => Ok(files),
    }
}

/// Reads a line such as `*** Update File: PATH`. Returns whether lines of a hunk can follow.
fn parse_section(section: &str, files: &mut Vec<FilePatch>) -> bool {
    let (kind, path) = section.split_once(": ").unwrap_or((section, ""));
    let path = Some(path.trim().to_owned());
    let (old_path, new_path) = match kind {
        "Update File" => (path.clone(), path),
        "Add File" => (None, path),
        "Delete File" => (path, None),
        "Move to" => {
            if let Some(file) = files.last_mut() {
                file.new_path = path;
            }
            return true;
        }
        "End of File" => return true,
        _ => return false,
    };
    files.push(FilePatch {
        old_path,
        new_path,
        hunks: Vec::new(),
    });
    true
}

fn no_file(number: usize, line: &str) -> String {
    format!(
        "line {number} of the patch: `{line}` belongs to no file; `--- PATH` and `+++ PATH` must precede it"
    )
}

/// The paths of a header, without the prefixes of git and without times.
fn header_paths(old: &str, new: &str) -> (Option<String>, Option<String>) {
    let plain = |path: &str| {
        path.split('\t')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let (old, new) = (plain(old), plain(new));
    let is_none = |path: &str| path == "/dev/null";
    let has_prefixes =
        (old.starts_with("a/") || is_none(&old)) && (new.starts_with("b/") || is_none(&new));
    let path = |path: String| match (is_none(&path), has_prefixes) {
        (true, _) => None,
        (false, true) => Some(path[2..].to_owned()),
        (false, false) => Some(path),
    };
    (path(old), path(new))
}

/// The first line in `@@ -3,4 +3,5 @@`.
fn hunk_line(header: &str) -> Option<usize> {
    let range = header.split_whitespace().nth(1)?.strip_prefix('-')?;
    range.split(',').next()?.parse().ok()
}

impl Hunk {
    /// Whether the line is one of a hunk.
    fn add_line(&mut self, line: &str) -> bool {
        let mut characters = line.chars();
        let kind = characters.next();
        let text = characters.as_str().to_owned();
        self.lines.push(match kind {
            Some(' ') => HunkLine::Context(text),
            Some('-') => HunkLine::Removed(text),
            Some('+') => HunkLine::Added(text),
            // Editors remove the space of an empty line.
            None => HunkLine::Context(String::new()),
            Some('\\') => {
                let is_of_new = !matches!(self.lines.last(), Some(HunkLine::Removed(_)));
                self.has_no_final_break |= is_of_new;
                return true;
            }
            Some(_) => return false,
        });
        true
    }

    /// Without empty lines at the end, which may separate this hunk from the next file.
    fn without_trailing_blanks(&self) -> Self {
        let mut hunk = self.clone();
        while hunk.lines.last() == Some(&HunkLine::Context(String::new())) {
            hunk.lines.pop();
        }
        hunk
    }
}

impl FilePatch {
    /// The content after the change. `content` is empty for a new file.
    ///
    /// # Errors
    /// Names the hunk that does not fit.
    pub(super) fn apply(&self, content: &str) -> Result<String, String> {
        let line_break = match content.contains("\r\n") {
            true => "\r\n",
            false => "\n",
        };
        let mut lines: Vec<String> = content.lines().map(str::to_owned).collect();
        let mut has_final_break = content.is_empty() || content.ends_with('\n');
        // Where the search for the next hunk begins, and by how much the previous hunks moved the lines.
        let (mut start, mut shift) = (0_usize, 0_isize);
        for (number, hunk) in self.hunks.iter().enumerate() {
            let short = hunk.without_trailing_blanks();
            let found = place_hunk(hunk, &lines, start, shift).map(|at| (at, hunk));
            let found = match found {
                Ok(found) => Ok(found),
                Err(why) => place_hunk(&short, &lines, start, shift)
                    .map(|at| (at, &short))
                    .map_err(|_| why),
            };
            let (at, hunk) = found.map_err(|why| format!("hunk {} {why}", number + 1))?;
            let mut after = Vec::new();
            let mut old = at;
            for line in &hunk.lines {
                match line {
                    // The file's own line: it may differ in white space at its end.
                    HunkLine::Context(_) => {
                        after.push(lines[old].clone());
                        old += 1;
                    }
                    HunkLine::Removed(_) => old += 1,
                    HunkLine::Added(text) => after.push(text.clone()),
                }
            }
            let is_at_end = old == lines.len();
            if is_at_end
                && hunk
                    .lines
                    .iter()
                    .any(|line| matches!(line, HunkLine::Added(_)))
            {
                has_final_break = !hunk.has_no_final_break;
            }
            let moved = after.len() as isize - (old - at) as isize;
            start = at + after.len();
            shift += moved;
            lines.splice(at..old, after);
        }
        let mut text = lines.join(line_break);
        if has_final_break && !lines.is_empty() {
            text.push_str(line_break);
        }
        Ok(text)
    }

    /// The numbers of added and removed lines.
    pub(super) fn line_counts(&self) -> (usize, usize) {
        let lines = || self.hunks.iter().flat_map(|hunk| &hunk.lines);
        let added = lines().filter(|line| matches!(line, HunkLine::Added(_)));
        let removed = lines().filter(|line| matches!(line, HunkLine::Removed(_)));
        (added.count(), removed.count())
    }
}

/// The line at which a hunk's old lines are.
fn place_hunk(hunk: &Hunk, lines: &[String], start: usize, shift: isize) -> Result<usize, String> {
    let old: Vec<&str> = hunk.lines.iter().filter_map(HunkLine::old_text).collect();
    let expected = hunk.line.map(|line| {
        // An insertion without context follows the named line.
        let line = line.saturating_sub(usize::from(!old.is_empty()));
        line.saturating_add_signed(shift)
    });
    if old.is_empty() {
        return Ok(expected.unwrap_or(lines.len()).clamp(start, lines.len()));
    }
    let places = |is_equal: fn(&str, &str) -> bool| -> Vec<usize> {
        let windows = lines.windows(old.len()).enumerate().skip(start);
        let fits = |window: &[String]| window.iter().zip(&old).all(|(a, b)| is_equal(a, b));
        windows
            .filter(|(_, window)| fits(window))
            .map(|(at, _)| at)
            .collect()
    };
    let mut found = places(|a, b| a == b);
    if found.is_empty() {
        found = places(|a, b| a.trim_end() == b.trim_end());
    }
    match (found.len(), expected) {
        (0, _) => Err(format!(
            "does not fit: the file has no lines `{}` in this order",
            old.iter().take(3).copied().collect::<Vec<_>>().join("⏎")
        )),
        (1, _) => Ok(found[0]),
        (_, Some(expected)) => Ok(*found
            .iter()
            .min_by_key(|at| at.abs_diff(expected))
            .unwrap_or(&found[0])),
        (count, None) => Err(format!(
            "fits at {count} places; add more lines around the change"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{FilePatch, parse_patch};

    fn apply(patch: &str, content: &str) -> Result<String, String> {
        let files = parse_patch(patch)?;
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].apply(content)
    }

    const FILE: &str = "1\n2\n3\n4\n5\n6\n";

    #[test]
    fn hunks_are_placed_where_their_lines_are() {
        for (hunks, after) in [
            (
                "@@ -2,3 +2,3 @@\n 2\n-3\n+three\n 4\n",
                "1\n2\nthree\n4\n5\n6\n",
            ),
            // Wrong numbers, no numbers, and a missing space of an empty line at the end.
            ("@@ -40,9 +1,1 @@\n 2\n-3\n 4\n\n", "1\n2\n4\n5\n6\n"),
            ("@@\n-3\n+three\n", "1\n2\nthree\n4\n5\n6\n"),
            // Two hunks, the second moved by the first.
            (
                "@@ -1 +1,2 @@\n 1\n+1b\n@@ -6 +7,2 @@\n 6\n+7\n",
                "1\n1b\n2\n3\n4\n5\n6\n7\n",
            ),
            ("@@ -3,0 +4,1 @@\n+new\n", "1\n2\n3\nnew\n4\n5\n6\n"),
            (
                "@@ -6 +6 @@\n-6\n+six\n\\ No newline at end of file\n",
                "1\n2\n3\n4\n5\nsix",
            ),
            // White space at the end of a line differs.
            ("@@ -3 +3 @@\n-3  \n+three\n", "1\n2\nthree\n4\n5\n6\n"),
        ] {
            let patch = format!("--- a/x\n+++ b/x\n{hunks}");
            assert_eq!(apply(&patch, FILE).as_deref(), Ok(after), "{hunks}");
        }
        let crlf = apply("--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n", "a\r\nc\r\n");
        assert_eq!(crlf.as_deref(), Ok("b\r\nc\r\n"));
        // Of several places, the nearest to the number.
        let nearest = apply("--- x\n+++ x\n@@ -3 +3 @@\n-a\n+b\n", "a\n1\na\n2\na\n");
        assert_eq!(nearest.as_deref(), Ok("a\n1\nb\n2\na\n"));
    }

    #[test]
    fn a_hunk_that_does_not_fit_is_named() {
        for (patch, why) in [
            (
                "--- x\n+++ x\n@@ -1 +1 @@\n-9\n+8\n",
                "hunk 1 does not fit: the file has no lines `9`",
            ),
            (
                "--- x\n+++ x\n@@ -1 +1 @@\n 1\n@@ -1 +1 @@\n-1\n",
                "hunk 2 does not fit",
            ),
            (
                "--- x\n+++ x\n@@ -1 +1 @@\n*1\n",
                "line 4 of the patch begins with neither",
            ),
            (
                "@@ -1 +1 @@\n-1\n",
                "line 1 of the patch: `@@ -1 +1 @@` belongs to no file",
            ),
            ("just text\n", "the patch changes no file"),
            (
                "diff --git a/x b/x\nBinary files a/x and b/x differ\n",
                "binary files can't be patched",
            ),
        ] {
            let refused = apply(patch, FILE).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let twice = apply("--- x\n+++ x\n@@\n-a\n", "a\na\n").unwrap_err();
        assert!(twice.contains("fits at 2 places"), "{twice}");
    }

    #[test]
    fn files_are_created_deleted_and_renamed() {
        let patch = "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n\
            diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\
            diff --git a/a b/b\nrename from a\nrename to b\n\
            diff --git a/c b/d\nrename from c\nrename to d\n--- a/c\n+++ b/d\n@@ -1 +1 @@\n-1\n+2\n";
        let files = parse_patch(patch).unwrap();
        let paths: Vec<_> = files
            .iter()
            .map(|f| (f.old_path.as_deref(), f.new_path.as_deref()))
            .collect();
        let expected = [
            (None, Some("new")),
            (Some("old"), None),
            (Some("a"), Some("b")),
            (Some("c"), Some("d")),
        ];
        assert_eq!(paths, expected);
        assert_eq!(files[0].apply("").as_deref(), Ok("x\n"));
        assert_eq!(files[1].apply("x\n").as_deref(), Ok(""));
        assert_eq!(files[3].apply("1\n").as_deref(), Ok("2\n"));
        assert_eq!(files[3].line_counts(), (1, 1));
    }

    #[test]
    fn the_other_form_of_patches_is_read() {
        let patch = "*** Begin Patch\n*** Add File: n.txt\n+a\n+b\n*** Update File: u.txt\n*** Move to: v.txt\n@@ fn main\n 1\n-2\n+two\n*** End of File\n*** Delete File: d.txt\n*** End Patch\n";
        let files = parse_patch(patch).unwrap();
        assert_eq!(files.len(), 3, "{files:?}");
        assert_eq!(files[0].apply("").as_deref(), Ok("a\nb\n"));
        assert_eq!(files[1].apply(FILE).as_deref(), Ok("1\ntwo\n3\n4\n5\n6\n"));
        assert_eq!(files[1].new_path.as_deref(), Some("v.txt"));
        let deleted = FilePatch {
            old_path: Some("d.txt".into()),
            ..FilePatch::default()
        };
        assert_eq!(files[2], deleted);
    }
}
