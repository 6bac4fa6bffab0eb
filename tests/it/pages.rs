//! Pages for the browser, served inside: see `tests/mcp/pages.py`.

use crate::harness::Home;

/// Serves them from a session of its own; the address of one.
#[track_caller]
pub(crate) fn page(home: &Home, name: &str) -> String {
    let code = include_str!("../mcp/pages.py");
    let port = home.ok(["exec", "--session", "pages", code]).stdout;
    format!("http://127.0.0.1:{}/{name}", port.trim())
}
