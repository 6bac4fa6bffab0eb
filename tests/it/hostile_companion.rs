//! A companion that the agent has replaced: none of its answers acts on the host.

use crate::completions::complete;
use crate::fake_companion::{FakeCompanion, Request, respond, respond_without_end};
use crate::ports::free_port;
use crate::trials;
use crate::web::Page;
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

trials![
    a_redirect_of_the_companion_is_not_followed,
    the_desktop_opens_no_address_that_the_companion_chose,
    a_browser_that_cannot_resolve_the_name_gets_the_address,
    the_token_goes_to_no_other_listener,
    each_connection_is_verified_before_the_token_is_sent,
    a_stopped_instance_is_still_reported_as_stopped,
    an_answer_without_an_end_is_abandoned,
    pages_of_the_companion_get_no_cookie_of_another_local_application,
    an_answer_that_counts_more_bytes_than_were_sent_is_refused,
];

fn a_redirect_of_the_companion_is_not_followed() {
    let service = FakeCompanion::start(|_, stream| respond(stream, "404 Not Found", &[], b"{}"));
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
        &["status"][..],
        &["runs"],
        &["mcp", "list"],
        &["exec", "secret = 1"],
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

fn a_browser_that_cannot_resolve_the_name_gets_the_address() {
    let companion = FakeCompanion::start(|_, stream| {
        let link = json!({"path": "/desktop/enter?code=00ff", "expires": 120});
        respond(stream, "200 OK", &[], link.to_string().as_bytes());
    });
    let mut home = companion.home("unknown-name");
    let path = format!("{}/desktop/enter?code=00ff", companion.port);
    let ran = home.ok(["desktop", "--url"]);
    assert!(
        ran.stdout.contains(&format!(".localhost:{path}")),
        "{ran:?}"
    );
    let address = format!("open http://127.0.0.1:{path} or use another browser");
    for words in ["Safari", &address] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    // osctl opens the browser only on macOS.
    let opener = home.folder.join("xdg-open");
    std::fs::write(&opener, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&opener, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", home.folder.display());
    home.env
        .extend([("PATH".into(), path), ("DISPLAY".into(), ":7".into())]);
    let ran = home.ok(["desktop"]);
    assert!(ran.stderr.contains("desktop --url`"), "{ran:?}");
    let is_told = ran.stderr.contains("Safari") || ran.stderr.contains("127.0.0.1");
    assert_eq!(is_told, cfg!(target_os = "macos"), "{ran:?}");
    // Without a browser, `xdg-open` fails, and osctl prints the link.
    std::fs::write(&opener, "#!/bin/sh\nexit 3\n").unwrap();
    home.env
        .insert("PATH".into(), home.folder.display().to_string());
    let ran = home.ok(["desktop"]);
    assert!(
        ran.stdout.contains("http://") && ran.stderr.contains("no browser was opened"),
        "{ran:?}"
    );
}

fn the_token_goes_to_no_other_listener() {
    let stranger = FakeCompanion::start_without_token(|_, stream| {
        respond(stream, "200 OK", &[], b"{}");
    });
    let home = stranger.home("stranger");
    let kernelspec = home.run(["jupyter", "list"]);
    assert_eq!(kernelspec.code, 0, "{kernelspec:?}");
    for verb in [
        &["sessions"][..],
        &["exec", "secret = 1"],
        &["shell", "true"],
        &["cp", "-", "os:/root/x"],
        &["mcp", "list"],
        &["mcp", "tools"],
        &["desktop", "--url"],
    ] {
        let ran = home.run(verb);
        assert_got_nothing(&stranger);
        assert_eq!(ran.code, 4, "{verb:?}: {ran:?}");
        let owner = format!("process {}", std::process::id());
        for words in ["does not belong to the container", &owner, "hint"] {
            assert!(ran.stderr.contains(words), "{verb:?}: {ran:?}");
        }
    }
    complete(&home, &["--instance", &home.instance, "attach", ""]);
    assert_got_nothing(&stranger);
    let asked = stranger.requests();
    assert!(asked.len() >= 8, "{asked:?}");
    for request in asked {
        assert!(request.path.starts_with("/ping?nonce="), "{request:?}");
    }
}

/// The listener got neither the token nor what the user sends.
#[track_caller]
fn assert_got_nothing(listener: &FakeCompanion) {
    for request in listener.requests() {
        assert!(
            !request.headers.contains_key("authorization"),
            "{request:?}"
        );
        assert!(request.body.is_empty(), "{request:?}");
    }
}

fn each_connection_is_verified_before_the_token_is_sent() {
    let companion = FakeCompanion::start(|_, stream| {
        // The next request needs another connection.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let home = companion.home("proven");
    let ran = home.run(["cp", "os:/root/x", "."]);
    assert_ne!(ran.code, 0, "{ran:?}");
    let asked = companion.requests();
    let paths: Vec<&str> = asked.iter().map(|r| &r.path[..5]).collect();
    assert!(paths.len() >= 2, "{paths:?}");
    for pair in paths.chunks(2) {
        assert_eq!(pair, ["/ping", "/file"], "{paths:?}");
    }
}

fn a_stopped_instance_is_still_reported_as_stopped() {
    let companion = FakeCompanion::start(|_, _| {});
    let home = companion.home("stopped");
    let record = home.state().join("instance.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let text = text.replace(&companion.port.to_string(), &free_port().to_string());
    std::fs::write(&record, text).unwrap();
    let ran = home.run(["exec", "1"]);
    assert!(ran.stderr.contains("is not running"), "{ran:?}");
}

/// The most that the host reads of an answer: 64 MiB, and what the buffers of two sockets hold.
const MAX_TAKEN_BYTES: usize = 80 << 20;

fn an_answer_without_an_end_is_abandoned() {
    let (done, finished) = mpsc::channel();
    let companion = FakeCompanion::start(move |_, stream| {
        let piece = vec![b'7'; 1 << 20];
        let sent = respond_without_end(stream, "application/json", b"{\"x\":\"", &piece);
        done.send(sent).unwrap();
    });
    let mut home = companion.home("endless");
    // A client that reads the whole answer fails here, before the machine's memory is full.
    let limit = ["prlimit", "--as=4294967296", "--"];
    home.wrapper = limit.map(str::to_owned).to_vec();
    for verb in [
        &["sessions"][..],
        &["exec", "1"],
        &["mcp", "tools"],
        &["cryo", "store"],
    ] {
        let ran = home.run(verb);
        assert_ne!(ran.code, 0, "{verb:?}: {ran:?}");
        assert!(
            ran.stderr.contains("longer than 67108864 bytes"),
            "{verb:?}: {ran:?}"
        );
        assert!(ran.stderr.len() + ran.stdout.len() < 10_000, "{verb:?}");
        let taken = finished.recv().unwrap();
        assert!((1..MAX_TAKEN_BYTES).contains(&taken), "{verb:?}: {taken}");
    }
}

/// The cookie of an application that listens on another port of loopback.
const COOKIE: &str = "app_session=secret; HttpOnly; SameSite=Strict; Path=/";

fn pages_of_the_companion_get_no_cookie_of_another_local_application() {
    let application = FakeCompanion::start(|_, stream| {
        respond(stream, "200 OK", &[("Set-Cookie", COOKIE)], b"application");
    });
    let act = format!("http://127.0.0.1:{}/act", application.port);
    let script = format!(
        "<title>hostile</title><script>\
         fetch('{act}', {{method: 'POST', mode: 'no-cors', credentials: 'include', body: 'x'}})\
         .finally(() => {{ document.title = 'acted'; }})</script>"
    );
    let companion = FakeCompanion::start(move |request, stream| match request.path.as_str() {
        "/desktop/link" => {
            let link = json!({"path": "/desktop/enter?code=00ff", "expires": 120});
            respond(stream, "200 OK", &[], link.to_string().as_bytes());
        }
        _ => {
            let kind = [("Content-Type", "text/html")];
            respond(stream, "200 OK", &kind, script.as_bytes());
        }
    });
    let home = companion.home("cookies");
    let url = home.ok(["desktop", "--url"]).stdout;
    let login = format!("http://127.0.0.1:{}/login", application.port);
    let mut page = Page::open(&login, (800, 600));
    page.until("document.body.innerText === 'application'");
    page.go(url.lines().next().unwrap());
    page.until("document.title === 'acted'");
    // The user's own request has the cookie; otherwise this trial shows nothing.
    page.go(&login);
    page.until("document.body.innerText === 'application'");
    let cookie = |request: &Request| request.headers.get("cookie").cloned();
    let asked = application.requests();
    let logins: Vec<_> = asked.iter().filter(|r| r.path == "/login").collect();
    assert_eq!(
        cookie(logins.last().unwrap()).as_deref(),
        Some("app_session=secret")
    );
    let entered = companion.requests();
    assert!(
        entered.iter().any(|r| r.path.starts_with("/desktop/enter")),
        "{entered:?}"
    );
    for request in &entered {
        assert_eq!(cookie(request), None, "{request:?}");
    }
    for request in asked.iter().filter(|r| r.path == "/act") {
        assert_eq!(cookie(request), None, "{request:?}");
    }
}

fn an_answer_that_counts_more_bytes_than_were_sent_is_refused() {
    let companion = FakeCompanion::start(|request, stream| match request.method.as_str() {
        "PUT" => drop(stream.shutdown(std::net::Shutdown::Both)),
        _ if request.path.contains("upload=") => {
            let most = u64::MAX.to_string();
            let headers = [("upload-offset", most.as_str()), ("upload-form", "00")];
            respond(stream, "200 OK", &headers, b"");
        }
        _ => {
            let error = json!({"type": "no_file", "message": "there is nothing"});
            let failed = json!({"status": "failed", "error": error});
            respond(stream, "404 Not Found", &[], failed.to_string().as_bytes());
        }
    });
    let home = companion.home("arrived");
    std::fs::create_dir(home.project.join("folder")).unwrap();
    for name in ["file", "folder/file"] {
        std::fs::write(home.project.join(name), "1234").unwrap();
    }
    for name in ["file", "folder"] {
        let ran = home.run(["cp", name, "os:/root/new"]);
        assert!((1..=5).contains(&ran.code), "{name}: {ran:?}");
    }
    let asked = companion.requests();
    assert!(asked.iter().any(|r| r.method == "HEAD"), "{asked:?}");
}
