//! The texts of the project are plain technical English: see the language rules in `CONTRIBUTING.md`.

use crate::trials;
use std::fs;
use std::path::{Path, PathBuf};

trials![texts_have_no_banned_phrases];

/// Words without a meaning of their own, and personifications. Each is a whole word, in small letters.
const BANNED_PHRASES: [&str; 22] = [
    "whoever",
    "somebody",
    "nobody",
    "anybody",
    "anyone",
    "goes on",
    "go on",
    "going on",
    "went on",
    "is told",
    "are told",
    "was told",
    "were told",
    "as good",
    "anew",
    "meanwhile",
    "for ever",
    "so many",
    "can't be had",
    "let in",
    "lets in",
    "the like",
];

const FOLDERS: [&str; 15] = [
    "src",
    "crates",
    "body",
    "docs",
    "assets",
    "packaging",
    ".ci",
    ".github",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Cargo.toml",
    "tests",
    "benches",
];

fn texts_have_no_banned_phrases() {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(Path::new(folder), &mut files);
    }
    assert!(files.len() > 500, "the scan reads the wrong folder");
    let mut found = Vec::new();
    for file in files {
        // Pictures and archives are not text.
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        for (number, line) in (1..).zip(text.lines()) {
            let checked = checked_text(&file, line).to_lowercase();
            let phrases = BANNED_PHRASES.iter().filter(|phrase| has(&checked, phrase));
            found.extend(phrases.map(|phrase| format!("{}:{number}: {phrase}", file.display())));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn collect(place: &Path, files: &mut Vec<PathBuf>) {
    // These are texts of other projects, data and caches.
    let foreign = [
        "novnc",
        "node_modules",
        "__pycache__",
        "tests/clients",
        "cryo/samples",
    ];
    let is_foreign = foreign.iter().any(|name| place.ends_with(name));
    if is_foreign {
        return;
    }
    if !place.is_dir() {
        files.push(place.to_owned());
        return;
    }
    for entry in fs::read_dir(place).unwrap() {
        collect(&entry.unwrap().path(), files);
    }
}

/// What the check reads of a line. Tests contain data, so that only their comments and function names are checked.
fn checked_text(file: &Path, line: &str) -> String {
    let is_test = file.starts_with("tests") || file.starts_with("benches");
    let prose = match is_test {
        true => comment(file, line),
        false => line,
    };
    format!("{prose}\n{}", function_name(line))
}

/// The comment of a line, or the line when it begins a docstring.
fn comment<'a>(file: &Path, line: &'a str) -> &'a str {
    let mark = match file.extension().and_then(|end| end.to_str()) {
        Some("rs" | "c" | "ts" | "mjs") => "//",
        _ => "#",
    };
    match line.trim_start().starts_with("\"\"\"") {
        true => line,
        false => line.find(mark).map_or("", |at| &line[at..]),
    }
}

/// The words of the name of the function that the line defines.
fn function_name(line: &str) -> String {
    let defined = line.split_once("fn ").or_else(|| line.split_once("def "));
    let name = defined.map_or("", |(_, after)| after);
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    name[..end.unwrap_or(name.len())].replace('_', " ")
}

fn has(line: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(phrase).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + phrase.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}
