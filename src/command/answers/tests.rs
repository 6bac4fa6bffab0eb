//! Checks of the answers' schema and documentation, which are generated from the types.
//!
//! `OSCTL_TEST_UPDATE=1 cargo test --locked --lib answers::` rewrites `docs/schema/osctl.schema.json` and
//! `docs/guide/json.md`. The examples of the page are written by hand and kept.

mod page;
mod shape;
mod table;

use super::{LogLine, UtcTime, seconds_from_ms};
use serde_json::{Value, json};
use shape::check_shape;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use table::{SILENT_COMMANDS, answers};

/// The key of a definition that lists the commands with this answer.
const COMMANDS_KEY: &str = "x-osctl-commands";

fn documents() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

/// The schema, with one definition per type.
fn schema() -> Value {
    let mut generator = schemars::generate::SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator();
    let mut roots = Vec::new();
    for answer in answers() {
        (answer.define)(&mut generator);
        roots.push(json!({"$ref": format!("#/$defs/{}", answer.name)}));
    }
    let mut definitions = generator.take_definitions(true);
    for answer in answers() {
        let definition = definitions[answer.name].as_object_mut().unwrap();
        definition.insert(COMMANDS_KEY.into(), json!(answer.commands));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Answers of osctl --json",
        "description": "One definition for each shape. `x-osctl-commands` lists the commands that print it.",
        "anyOf": roots,
        "$defs": definitions,
    })
}

#[track_caller]
fn compare_or_rewrite(path: &Path, expected: &str) {
    if std::env::var_os("OSCTL_TEST_UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, expected).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "`{}` differs from the types; `OSCTL_TEST_UPDATE=1 cargo test --locked --lib answers::` rewrites it",
        path.display()
    );
}

#[test]
fn the_published_schema_and_its_page_are_those_of_the_types() {
    let schema = schema();
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    compare_or_rewrite(&documents().join("schema/osctl.schema.json"), &text);
    let path = documents().join("guide/json.md");
    let page = fs::read_to_string(&path).unwrap();
    compare_or_rewrite(&path, &page::render(&page, &schema));
}

#[test]
fn each_example_has_the_shape_of_its_answer() {
    let schema = schema();
    let page = fs::read_to_string(documents().join("guide/json.md")).unwrap();
    for answer in answers() {
        let example = page::example(&page, answer.name);
        let values = serde_json::Deserializer::from_str(&example).into_iter::<Value>();
        let mut count = 0;
        for value in values {
            let value = value.unwrap_or_else(|e| panic!("{}: {e}: {example}", answer.name));
            let definition = &schema["$defs"][answer.name];
            if let Err(why) = check_shape(&value, definition, &schema) {
                panic!("the example of `{}`: {why}", answer.name);
            }
            count += 1;
        }
        assert!(count > 0, "`{}` has no example", answer.name);
    }
}

/// Each key of each answer follows the rules of this module.
#[test]
fn key_suffixes_match_times_durations_and_sizes() {
    let schema = schema();
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        let Some(properties) = definition["properties"].as_object() else {
            continue;
        };
        let required: BTreeSet<&str> = definition["required"]
            .as_array()
            .unwrap_or_else(|| panic!("`{name}` can be without each of its keys"))
            .iter()
            .filter_map(Value::as_str)
            .collect();
        for (key, value) in properties {
            let place = format!("`{name}.{key}`");
            let is_snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(key.chars().all(is_snake), "{place} is not in snake case");
            assert!(required.contains(key.as_str()), "{place} can be missing");
            let is_time =
                value["format"] == "date-time" || value["anyOf"][0]["format"] == "date-time";
            assert_eq!(key.ends_with("_at"), is_time, "{place}");
            let kind = value["type"].to_string();
            assert!(
                !kind.contains("number") || key.ends_with("_seconds"),
                "{place} is a number"
            );
            if key.ends_with("_bytes") {
                assert!(kind.contains("integer"), "{place}");
            }
            if kind.contains("array") {
                let is_plural = key.ends_with('s')
                    || [
                        "argv",
                        "difference",
                        "data",
                        "left_out",
                        "log_tail",
                        "lost",
                        "traceback",
                    ]
                    .contains(&key.as_str())
                    || ["skipped", "truncated", "receipt", "other_state"].contains(&key.as_str());
                assert!(is_plural, "{place} is a list");
            }
        }
    }
}

/// A new verb is documented, or named as one without an answer.
#[test]
fn every_command_has_an_answer_or_none() {
    let mut expected = BTreeSet::new();
    collect_commands(&crate::cli::clap_command(), "osctl", &mut expected);
    let documented = answers().into_iter().flat_map(|answer| answer.commands);
    let documented: BTreeSet<String> = documented.map(command_path).collect();
    for command in &expected {
        let is_silent = SILENT_COMMANDS.contains(&command.as_str());
        assert!(
            documented.contains(command) != is_silent,
            "`{command}` must be in one of the two lists of `table.rs`"
        );
    }
}

fn collect_commands(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
    let mut is_leaf = true;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        is_leaf = false;
        collect_commands(verb, &format!("{path} {}", verb.get_name()), found);
    }
    if is_leaf {
        found.insert(path.into());
    }
}

/// `osctl evolve show ID` is the command `osctl evolve show`.
fn command_path(command: &str) -> String {
    let words = command.split(' ');
    let words = words.take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_time_is_rfc_3339_in_utc() {
    let text = |seconds: f64| UtcTime::from_seconds(seconds).0;
    assert_eq!(text(1_763_719_200.5), "2025-11-21T10:00:00.500Z");
    assert_eq!(text(-1.0), "1970-01-01T00:00:00.000Z");
    assert_eq!(text(f64::NAN), "1970-01-01T00:00:00.000Z");
    assert_eq!(text(f64::MAX), "9999-12-31T23:59:59.000Z");
    assert!((seconds_from_ms(812.5) - 0.8125).abs() < 1e-9);
}

#[test]
fn a_log_line_is_parsed_if_osctl_wrote_it() {
    let line = |text: &str| serde_json::to_value(LogLine::from(text)).unwrap();
    assert_eq!(
        line("2026-11-20T21:00:00.123456Z  INFO kernel: it is ready"),
        json!({"logged_at": "2026-11-20T21:00:00.123Z", "level": "info", "message": "kernel: it is ready"})
    );
    for other in [
        "",
        "plain text",
        "2026-11-20T21:00:00Z",
        "2026-11-20T21:00:00Z odd x",
    ] {
        let expected = json!({"logged_at": null, "level": null, "message": other});
        assert_eq!(line(other), expected);
    }
}
