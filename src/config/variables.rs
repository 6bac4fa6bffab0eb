//! `OSCTL_*` variables that are not keys of the configuration.

/// Variables of osctl that are not keys.
const NON_KEY_VARIABLES: &[&str] = &["OSCTL_INSTANCE", "OSCTL_CONFIG"];

/// The minimum similarity at which an unknown variable counts as a misspelt key.
const MIN_KEY_SIMILARITY: f64 = 0.9;

/// The key's variable that an unknown variable probably means.
pub(super) fn find_misspelt_key<'a>(
    name: &str,
    known: impl Iterator<Item = &'a String>,
) -> Option<&'a String> {
    let own = name.strip_prefix("OSCTL_")?;
    if NON_KEY_VARIABLES.contains(&name) {
        return None;
    }
    let alike = |key: &str| strsim::jaro_winkler(own, key.strip_prefix("OSCTL_").unwrap_or(key));
    let scored = known
        .filter(|key| *key != name)
        .map(|key| (alike(key), key));
    scored
        .filter(|(score, _)| *score > MIN_KEY_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::find_misspelt_key;

    #[test]
    fn a_variable_that_looks_like_a_key_is_reported_with_the_nearest_key() {
        let known = [
            "OSCTL_LIMITS_MEMORY",
            "OSCTL_ENV",
            "OSCTL_CRIU",
            "OSCTL_CRYO_EVERY",
        ]
        .map(str::to_owned);
        let meant = |name: &str| find_misspelt_key(name, known.iter()).map(String::as_str);
        assert_eq!(meant("OSCTL_LIMITS_MEMRY"), Some("OSCTL_LIMITS_MEMORY"));
        assert_eq!(meant("OSCTL_CRYO_EVRY"), Some("OSCTL_CRYO_EVERY"));
        for name in [
            "OSCTL_TEST_SUFFIX",
            "OSCTL_CONFIG",
            "OSCTL_INSTANCE",
            "LIMITS_MEMRY",
            "OSCTL_JSON",
        ] {
            assert_eq!(meant(name), None, "{name}");
        }
    }
}
