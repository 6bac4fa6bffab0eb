//! Search in the text of JSON: the positions and raw values of its parts, and the replacement of parts.

use bytes::Bytes;
use serde_json::value::RawValue;
use std::fmt;
use std::ops::Range;

/// The position of a part in its text.
pub(crate) type Span = Range<usize>;

/// Replaces bytes at positions that are in ascending order.
pub(crate) fn splice(text: &[u8], edits: &[(Span, &str)]) -> Bytes {
    let added_bytes: usize = edits.iter().map(|(_, new)| new.len()).sum();
    let mut all = Vec::with_capacity(text.len() + added_bytes);
    let mut from = 0;
    for (span, new) in edits {
        all.extend_from_slice(&text[from..span.start]);
        all.extend_from_slice(new.as_bytes());
        from = span.end;
    }
    all.extend_from_slice(&text[from..]);
    all.into()
}

/// The position of the value at a path of keys in nested objects.
pub(crate) fn find_value(text: &str, path: &[&str]) -> Option<Span> {
    let mut at = 0..text.len();
    for key in path {
        let object = &text[at.clone()];
        let value = field_value(object, key)?;
        let within = span_of(object, value);
        at = at.start + within.start..at.start + within.end;
    }
    Some(at)
}

/// The raw value at a path of keys.
pub(crate) fn find_raw<'a>(text: &'a str, path: &[&str]) -> Option<&'a str> {
    Some(&text[find_value(text, path)?])
}

/// The string at a path of keys.
pub(crate) fn find_string(text: &str, path: &[&str]) -> Option<String> {
    serde_json::from_str(find_raw(text, path)?).ok()
}

/// The raw elements of the array at a key; empty if there is none.
pub(crate) fn find_elements<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    find_raw(text, &[key]).map_or_else(Vec::new, array_elements)
}

/// The raw value of a key. Of duplicate keys the last one counts, as in most parsers.
fn field_value<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let (_, value) = object_fields(object)?
        .into_iter()
        .rfind(|(name, _)| name == key)?;
    Some(value)
}

/// Removes some fields of an object.
pub(crate) fn without_fields(object: &str, is_unwanted: impl Fn(&str) -> bool) -> Option<String> {
    let rest = object_fields(object)?
        .into_iter()
        .filter(|(name, _)| !is_unwanted(name));
    let rest = rest.map(|(name, value)| format!("{}:{value}", serde_json::Value::from(name)));
    Some(format!("{{{}}}", rest.collect::<Vec<_>>().join(",")))
}

/// The names and raw values of an object's fields.
pub(crate) fn object_fields(object: &str) -> Option<Vec<(String, &str)>> {
    struct Fields;
    impl<'de> serde::de::Visitor<'de> for Fields {
        type Value = Vec<(String, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<Self::Value, A::Error> {
            let mut found = Vec::new();
            while let Some(name) = map.next_key::<String>()? {
                found.push((name, map.next_value::<&'de RawValue>()?));
            }
            Ok(found)
        }
    }
    let mut from = serde_json::Deserializer::from_str(object);
    let found = serde::de::Deserializer::deserialize_map(&mut from, Fields).ok()?;
    Some(
        found
            .into_iter()
            .map(|(name, value)| (name, value.get()))
            .collect(),
    )
}

/// The raw elements of an array.
pub(crate) fn array_elements(array: &str) -> Vec<&str> {
    let all: Result<Vec<&RawValue>, _> = serde_json::from_str(array);
    all.map(|all| all.into_iter().map(RawValue::get).collect())
        .unwrap_or_default()
}

pub(super) fn span_of(whole: &str, part: &str) -> Span {
    let start = part.as_ptr() as usize - whole.as_ptr() as usize;
    start..start + part.len()
}
