//! The page with all answers. The part after [`GENERATED_MARK`] is generated, except for the examples.

use super::COMMANDS_KEY;
use super::table::answers;
use serde_json::Value;
use std::fmt::Write;

const GENERATED_MARK: &str = "<!-- generated from the types: see CONTRIBUTING.md -->\n";

/// The text of the example of an answer, from the page.
pub(super) fn example(page: &str, name: &str) -> String {
    let place = format!("\nType: `{name}`\n\n```json\n");
    let text = page.split_once(&place).map(|(_, after)| after);
    let text = text.and_then(|after| after.split_once("\n```\n"));
    text.map(|(example, _)| example.to_owned())
        .unwrap_or_default()
}

/// The page with its generated part.
pub(super) fn render(page: &str, schema: &Value) -> String {
    let (head, _) = page.split_once(GENERATED_MARK).unwrap();
    let mut text = format!("{head}{GENERATED_MARK}");
    let definitions = schema["$defs"].as_object().unwrap();
    for answer in answers() {
        let definition = &definitions[answer.name];
        let commands: Vec<String> = answer
            .commands
            .iter()
            .map(|command| match command.starts_with("osctl") {
                true => format!("`{command}`"),
                false => (*command).into(),
            })
            .collect();
        let example = example(page, answer.name);
        let (commands, name) = (commands.join(", "), answer.name);
        let about = one_line(&definition["description"]);
        write!(
            text,
            "\n### {commands}\n\n{about}\n\nType: `{name}`\n\n```json\n{example}\n```\n\n{}",
            fields(definition)
        )
        .unwrap();
    }
    text += "\n## Parts of answers\n";
    let parts = definitions
        .iter()
        .filter(|(_, definition)| definition.get(COMMANDS_KEY).is_none());
    for (name, definition) in parts {
        let about = one_line(&definition["description"]);
        write!(text, "\n### {name}\n").unwrap();
        if !about.is_empty() {
            write!(text, "\n{about}\n").unwrap();
        }
        write!(text, "\n{}", fields(definition)).unwrap();
    }
    text
}

/// The table of the keys, or of the words of an enum.
fn fields(definition: &Value) -> String {
    let mut table = String::new();
    if let Some(properties) = definition["properties"].as_object() {
        table += "| key | type | meaning |\n|---|---|---|\n";
        // `required` has the order of the struct.
        let keys = definition["required"].as_array().into_iter().flatten();
        for key in keys.filter_map(Value::as_str) {
            let field = &properties[key];
            let (kind, about) = (type_words(field), one_line(&field["description"]));
            writeln!(table, "| `{key}` | {kind} | {about} |").unwrap();
        }
        return table;
    }
    if definition["type"] == "string" && definition.get("enum").is_none() {
        return "A string.\n".into();
    }
    table += "| value | meaning |\n|---|---|\n";
    for choice in definition["oneOf"].as_array().into_iter().flatten() {
        let about = one_line(&choice["description"]);
        for word in words(choice) {
            writeln!(table, "| `{word}` | {about} |").unwrap();
        }
    }
    for word in words(definition) {
        writeln!(table, "| `{word}` | |").unwrap();
    }
    table
}

fn words(choice: &Value) -> Vec<&str> {
    let all = choice["enum"].as_array().into_iter().flatten();
    all.chain(choice.get("const"))
        .filter_map(Value::as_str)
        .collect()
}

/// The type of a key for people.
fn type_words(field: &Value) -> String {
    if let Some(name) = field["$ref"].as_str() {
        let name = name.trim_start_matches("#/$defs/");
        // The heading of an answer is its commands.
        return match answers().iter().any(|answer| answer.name == name) {
            true => format!("`{name}`"),
            false => format!("[{name}](#{})", name.to_lowercase()),
        };
    }
    if let Some(choices) = field["anyOf"].as_array() {
        let choices: Vec<String> = choices.iter().map(type_words).collect();
        return choices.join(" or ");
    }
    let kinds = match &field["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return "any".into(),
    };
    let kinds = kinds.into_iter().map(|kind| match kind {
        "array" => format!("list of {}", type_words(&field["items"])),
        "string" if field["format"] == "date-time" => "time".into(),
        other => other.into(),
    });
    kinds.collect::<Vec<String>>().join(" or ")
}

fn one_line(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
