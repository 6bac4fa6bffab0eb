//! Trials of rollbacks and of the time around the swap: running cells, refused requests, state that is not pruned, and
//! ports that another program has taken.

use crate::commands::Followed;
use crate::evolve::{
    assert_one_that_remembers, assert_remembers, configure, engine, latest, on_second, read,
    remember, small, write,
};
use crate::harness::{Engine, Home};
use crate::instance::container_id;
use crate::proxies::observed_engine_at_socket;
use crate::second_engine::{Second, short_folder, until};
use crate::trials;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

trials![
    ports_taken_during_the_swap_are_recovered_when_they_are_free,
    port_recovery_continues_after_an_engine_restart =
        "evolve_swap_recovery::ports_taken_during_the_swap_are_recovered_when_they_are_free",
    verification_skips_servers_that_the_body_does_not_declare,
    no_request_is_admitted_before_the_new_container_is_verified,
    a_cell_keeps_running_when_the_waiting_run_is_stopped,
    the_state_of_a_running_self_test_is_not_pruned,
    a_rescue_is_a_run_that_can_be_stopped,
];

/// An entry point that runs code after the swap, before the companion starts.
fn run_after_swap(entrypoint: &str, code: &str) -> String {
    let code = format!("if test -S /run/os/keeper.sock; then {code}; fi\nexec /opt");
    let changed = entrypoint.replace("exec /opt", &code);
    assert_ne!(changed, entrypoint);
    changed
}

/// The port of the host at which the engine publishes that port of the container.
fn published(home: &Home, port: &str) -> Value {
    let path = format!("/containers/{}/json", home.container());
    engine(home).get(&path).json()["NetworkSettings"]["Ports"][port][0]["HostPort"].clone()
}

/// Binds the kernel's port when the start of the new container is requested.
#[derive(Debug, Default)]
struct PortTaker {
    port: u16,
    start: String,
    taken: Option<TcpListener>,
}

impl PortTaker {
    fn observe(&mut self, asked: &str) {
        if self.port > 0 && self.taken.is_none() && asked.contains(&self.start) {
            self.taken = TcpListener::bind(("127.0.0.1", self.port)).ok();
        }
    }
}

fn ports_taken_during_the_swap_are_recovered_when_they_are_free() {
    let mut home = small("it-back-port");
    let folder = short_folder();
    let taker = Arc::new(Mutex::new(PortTaker::default()));
    let observer = Arc::clone(&taker);
    let socket = folder.path().join("docker.sock");
    let address = observed_engine_at_socket(&socket, move |asked| {
        observer.lock().unwrap().observe(asked)
    });
    home.env.insert("DOCKER_HOST".into(), address);
    home.up();
    remember(&home);
    home.api().exec("live = iter(range(9))\nnext(live)");
    let before = container_id(&home);
    let port: u16 = published(&home, "8080/tcp")
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    *taker.lock().unwrap() = PortTaker {
        port,
        start: format!("/containers/{}/start", home.container()),
        taken: None,
    };
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    let record = home.json(["evolve"]);
    assert!(taker.lock().unwrap().taken.is_some());
    assert_eq!(
        (&record["status"], &record["failed_stage"]),
        (&json!("rolled_back"), &json!("swapping")),
        "{record:#}"
    );
    // The record says that the port is unavailable, and the keeper continues to recover it.
    let why = record["why"].as_str().unwrap();
    assert!(why.contains("can't be reached until"), "{record:#}");
    assert_eq!(container_id(&home), before);
    assert_eq!(published(&home, "8080/tcp"), Value::Null);
    // A restarted keeper continues the recovery.
    let keeper = format!("/containers/os-keeper-{}/restart", home.instance);
    assert_eq!(Engine.send("POST", &keeper, &Value::Null).status, 204);
    taker.lock().unwrap().port = 0;
    drop(taker.lock().unwrap().taken.take());
    until("the recovery of the old container's ports", || {
        published(&home, "8080/tcp") == json!(port.to_string())
    });
    assert_one_that_remembers(&home);
    assert_eq!(container_id(&home), before);
    assert_eq!(home.api().exec("next(live)")["result"], "1");
    until("the recovery in the history", || {
        let record = latest(&home);
        record["why"].as_str().unwrap().contains("its ports again")
    });
    home.ok(["evolve"]);
    assert_one_that_remembers(&home);
    home.down();
}

/// The number of failed attempts of the keeper to recover the ports.
fn failed_port_recoveries(home: &Home) -> usize {
    let name = format!("os-keeper-{}", home.instance);
    let path = format!("/containers/{name}/logs?stdout=true&stderr=true");
    let log = engine(home).get(&path).body;
    let log = String::from_utf8_lossy(&log);
    log.matches("does not have its ports yet").count()
}

fn port_recovery_continues_after_an_engine_restart() {
    let mut second = Second::with_disk(8000 << 20);
    let home = on_second(&second, "it-back-anew");
    home.up();
    remember(&home);
    let before = container_id(&home);
    let port = published(&home, "8080/tcp");
    let number: u16 = port.as_str().unwrap().parse().unwrap();
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    // The trial binds the port after the old container releases it and before the new container starts.
    let evolve = Followed::start(home.command(["evolve"]));
    let taken = second.bind_port(number);
    let (code, seen) = evolve.end();
    assert_eq!(code, 1, "{seen:?}");
    let record = latest(&home);
    let why = record["why"].as_str().unwrap();
    assert!(why.contains("can't be reached until"), "{record:#}");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let tried = failed_port_recoveries(&home);
        second.stop(signal);
        second.start_daemon();
        until("an answer of the keeper", || {
            home.run(["evolve", "status"]).code == 0
        });
        // The engine could not start the container, and the keeper continues to recover its ports.
        until("a failed attempt", || failed_port_recoveries(&home) > tried);
    }
    drop(taken);
    until("the recovery of the old container's ports", || {
        published(&home, "8080/tcp") == port
    });
    assert_one_that_remembers(&home);
    assert_eq!(container_id(&home), before);
    until("the recovery in the history", || {
        let record = latest(&home);
        record["why"].as_str().unwrap().contains("its ports again")
    });
    home.down();
}

fn verification_skips_servers_that_the_body_does_not_declare() {
    let home = small("it-back-server");
    home.up();
    remember(&home);
    let mut servers: Value = serde_json::from_str(&read(&home, "mcp.json")).unwrap();
    servers["mcpServers"]["second"] = servers["mcpServers"]["echo"].clone();
    write(&home, "mcp.json", &servers.to_string());
    home.ok(["evolve"]);
    home.ok(["mcp", "tools", "second"]);
    let record = home.json(["evolve", "rollback"]);
    assert_eq!(record["status"], "succeeded", "{record:#}");
    let checks = record["checks"].as_array().unwrap();
    let left_out = checks.iter().find(|check| check["name"] == "mcp:second");
    let detail = &left_out.unwrap_or_else(|| panic!("{checks:#?}"))["detail"];
    assert!(detail.as_str().unwrap().contains("does not declare it"));
    assert_one_that_remembers(&home);
    home.down();
}

fn no_request_is_admitted_before_the_new_container_is_verified() {
    let home = small("it-back-gate");
    home.up();
    remember(&home);
    home.ok(["mcp", "tools", "echo"]);
    // The server starts slowly after the swap, and the verification requires it.
    let waits = "import os, time\nwhile os.path.exists('/run/os/keeper.sock') and not \
                 os.path.exists('/root/host/go'):\n    time.sleep(0.05)\n";
    let server = read(&home, "servers/echo.py");
    let later = server.replace("import json\n", &format!("import json\n{waits}"));
    assert_ne!(later, server);
    write(&home, "servers/echo.py", &later);
    let api = home.api();
    let mut evolve = Followed::start(home.command(["evolve"]));
    let point = "verifying: checking variables, ports and services";
    assert!(evolve.wait_for(point), "{:?}", evolve.seen);
    let refused = api.post("/exec", &json!({"code": "x = 0"}));
    assert_eq!((refused.status, &*refused.error().1), (503, "evolving"));
    assert_eq!(api.get("/ping").status, 200);
    fs::write(home.files().join("go"), "").unwrap();
    let (code, seen) = evolve.end();
    assert_eq!(code, 0, "{seen:?}");
    assert_eq!(api.exec("x")["result"], "41");
    assert_one_that_remembers(&home);
    home.down();
}

fn a_cell_keeps_running_when_the_waiting_run_is_stopped() {
    let home = small("it-back-wait");
    configure(&home, "evolve:\n  start: 20\n  grace: 3600\n");
    home.up();
    remember(&home);
    let before = container_id(&home);
    let api = home.api();
    let waits =
        "import os, time\nwhile not os.path.exists('/root/host/go'): time.sleep(0.05)\n'done'";
    let started = api.done("/exec", &json!({"code": waits, "wait": 0}));
    let cell = format!("/exec/{}", started["id"].as_str().unwrap());
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    // With `--force`, the cell would be interrupted after the grace time.
    let mut evolve = Followed::start(home.command(["evolve", "--force"]));
    assert!(evolve.wait_for("quiescing: waiting"), "{:?}", evolve.seen);
    let command = json!({"command": "echo fine"});
    until("the closed admission", || {
        api.post("/shell", &command).status == 503
    });
    home.ok(["evolve", "stop"]);
    assert_eq!(evolve.end().0, 1);
    assert_eq!(api.done("/shell", &command)["stdout"], "fine\n");
    assert_eq!(api.get(&cell).json()["status"], "running");
    let record = latest(&home);
    assert_eq!(
        (&record["failed_stage"], &record["status"], &record["why"]),
        (
            &json!("quiescing"),
            &json!("failed"),
            &json!("the user cancelled the evolve")
        )
    );
    fs::write(home.files().join("go"), "").unwrap();
    until("the end of the cell", || {
        api.get(&cell).json()["status"] == "completed"
    });
    assert_eq!(api.get(&cell).json()["result"], "'done'");
    assert_eq!(container_id(&home), before);
    assert_one_that_remembers(&home);
    home.down();
}

/// The stored generations of the default session.
fn generations(home: &Home) -> Vec<u64> {
    let entries = fs::read_dir(home.data().join("cryo/default")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut numbers: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn the_state_of_a_running_self_test_is_not_pruned() {
    let home = small("it-back-pin");
    configure(&home, "cryo:\n  keep: 1\n");
    home.up();
    remember(&home);
    let waits = "#!/bin/sh\nuntil test -e /repo/go; do sleep 0.1; done\n";
    write(&home, "selftest.d/10-waits", waits);
    let mut evolve = Followed::start(home.command(["evolve", "--dry-run"]));
    assert!(
        evolve.wait_for("testing: running the self-test"),
        "{:?}",
        evolve.seen
    );
    let tried = *generations(&home).last().unwrap();
    for _ in 0..3 {
        home.ok(["cryo", "store"]);
    }
    assert!(generations(&home).contains(&tried), "{tried} is gone");
    fs::write(home.project.join("go"), "").unwrap();
    let (code, seen) = evolve.end();
    assert_eq!(code, 0, "{seen:?}");
    // The state is pruned after the self-test.
    home.ok(["cryo", "store"]);
    assert_eq!(generations(&home), [tried + 4]);
    assert_one_that_remembers(&home);
    home.down();
}

fn a_rescue_is_a_run_that_can_be_stopped() {
    let home = small("it-back-rescue");
    configure(
        &home,
        "evolve:\n  start: 300\n  grace: 2\n  watch_period: 300\n",
    );
    let entrypoint = read(&home, "entrypoint.sh");
    // The previous image starts, but does not become healthy.
    let held = "while test -e /root/host/hold; do sleep 0.1; done";
    write(&home, "entrypoint.sh", &run_after_swap(&entrypoint, held));
    home.up();
    remember(&home);
    let crash = "(until test -e /root/host/crash; do sleep 0.1; done; kill -9 $$) &";
    write(
        &home,
        "entrypoint.sh",
        &run_after_swap(&entrypoint, &format!("{crash} true")),
    );
    home.ok(["evolve"]);
    let image = home.json(["status"])["image"].clone();
    let file = |name: &str| home.files().join(name);
    fs::write(file("hold"), "").unwrap();
    fs::write(file("crash"), "").unwrap();
    let mut run = Value::Null;
    until("the start of the rescue", || {
        let record = latest(&home);
        run = record["id"].clone();
        record["task"] == "rescue" && record["status"] == "verifying"
    });
    let status = home.json(["evolve", "status"]);
    assert_eq!(
        (&status["evolve_in_progress"], &status["latest_id"]),
        (&json!(true), &run)
    );
    let ran = home.run(["evolve"]);
    let busy = format!("evolve {} is in progress", run.as_str().unwrap());
    assert!(ran.code == 4 && ran.stderr.contains(&busy), "{ran:?}");
    fs::remove_file(file("crash")).unwrap();
    home.ok(["evolve", "stop"]);
    let record = latest(&home);
    assert_eq!(
        (&record["id"], &record["status"]),
        (&run, &json!("rolled_back"))
    );
    // The record may also report that the crashed container was restarted.
    let why = record["why"].as_str().unwrap();
    assert!(
        why.starts_with("the user cancelled the evolve; the keeper does not repeat the rescue"),
        "{record:#}"
    );
    assert_remembers(&home);
    assert_eq!(home.json(["status"])["image"], image);
    // The keeper has no pending work.
    let journal = format!(
        "/containers/os-keeper-{}/archive?path=/state/journal.json",
        home.instance
    );
    until("the removal of the journal", || {
        Engine.get(&journal).status == 404
    });
    home.down();
}
