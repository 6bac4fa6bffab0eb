//! `osctl up` over a running container: the keeper replaces the container by the stages and rules of an evolve.

use crate::commands::{Followed, Ran};
use crate::evolve::{DOCKERFILE, assert_one_that_remembers, latest, read, remember, small, write};
use crate::harness::{Engine, Home};
use crate::instance::container_id;
use crate::ports::free_port;
use crate::second_engine::until;
use crate::trials;
use serde_json::{Value, json};
use std::fs;

trials![
    up_replaces_the_container_by_the_gates_and_keeps_session_state,
    up_builds_under_the_rules_of_the_keeper,
    no_run_brings_back_a_withdrawn_right,
    no_evolve_runs_while_up_places_a_container,
    another_version_starts_another_keeper_that_knows_all_runs,
    a_cell_that_waits_for_its_own_evolve_fails_it_and_variables_of_up_stay,
    evolve_works_without_a_companion_that_answers =
        "evolve_broken::code_that_does_not_end_keeps_its_container_unless_forced",
];

fn inspect(name: &str) -> Value {
    Engine.get(&format!("/containers/{name}/json")).json()
}

fn keeper(home: &Home) -> String {
    format!("os-keeper-{}", home.instance)
}

fn sees_the_engine(home: &Home) -> bool {
    inspect(&home.container())["Mounts"]
        .to_string()
        .contains("docker.sock")
}

/// The kernel's port, as the engine publishes it.
fn published(home: &Home) -> String {
    let ports = inspect(&home.container())["HostConfig"]["PortBindings"].clone();
    ports["8080/tcp"][0]["HostPort"].as_str().unwrap().into()
}

/// Breaks the body so that the trial container passes and the container in place fails.
fn break_in_place(home: &Home) -> String {
    let entrypoint = read(home, "entrypoint.sh");
    let in_place = "if test -S /run/os/keeper.sock; then echo not here >&2; exit 4; fi\nexec /opt";
    let broken = entrypoint.replace("exec /opt", in_place);
    assert_ne!(broken, entrypoint);
    write(home, "entrypoint.sh", &broken);
    entrypoint
}

#[track_caller]
fn assert_replaced(ran: &Ran) {
    assert!(ran.stdout.contains("its variables were kept"), "{ran:?}");
}

fn up_replaces_the_container_by_the_gates_and_keeps_session_state() {
    let mut home = small("it-hand");
    home.up();
    remember(&home);
    let config = fs::read_to_string(home.folder.join(".config/osctl/osctl.yaml")).unwrap();
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    assert_replaced(&home.ok(["up"]));
    assert_one_that_remembers(&home);
    let record = latest(&home);
    assert_eq!(
        (
            &record["requested_by"],
            &record["reason"],
            &record["status"]
        ),
        (&json!("host"), &json!("`osctl up`"), &json!("succeeded"))
    );
    // The same image with another container configuration.
    home.write_config(&format!("{config}limits:\n  pids: 600\n"));
    let port = free_port().to_string();
    home.env.insert("OSCTL_PORTS_KERNEL".into(), port.clone());
    assert_replaced(&home.ok(["up", "--yes"]));
    home.env.clear();
    assert_eq!(published(&home), port);
    assert_eq!(inspect(&home.container())["HostConfig"]["PidsLimit"], 600);
    assert_one_that_remembers(&home);
    // When a stage fails, the same process stays in its container.
    let live = "def numbers():\n    n = 0\n    while True:\n        n += 1\n        yield n\nlive = numbers()\nnext(live)";
    home.api().exec(live);
    let before = container_id(&home);
    let entrypoint = break_in_place(&home);
    let other = free_port().to_string();
    home.env.insert("OSCTL_PORTS_KERNEL".into(), other.clone());
    let ran = home.run(["up", "--yes"]);
    home.env.clear();
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr.contains("not here") && ran.stderr.contains("the stage `verifying` failed"),
        "{ran:?}"
    );
    assert_eq!(
        (container_id(&home), published(&home)),
        (before, port.clone())
    );
    assert_eq!(home.api().exec("next(live)")["result"], "2");
    // A later run does not apply what the refused `up` requested.
    write(&home, "entrypoint.sh", &(entrypoint + "# mended\n"));
    home.ok(["evolve"]);
    assert_eq!(published(&home), port);
    // A signal detaches `up` from the run; Ctrl-C is the same to `evolve`.
    write(&home, "kernel/more.py", "\"\"\"Much more.\"\"\"\n");
    let mut up = Followed::start(home.command(["up"]));
    assert!(up.wait_for("testing"), "{:?}", up.seen);
    up.signal("TERM");
    let (code, seen) = up.end();
    let seen = seen.concat();
    assert!(
        code == 5
            && seen.contains("the keeper continues evolve")
            && seen.contains("evolve logs -f"),
        "{seen}"
    );
    until("its end", || latest(&home)["status"] == "succeeded");
    let ran = home.ok(["up"]);
    assert!(ran.stdout.contains("is up to date"), "{ran:?}");
    assert_one_that_remembers(&home);
    // `up` does not stop a cell that does not end.
    let endless = json!({"code": "import time\ntime.sleep(600)", "wait": 0});
    let begun = home.api().done("/exec", &endless);
    write(&home, "kernel/more.py", "\"\"\"Still more.\"\"\"\n");
    let ran = home.run(["up"]);
    assert!(
        ran.code == 4 && ran.stderr.contains("up --force"),
        "{ran:?}"
    );
    let run = home
        .api()
        .get(&format!("/exec/{}", begun["id"].as_str().unwrap()));
    assert_eq!(run.json()["status"], "running");
    assert_replaced(&home.ok(["up", "--force"]));
    assert_one_that_remembers(&home);
    home.down();
}

fn up_builds_under_the_rules_of_the_keeper() {
    let home = small("it-hand-rules");
    let foreign = format!("{DOCKERFILE}FROM debian\n");
    write(&home, "Dockerfile", &foreign);
    let refused = |args: &[&str]| {
        let ran = home.run(args);
        assert_eq!(ran.code, 4, "{ran:?}");
        let line = DOCKERFILE.lines().count() + 1;
        let why = format!("line {line} of the Dockerfile: `FROM debian` is not allowed");
        assert!(ran.stderr.contains(&why), "{ran:?}");
    };
    refused(&["up", "--yes", "--auto-ports"]);
    refused(&["build", "--yes"]);
    write(&home, "Dockerfile", DOCKERFILE);
    write(&home, ".osctl/osctl", "not ours");
    let ran = home.run(["up", "--yes", "--auto-ports"]);
    assert!(
        ran.code == 4 && ran.stderr.contains("osctl reserves"),
        "{ran:?}"
    );
    fs::remove_dir_all(home.project.join("body/.osctl")).unwrap();
    home.up();
    let before = container_id(&home);
    write(&home, "Dockerfile", &foreign);
    refused(&["up"]);
    assert_eq!(container_id(&home), before);
    home.down();
}

fn no_run_brings_back_a_withdrawn_right() {
    let home = small("it-hand-right");
    let config = fs::read_to_string(home.folder.join(".config/osctl/osctl.yaml")).unwrap();
    home.write_config(&format!("{config}docker_socket: true\n"));
    let warned = "code in the container can become root on this machine";
    let up = home.ok(["up", "--yes", "--auto-ports"]);
    for ran in [up, home.ok(["status"]), home.run(["doctor"])] {
        let text = ran.stdout + &ran.stderr;
        assert!(text.contains(warned), "{text}");
    }
    assert!(sees_the_engine(&home));
    remember(&home);
    home.write_config(&config);
    // An agent that keeps the right has a body that fails in a stage.
    let entrypoint = break_in_place(&home);
    assert_eq!(home.run(["up", "--yes"]).code, 4);
    assert!(sees_the_engine(&home));
    write(&home, "entrypoint.sh", &(entrypoint + "# mended\n"));
    home.api().done("/evolve", &json!({"reason": "back"}));
    until("the agent's run", || latest(&home)["status"] == "succeeded");
    assert!(!sees_the_engine(&home));
    assert_one_that_remembers(&home);
    home.ok(["evolve", "rollback"]);
    assert!(!sees_the_engine(&home));
    assert_one_that_remembers(&home);
    assert!(!home.ok(["status"]).stderr.contains(warned));
    home.down();
}

fn no_evolve_runs_while_up_places_a_container() {
    let home = small("it-hand-place");
    home.up();
    remember(&home);
    let path = format!("/containers/{}/stop", home.container());
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    // The companion starts when the file exists.
    let entrypoint = read(&home, "entrypoint.sh");
    let waits = "while ! test -e /root/host/go; do sleep 0.1; done\nexec /opt";
    write(
        &home,
        "entrypoint.sh",
        &entrypoint.replace("exec /opt", waits),
    );
    let mut up = Followed::start(home.command(["up"]));
    assert!(up.wait_for("to become healthy"), "{:?}", up.seen);
    assert_eq!(
        Engine
            .get(&format!("/containers/{}/json", keeper(&home)))
            .status,
        404
    );
    fs::write(home.files().join("go"), "").unwrap();
    let (code, seen) = up.end();
    assert_eq!(code, 0, "{seen:?}");
    assert_eq!(inspect(&keeper(&home))["State"]["Running"], true);
    // `up` starts a stopped keeper.
    let path = format!("/containers/{}/stop", keeper(&home));
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    write(&home, "entrypoint.sh", &entrypoint);
    assert_replaced(&home.ok(["up"]));
    assert_one_that_remembers(&home);
    home.down();
}

fn another_version_starts_another_keeper_that_knows_all_runs() {
    let home = small("it-hand-version");
    home.up();
    remember(&home);
    home.ok(["evolve", "--dry-run"]);
    let (run, before) = (latest(&home)["id"].clone(), inspect(&keeper(&home)));
    let other = home.folder.join("osctl");
    let mut binary = fs::read(env!("CARGO_BIN_EXE_osctl")).unwrap();
    binary.extend_from_slice(b"another version");
    fs::write(&other, binary).unwrap();
    assert_replaced(&home.ok(["up", "--companion", other.to_str().unwrap()]));
    let after = inspect(&keeper(&home));
    assert_ne!(
        (&after["Id"], &after["Image"]),
        (&before["Id"], &before["Image"])
    );
    let runs = home.json(["evolve", "history"])["runs"].clone();
    assert_eq!(
        (runs[1]["id"].clone(), runs[0]["status"].clone()),
        (run, json!("succeeded"))
    );
    assert_one_that_remembers(&home);
    home.down();
}

fn a_cell_that_waits_for_its_own_evolve_fails_it_and_variables_of_up_stay() {
    let mut home = small("it-hand-env");
    home.env.insert("OPENAI_API_KEY".into(), "sk-of-up".into());
    home.ok(["up", "--yes", "--auto-ports", "--env", "OPENAI_API_KEY"]);
    home.env.clear();
    remember(&home);
    let handed_in = |home: &Home| {
        let code = "import os; os.environ['OPENAI_API_KEY'], os.environ['FILESYSTEM_ROOT']";
        assert_eq!(home.api().exec(code)["result"], "('sk-of-up', '/root')");
    };
    handed_in(&home);
    let before = container_id(&home);
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    let waits = "import time\nrun = runtime.evolve('mine')\nwhile runtime.evolution(run).is_on: time.sleep(0.1)\nruntime.evolution(run).status";
    let reply = home.api().exec(waits);
    assert_eq!(reply["result"], "'failed'", "{reply}");
    let record = latest(&home);
    assert_eq!(
        (&record["failed_stage"], &record["requested_by"]),
        (&json!("quiescing"), &json!("agent")),
        "{record:#}"
    );
    assert_eq!(container_id(&home), before);
    assert_one_that_remembers(&home);
    // No later run loses what the environment of `up` passed.
    home.ok(["evolve"]);
    handed_in(&home);
    write(&home, "kernel/more.py", "\"\"\"Still more.\"\"\"\n");
    home.ok(["evolve"]);
    handed_in(&home);
    home.down();
}

fn evolve_works_without_a_companion_that_answers() {
    let home = small("it-hand-mute");
    let entrypoint = read(&home, "entrypoint.sh");
    // The container runs without its companion.
    let exec = "exec /opt/osctl/bin/osctl companion \"$@\"";
    assert!(entrypoint.contains(exec));
    let stays = format!("{} || sleep 600", exec.trim_start_matches("exec "));
    write(&home, "entrypoint.sh", &entrypoint.replace(exec, &stays));
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    let script = "for p in /proc/[0-9]*; do case \"$(tr '\\0' ' ' < $p/cmdline)\" in '/opt/osctl/bin/osctl companion'*) kill -9 ${p#/proc/};; esac; done";
    let command = json!({"Cmd": ["/bin/sh", "-c", script]});
    let path = format!("/containers/{}/exec", home.container());
    let made = Engine.send("POST", &path, &command).json();
    let path = format!("/exec/{}/start", made["Id"].as_str().unwrap());
    let begun = Engine.send("POST", &path, &json!({"Detach": true}));
    assert_eq!(begun.status, 200);
    until("the companion's end", || home.run(["status"]).code != 0);
    assert_eq!(inspect(&home.container())["State"]["Running"], true);
    write(&home, "entrypoint.sh", &entrypoint);
    let ran = home.run(["evolve"]);
    assert!(
        ran.code == 1 && ran.stderr.contains("the stage `quiescing` failed"),
        "{ran:?}"
    );
    home.ok(["evolve", "--force"]);
    assert_one_that_remembers(&home);
    home.down();
}
