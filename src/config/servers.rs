//! Entries of `servers`: the check before the hub reads them.

use super::layers::CHARS_PER_KEY_EDIT;
use crate::error::nearest_name;
use serde_json::Value;

/// The keys of an entry. Other keys, which only MCP clients use, are ignored, as the hub ignores them.
const SERVER_KEYS: [&str; 14] = [
    "args", "cancel", "command", "cwd", "disabled", "env", "headers", "idle", "lean", "shared",
    "start", "timeout", "tools", "url",
];

/// A key that is probably a mistyped one, and the key that it probably means.
pub(super) fn find_misspelt_server_key(server: &Value) -> Option<(&str, &'static str)> {
    let keys = server.as_object()?.keys().map(String::as_str);
    let mut unknown = keys.filter(|key| !SERVER_KEYS.contains(key));
    unknown.find_map(|key| Some((key, nearest_name(key, SERVER_KEYS, CHARS_PER_KEY_EDIT)?)))
}

/// # Errors
/// When the entry has neither a command nor a URL, or both.
pub(super) fn check_server(name: &str, server: &Value) -> Result<(), String> {
    let is_text = |key: &str| server[key].is_string();
    // The built-in server needs neither.
    let is_whole = is_text("command") != is_text("url") || name == "os";
    match is_whole || server["disabled"] == true {
        true => Ok(()),
        false => Err(format!("`{name}` needs a `command` or a `url`")),
    }
}

#[cfg(test)]
mod tests {
    use super::{SERVER_KEYS, find_misspelt_server_key};
    use crate::protocol::mcp::McpServerEntry;
    use serde_json::json;

    #[test]
    fn a_mistyped_key_of_a_server_is_found_and_a_key_of_clients_is_ignored() {
        for (entry, expected) in [
            (json!({"comand": "x"}), Some(("comand", "command"))),
            (json!({"command": "x", "arg": []}), Some(("arg", "args"))),
            (
                json!({"command": "x", "tiemout": 3}),
                Some(("tiemout", "timeout")),
            ),
            (
                json!({"command": "x", "type": "stdio", "alwaysAllow": [], "name": "n", "description": "d"}),
                None,
            ),
            (json!("text"), None),
        ] {
            assert_eq!(find_misspelt_server_key(&entry), expected, "{entry}");
        }
    }

    #[test]
    fn the_keys_are_those_that_the_hub_reads() {
        let entry = json!({
            "command": "c", "args": ["a"], "env": {"A": "b"}, "cwd": "/", "url": "u", "headers": {"A": "b"},
            "disabled": true, "start": "eager", "shared": true, "timeout": 1.0, "idle": 1.0, "tools": ["t"],
            "lean": ["t"], "cancel": false,
        });
        let entry: McpServerEntry = serde_json::from_value(entry).unwrap();
        let written = serde_json::to_value(entry).unwrap();
        let mut keys: Vec<&str> = written
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, SERVER_KEYS);
    }
}
