//! Trials of the parts of an evolve inside the container: self-test, quiesce, and verification of the new container.

use crate::harness::{Engine, Home, TEST_TIMEOUT, shared};
use crate::mcp::{ACCEPT_JSON_OR_SSE, Client, JSON, hello};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

trials![
    a_quiesced_container_refuses_requests_until_it_resumes,
    code_that_outlasts_the_grace_time_keeps_running_unless_forced,
    commands_that_running_code_needs_are_still_executed,
    the_self_test_passes_and_names_each_failure,
    the_next_container_verifies_the_whole_session_state,
    generations_of_another_container_are_not_reused,
];

/// Runs a subcommand of `osctl` inside, as the keeper does; returns its JSON output.
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
    let started = Engine.send(
        "POST",
        &format!("/exec/{id}/start"),
        &json!({"Detach": true}),
    );
    assert_eq!(started.status, 200);
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

/// The check of that name in a report.
#[track_caller]
fn verdict<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no check `{name}`: {report:#}"))
}

/// The report's row of state that is not a variable.
#[track_caller]
fn non_variable_state<'a>(report: &'a Value, what: &str) -> &'a Value {
    let all = report["other_state"].as_array().unwrap();
    let found = all.iter().find(|one| one["name"] == what);
    found.unwrap_or_else(|| panic!("no row `{what}`: {report:#}"))
}

fn is_kept(one: &Value, words: &str) -> bool {
    one["kept"] == true && one["detail"].as_str().unwrap().contains(words)
}

fn a_quiesced_container_refuses_requests_until_it_resumes() {
    let home = shared();
    let api = home.api();
    api.done("/sessions", &json!({"name": "rest"}));
    // The first reply reports changes of the kernel by earlier trials.
    api.exec("x = 41");
    let before = api.exec("x")["kernel"].clone();
    api.exec_with(json!({"code": "y = [1, 2]", "session": "rest"}));
    let mcp_client = Client::of(home.hub(), "/mcp", &json!({}));
    let quiesced = inside(home, &["quiesce", "--grace", "5"]);
    assert_eq!(quiesced["quiesced"], true, "{quiesced}");
    // A repeated request has the same answer.
    assert_eq!(inside(home, &["quiesce", "--grace", "5"]), quiesced);
    let kept = quiesced["receipt"].as_array().unwrap();
    let of = |name: &str| kept.iter().find(|k| k["session"] == name).unwrap();
    assert_eq!(of("rest")["restored_by"], "objects");
    assert_eq!(of("rest")["rows"][0]["name"], "y");
    assert!(
        quiesced["expected"]["healthy_before"]
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
    let refused = home.hub().post("/mcp", &ping);
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["id"], 1, "{refused:?}");
    let status = mcp_client.ask("tools/call", &json!({"name": "os__evolve_status"}));
    assert_eq!(status["isError"], false, "{status}");
    let written = api.connect().send("PUT", "/files/tmp/rest", &[], b"x");
    assert_eq!(written.status, 503);
    // Requests that only read are answered.
    for path in ["/ping", "/status", "/health", "/exec", "/files/tmp/"] {
        assert_eq!(api.get(path).status, 200, "{path}");
    }
    assert_eq!(inside(home, &["resume"])["resumed"], true);
    let after = api.exec("x + 1");
    assert_eq!(
        (&after["result"], &after["kernel"]),
        (&json!("42"), &before)
    );
    // `resume` without `quiesce` succeeds.
    assert_eq!(inside(home, &["resume"])["resumed"], true);
    api.connect().send("DELETE", "/sessions/rest", &[], b"");
}

fn code_that_outlasts_the_grace_time_keeps_running_unless_forced() {
    let home = shared();
    let api = home.api();
    let loops = "kept = 'still here'\nimport time\nwhile True: time.sleep(0.01)";
    api.post(
        "/exec",
        &json!({"code": loops, "id": "outlasts", "wait": 0}),
    );
    let quiesced = inside(home, &["quiesce", "--grace", "0.3"]);
    assert_eq!(quiesced["quiesced"], false, "{quiesced}");
    assert_eq!(quiesced["running"], json!(["outlasts"]));
    assert!(
        quiesced["why"].as_str().unwrap().contains("outlasts"),
        "{quiesced}"
    );
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
    let quiesced = inside(home, &["quiesce", "--grace", "0.3", "--force"]);
    assert_eq!(quiesced["quiesced"], true, "{quiesced}");
    for run in ["/exec/outlasts", "/exec/queued-last", "/shell/sleeps"] {
        let run = api.get(run).json();
        assert_eq!(run["status"], "interrupted", "{run}");
    }
    inside(home, &["resume"]);
    let after = api.exec("kept, 'begun' in globals()");
    assert_eq!(after["result"], "('still here', False)");
}

fn commands_that_running_code_needs_are_still_executed() {
    let home = shared();
    let api = home.api();
    let file = home.files().join("rest-goes-on");
    let code = "import os, time\nwhile not os.path.exists('/root/host/rest-goes-on'): time.sleep(0.01)\nruntime.shell.run('echo by then').stdout";
    api.post("/exec", &json!({"code": code, "id": "needs", "wait": 0}));
    let quiesced = std::thread::scope(|scope| {
        let quiesced = scope.spawn(|| inside(home, &["quiesce", "--grace", "30"]));
        api.until("the refusal of requests from outside", |api| {
            let refused = api.post("/shell/cd", &json!({"path": "/"}));
            (refused.status == 503).then_some(())
        });
        fs::write(&file, "").unwrap();
        quiesced.join().unwrap()
    });
    assert_eq!(quiesced["quiesced"], true, "{quiesced}");
    let run = api.get("/exec/needs").json();
    assert_eq!(
        (&run["status"], &run["result"]),
        (&json!("completed"), &json!("'by then\\n'"))
    );
    inside(home, &["resume"]);
    fs::remove_file(file).unwrap();
}

fn the_self_test_passes_and_names_each_failure() {
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
    // The self-test has removed its session.
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
    home.hub().until("the entry of the server", |hub| {
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
            .contains("exit code 3: the reason"),
        "{fails}"
    );
    let hangs = verdict(&report, "mcp:hangs");
    assert_eq!(hangs["passed"], false, "{hangs}");
    assert_eq!(verdict(&report, "mcp:linux")["passed"], true);
    // A server that never answered is not required by the stored state.
    let report = inside(home, &["selftest", "--snapshot", "/data"]);
    assert!(!report.to_string().contains("mcp:hangs"), "{report:#}");
    api.done(
        "/shell",
        &json!({"command": format!("rm {scripts}/*0-* /data/mcp.json")}),
    );
}

fn the_next_container_verifies_the_whole_session_state() {
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
    let quiesced = inside(home, &["quiesce", "--grace", "5"]);
    assert_eq!(quiesced["quiesced"], true, "{quiesced}");
    assert!(
        is_kept(non_variable_state(&quiesced, "mcp"), "continue"),
        "{quiesced}"
    );
    let (folder, other) = (
        non_variable_state(&quiesced, "shell:default"),
        non_variable_state(&quiesced, "shell:mind"),
    );
    assert!(
        is_kept(folder, "`/data/place`") && is_kept(other, "`/usr`"),
        "{quiesced}"
    );
    let job = non_variable_state(&quiesced, "job:mind");
    assert!(
        job["kept"] == false && job["detail"].as_str().unwrap().contains("sleep 600"),
        "{quiesced}"
    );
    // The stored environments of shells do not contain the container's own variables.
    let kept = fs::read_to_string(home.data().join("session-state.json")).unwrap();
    assert!(
        kept.contains("mind") && !kept.contains("OSCTL_BODY"),
        "{kept}"
    );

    let path = format!("/containers/{}/restart?t=20", home.container());
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    let expected = quiesced["expected"].to_string();
    let api = home.api();
    api.until("the restart of the companion", |api| {
        let answer = std::panic::catch_unwind(|| api.get("/ping").status);
        (answer.ok() == Some(200)).then_some(())
    });
    let report = inside(home, &["verify", "--expected", &expected]);
    assert_eq!(report["passed"], true, "{report:#}");
    for name in ["session:default", "session:mind", "port:8080"] {
        assert_eq!(verdict(&report, name)["passed"], true);
    }
    assert_eq!(report["receipt"][0]["restored_by"], "objects", "{report:#}");
    let (folder, other) = (
        non_variable_state(&report, "shell:default"),
        non_variable_state(&report, "shell:mind"),
    );
    assert!(
        is_kept(folder, "`/data/place`") && is_kept(other, "`/usr`"),
        "{report:#}"
    );
    assert!(
        is_kept(non_variable_state(&report, "mcp"), "continue"),
        "{report:#}"
    );
    let after = api.exec("answer(2), list(frame.a)");
    assert_eq!(after["result"], "(42, [1, 2])");
    assert_eq!(after["kernel"]["state"], "restored", "{after}");
    assert!(after["kernel"]["generation"].as_u64().unwrap() > before);
    // The restored function uses the new value of a global name.
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
        assert_eq!(
            non_variable_state(&report, what)["kept"],
            false,
            "{report:#}"
        );
    }
    api.connect().send("DELETE", "/sessions/mind", &[], b"");
    api.done("/shell", &json!({"command": "cd; unset -f f; unset MINE"}));
}

fn generations_of_another_container_are_not_reused() {
    let home = shared();
    let api = home.api();
    let much = json!({"code": "print('m' * 4_000_000)", "id": "much"});
    assert_eq!(api.exec_with(much)["status"], "completed");
    let before = api.exec("held = 1")["kernel"]["generation"]
        .as_u64()
        .unwrap();
    assert_eq!(inside(home, &["quiesce", "--grace", "5"])["quiesced"], true);
    // Write the record that the next container writes before a rollback.
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
