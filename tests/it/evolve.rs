//! Trials of evolve: the user or the agent replaces the body, and the session state is kept.
//!
//! The trials use a small body: a kernel and one MCP server, no desktop.

use crate::commands::Followed;
use crate::evolve_repair::images;
use crate::harness::{Engine, EngineAt, Home};
use crate::instance::container_id;
use crate::second_engine::{Second, until};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

trials![
    a_changed_body_replaces_the_container_and_keeps_the_variables,
    the_agent_evolves_itself_and_uses_the_new_body,
    no_other_command_replaces_the_container_during_a_run,
    a_dry_run_changes_nothing,
    a_run_without_a_commit_reports_the_reason,
    evolve_works_while_os_host_is_stopped,
    the_state_of_the_keeper_survives_down_and_not_purge,
];

/// A Dockerfile on top of the small base.
pub(crate) const DOCKERFILE: &str = r#"ARG BASE
FROM ${BASE}
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/osctl/entrypoint.sh"]
CMD []
COPY .osctl/osctl /opt/osctl/bin/osctl
COPY entrypoint.sh /opt/osctl/entrypoint.sh
COPY mcp.json /opt/osctl/body/mcp.json
COPY servers/ /opt/osctl/body/servers/
COPY selftest.d/ /opt/osctl/body/selftest.d/
COPY kernel/ /opt/osctl/body/kernel/
RUN chmod 0755 /opt/osctl/entrypoint.sh \
 && "$OSCTL_PYTHON" -m compileall -q /opt/osctl/body/kernel
"#;

/// The stage of the small base that follows the first stages of the usual body.
const GROUND: &str = r#"
FROM system AS ground
COPY --from=kernel-env /opt/osctl/kernel-env /opt/osctl/kernel-env
RUN mkdir -p /data /repo /root/host /opt/osctl/bin /opt/osctl/body \
 && mkdir -p -m 0700 /run/osctl \
 && ln -s /opt/osctl/bin/osctl /usr/local/bin/osctl
ENV PATH=/data/packages/3.13/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    VIRTUAL_ENV=/data/packages/3.13 \
    OSCTL_BODY=/opt/osctl/body \
    OSCTL_PACKAGES=/data/packages/3.13 \
    OSCTL_PYTHON=/opt/osctl/kernel-env/bin/python
WORKDIR /root
"#;

static BASE: OnceLock<String> = OnceLock::new();

/// The image of the small base; its layers are in the engine's cache already.
pub(crate) fn base() -> &'static str {
    BASE.get_or_init(|| {
        let home = Home::new("it-ground");
        home.ok(["init", "--full"]);
        let dockerfile = home.project.join("body/Dockerfile");
        let text = fs::read_to_string(&dockerfile).unwrap();
        let (stages, _) = text.split_once("# Node.js with npm").unwrap();
        fs::write(dockerfile, format!("{stages}{GROUND}")).unwrap();
        home.ok(["build", "--yes"]);
        let image = format!("os-{}", home.instance);
        let tag = format!("/images/{image}:latest/tag?repo={image}&tag=ground");
        assert_eq!(Engine.send("POST", &tag, &Value::Null).status, 201);
        format!("{image}:ground")
    })
}

/// Removes the small base, if this process made it: another process of the tests may use its own.
pub(crate) fn clean_up() {
    let Some(base) = BASE.get() else { return };
    for image in [base, &base.replace(":ground", ":latest")] {
        Engine.send("DELETE", &format!("/images/{image}"), &Value::Null);
    }
}

/// A home with its own small body and short timeouts.
pub(crate) fn small(name: &str) -> Home {
    let home = Home::new(name);
    write_small(&home, base());
    home
}

pub(crate) fn write_small(home: &Home, base: &str) {
    home.ok(["init", "--full"]);
    write(home, "Dockerfile", DOCKERFILE);
    write(home, "servers/echo.py", include_str!("../mcp/echo.py"));
    let echo = json!({"command": "/usr/bin/python3", "args": ["/opt/osctl/body/servers/echo.py"]});
    write(
        home,
        "mcp.json",
        &json!({"mcpServers": {"echo": echo}}).to_string(),
    );
    home.write_config(&format!(
        "base: {base}\ndesktop:\n  run: \"off\"\nevolve:\n  start: 20\n  grace: 2\n  watch_period: 12\n"
    ));
}

/// Writes the small body's configuration with more settings.
pub(crate) fn configure(home: &Home, more: &str) {
    let base = base();
    home.write_config(&format!("base: {base}\ndesktop:\n  run: \"off\"\n{more}"));
}

pub(crate) fn write(home: &Home, path: &str, text: &str) {
    let place = home.project.join("body").join(path);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::write(place, text).unwrap();
}

pub(crate) fn read(home: &Home, path: &str) -> String {
    fs::read_to_string(home.project.join("body").join(path)).unwrap()
}

/// A home with a small body on the second engine, which receives the small base.
pub(crate) fn on_second(second: &Second, name: &str) -> Home {
    load_base(&second.api());
    let mut home = Home::new(name);
    home.env.insert("DOCKER_HOST".into(), second.address());
    home.wrapper = second.wrapper();
    write_small(&home, base());
    home
}

/// Loads the small base into an engine.
pub(crate) fn load_base(engine: &EngineAt) {
    let saved = Engine.get(&format!("/images/{}/get", base()));
    assert_eq!(saved.status, 200);
    let loaded = engine.send_bytes("POST", "/images/load", "application/x-tar", &saved.body);
    let answer = String::from_utf8_lossy(&loaded.body);
    assert_eq!(loaded.status, 200, "{answer}");
}

/// Assigns variables in the kernel.
pub(crate) fn remember(home: &Home) {
    let code = "x = 41\ndef f(n):\n    return n + x\nrows = [{'a': 1}, {'a': 2}]";
    home.ok(["exec", code]);
}

/// Asserts that the instance is healthy and the kernel has its variables.
#[track_caller]
pub(crate) fn assert_remembers(home: &Home) {
    until("the companion's health", || home.run(["status"]).code == 0);
    let ran = home.ok(["exec", "print(f(1), x, rows[1]['a'])"]);
    assert_eq!(ran.stdout, "42 41 2\n", "{ran:?}");
}

/// The newest run.
#[track_caller]
pub(crate) fn latest(home: &Home) -> Value {
    home.json(["evolve", "history"])["runs"][0].clone()
}

/// The API of the home's engine.
pub(crate) fn engine(home: &Home) -> EngineAt {
    let address = home.env.get("DOCKER_HOST").map(String::as_str);
    // An engine with a TCP address is the usual engine.
    let socket = address.and_then(|a| a.strip_prefix("unix://"));
    let socket = socket.unwrap_or("/var/run/docker.sock");
    EngineAt(socket.into())
}

/// The containers of the instance, without the keeper.
pub(crate) fn containers(home: &Home) -> Vec<String> {
    let filter = format!(r#"{{"label":["osctl.instance={}"]}}"#, home.instance);
    let found = engine(home).get(&format!("/containers/json?all=true&filters={filter}"));
    let all = found.json().as_array().unwrap().clone();
    let names = all
        .iter()
        .map(|c| c["Names"][0].as_str().unwrap()[1..].to_owned());
    names
        .filter(|name| !name.starts_with("os-keeper"))
        .collect()
}

/// Asserts that the instance has exactly one container, and that it is healthy and has its variables.
#[track_caller]
pub(crate) fn assert_one_that_remembers(home: &Home) {
    assert_eq!(containers(home), [home.container()]);
    assert_remembers(home);
}

fn a_changed_body_replaces_the_container_and_keeps_the_variables() {
    let home = small("it-evolve");
    home.up();
    assert!(
        home.ok(["evolve", "status"])
            .stdout
            .contains("no evolve yet")
    );
    remember(&home);
    let before = container_id(&home);
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    let record = home.json(["evolve", "--reason", "more of it"]);
    assert_eq!(record["status"], "succeeded", "{record}");
    let stages = record["stages"].as_array().unwrap();
    let stages: Vec<_> = stages
        .iter()
        .map(|s| s["stage"].as_str().unwrap())
        .collect();
    let all = ["building", "testing", "quiescing", "swapping", "verifying"];
    assert_eq!(stages, all);
    assert_eq!(
        (&record["requested_by"], &record["reason"]),
        (&json!("host"), &json!("more of it"))
    );
    assert!(record["refused_seconds"].as_f64().unwrap() > 0.0);
    assert_ne!(container_id(&home), before);
    let rows = record["receipt"][0]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["name"] == "f"), "{rows:?}");
    let reply = home.api().exec("f(1)");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("42"), &json!("restored"))
    );
    assert_one_that_remembers(&home);
    // `up` would create the same container.
    let ran = home.ok(["up"]);
    assert!(ran.stdout.contains("is up to date"), "{ran:?}");
    // Evolve a second time without a restart of the keeper.
    write(&home, "kernel/more.py", "\"\"\"Still more.\"\"\"\n");
    home.ok(["evolve"]);
    assert_one_that_remembers(&home);
    let run = latest(&home)["id"].as_str().unwrap().to_owned();
    let diff = home.ok(["evolve", "diff", &run]).stdout;
    assert!(
        diff.contains("-\"\"\"More.\"\"\"\n+\"\"\"Still more.\"\"\""),
        "{diff}"
    );
    let log = home.ok(["evolve", "logs", &run]).stdout;
    for stage in all {
        assert!(log.contains(&format!("== {stage}\n")), "{log}");
    }
    home.down();
}

fn the_agent_evolves_itself_and_uses_the_new_body() {
    let home = small("it-evolve-in");
    home.up();
    remember(&home);
    let changed = "RUN echo installed > /usr/local/share/more\n";
    write(&home, "Dockerfile", &(DOCKERFILE.to_owned() + changed));
    let servers = json!({"mcpServers": {
        "echo": {"command": "/usr/bin/python3", "args": ["/opt/osctl/body/servers/echo.py"]},
        "second": {"command": "/usr/bin/python3", "args": ["/opt/osctl/body/servers/echo.py"]},
    }});
    write(&home, "mcp.json", &servers.to_string());
    let greet =
        "def run(arguments, shell):\n    return {'hello': arguments, 'x': shell.user_ns['x']}\n";
    write(&home, "kernel/extensions/greet.py", greet);
    let started = home.api().done("/evolve", &json!({"reason": "a wish"}));
    let run = started["run"].as_str().unwrap().to_owned();
    let again = home.api().post("/evolve", &json!({}));
    assert_eq!(again.status, 409, "{:?}", again.json());
    until("the end of the agent's run", || {
        let record = latest(&home);
        assert_ne!(record["status"], "failed", "{record}");
        record["status"] == "succeeded"
    });
    let record = latest(&home);
    assert_eq!(
        (&record["id"], &record["requested_by"]),
        (&json!(run), &json!("agent"))
    );
    assert_one_that_remembers(&home);
    let status = home.api().get("/evolve/status").json();
    assert_eq!(status["latest_status"], "succeeded", "{status}");
    let read = home.api().exec("open('/usr/local/share/more').read()");
    assert_eq!(read["result"], r"'installed\n'");
    let reply = home.api().done("/x/greet", &json!("you"));
    assert!(
        reply.to_string().contains(r#"{"hello":"you","x":41}"#),
        "{reply}"
    );
    let hub = home.hub().get("/status").json().to_string();
    assert!(hub.contains("second"), "{hub}");
    home.down();
}

fn no_other_command_replaces_the_container_during_a_run() {
    let home = small("it-evolve-on");
    home.up();
    remember(&home);
    write(
        &home,
        "Dockerfile",
        &(DOCKERFILE.to_owned() + "RUN sleep 120\n"),
    );
    let started = home.json(["evolve", "--detach"]);
    let run = started["id"].as_str().unwrap();
    for args in [
        &["up"][..],
        &["down"],
        &["restart"],
        &["evolve"],
        &["evolve", "rollback"],
    ] {
        let ran = home.run(args);
        assert_eq!(ran.code, 4, "{args:?}: {ran:?}");
        assert!(
            ran.stderr.contains(&format!("evolve {run} is in progress")),
            "{ran:?}"
        );
        assert!(ran.stderr.contains("evolve stop` cancels it"), "{ran:?}");
    }
    home.ok(["evolve", "stop"]);
    write(
        &home,
        "Dockerfile",
        &(DOCKERFILE.to_owned() + "RUN sleep 2\n"),
    );
    let started = home.json(["evolve", "--detach"]);
    let run = started["id"].as_str().unwrap();
    let followed = home.ok(["evolve", "logs", "-f", run]);
    assert!(followed.stdout.contains("-- succeeded"), "{followed:?}");
    assert_one_that_remembers(&home);
    // Ctrl-C ends the command, not the run.
    write(
        &home,
        "Dockerfile",
        &(DOCKERFILE.to_owned() + "RUN sleep 60\n"),
    );
    let mut evolve = Followed::start(home.command(["evolve"]));
    assert!(evolve.wait_for("building"), "{:?}", evolve.seen);
    evolve.signal("INT");
    let (code, seen) = evolve.end();
    assert!(
        code == 5 && seen.concat().contains("which continues"),
        "{seen:?}"
    );
    assert_eq!(latest(&home)["status"], "building");
    // `evolve stop` cancels the run.
    let stopped = home.ok(["evolve", "stop"]);
    assert!(
        stopped
            .stderr
            .contains("was cancelled while building; nothing was changed"),
        "{stopped:?}"
    );
    let history = home.ok(["evolve", "history"]).stdout;
    let row = history.lines().nth(1).unwrap();
    assert!(row.contains(" cancelled "), "{history}");
    let record = latest(&home);
    assert_eq!(
        (&record["status"], &record["failed_stage"], &record["why"]),
        (
            &json!("failed"),
            &json!("building"),
            &json!("the user cancelled the evolve")
        )
    );
    assert_one_that_remembers(&home);
    let ran = home.run(["evolve", "stop"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("no evolve is in progress"),
        "{ran:?}"
    );
    let image = format!(
        "os-{}:run-{}",
        home.instance,
        record["id"].as_str().unwrap()
    );
    assert_eq!(Engine.get(&format!("/images/{image}/json")).status, 404);
    // `down --force` also works during a run.
    home.ok(["evolve", "--detach"]);
    let down = home.run(["down"]);
    assert!(
        down.stderr
            .contains("down --force` cancels the evolve first"),
        "{down:?}"
    );
    home.ok(["down", "--force"]);
    assert_eq!(containers(&home), [""; 0]);
    home.down();
}

fn a_dry_run_changes_nothing() {
    let home = small("it-evolve-dry");
    home.up();
    remember(&home);
    let before = container_id(&home);
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    let record = home.json(["evolve", "--dry-run"]);
    assert_eq!(
        (&record["status"], &record["dry_run"]),
        (&json!("succeeded"), &json!(true))
    );
    assert_eq!(container_id(&home), before);
    assert_one_that_remembers(&home);
    let ran = home.run(["evolve", "rollback"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("no previous image"), "{ran:?}");
    write(&home, "Dockerfile", "FROM debian\n");
    let ran = home.run(["evolve", "--dry-run"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("error: evolve 20"), "{ran:?}");
    home.down();
}

fn a_run_without_a_commit_reports_the_reason() {
    let home = small("it-evolve-git");
    // A `.git` file, as in a worktree.
    let git = home.project.join(".git");
    fs::write(&git, "gitdir: /elsewhere/.git/worktrees/mine\n").unwrap();
    home.up();
    remember(&home);
    let assert_no_commit = |why: &str| {
        let ran = home.ok(["evolve", "--rebuild"]);
        let line = format!("no commit on `osctl/evolve`: {why}");
        assert!(ran.stderr.contains(&line), "{ran:?}");
        let record = latest(&home);
        assert!(
            record["not_committed_because"]
                .as_str()
                .unwrap()
                .contains(why),
            "{record:#}"
        );
        let run = record["id"].as_str().unwrap();
        let log = home.ok(["evolve", "logs", run]).stdout;
        assert!(
            log.contains(&format!("does not become a commit: {why}")),
            "{log}"
        );
        let shown = home.ok(["evolve", "show", run]).stdout;
        assert!(shown.contains(&format!("no commit: {why}")), "{shown}");
    };
    assert_no_commit("`.git` points to `/elsewhere/.git/worktrees/mine`");
    // A repository that begins above the project.
    fs::remove_file(&git).unwrap();
    fs::create_dir(home.folder.join(".git")).unwrap();
    home.ok(["up", "--yes"]);
    let above = home.folder.display();
    assert_no_commit(&format!(
        "the git repository begins above the project, in `{above}`"
    ));
    fs::create_dir(&git).unwrap();
    home.ok(["evolve", "--rebuild"]);
    assert_eq!(latest(&home)["not_committed_because"], Value::Null);
    assert_one_that_remembers(&home);
    home.down();
}

fn evolve_works_while_os_host_is_stopped() {
    let home = small("it-evolve-dead");
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    let path = format!("/containers/{}/stop", home.container());
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    assert!(
        home.ok(["evolve", "status"])
            .stdout
            .contains("no evolve yet")
    );
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    home.ok(["evolve"]);
    assert_one_that_remembers(&home);
    home.down();
}

fn the_state_of_the_keeper_survives_down_and_not_purge() {
    let home = small("it-evolve-down");
    home.up();
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    home.ok(["evolve"]);
    let run = latest(&home)["id"].clone();
    home.ok(["down"]);
    let keeper = format!("os-keeper-{}", home.instance);
    assert_eq!(
        Engine.get(&format!("/containers/{keeper}/json")).status,
        404
    );
    let ran = home.run(["evolve", "status"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    // The volume of a former version.
    let volume = |name: &str| format!("/volumes/{name}-{}", home.instance);
    let former = json!({
        "Name": format!("osctl-door-{}", home.instance),
        "Labels": {"osctl.instance": home.instance},
    });
    assert_eq!(Engine.send("POST", "/volumes/create", &former).status, 201);
    home.up();
    assert_eq!(latest(&home)["id"], run);
    home.down();
    for name in ["osctl-keeper", "osctl-agent-socket", "osctl-door"] {
        assert_eq!(Engine.get(&volume(name)).status, 404, "{name}");
    }
    assert_eq!(images(&home), [Value::Null; 0]);
    assert!(!Path::new(&home.data()).exists());
}
