//! An entry in TOML, as a table.

use super::edit::{ClientEntry, EditRefusal};
use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table};

fn parse_toml_tree(text: &str) -> Result<DocumentMut, EditRefusal> {
    text.parse()
        .map_err(|error| format!("the file is not valid TOML: {}", first_line(&error)))
}

fn first_line(error: &toml_edit::TomlError) -> String {
    error
        .message()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

pub(super) fn parse_toml(text: &str) -> Result<Value, EditRefusal> {
    toml_edit::de::from_str(text).map_err(|error| {
        let why = error.message().lines().next().unwrap_or_default();
        format!("the file is not valid TOML: {why}")
    })
}

pub(super) fn insert(
    text: &str,
    servers: &str,
    name: &str,
    entry: &ClientEntry,
) -> Result<String, EditRefusal> {
    let mut document = parse_toml_tree(text)?;
    let holder = document.entry(servers).or_insert_with(|| {
        let mut table = Table::new();
        // The table has no header line; only its subtables have header lines.
        table.set_implicit(true);
        Item::Table(table)
    });
    let is_inline = holder.is_inline_table();
    let holder = holder.as_table_like_mut();
    let holder = holder.ok_or_else(|| format!("`{servers}` is not a table"))?;
    let mut table = Table::new();
    for (key, value) in &entry.0 {
        table.insert(key, Item::Value(to_toml_value(value)?));
    }
    let made = match is_inline {
        true => Item::Value(table.into_inline_table().into()),
        false => {
            // Separate the table with the same number of blank lines as other tables.
            if !text.trim().is_empty() {
                table.decor_mut().set_prefix("\n");
            }
            Item::Table(table)
        }
    };
    match holder.get_mut(name) {
        Some(found) => {
            let decor_and_position = found
                .as_table()
                .map(|table| (table.decor().clone(), table.position()));
            *found = made;
            if let (Some(table), Some((decor, position))) =
                (found.as_table_mut(), decor_and_position)
            {
                *table.decor_mut() = decor;
                table.set_position(position);
            }
        }
        None => {
            holder.insert(name, made);
        }
    }
    Ok(document.to_string())
}

pub(super) fn remove(
    text: &str,
    servers: &str,
    name: &str,
    holder_stays: bool,
) -> Result<String, EditRefusal> {
    let mut document = parse_toml_tree(text)?;
    if let Some(holder) = document.get_mut(servers).and_then(Item::as_table_like_mut) {
        holder.remove(name);
        if holder.is_empty() && !holder_stays {
            document.remove(servers);
        }
    }
    Ok(document.to_string())
}

fn to_toml_value(value: &Value) -> Result<toml_edit::Value, EditRefusal> {
    Ok(match value {
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => number
            .as_i64()
            .ok_or("TOML can't represent the number")?
            .into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(values) => {
            let items: Result<Array, EditRefusal> = values.iter().map(to_toml_value).collect();
            items?.into()
        }
        Value::Object(map) => {
            let mut table = InlineTable::new();
            for (key, value) in map {
                table.insert(key, to_toml_value(value)?);
            }
            table.into()
        }
        Value::Null => return Err("TOML has no null".into()),
    })
}
