//! TeX without commands that act.

use std::borrow::Cow;

/// Commands with which MathJax and KaTeX make links, load extensions or write attributes.
const ACTIVE_TEX: [&str; 13] = [
    "href",
    "url",
    "require",
    "html",
    "class",
    "cssid",
    "style",
    "data",
    "includegraphics",
    "mmltoken",
    "bbox",
    // Makes a command of any name.
    "csname",
    // May name a font, which may be any style, after blanks and tags.
    "unicode",
];

/// TeX without active commands: another character replaces their backslash, so their name is displayed.
pub(crate) fn disable_active_tex(text: &str) -> Cow<'_, str> {
    let acts = |at: usize| {
        let after = text.as_bytes()[at + 1..].iter();
        let name: Vec<u8> = after.take(16).map(u8::to_ascii_lowercase).collect();
        ACTIVE_TEX
            .iter()
            .any(|command| name.starts_with(command.as_bytes()))
    };
    let mut found = text
        .match_indices('\\')
        .map(|(at, _)| at)
        .filter(|at| acts(*at))
        .peekable();
    if found.peek().is_none() {
        return text.into();
    }
    let mut quiet = String::with_capacity(text.len());
    let mut begin = 0;
    for at in found {
        quiet.push_str(&text[begin..at]);
        quiet.push('\u{2216}');
        begin = at + 1;
    }
    quiet.push_str(&text[begin..]);
    quiet.into()
}
