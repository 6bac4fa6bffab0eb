//! Pages for the browser, served in the container: see `tests/mcp/pages.py`.

use crate::harness::Home;

const CODE: &str = include_str!("../mcp/pages.py");

/// Serves the pages from a separate session; the address of one page.
#[track_caller]
pub(crate) fn page(home: &Home, name: &str) -> String {
    let port = home.ok(["exec", "--session", "pages", CODE]).stdout;
    format!("http://127.0.0.1:{}/{name}", port.trim())
}

/// Serves the pages again at the same address.
#[track_caller]
pub(crate) fn serve_again(home: &Home, address: &str) {
    let (authority, _) = address.rsplit_once('/').unwrap();
    let (_, port) = authority.rsplit_once(':').unwrap();
    let code = CODE.replace("127.0.0.1\", 0", &format!("127.0.0.1\", {port}"));
    assert_ne!(code, CODE);
    home.ok(["exec", "--session", "pages", &code]);
}
