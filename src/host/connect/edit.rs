//! One entry into a text and out of it again, whatever its form.

use super::client::Form;
use super::{json, own, toml, yaml};
use serde_json::{Map, Value};

/// Why a text is left alone, in words.
pub(super) type Unfit = String;

/// An entry's fields, in their order.
#[derive(Debug, Clone)]
pub(super) struct Entry(pub(super) Vec<(&'static str, Value)>);

impl Entry {
    pub(super) fn value(&self) -> Value {
        let fields = self.0.iter();
        fields
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect()
    }
}

/// A text without what says nothing but how it is stored.
#[derive(Debug)]
struct Plain {
    text: String,
    has_mark: bool,
    has_returns: bool,
}

impl Plain {
    fn of(text: &str) -> Self {
        let (text, has_mark) = match text.strip_prefix('\u{feff}') {
            Some(text) => (text, true),
            None => (text, false),
        };
        let lines = text.replace("\r\n", "\n");
        let has_returns = lines != text && lines.replace('\n', "\r\n") == text;
        Self {
            text: if has_returns { lines } else { text.into() },
            has_mark,
            has_returns,
        }
    }

    fn dress(&self, text: &str) -> String {
        let mark = if self.has_mark { "\u{feff}" } else { "" };
        match self.has_returns {
            true => format!("{mark}{}", text.replace('\n', "\r\n")),
            false => format!("{mark}{text}"),
        }
    }
}

/// What the text says; nothing, where it is empty.
///
/// # Errors
/// When that can't be read.
pub(super) fn read(form: Form, text: &str) -> Result<Value, Unfit> {
    let text = &Plain::of(text).text;
    let said = match form {
        _ if text.trim().is_empty() => Value::Object(Map::new()),
        Form::Json(_) => json::read(text)?,
        Form::Toml(_) => toml::read(text)?,
        Form::Yaml(_) | Form::Own => yaml::read(text)?,
    };
    // Comments alone say nothing.
    let said = if said.is_null() {
        Value::Object(Map::new())
    } else {
        said
    };
    match said.is_object() {
        true => Ok(said),
        false => Err("it holds no settings by name".into()),
    }
}

/// Where the entry is.
fn way(form: Form, name: &str) -> Vec<&str> {
    let mut way = match form {
        Form::Json(servers) => servers.to_vec(),
        Form::Toml(servers) | Form::Yaml(servers) => vec![servers],
        Form::Own => Vec::new(),
    };
    way.push(name);
    way
}

/// The entry of that name.
pub(super) fn find<'a>(form: Form, said: &'a Value, name: &str) -> Option<&'a Value> {
    if form == Form::Own {
        let servers = said["mcpServers"].as_array()?;
        return servers.iter().find(|server| server["name"] == name);
    }
    way(form, name)
        .into_iter()
        .try_fold(said, |at, key| at.get(key))
}

/// What holds the entries.
pub(super) fn holder(form: Form, said: &Value) -> Option<&Value> {
    let way = way(form, "");
    let (_, holder) = way.split_last()?;
    holder.iter().try_fold(said, |at, key| at.get(key))
}

/// Puts the entry in, in the place of one of that name.
///
/// # Errors
/// When the text can't be read, or nothing but that could not be changed.
pub(super) fn insert(form: Form, text: &str, name: &str, entry: &Entry) -> Result<String, Unfit> {
    let before = read(form, text)?;
    let plain = Plain::of(text);
    let edited = match form {
        Form::Json(servers) => json::insert(&plain.text, servers, name, entry)?,
        Form::Toml(servers) => toml::insert(&plain.text, servers, name, entry)?,
        Form::Yaml(servers) => yaml::insert(&plain.text, servers, name, entry)?,
        Form::Own => return own::insert(text, name, entry),
    };
    let was_there = find(form, &before, name).is_some();
    let mut expected = before;
    let mut at = &mut expected;
    for key in way(form, name) {
        at = at
            .as_object_mut()
            .ok_or("its servers are no map")?
            .entry(key)
            .or_insert_with(|| Value::Object(Map::new()));
        // An empty key of YAML.
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
    }
    *at = entry.value();
    let written = match form {
        // An empty map becomes a block.
        Form::Yaml(servers) => {
            plain
                .text
                .replacen(&format!("{servers}: {{}}"), &format!("{servers}:"), 1)
        }
        Form::Json(_) | Form::Toml(_) | Form::Own => plain.text.clone(),
    };
    let is_whole = read(form, &edited)? == expected && (was_there || keeps(&written, &edited));
    match is_whole {
        true => Ok(plain.dress(&edited)),
        false => Err("it can't be changed without touching the rest of it".into()),
    }
}

/// Takes the entry out, and what held it, if that is empty then and is not to stay.
///
/// # Errors
/// When the text can't be read, or more than that would be gone.
pub(super) fn remove(
    form: Form,
    text: &str,
    name: &str,
    holder_stays: bool,
) -> Result<String, Unfit> {
    let before = read(form, text)?;
    let plain = Plain::of(text);
    let edited = match form {
        Form::Json(servers) => json::remove(&plain.text, servers, name, holder_stays)?,
        Form::Toml(servers) => toml::remove(&plain.text, servers, name, holder_stays)?,
        Form::Yaml(servers) => yaml::remove(&plain.text, servers, name, holder_stays)?,
        Form::Own => return own::remove(&before, name),
    };
    let mut expected = before;
    let way = way(form, name);
    take(&mut expected, &way, holder_stays);
    let mut after = read(form, &edited)?;
    drop_nulls(&mut after, &way);
    match after == expected {
        true => Ok(plain.dress(&edited)),
        false => Err("the entry can't be taken out without touching the rest of it".into()),
    }
}

fn take(at: &mut Value, way: &[&str], holder_stays: bool) {
    let Some((key, rest)) = way.split_first() else {
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
        take(inner, rest, holder_stays);
        if !holder_stays && inner.as_object().is_some_and(Map::is_empty) {
            map.remove(*key);
        }
    }
}

/// A key of YAML whose last child is gone says nothing, which is as good as an empty map.
fn drop_nulls(at: &mut Value, way: &[&str]) {
    if let [holder, _] = way
        && let Some(holder) = at.get_mut(holder)
        && holder.is_null()
    {
        *holder = Value::Object(Map::new());
    }
}

/// Whether all that was written is still there, in its order; blanks and commas aside.
fn keeps(before: &str, after: &str) -> bool {
    let counts = |c: &char| !c.is_whitespace() && *c != ',';
    let mut after = after.chars().filter(counts);
    before
        .chars()
        .filter(counts)
        .all(|c| after.any(|other| other == c))
}

#[cfg(test)]
mod tests {
    use super::{Entry, find, insert, keeps, read, remove};
    use crate::host::connect::client::Form;
    use serde_json::json;

    const JSON: Form = Form::Json(&["mcpServers"]);
    const TOML: Form = Form::Toml("mcp_servers");
    const YAML: Form = Form::Yaml("extensions");

    fn entry() -> Entry {
        let words = json!(["mcp", "stdio"]);
        Entry(vec![
            ("command", json!("/x y/osctl")),
            ("args", words),
            ("timeout", json!(600)),
        ])
    }

    /// In and out again, and the text in between.
    fn round(form: Form, text: &str, holder_stays: bool) -> String {
        let inside = insert(form, text, "osctl", &entry()).unwrap();
        let said = read(form, &inside).unwrap();
        assert_eq!(find(form, &said, "osctl"), Some(&entry().value()));
        let again = insert(form, &inside, "osctl", &entry()).unwrap();
        assert_eq!(again, inside, "a second time changes nothing");
        let out = remove(form, &inside, "osctl", holder_stays).unwrap();
        assert_eq!(read(form, &out).unwrap(), read(form, text).unwrap());
        let begun = "# mine\n";
        assert_eq!(text.contains(begun), out.contains(begun));
        inside
    }

    #[test]
    fn an_entry_comes_and_goes_in_each_form() {
        for text in [
            "",
            "{}",
            "{\"a\": 1}",
            "// c\n{\n  // d\n  \"a\": [1, 2,],\n}\n",
            "{\"a\":{\"mcpServers\":{}}}",
        ] {
            round(JSON, text, false);
        }
        for text in [
            "{\"mcpServers\": {}}",
            "{\n\t\"mcpServers\": {\n\t\t\"b\": {} // b\n\t}\n}",
        ] {
            round(JSON, text, true);
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
        let inside = insert(JSON, text, "osctl", &entry()).unwrap();
        assert_eq!(inside, expected);
        assert_eq!(remove(JSON, &inside, "osctl", true).unwrap(), text);
    }

    #[test]
    fn marks_and_line_ends_stay() {
        for (form, text) in [
            (JSON, "\u{feff}{\r\n  \"a\": 1\r\n}\r\n"),
            (TOML, "a = 1\r\nb = 2\r\n"),
            (YAML, "a: 1\r\nextensions:\r\n  b: {}\r\n"),
        ] {
            let inside = insert(form, text, "osctl", &entry()).unwrap();
            assert_eq!(inside.matches('\n').count(), inside.matches("\r\n").count());
            assert_eq!(inside.starts_with('\u{feff}'), text.starts_with('\u{feff}'));
        }
    }

    #[test]
    fn what_can_not_be_read_is_left_alone() {
        for (form, text) in [
            (JSON, "{\"a\": "),
            (JSON, "[]"),
            (JSON, "{'a': 1}"),
            (JSON, "{\"mcpServers\": []}"),
            (TOML, "a = "),
            (TOML, "mcp_servers = 1"),
            (YAML, "a: [1"),
            (YAML, "- a"),
            (YAML, "extensions: {b: {}}"),
            (YAML, "extensions: [b]"),
            (YAML, "extensions: &x\n  b: 1\n"),
        ] {
            assert!(insert(form, text, "osctl", &entry()).is_err(), "{text}");
        }
    }

    #[test]
    fn keeping_is_about_what_is_said() {
        assert!(keeps("{\"a\": 1}", "{\n\"a\": 1,\n\"b\": 2\n}"));
        assert!(!keeps("{\"a\": 1} // c", "{\"a\": 1, \"b\": 2}"));
    }
}
