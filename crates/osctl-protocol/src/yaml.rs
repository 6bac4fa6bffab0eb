//! A check of YAML that an agent may have written.

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

#[cfg(test)]
mod tests {
    use super::has_anchor;

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
