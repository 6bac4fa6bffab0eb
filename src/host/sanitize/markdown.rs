//! Markdown, passed unchanged or as HTML without active content.

use super::tex::disable_active_tex;
use super::{DIAGRAM_KEYWORD, is_external_address, sanitize_html};
use pulldown_cmark::{Event, Options, Parser};
use std::borrow::Cow;

/// Markdown without HTML, images, diagrams, active links, links to the page's own server, or character references;
/// `None` if the text has any of these.
pub(crate) fn plain_markdown(text: &str) -> Option<Cow<'_, str>> {
    let is_plain = !text.contains(['<', '&'])
        && !text.contains("![")
        && has_no_code_address(text)
        && !text.to_lowercase().contains(DIAGRAM_KEYWORD)
        && has_only_external_links(text);
    is_plain.then(|| disable_active_tex(text))
}

/// Markdown as HTML without active content.
pub(crate) fn markdown_as_html(text: &str) -> String {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_MATH;
    // The front end renders formulas.
    let events = Parser::new_ext(text, options).map(|event| match event {
        Event::InlineMath(tex) => Event::Text(format!("${tex}$").into()),
        Event::DisplayMath(tex) => Event::Text(format!("$${tex}$$").into()),
        other => other,
    });
    let mut html = String::new();
    pulldown_cmark::html::push_html(&mut html, events);
    sanitize_html(&html)
}

/// Whether a text has no address that runs code, also with other characters between its letters.
fn has_no_code_address(text: &str) -> bool {
    let solid: String = text
        .chars()
        .filter(|c| !c.is_whitespace() && !c.is_control() && *c != '\\')
        .flat_map(char::to_lowercase)
        .collect();
    !["javascript:", "vbscript:", "data:", "file:"]
        .iter()
        .any(|scheme| solid.contains(scheme))
}

/// Whether every possible link address leads to another server, for every front end's interpretation. JupyterLab opens
/// a relative address as a file of its server.
fn has_only_external_links(text: &str) -> bool {
    text.match_indices(']').all(|(at, _)| {
        let after = &text[at + 1..];
        match after.strip_prefix(['(', ':']) {
            Some(address) => is_external_address(address),
            None => true,
        }
    })
}
