//! The filter of the servers and tools that a client may use.

use super::message::{array_elements, find_string, find_value, splice};

/// Sets of patterns with `*` for any part of a name. A name must match a pattern of every set; a filter
/// without sets admits every name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NameFilter(Vec<Vec<String>>);

impl NameFilter {
    pub(super) fn new(patterns: impl IntoIterator<Item = String>) -> Self {
        let patterns: Vec<_> = patterns.into_iter().filter(|p| !p.is_empty()).collect();
        Self(if patterns.is_empty() {
            Vec::new()
        } else {
            vec![patterns]
        })
    }

    pub(super) fn intersect(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
    }

    /// Parses a query parameter: patterns separated by commas.
    pub(super) fn from_query(text: Option<&str>) -> Self {
        Self::new(
            text.unwrap_or_default()
                .split(',')
                .map(|p| p.trim().to_owned()),
        )
    }

    pub(super) fn is_unrestricted(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_match(&self, name: &str) -> bool {
        self.0
            .iter()
            .all(|set| set.iter().any(|pattern| matches_pattern(pattern, name)))
    }

    /// Removes the tools that are not offered from a `tools/list` result.
    pub(super) fn filter_tools(&self, result: &str) -> Option<String> {
        if self.is_unrestricted() {
            return None;
        }
        let span = find_value(result, &["tools"])?;
        let all = array_elements(&result[span.clone()]);
        let offered: Vec<&str> = all
            .into_iter()
            .filter(|tool| find_string(tool, &["name"]).is_some_and(|name| self.is_match(&name)))
            .collect();
        let list = format!("[{}]", offered.join(","));
        let text = splice(result.as_bytes(), &[(span, &list)]);
        String::from_utf8(text.into()).ok()
    }
}

/// Whether a name matches a pattern with `*` for any part.
pub(super) fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let ends = (0..=name.len()).filter(|at| name.is_char_boundary(*at));
            ends.into_iter()
                .any(|at| matches_pattern(rest, &name[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::NameFilter;

    #[test]
    fn patterns_choose_names() {
        let filter = NameFilter::from_query(Some("read_*, *info, a"));
        for name in ["read_", "read_file", "get_info", "a"] {
            assert!(filter.is_match(name), "{name}");
        }
        for name in ["xread_file", "infos", "ab", ""] {
            assert!(!filter.is_match(name), "{name}");
        }
        assert!(NameFilter::from_query(None).is_match("anything"));
        let both = filter.intersect(&NameFilter::from_query(Some("*_file")));
        assert!(both.is_match("read_file") && !both.is_match("a"));
    }

    #[test]
    fn a_list_keeps_the_bytes_of_what_is_offered() {
        let filter = NameFilter::new(["b".to_owned()]);
        let list = r#"{"x":1.0,"tools":[{"name":"a"}, {"n":1e400,"name":"b"}],"y":2}"#;
        let expected = r#"{"x":1.0,"tools":[{"n":1e400,"name":"b"}],"y":2}"#;
        assert_eq!(filter.filter_tools(list).as_deref(), Some(expected));
        assert_eq!(NameFilter::default().filter_tools(list), None);
    }
}
