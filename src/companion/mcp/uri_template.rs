//! Whether a URI can be one that a template of RFC 6570 makes.

/// How many bytes of the template the URI has as they stand there, so that the closest of several is known; nothing
/// when it does not fit.
pub(super) fn match_template(template: &str, uri: &str) -> Option<usize> {
    let (mut parts, mut last) = (Vec::new(), template);
    while let Some((literal, rest)) = last.split_once('{') {
        let (expression, rest) = rest.split_once('}')?;
        parts.push((literal, expression));
        last = rest;
    }
    // By the place in the URI: how well what begins there fits the template's end. From that end on, so that no place
    // is looked at once more for each way that leads there.
    let bytes = uri.as_bytes();
    let begins = |at: usize, with: &str| bytes[at..].starts_with(with.as_bytes());
    let places = || 0..=bytes.len();
    let end = bytes.len().checked_sub(last.len());
    let mut fit: Vec<Option<usize>> = places()
        .map(|at| (Some(at) == end && begins(at, last)).then_some(last.len()))
        .collect();
    for (literal, expression) in parts.into_iter().rev() {
        let behind = match_expression(expression, bytes, &fit);
        let count = |at: usize| match uri.is_char_boundary(at) && begins(at, literal) {
            true => Some(behind[at + literal.len()]? + literal.len()),
            false => None,
        };
        fit = places().map(count).collect();
    }
    fit[0]
}

/// By the place in the URI: how well the template can fit from an expression on, where its rest fits like that.
fn match_expression(expression: &str, uri: &[u8], rest: &[Option<usize>]) -> Vec<Option<usize>> {
    let (operator, ends): (Option<u8>, &[u8]) = match expression.bytes().next() {
        Some(b'+') => (None, b""),
        Some(by @ b'#') => (Some(by), b""),
        Some(by @ (b'?' | b'&')) => (Some(by), b"#"),
        Some(by @ b'/') => (Some(by), b"?#"),
        Some(by @ (b'.' | b';')) => (Some(by), b"/?#"),
        _ => (None, b"/?#"),
    };
    // The best of all places that are reached from there on.
    let mut best = rest.to_vec();
    for at in (0..uri.len()).rev() {
        if !ends.contains(&uri[at]) {
            best[at] = best[at].max(best[at + 1]);
        }
    }
    let from = |at: usize| {
        let next = uri.get(at)?;
        let further = best[at + 1];
        match operator {
            Some(operator) if *next == operator => rest[at].max(further),
            // It begins with its operator, and may be left out as a whole.
            Some(_) => rest[at],
            None if ends.contains(next) => None,
            None => further,
        }
    };
    let at_end = operator.and(rest[uri.len()]);
    let before = (0..uri.len()).map(from);
    before.chain([at_end]).collect()
}

#[cfg(test)]
mod tests {
    use super::match_template;

    #[test]
    fn uris_fit_the_templates_that_make_them() {
        for (template, uri) in [
            ("os://runs/{id}", "os://runs/run-1"),
            ("os://runs/{id}/{stream}", "os://runs/run-1/stdout"),
            ("file:///{+path}", "file:///root/a%20b/c.txt"),
            ("a:{x}-{y}.txt", "a:1-2-3.txt"),
            ("a:x{/path*}", "a:x/1/2"),
            ("a:x{/path*}", "a:x"),
            ("a:x{?q,n}", "a:x?q=1&n=2"),
            ("a:x{?q}", "a:x"),
            ("a:x?f=1{&q}", "a:x?f=1&q=2"),
            ("a:x{#part}", "a:x#p/q"),
            ("a:x{.kind}", "a:x.txt"),
            ("a:{é}", "a:é"),
            ("a:x", "a:x"),
        ] {
            assert!(match_template(template, uri).is_some(), "{template} {uri}");
        }
        for (template, uri) in [
            ("os://runs/{id}", "os://runs/run-1/stdout"),
            ("os://runs/{id}", "os://runs/"),
            ("os://runs/{id}", "os://screen"),
            ("file:///{+path}", "file:///"),
            ("a:x{?q}", "a:x/q"),
            ("a:x{.kind}", "a:xtxt"),
            ("a:x", "a:x/"),
            ("a:{x", "a:1"),
        ] {
            assert_eq!(match_template(template, uri), None, "{template} {uri}");
        }
        // Ways that lead nowhere are not gone twice.
        let many = "a:".to_owned() + &"{+x}-{x}".repeat(40) + "!";
        assert_eq!(
            match_template(&many, &("a:".to_owned() + &"-".repeat(20_000))),
            None
        );
        assert_eq!(match_template("a:{x}{y}", "a:é"), None);
        assert_eq!(match_template("a:{x}-{y}", "a:--b"), Some(3));
        // The closest is the one with more of its own words.
        assert!(match_template("a:b/{x}", "a:b/c") > match_template("a:{+x}", "a:b/c"));
    }
}
