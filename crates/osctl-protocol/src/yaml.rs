//! A check of YAML that an agent may have written, and what an error in YAML says to a user.

/// Whether the text may define a YAML anchor. Aliases repeat anchors, so 64 KiB can expand to gigabytes. The parser
/// expands aliases while it reads, so the text is checked before: an anchor is a `&` where a value can begin, followed
/// by a name.
pub fn has_anchor(text: &str) -> bool {
    let begins_value =
        |before: char| before.is_whitespace() || "[]{},:-?!\u{feff}".contains(before);
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(now) = rest.next() {
        let is_named = rest.peek().is_some_and(|c| !c.is_whitespace() && *c != '&');
        if now == '&' && begins_value(before) && is_named {
            return true;
        }
        before = now;
    }
    false
}

/// The number of the line in which a key of nested blocks stands, from 1. Of keys that are within braces, the line of
/// the last key in a block.
pub fn find_key_line(text: &str, keys: &[&str]) -> Option<usize> {
    let lines = text.lines().enumerate();
    let mut lines = lines.filter_map(|(number, line)| {
        let content = line.trim_start();
        let is_content =
            !content.is_empty() && !content.starts_with(['#', '%']) && content != "---";
        is_content.then(|| (number + 1, line.len() - content.len(), content))
    });
    let mut found = None;
    let mut parent_indent = None;
    for key in keys {
        let mut indent = None;
        let line = lines.by_ref().find_map(|(number, own_indent, content)| {
            let indent = *indent.get_or_insert(own_indent);
            if own_indent < indent || parent_indent.is_some_and(|parent| own_indent <= parent) {
                return Some(None);
            }
            let (name, _) = content.split_once(':')?;
            let is_key = own_indent == indent && name.trim_matches(['"', '\'', ' ']) == *key;
            is_key.then_some(Some((number, own_indent)))
        });
        let Some(Some((number, own_indent))) = line else {
            break;
        };
        (found, parent_indent) = (Some(number), Some(own_indent));
    }
    found
}

/// An error of serde about a value of a wrong type, as a sentence for users. Other errors do not change.
pub fn describe_type_error(error: &str) -> String {
    explain_type_error(error).unwrap_or_else(|| error.to_owned())
}

fn explain_type_error(error: &str) -> Option<String> {
    if error == "invalid IP address syntax" {
        return Some("the value must be an IP address".into());
    }
    let (start, expected) = error.rsplit_once(", expected ")?;
    let (expected, place) = match expected.split_once(" at line ") {
        Some((expected, place)) => (expected, format!(" (line {place})")),
        None => (expected, String::new()),
    };
    let kinds = ["invalid type: ", "invalid value: ", "unknown variant "];
    let mut parts = kinds.iter().filter_map(|kind| start.split_once(kind));
    let (path, found) = parts.next()?;
    let subject = match path.strip_suffix(": ") {
        Some(path) => format!("`{path}`"),
        None => "the value".into(),
    };
    let expected = plain_type(expected);
    let found = plain_value(found);
    Some(format!("{subject} must be {expected}, not {found}{place}"))
}

/// What serde calls the type of a value that it expects.
fn plain_type(expected: &str) -> String {
    let plain = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of at least 0",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a string" | "path string" | "string or map" => "text",
        "a sequence" => "a list",
        "a map" => "a map of keys to values",
        expected if expected.starts_with("struct ") => "a map of keys to values",
        expected => expected,
    };
    plain.into()
}

/// What serde calls a value that it does not expect.
fn plain_value(found: &str) -> String {
    let kinds = ["integer ", "floating point ", "boolean ", "character "];
    match found {
        "null" | "unit value" | "Option value" => "`null`".into(),
        "sequence" => "a list".into(),
        "map" => "a map".into(),
        found => match found.strip_prefix("string ") {
            Some(text) => format!("`{text}`"),
            None => {
                let value = kinds.iter().find_map(|kind| found.strip_prefix(kind));
                value.unwrap_or(found).into()
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{describe_type_error, find_key_line, has_anchor};

    #[test]
    fn the_line_of_a_key_is_that_of_its_block() {
        let text = "# limits: x\nenv:\n  limits: {pids: 1}\n\nlimits:\n  # pids: 2\n  'pids': many\nports: {kernel: 1}\ninstances:\n  blue:\n    limits:\n      pids: 3\n  red:\n    criu: true\n";
        for (key, line) in [
            ("limits", Some(5)),
            ("limits.pids", Some(7)),
            ("ports.kernel", Some(8)),
            ("instances.blue.limits.pids", Some(12)),
            ("instances.red.criu", Some(14)),
            ("limits.cpus", Some(5)),
            ("pids", None),
        ] {
            let keys: Vec<&str> = key.split('.').collect();
            assert_eq!(find_key_line(text, &keys), line, "{key}");
        }
        assert_eq!(find_key_line("{limits: {pids: 1}}", &["limits"]), None);
    }

    #[test]
    fn an_error_of_a_type_is_said_in_plain_words() {
        fn read<T: serde::de::DeserializeOwned>(text: &str) -> String {
            let value: serde_json::Value = serde_yaml::from_str(text).unwrap();
            let error = serde_json::from_value::<T>(value).err().unwrap();
            describe_type_error(&error.to_string())
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Engine {
            Docker,
            Embedded,
        }
        for (said, expected) in [
            (
                read::<u32>("many"),
                "a whole number from 0 to 4294967295, not `\"many\"`",
            ),
            (
                read::<u16>("99999"),
                "a whole number from 0 to 65535, not `99999`",
            ),
            (
                read::<u64>("1.5"),
                "a whole number of at least 0, not `1.5`",
            ),
            (read::<u64>("-1"), "a whole number of at least 0, not `-1`"),
            (read::<f64>("[1]"), "a number, not a list"),
            (read::<bool>("maybe"), "`true` or `false`, not `\"maybe\"`"),
            (read::<String>("~"), "text, not `null`"),
            (read::<std::path::PathBuf>("{a: 1}"), "text, not a map"),
            (
                read::<Vec<String>>("', expected x'"),
                "a list, not `\", expected x\"`",
            ),
            (
                read::<Engine>("dokcer"),
                "`docker` or `embedded`, not `dokcer`",
            ),
            (read::<Engine>("5"), "text, not `5`"),
            (read::<std::net::IpAddr>("home"), "an IP address"),
        ] {
            assert_eq!(said, format!("the value must be {expected}"));
        }
        let error = serde_yaml::from_str::<std::collections::BTreeMap<String, u8>>("a: x");
        let error = describe_type_error(&error.unwrap_err().to_string());
        let said = "`a` must be a whole number from 0 to 255, not `\"x\"` (line 1 column 4)";
        assert_eq!(error, said);
        assert_eq!(
            describe_type_error("missing field `a`"),
            "missing field `a`"
        );
    }

    #[test]
    fn an_anchor_is_found_and_an_ampersand_of_a_value_is_not() {
        for text in [
            "a: &x 1",
            "&x a: 1",
            "a: [&x 1]",
            "a: {b: [1,&x 2]}",
            "a: {\"b\":&x 1}",
            "- &x",
            "\u{feff}&x a: 1",
            "a: !t &x 1",
            "a:\n  &x\n  b: 1",
        ] {
            assert!(has_anchor(text), "{text}");
        }
        for text in [
            "a: b && c",
            "a: http://h/?x=1&y=2",
            "a: sleep 1 &",
            "a: '&x'",
            "a: x 2>&1",
            "a: b & c",
        ] {
            assert!(!has_anchor(text), "{text}");
        }
    }
}
