//! Entries of `servers`: the check before the hub reads them.

use crate::protocol::mcp::McpServerEntry;
use serde_json::Value;

/// # Errors
/// When a field has the wrong type, or the entry has neither a command nor a URL, or both.
pub(super) fn check_server(name: &str, server: &Value) -> Result<(), String> {
    let entry = McpServerEntry::parse_entry(server).map_err(|why| format!("`{name}`: {why}"))?;
    // The built-in server needs neither.
    let is_whole = entry.command.is_some() != entry.url.is_some() || name == "os";
    match is_whole || entry.disabled {
        true => Ok(()),
        false => Err(format!("`{name}` needs a `command` or a `url`")),
    }
}

#[cfg(test)]
mod tests {
    use super::check_server;
    use serde_json::json;

    #[test]
    fn a_wrong_entry_is_named_with_its_field() {
        for (entry, expected) in [
            (json!({"command": "x"}), None),
            (json!({"disabled": true}), None),
            (json!({}), Some("`a` needs a `command` or a `url`")),
            (
                json!({"command": "x", "env": {"PORT": 8080}}),
                Some("`a`: `env.PORT` must be a string, not a number"),
            ),
        ] {
            let why = check_server("a", &entry).err();
            assert_eq!(why.as_deref(), expected, "{entry}");
        }
    }
}
