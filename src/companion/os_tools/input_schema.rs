//! Input schemas of the tools in the form that every client and model API accepts, and the check of arguments against
//! them. Pure.
//!
//! The schemas are smaller than what the tools accept: `null` means a missing argument, and unknown arguments are
//! refused, although neither is declared.

use crate::error::nearest_name;
use crate::protocol::mcp::json_kind;
use serde_json::{Map, Value};

/// Characters of an argument's or tool's name for each mistake that a suggestion may correct.
pub(super) const CHARS_PER_NAME_EDIT: usize = 3;

type JsonObject = Map<String, Value>;

/// Resolves references and unions with `null`, and removes the keywords that some clients reject. Some clients require
/// `properties` for tools without arguments, although JSON Schema does not.
pub(super) fn portable_schema(schema: &JsonObject) -> JsonObject {
    let definitions = schema.get("$defs").and_then(Value::as_object);
    let mut portable = simplify_object(schema, &definitions.cloned().unwrap_or_default());
    portable.remove("description");
    portable
        .entry("properties")
        .or_insert_with(|| Map::new().into());
    portable
}

fn simplify_object(schema: &JsonObject, definitions: &JsonObject) -> JsonObject {
    if let Some((keyword, target)) = replaced_schema(schema, definitions) {
        let mut merged = target.clone();
        let own = schema.iter().filter(|(key, _)| *key != keyword);
        merged.extend(own.map(|(key, value)| (key.clone(), value.clone())));
        return simplify_object(&merged, definitions);
    }
    let mut simple = Map::new();
    for (key, value) in schema {
        let value = match (key.as_str(), value) {
            ("$schema" | "$defs" | "title" | "additionalProperties", _) => continue,
            ("default", Value::Null) => continue,
            ("format", Value::String(format)) if is_number_format(format) => continue,
            ("properties", Value::Object(properties)) => {
                let properties = properties.iter();
                let each = properties.map(|(name, one)| (name.clone(), simplify(one, definitions)));
                Value::Object(each.collect())
            }
            ("type", Value::Array(types)) => {
                let mut types: Vec<Value> =
                    types.iter().filter(|one| *one != "null").cloned().collect();
                match types.len() {
                    1 => types.remove(0),
                    _ => Value::Array(types),
                }
            }
            ("oneOf", Value::Array(variants)) => match constant_strings(variants) {
                Some(constants) => {
                    simple.insert("type".into(), "string".into());
                    simple.insert("enum".into(), constants);
                    continue;
                }
                None => simplify(value, definitions),
            },
            _ => simplify(value, definitions),
        };
        simple.insert(key.clone(), value);
    }
    simple
}

fn simplify(value: &Value, definitions: &JsonObject) -> Value {
    match value {
        Value::Object(object) => simplify_object(object, definitions).into(),
        Value::Array(all) => all
            .iter()
            .map(|one| simplify(one, definitions))
            .collect::<Vec<_>>()
            .into(),
        other => other.clone(),
    }
}

/// The keyword of a schema that only stands for another one, and that other schema: a reference, or a union with
/// `null`.
fn replaced_schema<'a>(
    schema: &'a JsonObject,
    definitions: &'a JsonObject,
) -> Option<(&'static str, &'a JsonObject)> {
    if let Some(Value::String(reference)) = schema.get("$ref") {
        let name = reference.strip_prefix("#/$defs/")?;
        return Some(("$ref", definitions.get(name)?.as_object()?));
    }
    let alternatives = schema.get("anyOf")?.as_array()?;
    let mut others = alternatives.iter().filter(|one| one["type"] != "null");
    let only = others.next()?.as_object()?;
    let is_union_with_null = others.next().is_none();
    is_union_with_null.then_some(("anyOf", only))
}

/// The values of a union of constants.
fn constant_strings(variants: &[Value]) -> Option<Value> {
    let constants = variants
        .iter()
        .map(|one| one["const"].as_str().map(Value::from));
    constants.collect::<Option<Vec<_>>>().map(Value::Array)
}

/// Formats such as `uint64`, which some validators reject.
fn is_number_format(format: &str) -> bool {
    ["int", "uint", "float", "double"]
        .iter()
        .any(|kind| format.starts_with(kind))
}

/// Removes arguments that are `null`, which some clients send for missing ones, and checks the others.
///
/// # Errors
/// Names the first argument that is unknown, missing or of the wrong type.
pub(super) fn check_arguments(
    tool: &str,
    schema: &JsonObject,
    arguments: &mut JsonObject,
) -> Result<(), String> {
    arguments.retain(|_, value| !value.is_null());
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object);
    let properties = properties.unwrap_or(&empty);
    for (name, value) in &*arguments {
        let Some(expected) = properties.get(name) else {
            return Err(unknown_argument(tool, name, properties));
        };
        check_value(name, expected, value)?;
    }
    let required = schema.get("required").and_then(Value::as_array);
    let mut required = required.into_iter().flatten().filter_map(Value::as_str);
    match required.find(|name| !arguments.contains_key(*name)) {
        None => Ok(()),
        Some(name) => {
            let kind = properties[name]["type"].as_str().map(kind_of_type);
            Err(format!(
                "`{tool}` needs the argument `{name}`, {}",
                kind.unwrap_or("a value")
            ))
        }
    }
}

fn unknown_argument(tool: &str, name: &str, properties: &JsonObject) -> String {
    let known = || properties.keys().map(String::as_str);
    if let Some(near) = nearest_name(name, known(), CHARS_PER_NAME_EDIT) {
        return format!("`{tool}` has no argument `{name}`; did you mean `{near}`?");
    }
    let known: Vec<String> = known().map(|known| format!("`{known}`")).collect();
    match known.is_empty() {
        true => format!("`{tool}` has no argument `{name}`; it takes no arguments"),
        false => format!(
            "`{tool}` has no argument `{name}`; its arguments are {}",
            known.join(", ")
        ),
    }
}

/// # Errors
/// Names the part of an argument that has another type than the schema, or no permitted value.
fn check_value(path: &str, schema: &Value, value: &Value) -> Result<(), String> {
    let Some(expected) = schema["type"].as_str() else {
        return Ok(());
    };
    let is_expected = match expected {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    if !is_expected {
        let (expected, found) = (kind_of_type(expected), json_kind(value));
        return Err(match (value, expected) {
            (Value::Number(number), "an integer") => {
                format!("`{path}` must be an integer, not {number}")
            }
            _ => format!("`{path}` must be {expected}, not {found}"),
        });
    }
    if let Some(permitted) = schema["enum"].as_array()
        && !permitted.contains(value)
    {
        let permitted: Vec<String> = permitted
            .iter()
            .filter_map(Value::as_str)
            .map(|one| format!("`{one}`"))
            .collect();
        return Err(format!(
            "`{path}` must be one of {}, not {value}",
            permitted.join(", ")
        ));
    }
    let items = value.as_array().into_iter().flatten().enumerate();
    for (index, item) in items {
        check_value(&format!("{path}[{index}]"), &schema["items"], item)?;
    }
    Ok(())
}

fn kind_of_type(kind: &str) -> &'static str {
    match kind {
        "string" => "a string",
        "integer" => "an integer",
        "number" => "a number",
        "boolean" => "a boolean",
        "array" => "a list",
        _ => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::{check_arguments, portable_schema};
    use serde_json::{Map, Value, json};

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn keywords_that_some_clients_reject_are_resolved_or_removed() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Args",
            "type": "object",
            "properties": {
                "title": {"type": ["string", "null"], "description": "x", "default": null},
                "stream": {"anyOf": [{"$ref": "#/$defs/Stream"}, {"type": "null"}], "description": "y"},
                "at": {"$ref": "#/$defs/Point"},
                "format": {"type": "array", "items": {"type": "integer", "format": "uint64"}},
                "day": {"type": "string", "format": "date"},
            },
            "additionalProperties": false,
            "$defs": {
                "Stream": {"oneOf": [
                    {"type": "string", "const": "stdout", "description": "z"},
                    {"type": "string", "const": "stderr"},
                ]},
                "Point": {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}},
            },
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "x"},
                "stream": {"type": "string", "enum": ["stdout", "stderr"], "description": "y"},
                "at": {"type": "object", "properties": {"x": {"type": "integer"}}},
                "format": {"type": "array", "items": {"type": "integer"}},
                "day": {"type": "string", "format": "date"},
            },
        });
        assert_eq!(Value::from(portable_schema(&object(schema))), expected);
        let empty = portable_schema(&object(json!({"type": "object"})));
        assert_eq!(
            Value::from(empty),
            json!({"type": "object", "properties": {}})
        );
    }

    #[test]
    fn a_wrong_argument_is_named_with_the_type_that_it_must_have() {
        let schema = object(json!({
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "offset": {"type": "integer"},
                "wait": {"type": "number"},
                "all": {"type": "boolean"},
                "packages": {"type": "array", "items": {"type": "string"}},
                "stream": {"type": "string", "enum": ["stdout", "stderr"]},
                "any": {"oneOf": []},
            },
            "required": ["path"],
        }));
        let check = |arguments: Value| check_arguments("t", &schema, &mut object(arguments));
        let all = json!({"path": "x", "offset": 1, "wait": 1, "all": true, "packages": ["a"],
            "stream": "stderr", "any": [1]});
        assert_eq!(check(all), Ok(()));
        assert_eq!(check(json!({"path": "x", "wait": null})), Ok(()));
        for (arguments, why) in [
            (json!({}), "`t` needs the argument `path`, a string"),
            (
                json!({"path": null}),
                "`t` needs the argument `path`, a string",
            ),
            (
                json!({"path": {}}),
                "`path` must be a string, not an object",
            ),
            (
                json!({"path": "x", "wait": "10"}),
                "`wait` must be a number, not a string",
            ),
            (
                json!({"path": "x", "offset": 1.5}),
                "`offset` must be an integer, not 1.5",
            ),
            (
                json!({"path": "x", "all": "yes"}),
                "`all` must be a boolean, not a string",
            ),
            (
                json!({"path": "x", "packages": "a"}),
                "`packages` must be a list, not a string",
            ),
            (
                json!({"path": "x", "packages": ["a", 1]}),
                "`packages[1]` must be a string, not a number",
            ),
            (
                json!({"path": "x", "stream": "out"}),
                "`stream` must be one of `stdout`, `stderr`, not \"out\"",
            ),
            (
                json!({"path": "x", "offsets": 1}),
                "`t` has no argument `offsets`; did you mean `offset`?",
            ),
            (
                json!({"zzz": 1}),
                "`t` has no argument `zzz`; its arguments are `all`, `any`, `offset`, `packages`, `path`, `stream`, `wait`",
            ),
        ] {
            assert_eq!(check(arguments.clone()), Err(why.into()), "{arguments}");
        }
        let none = check_arguments("t", &Map::new(), &mut object(json!({"x": 1})));
        assert_eq!(
            none,
            Err("`t` has no argument `x`; it takes no arguments".into())
        );
    }
}
