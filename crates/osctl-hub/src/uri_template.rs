//! Matches a URI against a template of RFC 6570.

/// The number of literal bytes of the template in the URI, to find the closest of several templates; `None` if the
/// URI does not match.
pub(super) fn match_template(template: &str, uri: &str) -> Option<usize> {
    let (mut parts, mut last) = (Vec::new(), template);
    while let Some((literal, rest)) = last.split_once('{') {
        let (expression, rest) = rest.split_once('}')?;
        parts.push((literal, expression));
        last = rest;
    }
    // `fit[at]` is the match of the URI from `at` on with the end of the template. The table is built from the
    // template's end, so that each place is evaluated once, however many ways lead to it.
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

/// For each place of the URI: the best match from this expression on, given the matches of the rest of the template.
fn match_expression(expression: &str, uri: &[u8], rest: &[Option<usize>]) -> Vec<Option<usize>> {
    let (operator, ends): (Option<u8>, &[u8]) = match expression.bytes().next() {
        Some(b'+') => (None, b""),
        Some(by @ b'#') => (Some(by), b""),
        Some(by @ (b'?' | b'&')) => (Some(by), b"#"),
        Some(by @ b'/') => (Some(by), b"?#"),
        Some(by @ (b'.' | b';')) => (Some(by), b"/?#"),
        _ => (None, b"/?#"),
    };
    // The best match of all places that can follow.
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
            // The expression starts with its operator, or is omitted as a whole.
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
    fn uris_match_the_templates_that_make_them() {
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
        // The run time does not grow exponentially with the number of expressions.
        let many = "a:".to_owned() + &"{+x}-{x}".repeat(40) + "!";
        assert_eq!(
            match_template(&many, &("a:".to_owned() + &"-".repeat(20_000))),
            None
        );
        assert_eq!(match_template("a:{x}{y}", "a:é"), None);
        assert_eq!(match_template("a:{x}-{y}", "a:--b"), Some(3));
        // The closest template has more literal bytes.
        assert!(match_template("a:b/{x}", "a:b/c") > match_template("a:{+x}", "a:b/c"));
    }
}
