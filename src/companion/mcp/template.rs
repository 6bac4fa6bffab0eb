//! Whether a URI can be one that a template of RFC 6570 makes.

/// How many bytes of the template the URI has as they stand there, so that the closest of several is known; nothing
/// when it does not fit.
pub(super) fn fits(template: &str, uri: &str) -> Option<usize> {
    let (literal, rest) = match template.find('{') {
        Some(at) => template.split_at(at),
        None => (template, ""),
    };
    let uri = uri.strip_prefix(literal)?;
    let Some(expression) = rest.strip_prefix('{') else {
        return uri.is_empty().then_some(literal.len());
    };
    let (expression, rest) = expression.split_once('}')?;
    let end = reach(expression, uri);
    let least = usize::from(!may_be_empty(expression));
    let ends = (least..=end).filter(|at| uri.is_char_boundary(*at));
    let rests = ends.filter_map(|at| fits(rest, &uri[at..]));
    rests.max().map(|count| count + literal.len())
}

/// An expression with an operator of its own begins with that, and may be left out as a whole.
fn may_be_empty(expression: &str) -> bool {
    expression.starts_with(['#', '.', '/', ';', '?', '&'])
}

/// How much of the URI an expression can be at most.
fn reach(expression: &str, uri: &str) -> usize {
    let until = |ends: &[char]| uri.find(ends).unwrap_or(uri.len());
    let begun = |by: char, ends: &[char]| match uri.strip_prefix(by) {
        Some(rest) => 1 + rest.find(ends).unwrap_or(rest.len()),
        None => 0,
    };
    match expression.chars().next() {
        Some('+') => uri.len(),
        Some('#') => begun('#', &[]),
        Some(by @ ('?' | '&')) => begun(by, &['#']),
        Some('/') => begun('/', &['?', '#']),
        Some(by @ ('.' | ';')) => begun(by, &['/', '?', '#']),
        _ => until(&['/', '?', '#']),
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

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
            assert!(fits(template, uri).is_some(), "{template} {uri}");
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
            assert_eq!(fits(template, uri), None, "{template} {uri}");
        }
        // The closest is the one with more of its own words.
        assert!(fits("a:b/{x}", "a:b/c") > fits("a:{+x}", "a:b/c"));
    }
}
