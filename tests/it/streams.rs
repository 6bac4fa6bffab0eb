//! Output as it comes: events, floods, pages, and late or slow followers.

use crate::harness::{Api, Events, shared};
use crate::proxies::{Break, BreakingProxy, by_port};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::process::Stdio;

trials![
    events_come_as_they_happen_and_in_order,
    server_sent_events_resume_after_the_last_event,
    a_silent_run_has_a_heartbeat,
    a_stream_of_server_sent_events_never_resumes_after_a_heartbeat,
    a_stream_ends_with_its_wait_and_the_code_continues,
    another_client_follows_from_any_event,
    a_slow_reader_misses_nothing,
    a_late_follower_of_a_long_run_misses_nothing,
    output_that_a_reply_leaves_out_can_be_paged,
    a_flood_takes_no_memory_and_can_be_stopped,
    figures_and_tables_come_as_their_mime_bundles,
    a_detached_run_is_attached_to_and_listed,
    ctrl_c_detaches_from_a_run_and_the_run_continues,
    ctrl_c_ends_followed_logs_and_activity_silently,
    the_command_line_finds_its_run_again_on_a_lost_connection,
];

const NDJSON: (&str, &str) = ("Accept", "application/x-ndjson");

fn follow(api: &Api, code: &str) -> Events {
    let body = json!({"code": code, "queue": true});
    api.connect().events("POST", "/exec", &[NDJSON], &body)
}

/// The events without heartbeats.
fn changes(events: impl Iterator<Item = Value>) -> Vec<Value> {
    events.filter(|e| e["type"] != "heartbeat").collect()
}

/// The output of one stream, joined.
fn text(events: &[Value], kind: &str) -> String {
    let of_kind = events.iter().filter(|e| e["type"] == kind);
    of_kind.map(|e| e["text"].as_str().unwrap()).collect()
}

fn events_come_as_they_happen_and_in_order() {
    let home = shared();
    let api = home.api();
    let gate = home.files().join("gate");
    let code = "import os, sys, time\nprint('first')\nwhile not os.path.exists('/root/host/gate'): time.sleep(0.01)\n\
                print('second', file=sys.stderr)\ndisplay('shown')\nprint('third')\n6*7";
    let mut events = follow(&api, code);
    assert_eq!(events.kind, "application/x-ndjson");
    let first = events.find(|e| e["type"] != "heartbeat").unwrap();
    assert_eq!(
        (&first["seq"], &first["type"]),
        (&json!(0), &json!("stdout"))
    );
    // The text of a line and its end may come in two events.
    let text = first["text"].as_str().unwrap();
    assert!(["first", "first\n"].contains(&text), "{first}");
    // The code waits for this file, so the event came before its end.
    std::fs::write(&gate, "").unwrap();
    let rest = changes(events);
    std::fs::remove_file(&gate).unwrap();
    for (event, number) in rest.iter().zip(1..) {
        assert_eq!(event["seq"], number);
    }
    let mut kinds: Vec<&str> = rest.iter().map(|e| e["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let kinds = kinds.strip_prefix(&["stdout"]).unwrap_or(&kinds);
    assert_eq!(kinds, ["stderr", "display", "stdout", "result", "done"]);
    let of_kind = |kind| rest.iter().find(|e| e["type"] == kind).unwrap();
    assert_eq!(of_kind("display")["data"]["text/plain"], "'shown'");
    assert_eq!(of_kind("result")["data"]["text/plain"], "42");
    let reply = &of_kind("done")["reply"];
    assert_eq!(
        (&reply["status"], &reply["stdout"], &reply["result"]),
        (&json!("completed"), &json!("first\nthird\n"), &json!("42"))
    );
}

const SSE: (&str, &str) = ("Accept", "text/event-stream");

/// The id and the data of each server-sent event; a heartbeat has no id.
fn identified(events: &mut Events) -> Vec<(String, String)> {
    let all = std::iter::from_fn(|| events.sse());
    all.filter(|(id, _)| !id.is_empty()).collect()
}

fn server_sent_events_resume_after_the_last_event() {
    let api = shared().api();
    let body = json!({"code": "import sys\nfor n in range(3): print(n, file=(sys.stdout, sys.stderr)[n % 2])", "id": "sse", "queue": true});
    let mut events = api.connect().events("POST", "/exec", &[SSE], &body);
    assert_eq!(events.kind, "text/event-stream");
    let all = identified(&mut events);
    let (id, data) = &all[0];
    assert_eq!(id, "0");
    assert!(
        data.starts_with(r#"{"seq":0,"type":"stdout","text":"0"#),
        "{data}"
    );
    let headers = [SSE, ("Last-Event-ID", "1")];
    let mut again = api
        .connect()
        .events("GET", "/exec/sse", &headers, &Value::Null);
    assert_eq!(identified(&mut again), all[2..]);
}

fn a_silent_run_has_a_heartbeat() {
    let api = shared().api();
    let mut events = follow(&api, "import time; time.sleep(60)");
    let beat = events.next().unwrap();
    assert_eq!(beat, json!({"seq": 0, "type": "heartbeat"}));
    let interrupted = api.post("/interrupt", &json!({}));
    assert_eq!(interrupted.json()["kernel"]["state"], "kept");
    let rest: Vec<Value> = events.collect();
    assert_eq!(rest.last().unwrap()["reply"]["status"], "interrupted");
}

fn a_stream_of_server_sent_events_never_resumes_after_a_heartbeat() {
    let api = shared().api();
    let code = "import sys, time\nprint('begun', end='')\ntime.sleep(600)";
    let body = json!({"code": code, "id": "beats", "queue": true});
    let mut events = api.connect().events("POST", "/exec", &[SSE], &body);
    assert_eq!(events.kind, "text/event-stream");
    let (id, data) = events.sse().unwrap();
    assert_eq!(id, "0");
    assert!(data.contains(r#""text":"begun""#), "{data}");
    let (id, data) = events.sse().unwrap();
    assert_eq!(id, "");
    let beat: Value = serde_json::from_str(&data).unwrap();
    assert_eq!(beat, json!({"seq": 1, "type": "heartbeat"}));
    drop(events);
    // A client that loses the connection after the heartbeat has the first event as its last.
    let headers = [SSE, ("Last-Event-ID", "0")];
    let mut again = api
        .connect()
        .events("GET", "/exec/beats", &headers, &Value::Null);
    let interrupted = api.connect().send("DELETE", "/exec/beats", &[], b"");
    assert_eq!(interrupted.json()["kernel"]["state"], "kept");
    let rest = identified(&mut again);
    let (id, data) = rest.first().unwrap();
    assert_eq!(id, "1");
    assert!(!data.contains("begun"), "{data}");
    let (_, last) = rest.last().unwrap();
    let done: Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        (&done["type"], &done["reply"]["status"]),
        (&json!("done"), &json!("interrupted"))
    );
}

fn a_stream_ends_with_its_wait_and_the_code_continues() {
    let api = shared().api();
    let body = json!({"code": "print('begun')\nimport time; time.sleep(600)", "id": "patience", "wait": 2, "queue": true});
    let events = changes(api.connect().events("POST", "/exec", &[NDJSON], &body));
    assert_eq!(text(&events, "stdout"), "begun\n");
    assert!(events.iter().all(|e| e["type"] != "done"), "{events:?}");
    // The text of the line and its end may have come in two events.
    let path = format!("/exec/patience?offset={}&wait=0.1", events.len());
    let later = api.connect().events("GET", &path, &[NDJSON], &Value::Null);
    assert_eq!(changes(later), Vec::<Value>::new());
    let ended = api.connect().send("DELETE", "/exec/patience", &[], b"");
    assert_eq!(ended.json()["status"], "interrupted");
}

fn another_client_follows_from_any_event() {
    let api = shared().api();
    let body = json!({"code": "print('a'); import sys; print('b', file=sys.stderr); print('c')", "id": "found", "queue": true});
    let all = changes(api.connect().events("POST", "/exec", &[NDJSON], &body));
    let path = "/exec/found?offset=1";
    let late = changes(api.connect().events("GET", path, &[NDJSON], &Value::Null));
    assert_eq!(late[..], all[1..]);
    let found = api.get(path).json();
    assert_eq!(found["events"].as_array().unwrap()[..], all[1..]);
    assert_eq!(found["status"], "completed");
    assert!(api.get("/exec/found").json().get("events").is_none());
}

/// More output than a connection's buffers hold, and than memory keeps of a run.
const NUMBERS: &str = "for n in range(1_000_000): print(n)";

fn numbers() -> String {
    (0..1_000_000).map(|n| format!("{n}\n")).collect()
}

fn a_slow_reader_misses_nothing() {
    let api = shared().api();
    let body = json!({"code": NUMBERS, "id": "slow", "queue": true});
    let events = api.connect().events("POST", "/exec", &[NDJSON], &body);
    // The test reads no byte until all is written.
    let reply = api.get("/exec/slow?wait=60").json();
    assert_eq!(reply["status"], "completed");
    let events: Vec<Value> = events.collect();
    assert!(text(&events, "stdout") == numbers(), "something is missing");
}

fn output_that_a_reply_leaves_out_can_be_paged() {
    let api = shared().api();
    let reply = api.exec_with(json!({"code": NUMBERS, "id": "paged"}));
    let cut = &reply["truncated"]["stdout"];
    assert_eq!(
        (cut["total"].as_u64(), cut["kept"].as_u64()),
        (Some(6_888_890), Some(1 << 20))
    );
    let file = cut["file"].as_str().unwrap();
    assert!(file.starts_with("/data/runs/"), "{cut}");
    let (mut offset, mut all) = (0, String::new());
    while offset < 6_888_890 {
        let path = format!("/exec/paged/output?stream=stdout&offset={offset}&limit=1000000");
        let page = api.get(&path).json();
        assert_eq!(page["offset"].as_u64(), Some(offset));
        all += page["text"].as_str().unwrap();
        offset = page["next"].as_u64().unwrap();
    }
    assert!(all == numbers(), "a page has wrong text");
    let beyond = api.get("/exec/paged/output?offset=9999999").json();
    assert_eq!(
        (beyond["text"].as_str(), beyond["next"].as_u64()),
        (Some(""), Some(6_888_890))
    );
    let wrong = api.get("/exec/paged/output?stream=stdin").error();
    assert_eq!((wrong.0, wrong.1.as_str()), (400, "invalid_query"));
}

fn a_flood_takes_no_memory_and_can_be_stopped() {
    let api = shared().api();
    let companion = "import glob\nfor path in glob.glob('/proc/[0-9]*/cmdline'):\n    try: words = open(path, 'rb').read().split(b'\\0')\n    except OSError: continue\n    if words[1:2] == [b'companion']:\n        rss = [l for l in open(path.replace('cmdline', 'status')) if l.startswith('RssAnon')][0]\nint(rss.split()[1])";
    let held = || -> u64 {
        let told = api.exec(companion);
        told["result"].as_str().unwrap().parse().unwrap()
    };
    let before = held();
    let body = json!({"code": "while True: print('x' * 1000)", "id": "flood", "queue": true});
    let mut events = api.connect().events("POST", "/exec", &[NDJSON], &body);
    assert_eq!(events.next().unwrap()["type"], "stdout");
    let written = api.until("three hundred megabytes", |api| {
        let runs = api.get("/exec").json();
        let run = runs["runs"]
            .as_array()
            .unwrap()
            .iter()
            .find(|r| r["id"] == "flood")
            .unwrap();
        run["stdout_bytes"]
            .as_u64()
            .filter(|bytes| *bytes > 300 << 20)
    });
    let stopped = api.connect().send("DELETE", "/exec/flood", &[], b"").json();
    assert_eq!(
        (&stopped["status"], &stopped["kernel"]["state"]),
        (&json!("interrupted"), &json!("kept"))
    );
    // The output that waits for the disk is bounded, and so is the kept output of a run.
    let more = held().saturating_sub(before);
    assert!(
        more < 48 << 10,
        "the companion holds {more} kB more after {written} bytes"
    );
    // The file is full; the page begins after the missing bytes.
    let page = api
        .get(&format!(
            "/exec/flood/output?offset={}",
            (256 << 20) + (512 << 10) + 1
        ))
        .json();
    let total = page["total"].as_u64().unwrap();
    assert_eq!(page["offset"].as_u64(), Some(total - (512 << 10)));
    let head = api
        .get("/exec/flood/output?offset=200000000&limit=1001")
        .json();
    assert!(head["text"].as_str().unwrap().contains("xxx\nxxx"));
}

fn figures_and_tables_come_as_their_mime_bundles() {
    let api = shared().api();
    let code = "import matplotlib.pyplot as plt, pandas\nplt.plot([1, 4, 9])\npandas.DataFrame({'a': [1, 2]})";
    let events: Vec<Value> = follow(&api, code).collect();
    let with = |mime: &str| {
        events
            .iter()
            .filter(|e| e["data"].get(mime).is_some())
            .collect::<Vec<_>>()
    };
    let figures = with("image/png");
    assert_eq!(figures.len(), 1, "{events:?}");
    assert!(
        figures[0]["data"]["image/png"]
            .as_str()
            .unwrap()
            .starts_with("iVBORw0KGgo")
    );
    let tables = with("text/html");
    assert_eq!((tables.len(), &tables[0]["type"]), (1, &json!("result")));
    let reply = &events.last().unwrap()["reply"];
    assert_eq!(reply["data"].as_array().unwrap().len(), 2);
    assert!(reply["result"].as_str().unwrap().contains("a\n0  1"));
}

/// More changes between the streams than are kept as events.
fn a_late_follower_of_a_long_run_misses_nothing() {
    let home = shared();
    let api = home.api();
    let code = "import sys\nfor n in range(10_000): print(n); print(-n, 'ž', file=sys.stderr)";
    let run = api.post("/exec", &json!({"code": code, "id": "long", "queue": true}));
    assert_eq!(run.json()["status"], "completed");
    let path = "/exec/long?offset=0";
    let events: Vec<Value> = api
        .connect()
        .events("GET", path, &[NDJSON], &Value::Null)
        .collect();
    let out: String = (0..10_000).map(|n| format!("{n}\n")).collect();
    let err: String = (0..10_000).map(|n| format!("{} ž\n", -n)).collect();
    assert!(text(&events, "stdout") == out, "stdout");
    assert!(text(&events, "stderr") == err, "stderr");
    let numbers: Vec<u64> = events.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let attached = home.ok(["attach", "long"]);
    assert!(attached.stdout == out && attached.stderr == err);
}

fn a_detached_run_is_attached_to_and_listed() {
    let home = shared();
    let begun = home.ok([
        "exec",
        "--detach",
        "import time\nprint('begun')\ntime.sleep(0.2)\nprint('ended')",
    ]);
    let id = begun.stdout.trim();
    let attached = home.ok(["attach", id]);
    assert_eq!(attached.stdout, "begun\nended\n");
    let listed = home.ok(["runs"]);
    let line = listed
        .stdout
        .lines()
        .find(|line| line.contains(id))
        .unwrap();
    assert!(
        line.contains("completed") && line.contains("import time"),
        "{line}"
    );
    let missing = home.run(["attach", "nobody"]);
    assert_eq!(missing.code, 2, "{missing:?}");
    assert!(
        missing.stderr.contains("there is no run `nobody`"),
        "{missing:?}"
    );
}

fn ctrl_c_ends_followed_logs_and_activity_silently() {
    let home = shared();
    home.ok(["exec", "1"]);
    for words in [
        &["logs", "-f"][..],
        &["logs", "kernel", "-f"],
        &["activity", "-f"],
    ] {
        let mut child = home
            .command(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The log so far is not empty.
        let stdout = child.stdout.as_mut().unwrap();
        stdout.read_exact(&mut [0; 1]).unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), &*said), (Some(130), ""), "{words:?}");
    }
}

fn ctrl_c_detaches_from_a_run_and_the_run_continues() {
    let home = shared();
    let off = home.files().join("attach.off");
    for (verb, path, code) in [
        (
            "exec",
            "exec",
            "import os, time\nprint('begun')\nwhile not os.path.exists('/root/host/attach.off'): time.sleep(0.05)\nprint('ended')",
        ),
        (
            "shell",
            "shell",
            "echo begun; until [ -e /root/host/attach.off ]; do sleep 0.05; done; echo ended",
        ),
    ] {
        let begun = home.ok([verb, "--detach", code]);
        let id = begun.stdout.trim();
        let mut command = home.command(["attach", id]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.as_mut().unwrap();
        stdout.read_exact(&mut [0; 6]).unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            (ended.status.code(), &*ended.stdout),
            (Some(130), &b""[..]),
            "{said}"
        );
        assert!(
            said.contains(&format!("interrupt {id}` interrupts it")),
            "{said}"
        );
        fs::write(&off, "").unwrap();
        let reply = home.api().get(&format!("/{path}/{id}?wait=60")).json();
        fs::remove_file(&off).unwrap();
        assert_eq!(
            (&reply["status"], &reply["stdout"]),
            (&json!("completed"), &json!("begun\nended\n"))
        );
    }
}

fn the_command_line_finds_its_run_again_on_a_lost_connection() {
    let home = shared();
    let middle = BreakingProxy::start(&home.api().address, 1 << 20, 3, Break::Cut);
    let cut = by_port(home, "exec-cut", middle.port);
    let ran = cut.ok(["exec", NUMBERS]);
    assert_eq!(middle.left(), 0, "nothing was cut");
    assert!(ran.stdout == numbers(), "something is missing or doubled");
}
