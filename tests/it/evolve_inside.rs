//! What of evolving happens inside: the container proves itself, comes to rest, and lives up to the
//! one before it.

use crate::harness::{Engine, Home, TEST_TIMEOUT, shared};
use crate::mcp::{ACCEPT_JSON_OR_SSE, JSON, hello};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

trials![
    a_container_at_rest_lets_nobody_in_and_goes_on_when_told,
    code_that_outlasts_the_grace_time_is_left_alone_unless_forced,
    commands_that_run_code_needs_are_run_to_its_end,
    the_body_proves_itself_and_what_does_not_is_named,
    the_next_container_has_the_whole_mind_and_says_so,
    what_another_container_has_told_meanwhile_is_not_told_again,
];

/// Runs a verb of the binary inside, as the keeper does, and reads its document.
#[track_caller]
pub(crate) fn inside(home: &Home, words: &[&str]) -> Value {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("inside-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let script = format!(
        "exec /opt/osctl/bin/osctl \"$@\" --json > /root/host/{name}.out 2> /root/host/{name}.err"
    );
    let command = [&["/bin/sh", "-c", &script, "sh"], words].concat();
    let path = format!("/containers/{}/exec", home.container());
    let made = Engine
        .send("POST", &path, &json!({ "Cmd": command }))
        .json();
    let id = made["Id"].as_str().unwrap_or_else(|| panic!("{made}"));
    let begun = Engine.send(
        "POST",
        &format!("/exec/{id}/start"),
        &json!({"Detach": true}),
    );
    assert_eq!(begun.status, 200);
    let begin = Instant::now();
    let code = loop {
        let state = Engine.get(&format!("/exec/{id}/json")).json();
        if state["Running"] == false {
            break state["ExitCode"].clone();
        }
        assert!(begin.elapsed() < 2 * TEST_TIMEOUT, "{words:?} does not end");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let read = |kind: &str| fs::read_to_string(home.files().join(format!("{name}.{kind}")));
    let (out, err) = (read("out").unwrap(), read("err").unwrap());
    assert_eq!(code, 0, "{words:?}: {out}{err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{words:?}: {e}: {out}{err}"))
}

/// The verdicts by name.
#[track_caller]
fn verdict<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("nothing is said of `{name}`: {report:#}"))
}

/// What is said of something that is no variable.
#[track_caller]
fn besides<'a>(report: &'a Value, what: &str) -> &'a Value {
    let all = report["besides"].as_array().unwrap();
    let found = all.iter().find(|one| one["what"] == what);
    found.unwrap_or_else(|| panic!("nothing is said of `{what}`: {report:#}"))
}

fn is_kept(one: &Value, words: &str) -> bool {
    one["kept"] == true && one["detail"].as_str().unwrap().contains(words)
}

fn a_container_at_rest_lets_nobody_in_and_goes_on_when_told() {
    let home = shared();
    let api = home.api();
    api.done("/sessions", &json!({"name": "rest"}));
    // The first reply tells what an earlier trial has done to the kernel.
    api.exec("x = 41");
    let before = api.exec("x")["kernel"].clone();
    api.exec_with(json!({"code": "y = [1, 2]", "session": "rest"}));
    let rest = inside(home, &["quiesce", "--grace", "5"]);
    assert_eq!(rest["quiesced"], true, "{rest}");
    // Asked again, it is the same.
    assert_eq!(inside(home, &["quiesce", "--grace", "5"]), rest);
    let kept = rest["receipt"].as_array().unwrap();
    let of = |name: &str| kept.iter().find(|k| k["session"] == name).unwrap();
    assert_eq!(of("rest")["by"], "objects");
    assert_eq!(of("rest")["rows"][0]["name"], "y");
    assert!(
        rest["expected"]["healthy_before"]
            .as_array()
            .unwrap()
            .contains(&json!("kernel"))
    );
    for (path, body) in [
        ("/exec", json!({"code": "x", "queue": true})),
        ("/shell", json!({"command": "true"})),
        ("/sessions", json!({})),
        ("/cryo/store", json!({})),
    ] {
        let refused = api.post(path, &body);
        assert_eq!(
            (refused.status, &*refused.error().1),
            (503, "evolving"),
            "{path}"
        );
        assert_eq!(refused.headers["retry-after"], "1");
    }
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(home.hub().post("/mcp", &ping).status, 503);
    let written = api.connect().send("PUT", "/files/tmp/rest", &[], b"x");
    assert_eq!(written.status, 503);
    // Looks are answered.
    for path in ["/ping", "/status", "/health", "/exec", "/files/tmp/"] {
        assert_eq!(api.get(path).status, 200, "{path}");
    }
    assert_eq!(inside(home, &["resume"])["resumed"], true);
    let after = api.exec("x + 1");
    assert_eq!(
        (&after["result"], &after["kernel"]),
        (&json!("42"), &before)
    );
    // Nothing was at rest.
    assert_eq!(inside(home, &["resume"])["resumed"], true);
    api.connect().send("DELETE", "/sessions/rest", &[], b"");
}

fn code_that_outlasts_the_grace_time_is_left_alone_unless_forced() {
    let home = shared();
    let api = home.api();
    let loops = "kept = 'still here'\nimport time\nwhile True: time.sleep(0.01)";
    api.post(
        "/exec",
        &json!({"code": loops, "id": "outlasts", "wait": 0}),
    );
    let rest = inside(home, &["quiesce", "--grace", "0.3"]);
    assert_eq!(rest["quiesced"], false, "{rest}");
    assert_eq!(rest["running"], json!(["outlasts"]));
    assert!(rest["why"].as_str().unwrap().contains("outlasts"), "{rest}");
    assert_eq!(api.get("/exec/outlasts").json()["status"], "running");
    assert_eq!(
        api.done("/shell", &json!({"command": "echo fine"}))["stdout"],
        "fine\n"
    );
    let queued = json!({"code": "begun = True", "queue": true, "id": "queued-last", "wait": 0});
    api.post("/exec", &queued);
    api.post(
        "/shell",
        &json!({"command": "sleep 600", "id": "sleeps", "wait": 0}),
    );
    let rest = inside(home, &["quiesce", "--grace", "0.3", "--force"]);
    assert_eq!(rest["quiesced"], true, "{rest}");
    for run in ["/exec/outlasts", "/exec/queued-last", "/shell/sleeps"] {
        let run = api.get(run).json();
        assert_eq!(run["status"], "interrupted", "{run}");
    }
    inside(home, &["resume"]);
    let after = api.exec("kept, 'begun' in globals()");
    assert_eq!(after["result"], "('still here', False)");
}

fn commands_that_run_code_needs_are_run_to_its_end() {
    let home = shared();
    let api = home.api();
    let file = home.files().join("rest-goes-on");
    let code = "import os, time\nwhile not os.path.exists('/root/host/rest-goes-on'): time.sleep(0.01)\nruntime.shell.run('echo by then').stdout";
    api.post("/exec", &json!({"code": code, "id": "needs", "wait": 0}));
    let rest = std::thread::scope(|scope| {
        let rest = scope.spawn(|| inside(home, &["quiesce", "--grace", "30"]));
        api.until("nobody outside is let in", |api| {
            let refused = api.post("/shell/cd", &json!({"path": "/"}));
            (refused.status == 503).then_some(())
        });
        fs::write(&file, "").unwrap();
        rest.join().unwrap()
    });
    assert_eq!(rest["quiesced"], true, "{rest}");
    let run = api.get("/exec/needs").json();
    assert_eq!(
        (&run["status"], &run["result"]),
        (&json!("completed"), &json!("'by then\\n'"))
    );
    inside(home, &["resume"]);
    fs::remove_file(file).unwrap();
}

fn the_body_proves_itself_and_what_does_not_is_named() {
    let home = shared();
    let api = home.api();
    api.exec("import pandas\nframe = pandas.DataFrame({'a': [1, 2]})\ndef twice(x): return 2 * x");
    let stored = inside(home, &["remember"]);
    assert_eq!(stored["sessions"]["default"], Value::Null, "{stored}");
    let report = inside(home, &["selftest", "--snapshot", "/data"]);
    assert_eq!(report["passed"], true, "{report:#}");
    for name in [
        "kernel",
        "exec",
        "shell",
        "cryo",
        "cryo:default",
        "service:xvfb",
        "service:x11vnc",
        "service:chromium",
        "mcp:linux",
        "mcp:filesystem",
        "mcp:browser-use",
        "port:8080",
        "port:8765",
        "port:5900",
    ] {
        assert_eq!(verdict(&report, name)["passed"], true);
    }
    // It has tidied up behind itself.
    let sessions = api.get("/sessions").json();
    assert!(!sessions.to_string().contains("selftest"), "{sessions}");

    let write = |path: &str, text: &str| {
        let path = format!("/files{path}?parents=true");
        let written = api.connect().send("PUT", &path, &[], text.as_bytes());
        assert!([200, 201].contains(&written.status), "{path}: {written:?}");
    };
    let scripts = "/opt/osctl/body/selftest.d";
    write(&format!("{scripts}/10-fine"), "#!/bin/sh\ntest -d /repo\n");
    write(
        &format!("{scripts}/20-fails"),
        "#!/bin/sh\necho the reason >&2\nexit 3\n",
    );
    api.done(
        "/shell",
        &json!({"command": format!("chmod +x {scripts}/*0-*")}),
    );
    let hangs = json!({"mcpServers": {"hangs": {"command": "/bin/sleep", "args": ["600"]}}});
    write("/data/mcp.json", &hangs.to_string());
    home.hub().until("the server is known", |hub| {
        let status = hub.get("/status").json().to_string();
        status.contains("hangs").then_some(())
    });
    let report = inside(home, &["selftest"]);
    assert_eq!(report["passed"], false);
    assert_eq!(verdict(&report, "selftest.d/10-fine")["passed"], true);
    let fails = verdict(&report, "selftest.d/20-fails");
    assert_eq!(fails["passed"], false);
    assert!(
        fails["detail"]
            .as_str()
            .unwrap()
            .contains("ended with 3: the reason"),
        "{fails}"
    );
    let hangs = verdict(&report, "mcp:hangs");
    assert_eq!(hangs["passed"], false, "{hangs}");
    assert_eq!(verdict(&report, "mcp:linux")["passed"], true);
    // It never has answered, so a state that holds it asks for no more.
    let report = inside(home, &["selftest", "--snapshot", "/data"]);
    assert!(!report.to_string().contains("mcp:hangs"), "{report:#}");
    api.done(
        "/shell",
        &json!({"command": format!("rm {scripts}/*0-* /data/mcp.json")}),
    );
}

fn the_next_container_has_the_whole_mind_and_says_so() {
    let home = shared();
    let api = home.api();
    api.done("/sessions", &json!({"name": "mind"}));
    let code = "import pandas\nbase = 40\ndef answer(more): return base + more\nframe = pandas.DataFrame({'a': [1, 2]})\n";
    let before = api.exec(code)["kernel"]["generation"].as_u64().unwrap();
    api.exec_with(json!({"code": "there = 'too'", "session": "mind"}));
    let shell = |command: &str, session: &str| {
        let request = json!({"command": command, "session": session});
        api.done("/shell", &request)["stdout"].clone()
    };
    shell(
        "mkdir -p /data/place && cd /data/place && export MINE=1 && unset HOST_PWD && f() { echo $MINE $1; }",
        "default",
    );
    shell("cd /usr; sleep 600 > /dev/null 2>&1 &", "mind");
    let hello = hello("2025-11-25", &json!({}));
    let mut hub = home.hub().connect();
    let greeted = hub.send(
        "POST",
        "/servers/filesystem/mcp",
        &[JSON, ACCEPT_JSON_OR_SSE],
        hello.as_bytes(),
    );
    assert_eq!(greeted.status, 200, "{greeted:?}");
    let rest = inside(home, &["quiesce", "--grace", "5"]);
    assert_eq!(rest["quiesced"], true, "{rest}");
    assert!(is_kept(besides(&rest, "mcp"), "go on"), "{rest}");
    let (folder, other) = (
        besides(&rest, "shell:default"),
        besides(&rest, "shell:mind"),
    );
    assert!(
        is_kept(folder, "`/data/place`") && is_kept(other, "`/usr`"),
        "{rest}"
    );
    let job = besides(&rest, "job:mind");
    assert!(
        job["kept"] == false && job["detail"].as_str().unwrap().contains("sleep 600"),
        "{rest}"
    );
    // What keys a container was handed is not in what is kept of its shells.
    let kept = fs::read_to_string(home.data().join("mind.json")).unwrap();
    assert!(
        kept.contains("mind") && !kept.contains("OSCTL_BODY"),
        "{kept}"
    );

    let path = format!("/containers/{}/restart?t=20", home.container());
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    let expected = rest["expected"].to_string();
    let api = home.api();
    api.until("the companion", |api| {
        let answer = std::panic::catch_unwind(|| api.get("/ping").status);
        (answer.ok() == Some(200)).then_some(())
    });
    let report = inside(home, &["verify", "--expected", &expected]);
    assert_eq!(report["passed"], true, "{report:#}");
    for name in ["session:default", "session:mind", "port:8080"] {
        assert_eq!(verdict(&report, name)["passed"], true);
    }
    assert_eq!(report["receipt"][0]["by"], "objects", "{report:#}");
    let (folder, other) = (
        besides(&report, "shell:default"),
        besides(&report, "shell:mind"),
    );
    assert!(
        is_kept(folder, "`/data/place`") && is_kept(other, "`/usr`"),
        "{report:#}"
    );
    assert!(is_kept(besides(&report, "mcp"), "go on"), "{report:#}");
    let after = api.exec("answer(2), list(frame.a)");
    assert_eq!(after["result"], "(42, [1, 2])");
    assert_eq!(after["kernel"]["state"], "restored", "{after}");
    assert!(after["kernel"]["generation"].as_u64().unwrap() > before);
    // The function sees the names that are assigned now.
    assert_eq!(api.exec("base = 1; answer(2)")["result"], "3");
    let there = api.exec_with(json!({"code": "there", "session": "mind"}));
    assert_eq!(there["result"], "'too'");
    let shell = |command: &str, session: &str| {
        let request = json!({"command": command, "session": session});
        api.done("/shell", &request)["stdout"].clone()
    };
    assert_eq!(
        shell("f x; pwd; echo ${HOST_PWD-none}", "default"),
        "1 x\n/data/place\nnone\n"
    );
    assert_eq!(shell("pwd; echo $OSCTL_SESSION", "mind"), "/usr\nmind\n");

    let mut more: Value = serde_json::from_str(&expected).unwrap();
    let missing = json!({"session": "gone", "kernel": 1});
    more["sessions"].as_array_mut().unwrap().push(missing);
    more["shells"]["gone"] = json!("/data");
    more["shells"]["mind"] = json!("/not/there");
    more["clients"] = json!(100_000);
    let report = inside(home, &["verify", "--expected", &more.to_string()]);
    assert_eq!(report["passed"], false);
    assert_eq!(verdict(&report, "session:gone")["passed"], false);
    for what in ["shell:gone", "shell:mind", "mcp"] {
        assert_eq!(besides(&report, what)["kept"], false, "{report:#}");
    }
    api.connect().send("DELETE", "/sessions/mind", &[], b"");
    api.done("/shell", &json!({"command": "cd; unset -f f; unset MINE"}));
}

fn what_another_container_has_told_meanwhile_is_not_told_again() {
    let home = shared();
    let api = home.api();
    let much = json!({"code": "print('m' * 4_000_000)", "id": "much"});
    assert_eq!(api.exec_with(much)["status"], "completed");
    let before = api.exec("held = 1")["kernel"]["generation"]
        .as_u64()
        .unwrap();
    assert_eq!(inside(home, &["quiesce", "--grace", "5"])["quiesced"], true);
    // As the next container would, which then was taken back.
    let record = home.data().join("kernels/default.json");
    let mut entry: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    entry["generation"] = json!(before + 1);
    fs::write(&record, entry.to_string()).unwrap();
    inside(home, &["resume"]);
    let page = api
        .get("/exec/much/output?stream=stdout&offset=2000000&limit=5")
        .json();
    assert_eq!(page["text"], "mmmmm", "{page}");
    let after = api.exec_with(json!({"code": "held", "seen": before + 1}));
    assert_eq!(after["result"], "1");
    assert_eq!(
        after["kernel"],
        json!({"generation": before + 2, "state": "restored"})
    );
}
