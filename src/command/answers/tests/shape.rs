//! A validator of the part of JSON Schema that the answers use. The trials use it, too.

use serde_json::{Map, Value};

/// Checks the part of JSON Schema that the types use. Keys that the schema does not have are errors, too.
pub(crate) fn check_shape(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let fail = |why: &str| Err(format!("{value} {why}"));
    let Some(rules) = schema.as_object() else {
        return Ok(());
    };
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/$defs/");
        return check_shape(value, &root["$defs"][name], root);
    }
    if let Some(choices) = schema.get("anyOf").or(schema.get("oneOf")) {
        let choices = choices.as_array().unwrap();
        return match choices
            .iter()
            .any(|one| check_shape(value, one, root).is_ok())
        {
            true => Ok(()),
            false => fail(&format!("fits none of {choices:?}")),
        };
    }
    if let Some(only) = rules.get("const") {
        return if value == only {
            Ok(())
        } else {
            fail("is another value")
        };
    }
    if let Some(words) = rules.get("enum") {
        let fits = words.as_array().unwrap().contains(value);
        return if fits {
            Ok(())
        } else {
            fail("is another word")
        };
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !(kinds.is_empty()
        || kinds.contains(&kind)
        || kind == "integer" && kinds.contains(&"number"))
    {
        return fail(&format!("is not of {kinds:?}"));
    }
    let is_time = schema["format"] == "date-time";
    match value {
        Value::String(text) if is_time && !is_utc_time(text) => fail("is not a time in UTC"),
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| check_shape(item, &schema["items"], root)),
        Value::Object(fields) => check_fields(fields, rules, root),
        _ => Ok(()),
    }
}

fn check_fields(
    fields: &Map<String, Value>,
    rules: &Map<String, Value>,
    root: &Value,
) -> Result<(), String> {
    let Some(properties) = rules.get("properties").and_then(Value::as_object) else {
        let rest = rules.get("additionalProperties").unwrap_or(&Value::Null);
        return fields
            .values()
            .try_for_each(|field| check_shape(field, rest, root));
    };
    for key in properties.keys() {
        let field = fields.get(key).ok_or(format!("`{key}` is missing"))?;
        check_shape(field, &properties[key], root).map_err(|why| format!("`{key}`: {why}"))?;
    }
    match fields.keys().find(|key| !properties.contains_key(*key)) {
        Some(unknown) => Err(format!("`{unknown}` is unknown")),
        None => Ok(()),
    }
}

/// Whether the text has the form `2026-11-20T21:00:00.123Z`.
fn is_utc_time(text: &str) -> bool {
    let form = "0000-00-00T00:00:00.000Z";
    let fits = |(c, wanted): (char, char)| match wanted {
        '0' => c.is_ascii_digit(),
        other => c == other,
    };
    text.len() == form.len() && text.chars().zip(form.chars()).all(fits)
}
