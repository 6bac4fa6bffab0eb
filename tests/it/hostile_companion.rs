//! A companion that the agent has replaced: nothing that it answers acts on the host.

use crate::fake_companion::{FakeCompanion, respond};
use crate::trials;
use serde_json::json;

trials![
    a_redirect_of_the_companion_is_not_followed,
    the_desktop_opens_no_address_that_the_companion_chose,
];

fn a_redirect_of_the_companion_is_not_followed() {
    let service = FakeCompanion::start(|_, stream| respond(stream, "200 OK", &[], b"{}"));
    let location = format!(
        "http://127.0.0.1:{}/build?remote=http://evil.example",
        service.port
    );
    let companion = FakeCompanion::start(move |_, stream| {
        let headers = [("Location", location.as_str())];
        respond(stream, "307 Temporary Redirect", &headers, b"");
    });
    let home = companion.home("redirected");
    for verb in [
        &["exec", "secret = 1"][..],
        &["status"],
        &["runs"],
        &["mcp", "list"],
    ] {
        let ran = home.run(verb);
        assert!(service.requests().is_empty(), "{verb:?}: {ran:?}");
    }
    let asked = companion.requests();
    assert!(
        asked
            .iter()
            .any(|r| r.path == "/exec" && r.method == "POST"),
        "{asked:?}"
    );
}

fn the_desktop_opens_no_address_that_the_companion_chose() {
    for path in [
        "@evil.example/phish?x=1",
        "/desktop/enter?code=0@evil",
        "/files/x\u{1b}[2J",
    ] {
        let companion = FakeCompanion::start(move |_, stream| {
            let link = json!({"path": path, "expires": 120});
            respond(stream, "200 OK", &[], link.to_string().as_bytes());
        });
        let home = companion.home("desktop-link");
        let ran = home.run(["desktop", "--url"]);
        assert!(ran.code != 0 && ran.stdout.is_empty(), "{ran:?}");
        assert!(!ran.stderr.contains('\u{1b}'), "{ran:?}");
    }
}
