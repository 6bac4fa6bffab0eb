//! Bodies that do not work: each is found out by a gate, the old container answers, and nothing is lost.

use crate::evolve::{
    DOCKERFILE, assert_one_that_remembers, assert_remembers, configure, latest, on_second, read,
    remember, small, write,
};
use crate::harness::{Engine, Home};
use crate::instance::container_id;
use crate::second_engine::{Second, until};
use crate::trials;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;

trials![
    what_does_not_build_or_start_changes_nothing,
    what_works_beside_and_not_in_place_is_taken_back_with_all_in_memory,
    what_crashes_after_a_while_is_taken_back,
    what_did_not_last_is_not_fallen_back_to,
    code_that_does_not_end_keeps_its_container_unless_forced,
    a_disk_that_fills_while_building_changes_nothing,
];

/// Evolves to what must fail at that gate, for that reason.
#[track_caller]
fn assert_fails(home: &Home, gate: &str, status: &str, why: &str) -> Value {
    let before = container_id(home);
    let record = home.json(["evolve"]);
    let told = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        (told("gate").as_str(), told("status").as_str()),
        (gate, status),
        "{record:#}"
    );
    let reasons = format!("{}\n{}", told("why"), record["log_tail"]);
    assert!(reasons.contains(why), "`{why}` is missing in: {reasons}");
    assert_eq!(container_id(home), before);
    assert_one_that_remembers(home);
    record
}

fn what_does_not_build_or_start_changes_nothing() {
    let home = small("it-evolve-bad");
    home.up();
    remember(&home);
    let fails = |path: &str, text: &str, gate: &str, why: &str| {
        let whole = read(&home, path);
        write(&home, path, text);
        assert_fails(&home, gate, "failed", why);
        write(&home, path, &whole);
    };
    let more = |line: &str| format!("{DOCKERFILE}{line}\n");
    fails(
        "Dockerfile",
        &more("FROBNICATE x"),
        "building",
        "`FROBNICATE` is no instruction",
    );
    fails(
        "Dockerfile",
        &more("COPY"),
        "building",
        "COPY requires at least two arguments",
    );
    let false_step = "RUN echo it is broken && exit 7";
    fails("Dockerfile", &more(false_step), "building", "it is broken");
    fails(
        "Dockerfile",
        &more("COPY nowhere /x"),
        "building",
        "nowhere",
    );
    fails(
        "body.yaml",
        "version: 9.0.0\nprotocol: 99\n",
        "building",
        "protocol 99",
    );
    let kernel = "raise SystemExit('no kernel today')\n";
    fails(
        "kernel/__main__.py",
        kernel,
        "testing",
        "not healthy within 20 s",
    );
    let entrypoint = read(&home, "entrypoint.sh");
    let exec = "exec /opt/osctl/bin/osctl companion";
    assert!(entrypoint.contains(exec));
    let before_exec = |line: &str| entrypoint.replace(exec, &format!("{line}\n{exec}"));
    let dies = before_exec("echo no companion today >&2; exit 3");
    fails("entrypoint.sh", &dies, "testing", "no companion today");
    let unserved = before_exec("export OSCTL_LISTEN=127.0.0.1:8080");
    fails("entrypoint.sh", &unserved, "testing", "port:8080");
    let hangs = "import time\ntime.sleep(1000)\n";
    fails("servers/echo.py", hangs, "testing", "mcp:echo");
    let own = "#!/bin/sh\necho my own check says no >&2\nexit 1\n";
    write(&home, "selftest.d/10-mine", own);
    assert_fails(&home, "testing", "failed", "my own check says no");
    let quick = "evolve:\n  build: 3\n  start: 20\n  grace: 2\n  probation: 12\n";
    configure(&home, quick);
    fs::remove_file(home.project.join("body/selftest.d/10-mine")).unwrap();
    home.up();
    let slow = more("RUN sleep 600");
    fails("Dockerfile", &slow, "building", "it took longer than 3 s");
    // Of all these images none is left, with a name or without, but the one that runs.
    let filter = format!(r#"{{"label":["osctl.image-of={}"]}}"#, home.instance);
    let left = Engine.get(&format!("/images/json?all=true&filters={filter}"));
    let container = Engine.get(&format!("/containers/{}/json", home.container()));
    let left = left.json();
    assert_eq!(left.as_array().unwrap().len(), 1, "{left:#}");
    assert_eq!(left[0]["Id"], container.json()["Image"]);
    home.down();
}

fn what_works_beside_and_not_in_place_is_taken_back_with_all_in_memory() {
    let home = small("it-evolve-place");
    home.up();
    remember(&home);
    // What no store can keep tells whether the process is the same.
    home.api().exec("def numbers():\n    n = 0\n    while True:\n        n += 1\n        yield n\nlive = numbers()\nnext(live)");
    home.api()
        .exec("import graphlib\norder = graphlib.TopologicalSorter()");
    let entrypoint = read(&home, "entrypoint.sh");
    let mut lives = 1;
    let mut fails = |code: &str, why: &str| {
        let code = format!("if test -S /run/os/keeper.sock; then {code}; fi\nexec /opt");
        let changed = entrypoint.replace("exec /opt", &code);
        assert_ne!(changed, entrypoint);
        write(&home, "entrypoint.sh", &changed);
        let record = assert_fails(&home, "verifying", "rolled_back", why);
        assert!(record["refused_seconds"].as_f64().unwrap() > 0.0);
        lives += 1;
        assert_eq!(home.api().exec("next(live)")["result"], lives.to_string());
    };
    fails("echo not here >&2; exit 4", "not here");
    // It runs and is not well: nobody reaches it, a server of it hangs, a variable can't come back.
    fails("export OSCTL_LISTEN=127.0.0.1:8080", "port:8080");
    home.ok(["mcp", "tools", "echo"]);
    let hangs = "printf 'import time; time.sleep(1000)' > /opt/osctl/body/servers/echo.py";
    fails(hangs, "mcp:echo");
    let lost = "rm /usr/lib/python3*/graphlib.py";
    fails(lost, "not all comes back: `order`");
    let status = home.json(["evolve", "status"]);
    assert_eq!(status["latest_status"], "rolled_back", "{status}");
    // The body is mended, and the way is free.
    write(&home, "entrypoint.sh", &(entrypoint + "# mended\n"));
    home.ok(["evolve"]);
    assert_one_that_remembers(&home);
    home.down();
}

/// A small body that is on probation for longer than its test takes.
fn watched(name: &str) -> Home {
    let mut home = small(name);
    let probation = ("OSCTL_EVOLVE_PROBATION".into(), "120".into());
    home.env.extend([probation]);
    home
}

fn what_crashes_after_a_while_is_taken_back() {
    let home = watched("it-evolve-crash");
    home.up();
    remember(&home);
    let image = home.json(["status"])["image"].clone();
    let entrypoint = read(&home, "entrypoint.sh");
    let crash = "if test -S /run/os/keeper.sock; then (sleep 3; kill -9 $$) & fi\nexec /opt";
    write(
        &home,
        "entrypoint.sh",
        &entrypoint.replace("exec /opt", crash),
    );
    let _ = home.run(["evolve"]);
    until("the keeper's rescue", || {
        let record = latest(&home);
        record["status"] == "rolled_back"
            || (record["task"] == "rescue" && record["status"] == "succeeded")
    });
    assert_eq!(home.json(["status"])["image"], image);
    assert_one_that_remembers(&home);
    home.down();
}

fn what_did_not_last_is_not_fallen_back_to() {
    let home = watched("it-evolve-chain");
    home.up();
    remember(&home);
    let image = home.json(["status"])["image"].clone();
    let entrypoint = read(&home, "entrypoint.sh");
    // The second body is still on probation when the third one takes its place.
    write(&home, "entrypoint.sh", &format!("{entrypoint}# second\n"));
    home.ok(["evolve"]);
    let second = home.json(["status"])["image"].clone();
    let crash = "if test -S /run/os/keeper.sock; then \
        (until test -e /root/host/crash; do sleep 0.2; done; kill -9 $$) & fi\nexec /opt";
    write(
        &home,
        "entrypoint.sh",
        &entrypoint.replace("exec /opt", crash),
    );
    let third = home.json(["evolve"]);
    assert_eq!(
        (&third["status"], &third["previous"]),
        (&"succeeded".into(), &second)
    );
    // A run that fails does not end the probation of what it has left in its place.
    write(&home, "Dockerfile", "FROM debian\n");
    assert_eq!(home.json(["evolve"])["gate"], "building");
    std::fs::write(home.files().join("crash"), "").unwrap();
    until("the keeper's rescue", || {
        let record = latest(&home);
        record["task"] == "rescue" && record["status"] == "succeeded"
    });
    assert_eq!(home.json(["status"])["image"], image);
    assert_one_that_remembers(&home);
    home.down();
}

fn code_that_does_not_end_keeps_its_container_unless_forced() {
    let home = small("it-evolve-busy");
    home.up();
    remember(&home);
    let begun = home.api().done(
        "/exec",
        &serde_json::json!({"code": "import time\ntime.sleep(600)", "wait": 0}),
    );
    assert_eq!(begun["status"], "running");
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    let record = home.json(["evolve"]);
    assert_eq!(
        (&record["gate"], &record["status"]),
        (&"freezing".into(), &"failed".into()),
        "{record:#}"
    );
    let id = begun["id"].as_str().unwrap();
    assert_eq!(
        home.api().get(&format!("/exec/{id}")).json()["status"],
        "running"
    );
    home.ok(["evolve", "--force"]);
    assert_one_that_remembers(&home);
    // A body that hangs is no reason to keep it. What was stored comes back.
    write(&home, "kernel/more.py", "\"\"\"Still more.\"\"\"\n");
    let pause = format!("/containers/{}/pause", home.container());
    assert_eq!(Engine.send("POST", &pause, &Value::Null).status, 204);
    let record = home.json(["evolve"]);
    let why = record["why"].as_str().unwrap();
    assert!(
        record["gate"] == "freezing" && why.contains("is paused"),
        "{record:#}"
    );
    let unpause = pause.replace("/pause", "/unpause");
    assert_eq!(Engine.send("POST", &unpause, &Value::Null).status, 204);
    assert_remembers(&home);
    kill(companion(&home), Signal::SIGSTOP).unwrap();
    let record = home.json(["evolve", "--force"]);
    assert_eq!(record["status"], "succeeded", "{record:#}");
    let log = home.ok(["evolve", "logs", record["run"].as_str().unwrap()]);
    assert!(log.stdout.contains("gives no answer"), "{log:?}");
    assert_one_that_remembers(&home);
    home.down();
}

/// The companion of a container, as this machine sees it: what its first process has begun.
fn companion(home: &Home) -> Pid {
    let path = format!("/containers/{}/json", home.container());
    let first = Engine.get(&path).json()["State"]["Pid"].clone();
    let begun = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    let begun = begun.split_ascii_whitespace().next().unwrap();
    Pid::from_raw(begun.parse().unwrap())
}

fn a_disk_that_fills_while_building_changes_nothing() {
    let second = Second::with_room(2000 << 20);
    let home = on_second(&second, "it-evolve-full");
    home.up();
    remember(&home);
    let big = "RUN dd if=/dev/zero of=/big bs=1M count=4000";
    write(&home, "Dockerfile", &format!("{DOCKERFILE}{big}\n"));
    let record = home.json(["evolve"]);
    assert_eq!(
        (&record["gate"], &record["status"]),
        (&"building".into(), &"failed".into()),
        "{record:#}"
    );
    // It is full before the keeper sees it coming, where that is slow.
    let why = record["why"].as_str().unwrap();
    assert!(
        why.contains("disk") || why.contains("No space left"),
        "{record:#}"
    );
    assert_remembers(&home);
    home.down();
}
