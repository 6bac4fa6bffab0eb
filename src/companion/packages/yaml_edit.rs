//! Edits of `packages:` in a project's `osctl.yaml` that keep comments and order. No library edits YAML and keeps
//! comments, so this module edits lines; the caller parses the result before it is written.
//!
//! `packages:` is a block; each list is a block or in brackets on one line.

use super::{PackageResult, refusal};
use crate::protocol::packages::{PROJECT_FILE, PackageChangeRefusal, PackageKind};
use serde_json::Value;

const PACKAGES_KEY: &str = "packages";
/// Indentation under a key, if the file has no example.
const PACKAGES_INDENT: &str = "  ";

/// Changes the list of one installer.
///
/// # Errors
/// When the list is not written as expected.
pub(super) fn set_packages(
    text: &str,
    kind: PackageKind,
    before: &[String],
    after: &[String],
) -> PackageResult<String> {
    if before == after {
        return Ok(text.to_owned());
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let edited = edit_lines(&mut lines, kind, after);
    edited.ok_or_else(uneditable_refusal)?;
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    Ok(text)
}

/// The refusal for a file that is written in another form.
pub(super) fn uneditable_refusal() -> PackageChangeRefusal {
    let error = format!(
        "`{PACKAGES_KEY}` in `{PROJECT_FILE}` is not written as a block, so osctl can't edit it"
    );
    refusal(error, "edit the file, then run `osctl packages lock`")
}

fn edit_lines(lines: &mut Vec<String>, kind: PackageKind, after: &[String]) -> Option<()> {
    let Some(at) = lines
        .iter()
        .position(|line| value_of(line, PACKAGES_KEY).is_some())
    else {
        // An empty document may be written in braces.
        if lines.iter().any(|line| line.trim() == "{}") {
            return None;
        }
        lines.push(format!("{PACKAGES_KEY}:"));
        lines.extend(list_block(PACKAGES_INDENT, kind, after));
        return Some(());
    };
    match split_comment(value_of(&lines[at], PACKAGES_KEY)?).0 {
        "" => {}
        "{}" | "~" | "null" => lines[at] = format!("{PACKAGES_KEY}:"),
        _ => return None,
    }
    let end = block_end(lines, at, 0);
    let first = (at + 1..end).find(|line| !is_blank(&lines[*line]));
    let indent = first.map_or(PACKAGES_INDENT.to_owned(), |line| {
        indent_of(&lines[line]).to_owned()
    });
    let is_list = |line: &String| {
        indent_of(line) == indent && value_of(line.trim_start(), kind.as_str()).is_some()
    };
    match (at + 1..end).find(|line| is_list(&lines[*line])) {
        None => {
            let block = list_block(&indent, kind, after);
            lines.splice(end..end, block);
        }
        Some(list) => edit_list(lines, list, kind, after)?,
    }
    if (at + 1..block_end(lines, at, 0)).all(|line| is_blank(&lines[line])) {
        lines.remove(at);
    }
    Some(())
}

/// Changes the list whose key is in line `at`.
fn edit_list(
    lines: &mut Vec<String>,
    at: usize,
    kind: PackageKind,
    after: &[String],
) -> Option<()> {
    let indent = indent_of(&lines[at]).to_owned();
    let rest = value_of(lines[at].trim_start(), kind.as_str())?.to_owned();
    let (value, comment) = split_comment(&rest);
    if value.starts_with('[') && value.ends_with(']') {
        let items: Vec<String> = after.iter().map(|package| scalar(package, true)).collect();
        lines[at] = format!("{indent}{kind}: [{}]{comment}", items.join(", "));
        if after.is_empty() {
            lines.remove(at);
        }
        return Some(());
    }
    if !["", "~", "null"].contains(&value) {
        return None;
    }
    let mut left: Vec<&String> = after.iter().collect();
    let mut item_indent = None;
    let mut line = at + 1;
    // Where the next item goes.
    let mut end = at + 1;
    while let Some(text) = lines.get(line) {
        if is_blank(text) {
            line += 1;
            continue;
        }
        let Some(item) = text.trim_start().strip_prefix("- ") else {
            break;
        };
        if indent_of(text).len() < indent.len() {
            break;
        }
        let own_indent = indent_of(text).to_owned();
        let (value, comment) = split_comment(item);
        let known: String = serde_yaml::from_str(value).ok()?;
        let name = kind.comparable_name(&known);
        let position = left
            .iter()
            .position(|package| kind.comparable_name(package) == name);
        match position {
            None => {
                lines.remove(line);
                continue;
            }
            Some(position) => {
                let package = left.remove(position);
                if *package != known {
                    lines[line] = format!("{own_indent}- {}{comment}", scalar(package, false));
                }
            }
        }
        item_indent.get_or_insert(own_indent);
        line += 1;
        end = line;
    }
    if after.is_empty() {
        lines.remove(at);
        return Some(());
    }
    lines[at] = format!("{indent}{kind}:{comment}");
    let item_indent = item_indent.unwrap_or_else(|| format!("{indent}{PACKAGES_INDENT}"));
    let items = left
        .iter()
        .map(|package| format!("{item_indent}- {}", scalar(package, false)));
    let items: Vec<String> = items.collect();
    lines.splice(end..end, items);
    Some(())
}

fn list_block(indent: &str, kind: PackageKind, packages: &[String]) -> Vec<String> {
    let item = |package: &String| format!("{indent}{PACKAGES_INDENT}- {}", scalar(package, false));
    let key = [format!("{indent}{kind}:")];
    key.into_iter().chain(packages.iter().map(item)).collect()
}

/// The line after the block of the key in line `at`. Blank lines and comments at its end belong to what follows.
fn block_end(lines: &[String], at: usize, indent: usize) -> usize {
    let mut end = at + 1;
    for (index, line) in lines.iter().enumerate().skip(at + 1) {
        if is_blank(line) {
            continue;
        }
        if indent_of(line).len() <= indent {
            break;
        }
        end = index + 1;
    }
    end
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start_matches(' ').len()]
}

fn is_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// The text after `KEY:` at the start of a line.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(key)?.strip_prefix(':')?;
    (rest.is_empty() || rest.starts_with(' ')).then_some(rest)
}

/// A value without its comment, and the comment with the blanks before it. Packages contain no ` #`.
fn split_comment(text: &str) -> (&str, &str) {
    let begin = match text.trim_start().starts_with('#') {
        true => 0,
        false => text.find(" #").unwrap_or(text.len()),
    };
    let value = text[..begin].trim_end();
    (value.trim(), text[value.len()..].trim_end())
}

/// The package as a YAML value; quoted where YAML would read something else.
fn scalar(package: &str, is_in_brackets: bool) -> String {
    let is_same = serde_yaml::from_str::<Value>(package).is_ok_and(|read| read == package);
    match is_same && !(is_in_brackets && package.contains(['[', ']', ','])) {
        true => package.to_owned(),
        false => format!("\"{package}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::set_packages;
    use crate::protocol::packages::{PackageKind, PackageLists};

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn edits_keep_comments_and_order() {
        for (text, kind, after, expected) in [
            (
                "",
                PackageKind::Pip,
                "polars",
                "packages:\n  pip:\n    - polars\n",
            ),
            (
                "# mine\nbuild_tools: true # y",
                PackageKind::Apt,
                "jq",
                "# mine\nbuild_tools: true # y\npackages:\n  apt:\n    - jq\n",
            ),
            (
                "packages: # all\n    # fast\n    pip:\n    - polars # frames\n    # last\n\n# end\nbody: x\n",
                PackageKind::Pip,
                "polars==1 x",
                "packages: # all\n    # fast\n    pip:\n    - polars==1 # frames\n    - x\n    # last\n\n# end\nbody: x\n",
            ),
            (
                "packages:\n  apt: [jq] # tools\n  pip: [a, b]\nbody: x\n",
                PackageKind::Apt,
                "jq fd-find",
                "packages:\n  apt: [jq, fd-find] # tools\n  pip: [a, b]\nbody: x\n",
            ),
            (
                "packages:\n  pip:\n    - a\n    - b # two\n    - c\nbody: x\n",
                PackageKind::Pip,
                "a c",
                "packages:\n  pip:\n    - a\n    - c\nbody: x\n",
            ),
            (
                "packages:\n  pip:\n    - a\n  apt: [jq]\n",
                PackageKind::Pip,
                "",
                "packages:\n  apt: [jq]\n",
            ),
            (
                "body: x\npackages:\n  pip: [a]\n",
                PackageKind::Pip,
                "",
                "body: x\n",
            ),
            (
                "packages: {}\n",
                PackageKind::Npm,
                "@a/b",
                "packages:\n  npm:\n    - \"@a/b\"\n",
            ),
            (
                "packages:\n  pip: [a]\n",
                PackageKind::Pip,
                "a b[c,d]",
                "packages:\n  pip: [a, \"b[c,d]\"]\n",
            ),
            (
                "packages:\n  pip:\n",
                PackageKind::Pip,
                "null 1",
                "packages:\n  pip:\n    - \"null\"\n    - \"1\"\n",
            ),
        ] {
            let before = PackageLists::from_project_file(text).unwrap();
            let after = words(after);
            let edited = set_packages(text, kind, before.of(kind), &after).unwrap();
            assert_eq!(edited, expected);
            let mut lists = before;
            *lists.of_mut(kind) = after;
            assert_eq!(PackageLists::from_project_file(&edited).unwrap(), lists);
        }
    }

    #[test]
    fn another_form_is_not_edited() {
        for text in [
            "packages: {pip: [a]}\n",
            "packages:\n  pip: [a,\n    b]\n",
            "{}\n",
        ] {
            let before = PackageLists::from_project_file(text).unwrap();
            let edited = set_packages(text, PackageKind::Pip, &before.pip, &words("x"));
            assert!(edited.is_err(), "{text}");
        }
    }
}
