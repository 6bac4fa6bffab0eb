//! What the host does with changed text of a container's log, of its companion's health and of its keeper.

use crate::fake_engine::{FakeAnswers, engine};
use crate::hostile_answers::{assert_expected, assert_harmless};
use crate::memory::{MAX_HELD_BYTES, run_within, run_within_bounds};
use crate::mutations::{for_each, mutation};
use crate::trials;
use proptest::prelude::any;
use serde_json::{Value, json};

trials![
    changed_text_of_the_keeper_the_log_and_the_health_does_no_harm,
    a_line_of_the_keeper_or_the_log_without_an_end_is_not_held,
];

const RUN: &str = "20261121-100000";

const LOG: &str = "2026-11-20T21:00:00Z  INFO osctl::companion::kernel: the kernel of `default` is ready\n\
                   2026-11-20T21:00:01Z  WARN osctl::companion::service: vnc: it is started again\n";

fn health() -> Value {
    json!({
        "status": "healthy", "evolving": false, "version": "0.1.0",
        "services": [
            {"name": "kernel", "ready": true, "idle": false, "detail": "ready"},
            {"name": "desktop", "ready": false, "idle": true, "detail": "starts on demand"},
        ],
    })
}

fn record() -> Value {
    json!({
        "reply": "record", "run": RUN, "task": "evolve", "reason": "more", "by": "agent", "force": false,
        "dry_run": false, "began": 1_763_719_200.5, "status": "rolled_back",
        "stages": [{"stage": "building", "began": 1_763_719_200.5, "seconds": 12.5},
                   {"stage": "testing", "began": 1_763_719_213.0, "seconds": 3.25}],
        "gate": "testing", "why": "`kernel` is not ready", "log_tail": ["no module named x"],
        "checks": [{"name": "services", "passed": false, "detail": "`kernel` is not ready", "ms": 12.0}],
        "image": null, "previous": "sha256:1", "body": "sha256:2", "refused_ms": 812.5,
        "receipt": [{"session": "default", "by": "objects", "why": "no process can be frozen",
                     "rows": [{"name": "x", "verdict": "saved", "type": "int", "bytes": 28, "why": null}]}],
        "besides": [{"what": "terminal `1`", "kept": false, "detail": "its shell ended"}],
        "folder": "sha256:3", "untold": "no repository",
    })
}

/// The verbs, and what the keeper answers to each.
fn verbs() -> Vec<(Vec<&'static str>, String)> {
    let mut outline = record();
    outline.as_object_mut().unwrap().remove("reply");
    let status = json!({
        "reply": "status", "evolve_in_progress": false, "restart_pending": false, "latest_run": RUN,
        "latest_status": "rolled_back", "stage": null, "reason": "more", "why": "`kernel` is not ready",
    });
    let text = "Step 1/9 : FROM debian\n";
    let log = json!({"reply": "log", "offset": 0, "text": text, "next": text.len()});
    let changes = json!([
        {"path": "body/Dockerfile", "edit": "changed", "diff": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"},
        {"path": "body/logo.png", "edit": "added", "diff": null},
    ]);
    let history = json!({"reply": "history", "runs": [outline.clone(), outline]});
    let diff = json!({"reply": "diff", "run": RUN, "changes": changes});
    let evolve = |verb: &[&'static str], lines: &[Value]| {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        ([&["evolve"], verb].concat(), lines)
    };
    vec![
        (vec!["status"], String::new()),
        (vec!["logs"], String::new()),
        (vec!["logs", "kernel", "--tail", "9"], String::new()),
        evolve(&["status"], &[status]),
        evolve(&["history"], &[history]),
        evolve(&["show", RUN], &[record()]),
        evolve(&["logs", RUN], &[log.clone(), log, record()]),
        evolve(&["diff", RUN], &[diff]),
    ]
}

fn changed_text_of_the_keeper_the_log_and_the_health_does_no_harm() {
    let (said, home) = engine("words");
    let verbs = verbs();
    let tell = |keeper: &[u8], log: &[u8], companion: &[u8]| {
        *said.lock().unwrap() = FakeAnswers {
            companion: companion.to_vec(),
            log: log.to_vec(),
            keeper: keeper.to_vec(),
            times: 1,
        };
    };
    let health = health().to_string();
    for (verb, keeper) in &verbs {
        tell(keeper.as_bytes(), LOG.as_bytes(), health.as_bytes());
        home.ok(verb);
    }
    let which = (0..verbs.len(), any::<bool>(), mutation());
    for_each(90, which, |(which, is_json, mutation)| {
        let (verb, keeper) = &verbs[which];
        let [keeper, log, health] =
            [keeper.as_str(), LOG, &health].map(|text| mutation.apply(text.as_bytes()));
        tell(&keeper, &log, &health);
        let json = if is_json { &["--json"][..] } else { &[] };
        let ran = run_within_bounds(home.command([json, verb].concat()));
        assert_harmless(&ran, verb);
    });
}

fn a_line_of_the_keeper_or_the_log_without_an_end_is_not_held() {
    let (said, home) = engine("endless-words");
    let piece = vec![b'7'; 1 << 20];
    let health = [br#"{"status":"healthy","version":""#, &*piece.repeat(80)].concat();
    *said.lock().unwrap() = FakeAnswers {
        companion: health,
        log: piece.clone(),
        keeper: piece,
        times: 80,
    };
    for (verb, _) in verbs() {
        let is_log = verb[0] == "logs";
        // osctl shows a line of the log in parts.
        let (times, most) = if is_log {
            (110, 100 << 20)
        } else {
            (80, MAX_HELD_BYTES)
        };
        said.lock().unwrap().times = times;
        let ran = run_within(home.command(&verb), most);
        assert_expected(&ran, &verb);
        assert!(ran.code != 0 || is_log, "{verb:?}: {:.2000}", ran.stderr);
        // An answer that osctl can't read counts as an unreachable keeper.
        let is_keepers = verb[0] == "evolve";
        assert!(ran.code == 3 || !is_keepers, "{verb:?}: {ran:?}");
    }
    // Lines that end, but are never of another type.
    let line =
        json!({"reply": "log", "offset": 0, "text": "x".repeat(1 << 20), "next": 1}).to_string();
    said.lock().unwrap().times = 100;
    said.lock().unwrap().keeper = format!("{line}\n").into_bytes();
    for json in [&[][..], &["--json"]] {
        let verb = [json, &["evolve", "logs", RUN]].concat();
        assert_expected(&run_within_bounds(home.command(&verb)), &verb);
    }
}
