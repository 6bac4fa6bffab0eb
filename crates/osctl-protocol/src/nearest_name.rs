//! The known name that a mistyped name probably means, for hints.

/// The known name nearest to `name`, if one edit or less is needed per `chars_per_edit` characters of the known name.
/// An edit inserts, removes or replaces a character, or swaps two neighbours.
pub fn nearest_name<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    chars_per_edit: usize,
) -> Option<&'a str> {
    let edits_to = |known: &'a str| {
        let max_edits = known.chars().count() / chars_per_edit;
        // The distance is at least the difference of the lengths, and expensive for a long name.
        let is_near = known.chars().count().abs_diff(name.chars().count()) <= max_edits;
        let edits = is_near.then(|| strsim::damerau_levenshtein(known, name))?;
        (edits <= max_edits).then_some((edits, known))
    };
    let near = known.into_iter().filter_map(edits_to);
    near.min_by_key(|(edits, _)| *edits).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::nearest_name;

    #[test]
    fn the_nearest_name_needs_the_fewest_edits_and_not_too_many() {
        let known = ["exec", "evolve", "limits.memory"];
        for (name, chars_per_edit, nearest) in [
            ("ecex", 2, Some("exec")),
            ("evlove", 3, Some("evolve")),
            ("limts.memory", 2, Some("limits.memory")),
            ("ecex", 3, None),
            ("xyz", 2, None),
            ("", 2, None),
        ] {
            assert_eq!(nearest_name(name, known, chars_per_edit), nearest, "{name}");
        }
        let long = "x".repeat(1 << 20);
        assert_eq!(nearest_name(&long, known, 2), None);
    }
}
