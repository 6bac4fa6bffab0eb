//! The states of an instance: up, restart, replace, down, and what osctl never touches.

use crate::commands::{Followed, Ran, on_terminal};
use crate::evolve::engine;
use crate::harness::{Engine, Home, shared};
use crate::trials;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::fs;
use std::thread;

trials![
    a_second_up_changes_nothing,
    status_lists_every_address_and_folder,
    the_container_has_no_more_rights_than_it_needs,
    the_engine_reports_the_container_healthy,
    files_and_variables_survive_a_restart,
    a_killed_companion_restarts_with_its_container,
    packages_installed_at_run_time_survive_the_container,
    named_variables_of_the_host_arrive_and_are_never_shown,
    down_keeps_the_state_and_purge_removes_it,
    a_container_of_another_program_is_never_touched,
    leftovers_of_an_interrupted_up_are_removed,
    outside_the_project_osctl_names_the_project,
    a_docker_context_is_followed,
    a_declined_question_changes_nothing,
    two_ups_at_once_do_not_race,
    running_code_may_finish_when_the_container_stops,
    code_that_does_not_finish_is_interrupted,
];

pub(crate) fn container_id(home: &Home) -> String {
    engine(home)
        .get(&format!("/containers/{}/json", home.container()))
        .json()["Id"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn a_second_up_changes_nothing() {
    let home = shared();
    let before = container_id(home);
    let ran = home.ok(["up"]);
    assert!(ran.stdout.contains("is up to date"), "{ran:?}");
    assert_eq!(container_id(home), before);
}

fn status_lists_every_address_and_folder() {
    let home = shared();
    let status = home.json(["status"]);
    let found = Engine
        .get(&format!("/containers/{}/json", home.container()))
        .json();
    let published = |port: &str| {
        let binding = &found["HostConfig"]["PortBindings"][port][0];
        let text = |key: &str| binding[key].as_str().unwrap().to_owned();
        format!("{}:{}", text("HostIp"), text("HostPort"))
    };
    let expected = json!({
        "kernel": format!("http://{}", published("8080/tcp")),
        "mcp": format!("http://{}", published("8765/tcp")),
        "vnc": published("5900/tcp"),
    });
    assert_eq!(status["endpoints"], expected);
    assert_eq!(
        (&status["state"], &status["healthy"], &status["engine"]),
        (&json!("running"), &json!(true), &json!("docker"))
    );
}

fn the_container_has_no_more_rights_than_it_needs() {
    let found = Engine
        .get(&format!("/containers/{}/json", shared().container()))
        .json();
    let host = &found["HostConfig"];
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    let added = host["CapAdd"].to_string();
    for right in [
        "SYS_ADMIN",
        "NET_ADMIN",
        "NET_RAW",
        "SYS_PTRACE",
        "MKNOD",
        "SYS_MODULE",
    ] {
        assert!(!added.contains(right), "{added}");
    }
    assert_eq!(
        (host["Privileged"].as_bool(), &host["SecurityOpt"]),
        (Some(false), &json!(["no-new-privileges"]))
    );
    assert_eq!(
        (host["ShmSize"].as_u64(), host["PidsLimit"].as_u64()),
        (Some(1 << 30), Some(512))
    );
    assert_eq!(host["RestartPolicy"]["Name"], "always");
    for (_, bindings) in host["PortBindings"].as_object().unwrap() {
        assert_eq!(bindings[0]["HostIp"], "127.0.0.1");
    }
    assert!(!found["Mounts"].to_string().contains("docker.sock"));
    let token = shared().api().token;
    assert!(
        !found.to_string().contains(&token),
        "the container has the token"
    );
}

fn the_engine_reports_the_container_healthy() {
    let home = shared();
    home.api().until("health", |_| {
        let found = Engine
            .get(&format!("/containers/{}/json", home.container()))
            .json();
        (found["State"]["Health"]["Status"] == "healthy").then_some(())
    });
}

fn files_and_variables_survive_a_restart() {
    let home = shared();
    let code = "for place in ['/data', '/root/host', '/repo']: open(place + '/kept', 'w').write(place)\nsurvivor = 1";
    let before = home.api().exec(code)["kernel"]["generation"]
        .as_u64()
        .unwrap();
    let shell = |command: &str, session: &str| {
        let request = json!({"command": command, "session": session});
        home.api().done("/sessions", &json!({"name": session}));
        home.api().done("/shell", &request)["stdout"].clone()
    };
    shell("export MINE=1", "sleeper");
    home.ok(["restart"]);
    let api = home.api();
    let reply = api.exec("[open(p + '/kept').read() for p in ['/data', '/root/host', '/repo']], 'survivor' in globals()");
    assert_eq!(reply["result"], "(['/data', '/root/host', '/repo'], True)");
    assert_eq!(
        (
            reply["kernel"]["state"].as_str(),
            reply["kernel"]["generation"].as_u64()
        ),
        (Some("restored"), Some(before + 1))
    );
    assert_eq!(
        fs::read_to_string(home.files().join("kept")).unwrap(),
        "/root/host"
    );
    // A session that runs nothing between two starts keeps its environment; the record leaves out the variables that
    // the container got.
    shell("true", "waker");
    let kept = api.until("the record of sessions", |_| {
        let kept = fs::read(home.data().join("session-state.json")).ok()?;
        let kept: Value = serde_json::from_slice(&kept).unwrap();
        let shells = &kept["shells"];
        shells["waker"]
            .is_object()
            .then(|| shells["sleeper"].clone())
    });
    let variables = kept["context"]["rest"].as_str().unwrap();
    let variables = String::from_utf8(STANDARD.decode(variables).unwrap()).unwrap();
    assert!(variables.contains("MINE=\"1\""), "{variables}");
    assert!(!variables.contains("OSCTL_BODY"), "{variables}");
    assert_eq!(kept["gone"], json!([]));
    home.ok(["restart"]);
    let told = shell("echo $MINE $OSCTL_BODY $OSCTL_SESSION", "sleeper");
    assert_eq!(told, "1 /opt/osctl/body sleeper\n");
    for session in ["sleeper", "waker"] {
        home.ok(["sessions", "rm", session]);
    }
}

fn a_killed_companion_restarts_with_its_container() {
    let home = shared();
    let api = home.api();
    // The state was stored before.
    assert_eq!(api.post("/reset", &json!({})).status, 200);
    let before = api.exec("1")["kernel"]["generation"].as_u64().unwrap();
    let code = "import glob, os\nfor path in glob.glob('/proc/[0-9]*/cmdline'):\n    try: words = open(path, 'rb').read().split(b'\\0')\n\
                \x20   except OSError: continue\n\
                \x20   if words[1:2] == [b'companion']: os.kill(int(path.split('/')[2]), 9)\nimport time; time.sleep(60)";
    let body = json!({"code": code, "queue": true}).to_string();
    // The request gets no answer: the connection ends with the companion.
    let lost = thread::spawn({
        let api = api.clone();
        move || api.connect().send("POST", "/exec", &[], body.as_bytes())
    });
    assert!(lost.join().is_err());
    api.until("the restart", |api| {
        let answer = std::panic::catch_unwind(|| api.get("/health").status);
        (answer.ok() == Some(200)).then_some(())
    });
    let reply = api.exec("1");
    assert_eq!(
        (
            reply["kernel"]["state"].as_str(),
            reply["kernel"]["generation"].as_u64()
        ),
        (Some("lost"), Some(before + 1))
    );
}

fn packages_installed_at_run_time_survive_the_container() {
    let home = shared();
    let reply = home
        .api()
        .exec("!pip install --quiet --no-input six==1.16.0\nimport six; six.__version__");
    assert_eq!(reply["result"], "'1.16.0'", "{reply}");
    home.ok(["down"]);
    home.up();
    let reply = home
        .api()
        .exec("import six; six.__version__, six.__file__.startswith('/data/packages/')");
    assert_eq!(reply["result"], "('1.16.0', True)", "{reply}");
}

fn named_variables_of_the_host_arrive_and_are_never_shown() {
    let mut home = Home::new("it-keys");
    home.env
        .insert("OPENAI_API_KEY".into(), "sk-very-secret".into());
    home.env.insert("NO_PROXY".into(), "inside.example".into());
    home.write_config("env:\n  FLAVOUR: also-secret\npass_env: [OPENAI_API_KEY]\n");
    let shown = home.ok(["-v", "up", "--yes", "--auto-ports"]);
    let code = "import os; ' '.join(os.environ[k] for k in ('OPENAI_API_KEY', 'FLAVOUR', 'BROWSER_USE_HEADLESS', 'FILESYSTEM_ROOT', 'no_proxy', 'HOST_PWD'))";
    let reply = home.api().exec(code);
    let expected = format!(
        "'sk-very-secret also-secret false /root inside.example {}'",
        home.project.display()
    );
    assert_eq!(reply["result"], expected);
    let all = [
        shown,
        home.ok(["logs"]),
        home.ok(["status"]),
        home.run(["doctor"]),
        home.ok(["config", "show"]),
    ];
    for ran in all {
        let text = ran.stdout + &ran.stderr;
        assert!(
            !text.contains("very-secret") && !text.contains("also-secret"),
            "{text}"
        );
        assert!(!text.contains(&home.api().token), "{text}");
    }
    // A shell without the keys does not replace the kernel.
    let before = container_id(&home);
    home.env.clear();
    let ran = home.ok(["up"]);
    assert!(
        ran.stdout.contains("is up to date") && ran.stderr.contains("changed in this shell"),
        "{ran:?}"
    );
    assert_eq!(container_id(&home), before);
    home.down();
}

fn down_keeps_the_state_and_purge_removes_it() {
    let home = Home::new("it-down");
    home.up();
    let token = home.api().token;
    home.api()
        .exec("open('/data/kept', 'w').write('x'); open('/root/host/file', 'w').write('x')");
    home.ok(["down"]);
    let again = home.ok(["down"]);
    let already = format!(
        "`{}` (instance `{}`, project `{}`) was already down\n",
        home.container(),
        home.instance,
        home.project.display()
    );
    assert_eq!(again.stderr, already, "{again:?}");
    let restarted = home.run(["restart"]);
    assert_eq!(restarted.code, 3, "{restarted:?}");
    assert!(!restarted.stderr.contains("storing"), "{restarted:?}");
    let status = home.run(["status"]);
    assert_eq!(status.code, 1);
    assert!(status.stdout.contains("absent"), "{status:?}");
    assert_eq!(home.run(["exec", "1"]).code, 3);
    assert_eq!(
        Engine
            .get(&format!("/networks/osctl-{}", home.instance))
            .status,
        404
    );
    home.up();
    assert_eq!(home.api().token, token);
    assert_eq!(
        home.api().exec("open('/data/kept').read()")["result"],
        "'x'"
    );
    let ran = home.run(["down", "--purge"]);
    assert_eq!(ran.code, 4, "no terminal to ask on: {ran:?}");
    assert!(ran.stderr.contains("--yes"), "{ran:?}");
    let purge = home.ok(["down", "--purge", "--yes"]);
    for kept in [&home.project, &home.files()] {
        assert!(purge.stderr.contains(kept.to_str().unwrap()), "{purge:?}");
    }
    assert!(!home.data().exists() && !home.state().exists());
    assert!(home.files().join("file").exists(), "files of the user stay");
    assert_eq!(
        Engine
            .get(&format!("/images/os-{}:latest/json", home.instance))
            .status,
        404
    );
}

fn a_container_of_another_program_is_never_touched() {
    let home = Home::new("it-foreign");
    let image = shared_image();
    let body = json!({"Image": image, "Entrypoint": ["/bin/sleep", "60"]});
    let made = Engine.send(
        "POST",
        &format!("/containers/create?name={}", home.container()),
        &body,
    );
    assert_eq!(made.status, 201);
    let ran = home.run(["up", "--yes", "--auto-ports"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr
            .contains("does not belong to osctl; it was not changed"),
        "{ran:?}"
    );
    assert_eq!(container_id(&home), made.json()["Id"].as_str().unwrap());
    assert_eq!(
        Engine
            .send(
                "DELETE",
                &format!("/containers/{}", home.container()),
                &json!(null)
            )
            .status,
        204
    );
    home.down();
}

pub(crate) fn shared_image() -> String {
    shared().json(["status"])["image"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn leftovers_of_an_interrupted_up_are_removed() {
    let home = Home::new("it-left");
    let labels = json!({"osctl.instance": home.instance});
    for name in [home.container(), format!("{}-trial", home.container())] {
        let body = json!({"Image": shared_image(), "Labels": labels});
        assert_eq!(
            Engine
                .send("POST", &format!("/containers/create?name={name}"), &body)
                .status,
            201
        );
    }
    home.up();
    assert_eq!(
        Engine
            .get(&format!("/containers/{}-trial/json", home.container()))
            .status,
        404
    );
    assert_eq!(home.api().exec("1")["status"], "completed");
    home.down();
}

fn outside_the_project_osctl_names_the_project() {
    let home = shared();
    let elsewhere = home.folder.join("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    let ran = Ran::from(
        home.command(["up"])
            .current_dir(&elsewhere)
            .output()
            .unwrap(),
    );
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.stderr.contains(home.project.to_str().unwrap())
            && ran
                .stderr
                .contains(&format!("`osctl --instance {} up --move`", home.instance)),
        "{ran:?}"
    );
    let deep = home.project.join("deep");
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(
        Ran::from(home.command(["up"]).current_dir(&deep).output().unwrap()).code,
        0
    );
}

fn a_docker_context_is_followed() {
    let mut home = Home::new("it-context");
    // SHA-256 of "there", under which the Docker client keeps the context.
    let meta = home.folder.join(
        "docker/contexts/meta/e244f187f696561d5fd7e00f618e7ba641dc52e3c137380f6fa23a854b773aac",
    );
    fs::create_dir_all(&meta).unwrap();
    let endpoint =
        |path: &str| json!({"Endpoints": {"docker": {"Host": format!("unix://{path}")}}});
    fs::write(
        meta.join("meta.json"),
        endpoint("/nonexistent.sock").to_string(),
    )
    .unwrap();
    let config = home.folder.join("docker/config.json");
    fs::write(config, json!({"currentContext": "there"}).to_string()).unwrap();
    let folder = home.folder.join("docker").display().to_string();
    home.env.insert("DOCKER_CONFIG".into(), folder);
    let ran = home.run(["build"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("unix:///nonexistent.sock"), "{ran:?}");
    fs::write(
        meta.join("meta.json"),
        endpoint("/var/run/docker.sock").to_string(),
    )
    .unwrap();
    let ran = home.run(["doctor"]);
    assert!(
        ran.stdout.contains("at unix:///var/run/docker.sock"),
        "{ran:?}"
    );
}

fn a_declined_question_changes_nothing() {
    let home = Home::new("it-asked");
    home.up();
    for (answer, code, state) in [("n", 4, "running"), ("y", 0, "gone")] {
        let ran = on_terminal(&home.command(["down", "--purge"]), answer);
        assert_eq!(ran.code, code, "{answer}: {ran:?}");
        let asked = format!("Delete the saved state of `{}`", home.instance);
        assert!(ran.stdout.contains(&asked), "{ran:?}");
        assert_eq!(home.data().exists(), state == "running");
    }
}

fn two_ups_at_once_do_not_race() {
    let home = Home::new("it-race");
    let ups: Vec<_> = (0..2)
        .map(|_| Followed::start(home.command(["up", "--yes", "--auto-ports"])))
        .collect();
    let ended: Vec<_> = ups.into_iter().map(Followed::end).collect();
    assert!(ended.iter().any(|(code, _)| *code == 0), "{ended:?}");
    for (code, seen) in &ended {
        let told = *code == 4 && seen.concat().contains("another osctl is working");
        // The second `up` may find nothing to do.
        assert!(told || *code == 0, "{ended:?}");
    }
    assert_eq!(home.api().exec("1")["status"], "completed");
    home.down();
}

fn running_code_may_finish_when_the_container_stops() {
    let home = shared();
    let api = home.api();
    let code = "import time; open('/root/host/begun', 'w').close(); time.sleep(1.5); open('/root/host/finished', 'w').write('yes')";
    let run = thread::spawn({
        let api = api.clone();
        move || api.exec(code)
    });
    api.until("the start", |_| {
        home.files().join("begun").exists().then_some(())
    });
    home.ok(["restart"]);
    assert_eq!(run.join().unwrap()["status"], "completed");
    assert_eq!(
        fs::read_to_string(home.files().join("finished")).unwrap(),
        "yes"
    );
}

fn code_that_does_not_finish_is_interrupted() {
    let home = shared();
    let api = home.api();
    let code = "import time\n\
                try: open('/root/host/waits', 'w').close(); time.sleep(600)\n\
                except KeyboardInterrupt: open('/root/host/interrupted', 'w').write('yes')";
    assert_eq!(
        api.exec_with(json!({"code": code, "wait": 0}))["status"],
        "running"
    );
    let in_shell = "trap 'echo yes > /root/host/terminated; exit' TERM; touch /root/host/traps; sleep 600 & wait";
    let command = json!({"command": in_shell, "wait": 0});
    assert_eq!(api.post("/shell", &command).json()["status"], "running");
    api.until("the start", |_| {
        let is_there = |file: &&str| home.files().join(file).exists();
        ["waits", "traps"].iter().all(is_there).then_some(())
    });
    home.ok(["restart"]);
    for file in ["interrupted", "terminated"] {
        let said = fs::read_to_string(home.files().join(file));
        assert_eq!(said.unwrap_or_default().trim(), "yes", "{file}");
    }
}
