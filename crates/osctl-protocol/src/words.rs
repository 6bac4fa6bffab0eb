//! Words of messages that depend on a number.

/// A count with its noun: `1 variable`, `2 variables`.
pub fn count_noun(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::count_noun;

    #[test]
    fn one_has_no_plural() {
        assert_eq!(count_noun(1, "variable"), "1 variable");
        assert_eq!(count_noun(0, "variable"), "0 variables");
    }
}
