//! An entry in a dedicated file, which holds nothing else.

use super::client::ClientFileFormat;
use super::edit::{self, ClientEntry, EditRefusal};
use serde_json::Value;

const CONTINUE_FILE_HEADER: &str =
    "# Written by osctl; `osctl mcp disconnect continue` removes it.\n";

pub(super) fn insert(text: &str, name: &str, entry: &ClientEntry) -> Result<String, EditRefusal> {
    if !text.trim().is_empty() {
        let settings = edit::parse_settings(ClientFileFormat::DedicatedFile, text)?;
        if edit::find_entry(ClientFileFormat::DedicatedFile, &settings, name).is_none()
            || !is_only_server(&settings)
        {
            return Err("the file contains other settings".into());
        }
    }
    let mut lines =
        format!("{CONTINUE_FILE_HEADER}name: {name}\nversion: 0.0.1\nschema: v1\nmcpServers:\n");
    for (number, (key, value)) in entry.0.iter().enumerate() {
        let dash = if number == 0 { "-" } else { " " };
        lines.push_str(&format!("  {dash} {key}: {value}\n"));
    }
    Ok(lines)
}

/// Returns an empty text: nothing remains without the entry.
pub(super) fn remove(settings: &Value, name: &str) -> Result<String, EditRefusal> {
    let is_ours = edit::find_entry(ClientFileFormat::DedicatedFile, settings, name).is_some()
        && is_only_server(settings);
    match is_ours {
        true => Ok(String::new()),
        false => Err("the file contains other settings".into()),
    }
}

fn is_only_server(settings: &Value) -> bool {
    settings["mcpServers"]
        .as_array()
        .is_some_and(|servers| servers.len() == 1)
}
