//! A container of an earlier osctl, whose companion has no proof of identity: osctl names it and can stop it, and it
//! never gets the token.

use crate::evolve::{containers, engine};
use crate::fake_companion::{FakeCompanion, respond};
use crate::harness::{Home, shared};
use crate::ports::free_port;
use crate::second_engine::until;
use crate::trials;
use serde_json::json;
use std::fs;

trials![
    a_companion_without_a_proof_is_older_only_if_the_engine_knows_its_container,
    an_older_companion_is_named_and_stopped_and_never_gets_the_token,
];

/// Answers as a companion without the proof did, and records its requests.
const OLDER: &str = r#"
import http.server

class Older(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with open("/seen/requests", "a") as seen:
            seen.write(f"{self.command} {self.path}\n{self.headers}")
        answer = b'{"status":"ok"}'
        self.send_response(200)
        self.send_header("osctl-protocol", "1")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PUT = do_GET

http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Older).serve_forever()
"#;

fn a_companion_without_a_proof_is_older_only_if_the_engine_knows_its_container() {
    let stranger = FakeCompanion::start_without_proof(|_, stream| {
        respond(stream, "200 OK", &[], b"{\"status\":\"ok\"}");
    });
    let home = stranger.home("it-no-proof");
    let ran = home.run(["exec", "secret = 1"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    let words = "does not belong to the container";
    assert!(ran.stderr.contains(words), "{ran:?}");
    assert!(!ran.stderr.contains("earlier osctl"), "{ran:?}");
}

fn an_older_companion_is_named_and_stopped_and_never_gets_the_token() {
    // Only the record and the token are of the fake companion; the container listens.
    let mut companion = FakeCompanion::start(|_, _| {});
    companion.port = free_port();
    let home = companion.home("it-older");
    let seen = home.folder.join("seen");
    fs::create_dir_all(&seen).unwrap();
    run_older(&home, companion.port, &seen);
    let requests = seen.join("requests");
    until("an answer", || {
        home.run(["sessions"]).stderr.contains("earlier osctl")
    });
    let up = format!(
        "`osctl --instance {} up` replaces the companion",
        home.instance
    );
    for verb in [
        &["exec", "secret = 1"][..],
        &["shell", "true"],
        &["mcp", "list"],
    ] {
        let ran = home.run(verb);
        assert_eq!(ran.code, 3, "{verb:?}: {ran:?}");
        assert!(ran.stderr.contains("earlier osctl"), "{verb:?}: {ran:?}");
        assert!(ran.stderr.contains(&up), "{verb:?}: {ran:?}");
    }
    let status = home.json(["status"]);
    assert_eq!(status["state"], "running", "{status}");
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("earlier osctl"), "{status}");
    let doctor = home.json(["doctor"]);
    let of = doctor["findings"].as_array().unwrap().iter();
    let mut of = of.filter(|finding| finding["name"] == "companion");
    let cure = of.next().unwrap()["hint"].to_string();
    assert!(cure.contains(&up), "{doctor:#}");
    let down = home.ok(["down"]);
    assert!(down.stderr.contains("earlier osctl"), "{down:?}");
    assert_eq!(containers(&home), [""; 0]);
    let asked = fs::read_to_string(requests).unwrap();
    assert!(asked.contains("GET /ping?nonce="), "{asked}");
    for word in ["authorization", "osctl_", "secret", "POST", "/exec"] {
        assert!(!asked.to_lowercase().contains(word), "{word}: {asked}");
    }
    home.down();
}

fn run_older(home: &Home, port: u16, seen: &std::path::Path) {
    let image = format!("os-{}:latest", shared().instance);
    let wanted = json!({
        "Image": image,
        "Entrypoint": ["python3", "-c", OLDER],
        "Cmd": [],
        "WorkingDir": "/",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {"osctl.instance": home.instance},
        "ExposedPorts": {"8080/tcp": {}},
        "HostConfig": {
            "Binds": [format!("{}:/seen", seen.display())],
            "PortBindings": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": port.to_string()}]},
        },
    });
    let engine = engine(home);
    let name = home.container();
    let made = engine.send("POST", &format!("/containers/create?name={name}"), &wanted);
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let started = engine.send("POST", &format!("/containers/{name}/start"), &json!(null));
    assert_eq!(
        started.status,
        204,
        "{}",
        String::from_utf8_lossy(&started.body)
    );
}
