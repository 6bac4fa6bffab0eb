//! What the host does with the answers of a replaced companion: the tests record real answers, change them, and
//! replay them.

use crate::commands::Ran;
use crate::fake_companion::{FakeCompanion, Request, respond};
use crate::harness::{Home, shared};
use crate::memory::run_within_bounds;
use crate::mutations::{NASTY, for_each, mutation};
use crate::trials;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

trials![
    text_of_the_companion_controls_no_terminal,
    malformed_answers_end_no_process,
];

const VERBS: [&[&str]; 7] = [
    &["sessions"],
    &["runs"],
    &["cryo", "list"],
    &["criu", "status"],
    &["mcp", "list"],
    &["mcp", "tools", "os"],
    &["shell", "--list"],
];

/// These verbs print or store the answer unchanged.
const RAW_VERBS: [&[&str]; 2] = [&["exec", "6*7"], &["cp", "os:/root/host/answered", "."]];

/// The answers by method and path.
type Answers = BTreeMap<(String, String), Vec<u8>>;

fn key(request: &Request) -> (String, String) {
    (request.method.clone(), request.path.clone())
}

/// What a verb requests, and what the companion of the shared instance answers.
fn record(verb: &[&str], name: &str) -> Answers {
    let home = shared();
    let (api, hub) = (home.api(), home.hub());
    let answers = Arc::new(Mutex::new(Answers::new()));
    let recorded = Arc::clone(&answers);
    let between = FakeCompanion::start(move |request, stream| {
        let is_hub = ["/status", "/mcp", "/servers"]
            .iter()
            .any(|path| request.path.starts_with(path));
        let to = if is_hub { &hub } else { &api };
        let given = request.headers.iter();
        let headers = given.filter(|(name, _)| {
            name.starts_with("mcp-") || ["accept", "content-type"].contains(&name.as_str())
        });
        let headers: Vec<_> = headers.map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let answer = to
            .connect()
            .send(&request.method, &request.path, &headers, &request.body);
        recorded
            .lock()
            .unwrap()
            .insert(key(request), answer.body.clone());
        respond(
            stream,
            "200 OK",
            &[("Content-Type", "application/json")],
            &answer.body,
        );
    });
    let ran = between.home(name).run(verb);
    // 1: kernels can't be checkpointed there.
    assert!([0, 1].contains(&ran.code), "{verb:?}: {ran:?}");
    let answers = answers.lock().unwrap().clone();
    assert!(!answers.is_empty(), "{verb:?}");
    answers
}

/// A companion that replays these answers, which can be changed, and a home for it.
fn replay(name: &str) -> (Arc<Mutex<Answers>>, Home) {
    let answers = Arc::new(Mutex::new(Answers::new()));
    let given = Arc::clone(&answers);
    let companion = FakeCompanion::start(move |request, stream| {
        let body = given.lock().unwrap().get(&key(request)).cloned();
        let status = if body.is_some() {
            "200 OK"
        } else {
            "404 Not Found"
        };
        respond(stream, status, &[], &body.unwrap_or_default());
    });
    let home = companion.home(name);
    (answers, home)
}

#[track_caller]
pub(crate) fn assert_harmless(ran: &Ran, verb: &[&str]) {
    for text in [&ran.stdout, &ran.stderr] {
        let bad = text.chars().find(|c| {
            c.is_control() && !['\n', '\t'].contains(c)
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        });
        assert_eq!(bad, None, "{verb:?}: {ran:?}");
    }
    assert_expected(ran, verb);
}

/// No panic, and no failure that osctl reports as its own bug.
#[track_caller]
pub(crate) fn assert_expected(ran: &Ran, verb: &[&str]) {
    assert!(!ran.stderr.contains("panicked"), "{verb:?}: {ran:?}");
    assert!((0..=5).contains(&ran.code), "{verb:?}: {ran:?}");
}

/// A copy of the document for each text in it, with that text changed.
fn poisoned(document: &Value) -> Vec<Value> {
    fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::String(_) => found.push(path.to_owned()),
            // One field of each kind is enough.
            Value::Array(all) => {
                let first = all.iter().enumerate().take(1);
                first.for_each(|(at, value)| paths(value, &format!("{path}/{at}"), found));
            }
            Value::Object(all) => {
                let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
                all.iter().for_each(|(key, value)| {
                    paths(value, &format!("{path}/{}", escaped(key)), found)
                });
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    paths(document, "", &mut found);
    found
        .iter()
        .filter(|path| !path.contains("Schema"))
        .map(|path| {
            let mut changed = document.clone();
            let text = changed.pointer_mut(path).unwrap();
            *text = format!("{NASTY}{}{NASTY}", text.as_str().unwrap()).into();
            changed
        })
        .collect()
}

fn text_of_the_companion_controls_no_terminal() {
    shared().api().exec("hostile_answers = 1");
    let (answers, home) = replay("poisoned");
    for verb in VERBS {
        let recorded = record(verb, "recorded-for-words");
        for (key, body) in &recorded {
            let Ok(document) = serde_json::from_slice::<Value>(body) else {
                continue;
            };
            for changed in poisoned(&document) {
                let mut all = recorded.clone();
                all.insert(key.clone(), changed.to_string().into_bytes());
                *answers.lock().unwrap() = all;
                assert_harmless(&home.run(verb), verb);
            }
            let json = [&["--json"], verb].concat();
            assert_harmless(&home.run(&json), &json);
        }
    }
}

fn malformed_answers_end_no_process() {
    let (answers, home) = replay("senseless");
    let inside = shared().files().join("answered");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::write(inside.join("a"), "1").unwrap();
    std::os::unix::fs::symlink("a", inside.join("link")).unwrap_or_default();
    let verbs = VERBS.iter().chain(&RAW_VERBS);
    let recorded: Vec<_> = verbs
        .map(|verb| (*verb, record(verb, "recorded-for-changes")))
        .collect();
    for_each(120, (0..recorded.len(), mutation()), |(which, mutation)| {
        let (verb, mut all) = recorded[which].clone();
        for body in all.values_mut() {
            *body = mutation.apply(body);
        }
        *answers.lock().unwrap() = all;
        let ran = run_within_bounds(home.command(verb));
        match RAW_VERBS.contains(&verb) {
            true => assert_expected(&ran, verb),
            false => assert_harmless(&ran, verb),
        }
    });
    // An interrupt needs no list of the sessions.
    let reply = br#"{"status": "completed", "kernel": {"generation": 1, "state": "kept"}}"#;
    *answers.lock().unwrap() =
        Answers::from([(("POST".into(), "/interrupt".into()), reply.to_vec())]);
    let ran = home.ok(["interrupt"]);
    let interrupted = "session `default` was interrupted; kernel state: kept";
    assert!(ran.stderr.contains(interrupted), "{ran:?}");
}
