//! Tests of bodies that do not work: a stage rejects each, the old container answers, and nothing is lost.

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

trials![
    a_body_that_does_not_build_or_start_changes_nothing,
    each_body_that_does_not_build_or_start_changes_nothing =
        "evolve_broken::a_body_that_does_not_build_or_start_changes_nothing",
    a_body_that_fails_after_the_swap_is_rolled_back_without_a_restart,
    each_failure_after_the_swap_is_rolled_back_without_a_restart =
        "evolve_broken::a_body_that_fails_after_the_swap_is_rolled_back_without_a_restart",
    a_body_that_crashes_later_is_rolled_back,
    no_rescue_returns_to_an_image_that_did_not_pass,
    code_that_does_not_end_keeps_its_container_unless_forced,
    a_disk_that_fills_while_building_changes_nothing,
];

/// Evolves to a body that must fail in that stage for that reason.
#[track_caller]
fn assert_fails(home: &Home, stage: &str, status: &str, why: &str) -> Value {
    let before = container_id(home);
    let record = home.json(["evolve"]);
    let field = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        (field("failed_stage").as_str(), field("status").as_str()),
        (stage, status),
        "{record:#}"
    );
    let reasons = format!("{}\n{}", field("why"), record["log_tail"]);
    assert!(reasons.contains(why), "`{why}` is missing in: {reasons}");
    assert_eq!(container_id(home), before);
    assert_one_that_remembers(home);
    record
}

/// Evolves to the small body with another text of that file, which must fail in that stage for that reason.
#[track_caller]
fn assert_fails_with(home: &Home, path: &str, text: &str, stage: &str, why: &str) {
    let whole = read(home, path);
    write(home, path, text);
    assert_fails(home, stage, "failed", why);
    write(home, path, &whole);
}

/// A Dockerfile with one more line.
fn dockerfile_with(line: &str) -> String {
    format!("{DOCKERFILE}{line}\n")
}

/// An entry point with one more line before the companion.
fn entrypoint_with(home: &Home, line: &str) -> String {
    let entrypoint = read(home, "entrypoint.sh");
    let exec = "exec /opt/osctl/bin/osctl companion";
    assert!(entrypoint.contains(exec));
    entrypoint.replace(exec, &format!("{line}\n{exec}"))
}

fn a_body_that_does_not_build_or_start_changes_nothing() {
    let home = small("it-evolve-bad");
    home.up();
    remember(&home);
    let fails = |path: &str, text: &str, stage: &str, why: &str| {
        assert_fails_with(&home, path, text, stage, why);
    };
    let false_step = dockerfile_with("RUN echo it is broken && exit 7");
    fails("Dockerfile", &false_step, "building", "it is broken");
    // The kernel's end is reported at once.
    let kernel = "raise SystemExit('no kernel today')\n";
    fails(
        "kernel/__main__.py",
        kernel,
        "testing",
        "the kernel can't start: no kernel process was created: the template ended: no kernel today",
    );
    let own = "#!/bin/sh\necho my own check says no >&2\nexit 1\n";
    write(&home, "selftest.d/10-mine", own);
    assert_fails(&home, "testing", "failed", "my own check says no");
    // Only the running image is left, with or without a tag. The keeper removes the others after the run's end.
    let filter = format!(r#"{{"label":["osctl.image-of={}"]}}"#, home.instance);
    let container = Engine.get(&format!("/containers/{}/json", home.container()));
    let running = container.json()["Image"].clone();
    until("the removal of images that failed", || {
        let left = Engine.get(&format!("/images/json?all=true&filters={filter}"));
        let ids: Vec<Value> = left
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|image| image["Id"].clone())
            .collect();
        ids == [running.clone()]
    });
    home.down();
}

fn each_body_that_does_not_build_or_start_changes_nothing() {
    let home = small("it-evolve-worse");
    home.up();
    remember(&home);
    let fails = |path: &str, text: &str, stage: &str, why: &str| {
        assert_fails_with(&home, path, text, stage, why);
    };
    let more = dockerfile_with;
    fails(
        "Dockerfile",
        &more("FROBNICATE x"),
        "building",
        "`FROBNICATE` is not an instruction",
    );
    fails(
        "Dockerfile",
        &more("COPY"),
        "building",
        "COPY requires at least two arguments",
    );
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
    fails(
        "kernel/__main__.py",
        "import sys\ndef broken(:\n",
        "building",
        "kernel/__main__.py:2: invalid syntax",
    );
    fails(
        "entrypoint.sh",
        "#!/bin/bash\nwhile true; do\n  echo again\n",
        "building",
        "entrypoint.sh:4: syntax error: unexpected end of file",
    );
    fails(
        "desktop/openbox.xml",
        "<openbox_config>\n<mouse>\n</openbox_config>\n",
        "building",
        "desktop/openbox.xml:3: mismatched tag",
    );
    fails(
        "servers/lists/linux.json",
        "{\"tools\": [\n{]}\n",
        "building",
        "servers/lists/linux.json:2: Expecting property name enclosed in double quotes",
    );
    write(&home, "servers/settings.toml", "[echo]\n");
    fails(
        "servers/settings.toml",
        "[echo]\ntimes = \n",
        "building",
        "servers/settings.toml:2: Invalid value",
    );
    fails(
        "mcp.json",
        "{\"mcpServers\": [}",
        "building",
        "`mcp.json` is not valid JSON: expected value at line 1 column 17",
    );
    let dies = entrypoint_with(&home, "echo no companion today >&2; exit 3");
    fails("entrypoint.sh", &dies, "testing", "no companion today");
    let unserved = entrypoint_with(&home, "export OSCTL_LISTEN=127.0.0.1:8080");
    fails("entrypoint.sh", &unserved, "testing", "port:8080");
    let hangs = "import time\ntime.sleep(1000)\n";
    fails("servers/echo.py", hangs, "testing", "mcp:echo");
    let quick = "evolve:\n  build: 3\n  start: 20\n  grace: 2\n  watch_period: 12\n";
    configure(&home, quick);
    home.up();
    let slow = more("RUN sleep 600");
    fails(
        "Dockerfile",
        &slow,
        "building",
        "the build took longer than 3 s",
    );
    home.down();
}

/// Code of a new container that fails after the swap, and the reason of the rollback.
const FAILURES_AFTER_THE_SWAP: [(&str, &str); 4] = [
    ("echo not here >&2; exit 4", "not here"),
    // The container runs but fails its checks: its port is unreachable, a server hangs, a variable is lost.
    ("export OSCTL_LISTEN=127.0.0.1:8080", "port:8080"),
    (
        "printf 'import time; time.sleep(1000)' > /opt/osctl/body/servers/echo.py",
        "mcp:echo",
    ),
    (
        "rm /usr/lib/python3*/graphlib.py",
        "variables are lost: `order`",
    ),
];

fn a_body_that_fails_after_the_swap_is_rolled_back_without_a_restart() {
    fail_after_the_swap("it-evolve-place", &FAILURES_AFTER_THE_SWAP[..1]);
}

fn each_failure_after_the_swap_is_rolled_back_without_a_restart() {
    fail_after_the_swap("it-evolve-places", &FAILURES_AFTER_THE_SWAP);
}

fn fail_after_the_swap(name: &str, failures: &[(&str, &str)]) {
    let home = small(name);
    home.up();
    remember(&home);
    // A generator, which no store can keep, shows whether the process is the same.
    home.api().exec("def numbers():\n    n = 0\n    while True:\n        n += 1\n        yield n\nlive = numbers()\nnext(live)");
    home.api()
        .exec("import graphlib\norder = graphlib.TopologicalSorter()");
    let entrypoint = read(&home, "entrypoint.sh");
    home.ok(["mcp", "tools", "echo"]);
    for (expected, (code, why)) in (2..).zip(failures) {
        let code = format!("if test -S /run/os/keeper.sock; then {code}; fi\nexec /opt");
        let changed = entrypoint.replace("exec /opt", &code);
        assert_ne!(changed, entrypoint);
        write(&home, "entrypoint.sh", &changed);
        let record = assert_fails(&home, "verifying", "rolled_back", why);
        assert!(record["refused_seconds"].as_f64().unwrap() > 0.0);
        let next = home.api().exec("next(live)")["result"].clone();
        assert_eq!(next, i32::to_string(&expected));
    }
    let status = home.json(["evolve", "status"]);
    assert_eq!(status["latest_status"], "rolled_back", "{status}");
    // A repaired body can evolve.
    write(&home, "entrypoint.sh", &(entrypoint + "# mended\n"));
    home.ok(["evolve"]);
    assert_one_that_remembers(&home);
    home.down();
}

/// A small body with a watch period that is longer than the trial.
fn small_with_long_watch(name: &str) -> Home {
    let mut home = small(name);
    let watch_period = ("OSCTL_EVOLVE_PROBATION".into(), "120".into());
    home.env.extend([watch_period]);
    home
}

fn a_body_that_crashes_later_is_rolled_back() {
    let home = small_with_long_watch("it-evolve-crash");
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
    until("the end of the keeper's rescue", || {
        let record = latest(&home);
        record["status"] == "rolled_back"
            || (record["task"] == "rescue" && record["status"] == "succeeded")
    });
    assert_eq!(home.json(["status"])["image"], image);
    assert_one_that_remembers(&home);
    home.down();
}

fn no_rescue_returns_to_an_image_that_did_not_pass() {
    let home = small_with_long_watch("it-evolve-chain");
    home.up();
    remember(&home);
    let image = home.json(["status"])["image"].clone();
    let entrypoint = read(&home, "entrypoint.sh");
    // The third body replaces the second during its watch period.
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
        (&third["status"], &third["previous_image"]),
        (&"succeeded".into(), &second)
    );
    // A failed run does not end the watch period of the running container.
    write(&home, "Dockerfile", "FROM debian\n");
    assert_eq!(home.json(["evolve"])["failed_stage"], "building");
    std::fs::write(home.files().join("crash"), "").unwrap();
    until("the end of the keeper's rescue", || {
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
    let started = home.api().done(
        "/exec",
        &serde_json::json!({"code": "import time\ntime.sleep(600)", "wait": 0}),
    );
    assert_eq!(started["status"], "running");
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    let record = home.json(["evolve"]);
    assert_eq!(
        (&record["failed_stage"], &record["status"]),
        (&"quiescing".into(), &"failed".into()),
        "{record:#}"
    );
    let id = started["id"].as_str().unwrap();
    assert_eq!(
        home.api().get(&format!("/exec/{id}")).json()["status"],
        "running"
    );
    home.ok(["evolve", "--force"]);
    assert_one_that_remembers(&home);
    // A container that does not answer is replaced by force; its stored state is restored.
    write(&home, "kernel/more.py", "\"\"\"Still more.\"\"\"\n");
    let pause = format!("/containers/{}/pause", home.container());
    assert_eq!(Engine.send("POST", &pause, &Value::Null).status, 204);
    let record = home.json(["evolve"]);
    let why = record["why"].as_str().unwrap();
    assert!(
        record["failed_stage"] == "quiescing" && why.contains("is paused"),
        "{record:#}"
    );
    let unpause = pause.replace("/pause", "/unpause");
    assert_eq!(Engine.send("POST", &unpause, &Value::Null).status, 204);
    assert_remembers(&home);
    kill(companion(&home), Signal::SIGSTOP).unwrap();
    let record = home.json(["evolve", "--force"]);
    assert_eq!(record["status"], "succeeded", "{record:#}");
    let log = home.ok(["evolve", "logs", record["id"].as_str().unwrap()]);
    assert!(log.stdout.contains("does not answer"), "{log:?}");
    assert_one_that_remembers(&home);
    home.down();
}

/// The companion of a container, the child of its first process, as a PID of the host.
fn companion(home: &Home) -> Pid {
    let path = format!("/containers/{}/json", home.container());
    let first = Engine.get(&path).json()["State"]["Pid"].clone();
    let started = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    let started = started.split_ascii_whitespace().next().unwrap();
    Pid::from_raw(started.parse().unwrap())
}

fn a_disk_that_fills_while_building_changes_nothing() {
    let second = Second::with_disk(2000 << 20);
    let home = on_second(&second, "it-evolve-full");
    home.up();
    remember(&home);
    let big = "RUN dd if=/dev/zero of=/big bs=1M count=4000";
    write(&home, "Dockerfile", &format!("{DOCKERFILE}{big}\n"));
    let record = home.json(["evolve"]);
    assert_eq!(
        (&record["failed_stage"], &record["status"]),
        (&"building".into(), &"failed".into()),
        "{record:#}"
    );
    // On a slow machine the disk is full before the keeper's check.
    let why = record["why"].as_str().unwrap();
    assert!(
        why.contains("disk") || why.contains("No space left"),
        "{record:#}"
    );
    assert_remembers(&home);
    home.down();
}
