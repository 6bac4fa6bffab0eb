//! The law of the log: the message of each call is a constant sentence, and each value is a field. A line that a service
//! wrote is a message of its own (`message = line`).
//!
//! The scan reads no raw strings, characters or comments inside of a call.

use crate::laws::sources;
use crate::trials;
use std::fs;
use std::str::CharIndices;

trials![
    each_log_message_is_constant,
    the_scan_of_log_calls_reads_every_form,
];

const LOG_MACROS: [&str; 6] = [
    "debug!(", "error!(", "event!(", "info!(", "trace!(", "warn!(",
];

/// A call of a macro of the log.
#[derive(Debug)]
struct LogCall<'a> {
    /// The line of the file, counted from 1.
    line: usize,
    arguments: Vec<&'a str>,
}

impl LogCall<'_> {
    /// Why the call breaks the law, if it does.
    fn find_problem(&self) -> Option<String> {
        let mut arguments = self.arguments.iter();
        let message = arguments.find_map(|text| text.strip_prefix('"')?.strip_suffix('"'));
        let is_written_elsewhere = self.arguments == ["message = line"];
        match message {
            None if is_written_elsewhere => None,
            None => Some("the call has no message: describe the event in a sentence".into()),
            Some(message) if message.replace("{{", "").contains('{') => {
                Some(format!("`{message}` has a value: make the value a field"))
            }
            Some(_) => None,
        }
    }
}

fn each_log_message_is_constant() {
    let (mut count, mut found) = (0, Vec::new());
    for source in sources() {
        // The code of `source` has other line numbers.
        let text = fs::read_to_string(&source.file).unwrap();
        for call in log_calls(&text) {
            count += 1;
            let problem = call.find_problem();
            found.extend(problem.map(|why| format!("{}:{}: {why}", source.file, call.line)));
        }
    }
    assert!(count > 150, "the scan reads the wrong folder");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn the_scan_of_log_calls_reads_every_form() {
    let text = concat!(
        "// tracing::warn!(\"{comment}\");\n",
        "tracing::info!(\"a sentence\");\n",
        "tracing::warn!(%error, at = %f(\"{x}\", [1, 2]), \"the {{}} of a \\\" sentence\",);\n",
        "    warn!(\n        path = %path.display(),\n        \"`{}` of {x}\",\n        path\n    );\n",
        "tracing::debug!(why);\n",
        "my_warn!(\"{x}\");\n",
        "tracing::info!(message = line);\n",
    );
    let calls = log_calls(text);
    let lines: Vec<usize> = calls.iter().map(|call| call.line).collect();
    assert_eq!(lines, [2, 3, 4, 9, 11]);
    let last_arguments: Vec<&str> = calls[1..3]
        .iter()
        .map(|call| *call.arguments.last().unwrap())
        .collect();
    assert_eq!(last_arguments, ["\"the {{}} of a \\\" sentence\"", "path"]);
    let problems = calls.iter().map(LogCall::find_problem);
    let is_broken: Vec<bool> = problems.map(|problem| problem.is_some()).collect();
    assert_eq!(is_broken, [false, false, true, true, false]);
}

/// The calls of a source file, in the order of their lines.
fn log_calls(text: &str) -> Vec<LogCall<'_>> {
    let starts = LOG_MACROS.iter().flat_map(|name| text.match_indices(name));
    let calls = starts.filter(|(at, _)| {
        let line = text[..*at].rsplit('\n').next().unwrap();
        let is_other = line.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        !is_other && !line.trim_start().starts_with("//")
    });
    let mut calls: Vec<LogCall<'_>> = calls
        .map(|(at, name)| LogCall {
            line: text[..at].matches('\n').count() + 1,
            arguments: split_arguments(&text[at + name.len()..]),
        })
        .collect();
    calls.sort_by_key(|call| call.line);
    calls
}

/// The arguments of a call, from the text after its opening parenthesis.
fn split_arguments(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => skip_literal(&mut letters),
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                found.push(text[start..at].trim());
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|argument| !argument.is_empty());
    found
}

/// Reads to the end of a string literal.
fn skip_literal(letters: &mut CharIndices<'_>) {
    while let Some((_, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '"' => return,
            _ => {}
        }
    }
}
