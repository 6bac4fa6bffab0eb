//! An entry in JSON with comments.

use super::edit::{ClientEntry, EditRefusal};
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::Value;

/// Allows comments and trailing commas, as in editors' files, and no other extension.
const JSON_PARSE_OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

fn parse_json_tree(text: &str) -> Result<CstRootNode, EditRefusal> {
    CstRootNode::parse(text, &JSON_PARSE_OPTIONS)
        .map_err(|error| format!("the file is not valid JSON: {error}"))
}

pub(super) fn parse_json(text: &str) -> Result<Value, EditRefusal> {
    let value = parse_json_tree(text)?.to_serde_value();
    Ok(value.unwrap_or(Value::Null))
}

pub(super) fn insert(
    text: &str,
    servers: &[&str],
    name: &str,
    entry: &ClientEntry,
) -> Result<String, EditRefusal> {
    // A new file ends with a newline.
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let root = parse_json_tree(text)?;
    let mut at = root
        .object_value()
        .ok_or("the file does not contain an object")?;
    for key in servers {
        let next = at.object_value_or_create(key);
        at = next.ok_or_else(|| format!("`{key}` is not an object"))?;
    }
    let value = CstInputValue::Object(
        entry
            .0
            .iter()
            .map(|(key, value)| ((*key).to_owned(), to_json_node(value)))
            .collect(),
    );
    match at.get(name) {
        Some(found) => found.set_value(value),
        None => {
            at.append(name, value);
        }
    }
    Ok(root.to_string())
}

pub(super) fn remove(
    text: &str,
    servers: &[&str],
    name: &str,
    holder_stays: bool,
) -> Result<String, EditRefusal> {
    let root = parse_json_tree(text)?;
    let mut holders: Vec<(CstObject, &str)> = Vec::new();
    let mut at = root
        .object_value()
        .ok_or("the file does not contain an object")?;
    for key in servers {
        let next = at.object_value(key);
        let next = next.ok_or_else(|| format!("`{key}` is not an object"))?;
        holders.push((at, key));
        at = next;
    }
    if let Some(found) = at.get(name) {
        found.remove();
    }
    while let (false, Some((holder, key))) = (holder_stays, holders.pop()) {
        if let Some(found) = holder.get(key)
            && holder
                .object_value(key)
                .is_some_and(|held| held.properties().is_empty())
        {
            found.remove();
        }
    }
    Ok(root.to_string())
}

fn to_json_node(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(value) => CstInputValue::Number(value.to_string()),
        Value::String(value) => CstInputValue::String(value.clone()),
        Value::Array(values) => CstInputValue::Array(values.iter().map(to_json_node).collect()),
        Value::Object(map) => {
            let fields = map
                .iter()
                .map(|(key, value)| (key.clone(), to_json_node(value)));
            CstInputValue::Object(fields.collect())
        }
    }
}
