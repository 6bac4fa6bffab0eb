//! An entry in YAML, as lines of a block. No library edits YAML and keeps comments, so this module inserts and removes
//! lines, and `edit` parses the result before it is used.

use super::edit::{ClientEntry, EditRefusal};
use serde_json::Value;

/// Indentation under a key, if the file has no example.
const YAML_INDENT: &str = "  ";

pub(super) fn parse_yaml(text: &str) -> Result<Value, EditRefusal> {
    serde_yaml::from_str(text).map_err(|error| format!("the file is not valid YAML: {error}"))
}

pub(super) fn insert(
    text: &str,
    servers: &str,
    name: &str,
    entry: &ClientEntry,
) -> Result<String, EditRefusal> {
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let Some(at) = lines.iter().position(|line| is_key(line, servers)) else {
        if let Some(last) = lines.last_mut()
            && !last.ends_with('\n')
        {
            last.push('\n');
        }
        lines.push(format!("{servers}:\n"));
        lines.extend(entry_block(YAML_INDENT, name, entry));
        return Ok(lines.concat());
    };
    let rest = value_after_key(&lines[at]);
    match rest {
        "" => {}
        "{}" => lines[at] = lines[at].replacen(" {}", "", 1),
        _ => return Err(format!("`{servers}` is not written as a block: `{rest}`")),
    }
    if !lines[at].ends_with('\n') {
        lines[at].push('\n');
    }
    let indent = first_child(&lines[at + 1..])
        .map_or(YAML_INDENT.to_owned(), |(_, indent)| indent.to_owned());
    let (begin, end) = match find_entry_lines(&lines, at, name) {
        Some(place) => place,
        None => (at + 1, at + 1),
    };
    lines.splice(begin..end, entry_block(&indent, name, entry));
    Ok(lines.concat())
}

pub(super) fn remove(
    text: &str,
    servers: &str,
    name: &str,
    holder_stays: bool,
) -> Result<String, EditRefusal> {
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let at = lines.iter().position(|line| is_key(line, servers));
    let found = at.and_then(|at| Some((at, find_entry_lines(&lines, at, name)?)));
    let (at, (begin, end)) = found.ok_or("the entry is not written as a block")?;
    lines.drain(begin..end);
    if first_child(&lines[at + 1..]).is_none() {
        match holder_stays {
            true => lines[at] = format!("{servers}: {{}}\n"),
            false => {
                lines.remove(at);
            }
        }
    }
    Ok(lines.concat())
}

/// The lines of the entry with this name, under the key in line `at`.
fn find_entry_lines(lines: &[String], at: usize, name: &str) -> Option<(usize, usize)> {
    let (_, indent) = first_child(&lines[at + 1..])?;
    let is_child = |line: &String| indent_width(line) == indent.len();
    let begin = lines[at + 1..]
        .iter()
        .take_while(|line| is_blank(line) || indent_width(line) > 0)
        .position(|line| is_child(line) && is_key(line.trim_start(), name))?;
    let begin = at + 1 + begin;
    let mut end = begin + 1;
    let mut last = end;
    while let Some(line) = lines.get(end) {
        if !is_blank(line) {
            if indent_width(line) <= indent.len() {
                break;
            }
            last = end + 1;
        }
        end += 1;
    }
    Some((begin, last))
}

/// The line and the indentation of a block's first child.
fn first_child(lines: &[String]) -> Option<(usize, &str)> {
    let (at, line) = lines.iter().enumerate().find(|(_, line)| !is_blank(line))?;
    let depth = indent_width(line);
    (depth > 0).then(|| (at, &line[..depth]))
}

fn indent_width(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Whether the line is blank or a comment; comments belong to the lines that follow.
fn is_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.trim().is_empty() || line.starts_with('#')
}

/// Whether the line starts with this key.
fn is_key(line: &str, key: &str) -> bool {
    let line = line.strip_prefix(key).or_else(|| {
        let quoted = ['"', '\''].map(|quote| format!("{quote}{key}{quote}"));
        quoted
            .iter()
            .find_map(|key| line.strip_prefix(key.as_str()))
    });
    line.is_some_and(|rest| rest.starts_with(':'))
}

/// The value after a key, without a comment.
fn value_after_key(line: &str) -> &str {
    let rest = line.split_once(':').map_or("", |(_, rest)| rest).trim();
    match rest.starts_with('#') {
        true => "",
        false => rest,
    }
}

/// Strings are quoted as in JSON, which is valid YAML.
fn entry_block(indent: &str, name: &str, entry: &ClientEntry) -> Vec<String> {
    let field = |(key, value): &(&str, Value)| format!("{indent}{indent}{key}: {value}\n");
    let head = [format!("{indent}{name}:\n")];
    head.into_iter().chain(entry.0.iter().map(field)).collect()
}
