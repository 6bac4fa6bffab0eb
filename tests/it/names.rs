//! The rules for names, as far as the source text can show them: see `docs/glossary.md`.

use crate::laws::sources;
use crate::trials;
use std::collections::BTreeMap;

trials![
    a_type_or_constant_has_one_definition,
    a_duration_says_what_it_is_for,
    a_constant_has_two_words,
    most_functions_have_a_verb_and_an_object,
];

/// A type that Unix and other systems define in separate files.
const TWINS: [&str; 1] = ["Folder"];

/// A definition: its keyword, its name and what follows the name.
struct Definition {
    keyword: String,
    name: String,
    rest: String,
    is_indented: bool,
    path: String,
}

/// The definitions that every build has, without those of tests and of models of protocols, which are also tests.
fn definitions() -> Vec<Definition> {
    let is_test = |path: &str| {
        path.ends_with("tests.rs")
            || path.ends_with("model.rs")
            || path == "model_checker.rs"
            || ["tests/", "hub_tests/", "model/"]
                .iter()
                .any(|folder| path.contains(folder))
    };
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| !is_test(&source.path)) {
        let mut is_conditional = false;
        for line in source.code.lines() {
            if line.trim_start().starts_with("#[") {
                is_conditional |= line.contains("#[cfg(");
                continue;
            }
            let skipped = std::mem::take(&mut is_conditional);
            let Some(definition) = definition(line, &source.path) else {
                continue;
            };
            if !skipped {
                found.push(definition);
            }
        }
    }
    assert!(found.len() > 3000, "the scan reads the wrong folder");
    found
}

fn definition(line: &str, path: &str) -> Option<Definition> {
    let mut text = line.trim_start();
    if let Some(after) = text.strip_prefix("pub") {
        text = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1.trim_start(),
            None => after.trim_start(),
        };
    }
    text = text
        .trim_start_matches("async ")
        .trim_start_matches("unsafe ");
    let function = text
        .strip_prefix("const ")
        .filter(|after| after.starts_with("fn "));
    text = function.unwrap_or(text);
    let (keyword, after) = text.split_once(' ')?;
    let keywords = [
        "struct", "enum", "trait", "union", "type", "const", "static", "fn",
    ];
    let length = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (keywords.contains(&keyword) && length > 0).then(|| Definition {
        keyword: keyword.into(),
        name: after[..length].into(),
        rest: after[length..].into(),
        is_indented: line.starts_with(' '),
        path: path.into(),
    })
}

fn is_constant(definition: &Definition) -> bool {
    ["const", "static"].contains(&definition.keyword.as_str())
}

/// A search for the name must find one definition.
fn a_type_or_constant_has_one_definition() {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for definition in definitions() {
        let Definition {
            keyword,
            name,
            path,
            is_indented,
            ..
        } = definition;
        // Constants and types of a trait have the names of the trait.
        if keyword == "fn" || is_indented || TWINS.contains(&name.as_str()) {
            continue;
        }
        if let Some(other) = known.insert(name.clone(), path.clone()) {
            panic!("`{name}` is defined in `{other}` and in `{path}`");
        }
    }
}

fn a_duration_says_what_it_is_for() {
    let ends = [
        "_TIMEOUT",
        "_INTERVAL",
        "_DELAY",
        "_DURATION",
        "_AGE",
        "_UPTIME",
        "_THRESHOLD",
        "_GAP",
    ];
    for definition in definitions() {
        let is_duration = definition.rest.starts_with(": Duration");
        let Definition { name, path, .. } = definition;
        let is_fine = !is_duration || ends.iter().any(|end| name.ends_with(end));
        assert!(is_fine, "`{name}` in `{path}` ends in none of {ends:?}");
    }
}

fn a_constant_has_two_words() {
    for definition in definitions().iter().filter(|found| is_constant(found)) {
        let Definition { name, path, .. } = definition;
        assert!(name.contains('_'), "`{name}` in `{path}` has one word");
    }
}

fn most_functions_have_a_verb_and_an_object() {
    let all = definitions();
    let functions = || all.iter().filter(|found| found.keyword == "fn");
    let (count, short) = (
        functions().count(),
        functions()
            .filter(|found| !found.name.contains('_'))
            .count(),
    );
    // A plain verb is fine where the type makes it obvious: `Client::connect`.
    assert!(short * 100 < count * 30, "{short} of {count} have one word");
}
