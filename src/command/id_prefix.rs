//! IDs that users shorten to their first characters, as with git and Docker.

use crate::error::{Error, Result};

/// Maximum number of candidates that an error lists.
const MAX_LISTED_CANDIDATES: usize = 5;

/// The only ID that begins with `prefix`, or `None` if no ID does. An ID that equals `prefix` takes precedence.
///
/// # Errors
/// If several IDs begin with `prefix`. The error names them, and `list` as the command that shows all.
pub(super) fn find_by_prefix(
    prefix: &str,
    ids: impl IntoIterator<Item = String>,
    list: &str,
) -> Result<Option<String>> {
    if prefix.is_empty() {
        return Ok(None);
    }
    let mut found: Vec<String> = ids
        .into_iter()
        .filter(|id| id.starts_with(prefix))
        .collect();
    found.sort();
    found.dedup();
    if found.len() < 2 || found[0] == prefix {
        return Ok(found.into_iter().next());
    }
    let count = found.len();
    let shown: Vec<String> = found
        .iter()
        .take(MAX_LISTED_CANDIDATES)
        .map(|id| format!("`{id}`"))
        .collect();
    let more = match count.saturating_sub(MAX_LISTED_CANDIDATES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!("`{prefix}` begins {count} IDs: {}{more}", shown.join(", "));
    let hint = format!("give more characters; `{list}` lists the IDs");
    Err(Error::usage(message, hint).into())
}

#[cfg(test)]
mod tests {
    use super::find_by_prefix;

    fn find(prefix: &str, ids: &[&str]) -> Result<Option<String>, String> {
        let ids = ids.iter().map(|id| (*id).to_owned());
        find_by_prefix(prefix, ids, "osctl runs").map_err(|error| error.to_string())
    }

    #[test]
    fn a_prefix_of_one_id_is_that_id() {
        assert_eq!(find("ab", &["abc", "b"]), Ok(Some("abc".into())));
        assert_eq!(find("b", &["abc", "b", "bc"]), Ok(Some("b".into())));
        assert_eq!(find("ab", &["abc", "abc"]), Ok(Some("abc".into())));
        assert_eq!(find("x", &["abc", "b"]), Ok(None));
        assert_eq!(find("", &["abc"]), Ok(None));
    }

    #[test]
    fn an_ambiguous_prefix_names_the_candidates() {
        assert_eq!(
            find("a", &["ab", "ac", "b"]),
            Err("`a` begins 2 IDs: `ab`, `ac`".into())
        );
        let many: Vec<String> = (0..9).map(|n| format!("a{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let error = find("a", &many).unwrap_err();
        assert!(error.ends_with("`a4` and 4 more"), "{error}");
    }
}
