//! Tests in Python as trials: a file runs once, and each of its functions has its own verdict.

use crate::lanes::TestCase;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The arguments with which pytest reports each function.
pub(crate) const REPORTING: [&str; 5] = ["-B", "-m", "pytest", "-q", "-rA"];

/// The functions of the files `test_*.py` below `folder`; `run` runs one file with `REPORTING` and
/// returns what pytest prints.
pub(crate) fn cases(module: &str, folder: &str, run: fn(&Path) -> String) -> Vec<TestCase> {
    let mut files = Vec::new();
    find(Path::new(folder), &mut files);
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let report = Arc::new(OnceLock::new());
        let functions = functions(&fs::read_to_string(&file).unwrap());
        for function in functions.clone() {
            let stem = file.file_stem().unwrap().display();
            let name = format!("{module}::{stem}::{function}");
            let (file, report, functions) = (file.clone(), Arc::clone(&report), functions.clone());
            cases.push(TestCase::new(name, None, move || {
                let report: &String = report.get_or_init(|| run(&file));
                let has_passed = passes(report, &file, &function);
                let unknown_verdicts = unknown_verdicts(report, &file, &functions);
                assert!(
                    unknown_verdicts.is_empty(),
                    "not functions of the file: {unknown_verdicts:?}"
                );
                assert!(
                    has_passed,
                    "a case of {} did not pass\n{report}",
                    file.display()
                );
            }));
        }
    }
    assert!(!cases.is_empty(), "no tests in `{folder}`");
    cases
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_str().unwrap();
        if path.is_dir() {
            find(&path, files);
        } else if name.starts_with("test_") && name.ends_with(".py") {
            files.push(path);
        }
    }
}

fn functions(source: &str) -> Vec<String> {
    let named = |line: &str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let (name, _) = line.strip_prefix("def ")?.split_once('(')?;
        name.starts_with("test_").then(|| name.to_owned())
    };
    source.lines().filter_map(named).collect()
}

/// The verdicts on names that are not in the list of functions, such as a method of a class.
fn unknown_verdicts<'a>(report: &'a str, file: &Path, functions: &[String]) -> Vec<&'a str> {
    let place = format!(" {}::", file.display());
    let known = |name: &str| functions.iter().any(|function| function == name);
    let is_strange = |line: &&str| {
        line.split_once(&place).is_some_and(|(verdict, name)| {
            let name = name.split(['[', ' ']).next().unwrap_or_default();
            ["PASSED", "FAILED", "ERROR"].contains(&verdict) && !known(name)
        })
    };
    report.lines().filter(is_strange).collect()
}

/// Whether the function has cases and each case passed.
fn passes(report: &str, file: &Path, function: &str) -> bool {
    let verdicts: Vec<&str> = report
        .lines()
        .filter_map(|line| {
            let (verdict, rest) = line.split_once(' ')?;
            let rest = rest.strip_prefix(&format!("{}::{function}", file.display()))?;
            // The name of a case has its values in brackets.
            (rest.is_empty() || rest.starts_with(['[', ' '])).then_some(verdict)
        })
        .collect();
    !verdicts.is_empty() && verdicts.iter().all(|verdict| *verdict == "PASSED")
}
