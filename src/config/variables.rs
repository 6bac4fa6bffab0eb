//! `OSCTL_*` variables that are not keys of the configuration.

use crate::error::nearest_name;

/// Variables of osctl that are not keys.
const NON_KEY_VARIABLES: &[&str] = &["OSCTL_INSTANCE", "OSCTL_CONFIG"];

/// Characters of a key's variable per edit, for a variable that counts as misspelt. The prefix counts, and other
/// variables may begin with it, too.
const CHARS_PER_VARIABLE_EDIT: usize = 6;

/// The key's variable that an unknown variable probably means.
pub(super) fn find_misspelt_key<'a>(
    name: &str,
    known: impl Iterator<Item = &'a String>,
) -> Option<&'a str> {
    if !name.starts_with("OSCTL_") || NON_KEY_VARIABLES.contains(&name) {
        return None;
    }
    let others = known.map(String::as_str).filter(|key| *key != name);
    nearest_name(name, others, CHARS_PER_VARIABLE_EDIT)
}

#[cfg(test)]
mod tests {
    use super::find_misspelt_key;

    #[test]
    fn a_variable_that_looks_like_a_key_is_reported_with_the_nearest_key() {
        let known = [
            "OSCTL_LIMITS_MEMORY",
            "OSCTL_ENV",
            "OSCTL_BASE",
            "OSCTL_BODY",
            "OSCTL_CRIU",
            "OSCTL_CRYO_EVERY",
        ]
        .map(str::to_owned);
        let meant = |name: &str| find_misspelt_key(name, known.iter());
        assert_eq!(meant("OSCTL_LIMITS_MEMRY"), Some("OSCTL_LIMITS_MEMORY"));
        assert_eq!(meant("OSCTL_CRYO_EVRY"), Some("OSCTL_CRYO_EVERY"));
        for name in [
            "OSCTL_TEST_SUFFIX",
            "OSCTL_CONFIG",
            "OSCTL_INSTANCE",
            "LIMITS_MEMRY",
            "OSCTL_JSON",
            "OSCTL_NODE",
        ] {
            assert_eq!(meant(name), None, "{name}");
        }
    }
}
