//! Trials of attacks from inside through the keeper's socket, and of the rights of the keeper.

use crate::evolve::{DOCKERFILE, assert_one_that_remembers, remember, small, write};
use crate::harness::{Engine, Home};
use crate::second_engine::until;
use crate::trials;
use serde_json::json;
use std::fs;
use std::io::Read;

trials![
    the_keepers_socket_accepts_nothing_but_requests_for_runs,
    many_requests_about_large_bodies_leave_the_keeper_running,
    the_keeper_has_only_the_rights_that_it_needs,
    the_number_of_runs_from_inside_is_limited_per_hour,
];

/// Code for the kernel that sends a line to the keeper; the result is the keeper's answer.
pub(crate) const ASK: &str = r#"
import json, socket
def ask(line):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30)
        s.connect("/run/os/keeper.sock")
        s.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        s.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: s.recv(65536), b"")).decode()
"#;

fn keeper(home: &Home) -> String {
    format!("os-keeper-{}", home.instance)
}

fn the_keepers_socket_accepts_nothing_but_requests_for_runs() {
    let home = small("it-escape");
    home.up();
    remember(&home);
    let api = home.api();
    api.exec(ASK);
    let run = |code: &str| {
        let reply = api.exec(code);
        assert_eq!(reply["status"], "completed", "{reply}");
        reply["stdout"].as_str().unwrap().to_owned()
    };
    for (request, refusal) in [
        (
            r#"{"ask": "evolve", "image": "debian"}"#,
            "unknown field `image`",
        ),
        (
            r#"{"ask": "evolve", "mounts": ["/:/x"]}"#,
            "unknown field `mounts`",
        ),
        (
            r#"{"ask": "evolve", "capabilities": ["ALL"]}"#,
            "unknown field `capabilities`",
        ),
        (
            r#"{"ask": "evolve", "env": {"A": "b"}}"#,
            "unknown field `env`",
        ),
        (
            r#"{"ask": "remove", "container": "os-keeper"}"#,
            "unknown variant `remove`",
        ),
        (
            r#"{"ask": "exec", "command": ["sh"]}"#,
            "unknown variant `exec`",
        ),
        (
            r#"{"ask": "rollback", "run": "../../../etc"}"#,
            "is not the ID of an evolve",
        ),
        (
            r#"{"ask": "rollback", "run": "20200101-000000"}"#,
            "did not succeed",
        ),
        (
            r#"{"ask": "show", "run": "20200101-000000"}"#,
            "does not exist",
        ),
        (r#"{"ask": "stop"}"#, "only the host can stop"),
        (
            r#"b"GET /containers/json HTTP/1.1\r\n\r\n""#,
            "is malformed",
        ),
        (r#"b"x" * 100000"#, "longer than"),
        (
            r#"{"ask": "evolve", "reason": "x" * 2000}"#,
            "reason is longer",
        ),
    ] {
        let answer = run(&format!("print(ask({request}))"));
        assert!(
            answer.contains(r#""reply":"refused""#) && answer.contains(refusal),
            "{request}: {answer}"
        );
        assert_logged(&home, "the keeper refused a request", refusal);
    }
    // The socket's folder is read-only, and the keeper's files are not in the container.
    for attempt in [
        "open('/run/os/x', 'w')",
        "__import__('os').remove('/run/os/keeper.sock')",
        "__import__('os').mkdir('/state')\nopen('/state/deploy-config.json')",
        "open('/var/run/docker.sock')",
    ] {
        let reply = api.exec(attempt);
        assert_eq!(reply["status"], "failed", "{attempt}: {reply}");
    }
    assert_eq!(home.json(["evolve", "history"])["runs"], json!([]));
    assert_one_that_remembers(&home);
    home.down();
}

/// Code for the kernel that sends as many requests at the same time as the keeper accepts: first without reading the
/// whole answers, then with `ask`.
const FLOOD: &str = r#"
from concurrent.futures import ThreadPoolExecutor
def hold(_):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect("/run/os/keeper.sock")
    s.sendall(json.dumps({"ask": "body", "run": run}).encode() + b"\n")
    return s, s.recv(16)
with ThreadPoolExecutor(32) as pool:
    held = list(pool.map(hold, range(32)))
    assert all(first for _, first in held)
    for s, _ in held: s.close()
    answers = list(pool.map(lambda _: ask({"ask": "diff", "run": run}), range(32)))
sorted({a[:16] for a in answers})
"#;

fn many_requests_about_large_bodies_leave_the_keeper_running() {
    let home = small("it-escape-flood");
    home.up();
    // Random bytes cannot be compressed; a rule refuses the body after the keeper has stored it.
    write(&home, "Dockerfile", "FROM debian\n");
    let mut random = fs::File::open("/dev/urandom").unwrap().take(63 << 20);
    let big = home.project.join("body/big");
    std::io::copy(&mut random, &mut fs::File::create(&big).unwrap()).unwrap();
    let run = home.json(["evolve"])["id"].as_str().unwrap().to_owned();
    let api = home.api();
    api.exec(ASK);
    let reply = api.exec(&format!("run = {run:?}\n{FLOOD}"));
    let found = Engine
        .get(&format!("/containers/{}/json", keeper(&home)))
        .json();
    assert_eq!(found["RestartCount"], 0, "{}", found["State"]);
    assert_eq!(found["State"]["OOMKilled"], false, "{}", found["State"]);
    assert_eq!(reply["status"], "completed", "{reply}");
    let kinds = reply["result"].as_str().unwrap();
    // Each request is answered or refused; no answer is empty.
    assert!(!kinds.contains("''"), "{kinds}");
    assert_eq!(home.json(["evolve", "history"])["runs"][0]["id"], run);
    home.down();
}

/// The log of the keeper's container.
fn keeper_log(home: &Home) -> String {
    let path = format!("/containers/{}/logs?stdout=true&stderr=true", keeper(home));
    String::from_utf8_lossy(&Engine.get(&path).body).into_owned()
}

/// Waits until one line of the keeper's log contains both texts.
#[track_caller]
pub(crate) fn assert_logged(home: &Home, what: &str, why: &str) {
    until(&format!("`{what}` and `{why}` in the keeper's log"), || {
        let log = keeper_log(home);
        let mut lines = log.lines();
        lines.any(|line| line.contains(what) && line.contains(why))
    });
}

fn the_keeper_has_only_the_rights_that_it_needs() {
    let home = small("it-keeper");
    home.up();
    let found = Engine
        .get(&format!("/containers/{}/json", keeper(&home)))
        .json();
    let host = &found["HostConfig"];
    assert_eq!(host["NetworkMode"], "none");
    assert_eq!(host["ReadonlyRootfs"], true);
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["CapAdd"], json!(["DAC_READ_SEARCH"]));
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    assert_eq!(host["Privileged"], false);
    assert_eq!(host["NanoCpus"], 1_000_000_000);
    let mounts = found["Mounts"].as_array().unwrap();
    let written: Vec<_> = mounts
        .iter()
        .filter(|m| m["RW"] == true)
        .map(|m| &m["Destination"])
        .collect();
    for place in ["/state", "/agent-socket", "/var/run/docker.sock"] {
        assert!(written.contains(&&json!(place)), "{mounts:?}");
    }
    assert_eq!((written.len(), mounts.len()), (3, 4), "{mounts:?}");
    let host = Engine
        .get(&format!("/containers/{}/json", home.container()))
        .json();
    let mounts = host["Mounts"].as_array().unwrap();
    let agent_socket = mounts
        .iter()
        .find(|m| m["Destination"] == "/run/os")
        .unwrap();
    assert_eq!(agent_socket["RW"], false);
    assert!(
        !mounts
            .iter()
            .any(|m| m["Destination"] == "/var/run/docker.sock")
    );
    // The container's settings do not appear in the engine's description of the keeper.
    let shown = found.to_string();
    assert!(!shown.contains("OSCTL_TOKEN_SHA256"), "{shown}");
    home.down();
}

fn the_number_of_runs_from_inside_is_limited_per_hour() {
    let home = small("it-escape-often");
    home.up();
    remember(&home);
    // The body is refused before a build, so that thirty runs are fast.
    write(&home, "Dockerfile", "FROM debian\n");
    let api = home.api();
    let mut started = 0;
    let refused = loop {
        let asked = api.post("/evolve", &json!({}));
        match asked.status {
            200 => started += 1,
            // The previous run has not ended.
            409 => std::thread::sleep(std::time::Duration::from_millis(10)),
            _ => break asked,
        }
    };
    assert_eq!((started, refused.status), (30, 429), "{:?}", refused.json());
    let (_, kind, message) = refused.error();
    assert_eq!(kind, "rate_limited");
    assert!(message.contains("no more than 30 evolves"), "{message}");
    assert_logged(
        &home,
        "the keeper refused a request",
        "no more than 30 evolves",
    );
    // Runs of the user are not limited.
    write(&home, "Dockerfile", DOCKERFILE);
    home.ok(["evolve", "--dry-run"]);
    assert_one_that_remembers(&home);
    home.down();
}
