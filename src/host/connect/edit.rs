//! Insertion of one entry into a text, and its removal, for every file format.

use super::client::ClientFileFormat;
use super::{dedicated_file, json, toml, yaml};
use serde_json::{Map, Value};

/// Why a text is left unchanged, as a sentence.
pub(super) type EditRefusal = String;

/// An entry's fields, in order.
#[derive(Debug, Clone)]
pub(super) struct ClientEntry(pub(super) Vec<(&'static str, Value)>);

impl ClientEntry {
    pub(super) fn to_value(&self) -> Value {
        let fields = self.0.iter();
        fields
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect()
    }
}

/// A text without a byte order mark and CRLF line ends, which are restored later.
#[derive(Debug)]
struct NormalizedText {
    text: String,
    has_byte_order_mark: bool,
    has_crlf: bool,
}

impl NormalizedText {
    fn normalize(text: &str) -> Self {
        let (text, has_mark) = match text.strip_prefix('\u{feff}') {
            Some(text) => (text, true),
            None => (text, false),
        };
        let lines = text.replace("\r\n", "\n");
        let has_returns = lines != text && lines.replace('\n', "\r\n") == text;
        Self {
            text: if has_returns { lines } else { text.into() },
            has_byte_order_mark: has_mark,
            has_crlf: has_returns,
        }
    }

    fn restore_endings(&self, text: &str) -> String {
        let byte_order_mark = if self.has_byte_order_mark {
            "\u{feff}"
        } else {
            ""
        };
        match self.has_crlf {
            true => format!("{byte_order_mark}{}", text.replace('\n', "\r\n")),
            false => format!("{byte_order_mark}{text}"),
        }
    }
}

/// The parsed settings of the text; empty settings if the text is empty.
///
/// # Errors
/// When the text cannot be parsed.
pub(super) fn parse_settings(form: ClientFileFormat, text: &str) -> Result<Value, EditRefusal> {
    let text = &NormalizedText::normalize(text).text;
    let settings = match form {
        _ if text.trim().is_empty() => Value::Object(Map::new()),
        ClientFileFormat::Json(_) => json::parse_json(text)?,
        ClientFileFormat::Toml(_) => toml::parse_toml(text)?,
        ClientFileFormat::Yaml(_) | ClientFileFormat::DedicatedFile => yaml::parse_yaml(text)?,
    };
    // A text with only comments has no settings.
    let settings = if settings.is_null() {
        Value::Object(Map::new())
    } else {
        settings
    };
    match settings.is_object() {
        true => Ok(settings),
        false => Err("the file is not a map of settings".into()),
    }
}

/// The path of the entry.
fn entry_path(form: ClientFileFormat, name: &str) -> Vec<&str> {
    let mut key_path = match form {
        ClientFileFormat::Json(servers) => servers.to_vec(),
        ClientFileFormat::Toml(servers) | ClientFileFormat::Yaml(servers) => vec![servers],
        ClientFileFormat::DedicatedFile => Vec::new(),
    };
    key_path.push(name);
    key_path
}

/// The entry with this name.
pub(super) fn find_entry<'a>(
    form: ClientFileFormat,
    settings: &'a Value,
    name: &str,
) -> Option<&'a Value> {
    if form == ClientFileFormat::DedicatedFile {
        let servers = settings["mcpServers"].as_array()?;
        return servers.iter().find(|server| server["name"] == name);
    }
    entry_path(form, name)
        .into_iter()
        .try_fold(settings, |at, key| at.get(key))
}

/// The map that holds the entries.
pub(super) fn find_servers(form: ClientFileFormat, settings: &Value) -> Option<&Value> {
    let key_path = entry_path(form, "");
    let (_, holder) = key_path.split_last()?;
    holder.iter().try_fold(settings, |at, key| at.get(key))
}

/// Inserts the entry, or replaces the entry with the same name.
///
/// # Errors
/// When the text cannot be parsed, or the edit would change other settings.
pub(super) fn insert_entry(
    form: ClientFileFormat,
    text: &str,
    name: &str,
    entry: &ClientEntry,
) -> Result<String, EditRefusal> {
    let before = parse_settings(form, text)?;
    let plain = NormalizedText::normalize(text);
    let edited = match form {
        ClientFileFormat::Json(servers) => json::insert(&plain.text, servers, name, entry)?,
        ClientFileFormat::Toml(servers) => toml::insert(&plain.text, servers, name, entry)?,
        ClientFileFormat::Yaml(servers) => yaml::insert(&plain.text, servers, name, entry)?,
        ClientFileFormat::DedicatedFile => return dedicated_file::insert(text, name, entry),
    };
    let was_there = find_entry(form, &before, name).is_some();
    let mut expected = before;
    let mut at = &mut expected;
    for key in entry_path(form, name) {
        at = at
            .as_object_mut()
            .ok_or("the list of servers is not a map")?
            .entry(key)
            .or_insert_with(|| Value::Object(Map::new()));
        // An empty key in YAML.
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
    }
    *at = entry.to_value();
    let written = match form {
        // An empty map becomes a block.
        ClientFileFormat::Yaml(servers) => {
            plain
                .text
                .replacen(&format!("{servers}: {{}}"), &format!("{servers}:"), 1)
        }
        ClientFileFormat::Json(_) | ClientFileFormat::Toml(_) | ClientFileFormat::DedicatedFile => {
            plain.text.clone()
        }
    };
    let is_whole = parse_settings(form, &edited)? == expected
        && (was_there || is_text_preserved(&written, &edited));
    match is_whole {
        true => Ok(plain.restore_endings(&edited)),
        false => Err("osctl can't add the entry without changing the rest of the file".into()),
    }
}

/// Removes the entry, and the map that held it if that map is empty and `holder_stays` is false.
///
/// # Errors
/// When the text cannot be parsed, or the edit would remove other settings.
pub(super) fn remove_entry(
    form: ClientFileFormat,
    text: &str,
    name: &str,
    holder_stays: bool,
) -> Result<String, EditRefusal> {
    let before = parse_settings(form, text)?;
    let plain = NormalizedText::normalize(text);
    let edited = match form {
        ClientFileFormat::Json(servers) => json::remove(&plain.text, servers, name, holder_stays)?,
        ClientFileFormat::Toml(servers) => toml::remove(&plain.text, servers, name, holder_stays)?,
        ClientFileFormat::Yaml(servers) => yaml::remove(&plain.text, servers, name, holder_stays)?,
        ClientFileFormat::DedicatedFile => return dedicated_file::remove(&before, name),
    };
    let mut expected = before;
    let key_path = entry_path(form, name);
    remove_path(&mut expected, &key_path, holder_stays);
    let mut after = parse_settings(form, &edited)?;
    drop_nulls(&mut after, &key_path);
    match after == expected {
        true => Ok(plain.restore_endings(&edited)),
        false => Err("osctl can't remove the entry without changing the rest of the file".into()),
    }
}

fn remove_path(at: &mut Value, key_path: &[&str], holder_stays: bool) {
    let Some((key, rest)) = key_path.split_first() else {
        return;
    };
    let Some(map) = at.as_object_mut() else {
        return;
    };
    if rest.is_empty() {
        map.remove(*key);
        return;
    }
    if let Some(inner) = map.get_mut(*key) {
        remove_path(inner, rest, holder_stays);
        if !holder_stays && inner.as_object().is_some_and(Map::is_empty) {
            map.remove(*key);
        }
    }
}

/// A YAML key without children is null; treat it as an empty map.
fn drop_nulls(at: &mut Value, key_path: &[&str]) {
    if let [holder, _] = key_path
        && let Some(holder) = at.get_mut(holder)
        && holder.is_null()
    {
        *holder = Value::Object(Map::new());
    }
}

/// Whether all earlier characters are still present, in order; ignores whitespace and commas.
fn is_text_preserved(before: &str, after: &str) -> bool {
    let counts = |c: &char| !c.is_whitespace() && *c != ',';
    let mut after = after.chars().filter(counts);
    before
        .chars()
        .filter(counts)
        .all(|c| after.any(|other| other == c))
}

#[cfg(test)]
mod tests {
    use super::{
        ClientEntry, find_entry, insert_entry, is_text_preserved, parse_settings, remove_entry,
    };
    use crate::host::connect::client::ClientFileFormat;
    use serde_json::json;

    const SAMPLE_JSON: ClientFileFormat = ClientFileFormat::Json(&["mcpServers"]);
    const TOML: ClientFileFormat = ClientFileFormat::Toml("mcp_servers");
    const YAML: ClientFileFormat = ClientFileFormat::Yaml("extensions");

    fn entry() -> ClientEntry {
        let arguments = json!(["mcp", "stdio"]);
        ClientEntry(vec![
            ("command", json!("/x y/osctl")),
            ("args", arguments),
            ("timeout", json!(600)),
        ])
    }

    /// Inserts and removes an entry, and checks the text in between.
    fn round(form: ClientFileFormat, text: &str, holder_stays: bool) -> String {
        let inside = insert_entry(form, text, "osctl", &entry()).unwrap();
        let settings = parse_settings(form, &inside).unwrap();
        assert_eq!(
            find_entry(form, &settings, "osctl"),
            Some(&entry().to_value())
        );
        let inserted_again = insert_entry(form, &inside, "osctl", &entry()).unwrap();
        assert_eq!(inserted_again, inside, "a second time changes nothing");
        let out = remove_entry(form, &inside, "osctl", holder_stays).unwrap();
        assert_eq!(
            parse_settings(form, &out).unwrap(),
            parse_settings(form, text).unwrap()
        );
        let comment = "# mine\n";
        assert_eq!(text.contains(comment), out.contains(comment));
        inside
    }

    #[test]
    fn an_entry_is_inserted_and_removed_in_each_format() {
        for text in [
            "",
            "{}",
            "{\"a\": 1}",
            "// c\n{\n  // d\n  \"a\": [1, 2,],\n}\n",
            "{\"a\":{\"mcpServers\":{}}}",
        ] {
            round(SAMPLE_JSON, text, false);
        }
        for text in [
            "{\"mcpServers\": {}}",
            "{\n\t\"mcpServers\": {\n\t\t\"b\": {} // b\n\t}\n}",
        ] {
            round(SAMPLE_JSON, text, true);
        }
        for text in [
            "",
            "a = 1\n",
            "# mine\n[b]\nc = \"d\"",
            "[mcp_servers.b]\ncommand = \"x\"\n\n[z]\ny = 1\n",
        ] {
            round(TOML, text, false);
        }
        for text in ["", "a: 1\n", "a: [1]"] {
            round(YAML, text, false);
        }
        for text in [
            "# mine\nextensions:\n  b:\n    cmd: x\nz: |\n  extensions:\n    c\n",
            "a: 1\nextensions: {}\n",
        ] {
            round(YAML, text, true);
        }
    }

    #[test]
    fn comments_order_and_layout_stay() {
        let text = "{\n    // first\n    \"z\": 1,\n    \"mcpServers\": {\n        \"b\": { \"command\": \"b\" }, // b\n    },\n    \"a\": 2\n}\n";
        let expected = "{\n    // first\n    \"z\": 1,\n    \"mcpServers\": {\n        \"b\": { \"command\": \"b\" }, // b\n        \"osctl\": {\n            \"command\": \"/x y/osctl\",\n            \"args\": [\"mcp\", \"stdio\"],\n            \"timeout\": 600,\n        },\n    },\n    \"a\": 2\n}\n";
        let inside = insert_entry(SAMPLE_JSON, text, "osctl", &entry()).unwrap();
        assert_eq!(inside, expected);
        assert_eq!(
            remove_entry(SAMPLE_JSON, &inside, "osctl", true).unwrap(),
            text
        );
    }

    #[test]
    fn byte_order_marks_and_line_ends_stay() {
        for (form, text) in [
            (SAMPLE_JSON, "\u{feff}{\r\n  \"a\": 1\r\n}\r\n"),
            (TOML, "a = 1\r\nb = 2\r\n"),
            (YAML, "a: 1\r\nextensions:\r\n  b: {}\r\n"),
        ] {
            let inside = insert_entry(form, text, "osctl", &entry()).unwrap();
            assert_eq!(inside.matches('\n').count(), inside.matches("\r\n").count());
            assert_eq!(inside.starts_with('\u{feff}'), text.starts_with('\u{feff}'));
        }
    }

    #[test]
    fn an_unreadable_configuration_is_an_error() {
        for (form, text) in [
            (SAMPLE_JSON, "{\"a\": "),
            (SAMPLE_JSON, "[]"),
            (SAMPLE_JSON, "{'a': 1}"),
            (SAMPLE_JSON, "{\"mcpServers\": []}"),
            (TOML, "a = "),
            (TOML, "mcp_servers = 1"),
            (YAML, "a: [1"),
            (YAML, "- a"),
            (YAML, "extensions: {b: {}}"),
            (YAML, "extensions: [b]"),
            (YAML, "extensions: &x\n  b: 1\n"),
        ] {
            assert!(
                insert_entry(form, text, "osctl", &entry()).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_lost_comment_is_detected_and_new_whitespace_is_allowed() {
        assert!(is_text_preserved("{\"a\": 1}", "{\n\"a\": 1,\n\"b\": 2\n}"));
        assert!(!is_text_preserved(
            "{\"a\": 1} // c",
            "{\"a\": 1, \"b\": 2}"
        ));
    }
}
