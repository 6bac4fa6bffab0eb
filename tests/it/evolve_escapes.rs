//! Trials of attacks from inside through the files of the project: the body, the configuration and the self-test.

use crate::evolve::{DOCKERFILE, assert_one_that_remembers, latest, remember, small, write};
use crate::evolve_keeper_socket::{ASK, assert_logged};
use crate::harness::Engine;
use crate::second_engine::until;
use crate::trials;
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;

trials![
    a_body_reaches_nothing_beyond_itself,
    a_planted_configuration_gains_nothing,
    a_self_test_reads_the_state_and_can_not_change_it,
];

fn a_body_reaches_nothing_beyond_itself() {
    let home = small("it-escape-body");
    home.up();
    remember(&home);
    let body = home.project.join("body");
    let refused = |why: &str| {
        let record = home.json(["evolve"]);
        assert_eq!(
            (&record["failed_stage"], &record["status"]),
            (&json!("building"), &json!("failed")),
            "{record:#}"
        );
        assert!(
            record["why"].as_str().unwrap().contains(why),
            "{why}: {record:#}"
        );
        let run = record["id"].as_str().unwrap();
        assert_logged(&home, &format!("run={run}"), why);
    };
    let next_line = DOCKERFILE.lines().count() + 1;
    let from = format!("line {next_line} of the Dockerfile: `FROM debian` is not allowed");
    for (line, why) in [
        ("FROM debian", &*from),
        (
            "COPY --from=os-keeper /osctl /x",
            "`COPY --from=os-keeper` is not allowed",
        ),
        (
            "RUN --mount=type=bind,from=debian,target=/x cp -r /x /y",
            "`--mount=type=bind`",
        ),
        (
            "RUN --mount=type=secret,id=x cat /run/secrets/x",
            "`--mount=type=secret`",
        ),
        ("RUN --network=host cat /proc/net/tcp", "`RUN --network`"),
        ("RUN --security=insecure id", "`RUN --security`"),
        ("LABEL osctl.instance=x a.b=c\nRUN exit 7", "exit code: 7"),
        ("WORKDIR /proc/self/fd/8", "a folder of the kernel"),
        ("ADD http://192.0.2.1/x /x", "`ADD` of an address"),
        ("RUN <<E\nFROM debian\nE", "a heredoc"),
    ] {
        write(&home, "Dockerfile", &format!("{DOCKERFILE}{line}\n"));
        refused(why);
        if line.starts_with("LABEL") {
            let run = latest(&home)["id"].as_str().unwrap().to_owned();
            let log = home.ok(["evolve", "logs", &run]).stdout;
            assert!(log.contains("labels `a.b`, `osctl.instance`"), "{log}");
        }
    }
    write(
        &home,
        "Dockerfile",
        &format!("# syntax=evil/frontend\n{DOCKERFILE}"),
    );
    refused("`# syntax=` is not allowed");
    write(&home, "Dockerfile", DOCKERFILE);
    // Links to any target.
    for target in [
        "/state/deploy-config.json",
        "/var/run/docker.sock",
        "../../../..",
        "/",
    ] {
        symlink(target, body.join("kernel/link")).unwrap();
        refused("`kernel/link` is neither a file nor a folder");
        fs::remove_file(body.join("kernel/link")).unwrap();
    }
    // A link as the Dockerfile or the body is refused, and no other body is used instead.
    fs::remove_file(body.join("Dockerfile")).unwrap();
    symlink("/state/deploy-config.json", body.join("Dockerfile")).unwrap();
    refused("`Dockerfile` is not a regular file");
    fs::remove_file(body.join("Dockerfile")).unwrap();
    write(&home, "Dockerfile", DOCKERFILE);
    let aside = home.project.join("aside");
    fs::rename(&body, &aside).unwrap();
    symlink("/", &body).unwrap();
    refused("`body` is not a folder");
    fs::remove_file(&body).unwrap();
    fs::rename(&aside, &body).unwrap();
    write(&home, ".osctl/osctl", "#!/bin/sh\n");
    refused("reserves for its own files");
    fs::remove_dir_all(body.join(".osctl")).unwrap();
    fs::write(body.join("big"), vec![0u8; 65 << 20]).unwrap();
    refused("larger than 64 MiB");
    fs::remove_file(body.join("big")).unwrap();
    assert_one_that_remembers(&home);
    home.down();
}

/// Settings that the agent writes to the project's configuration.
const PLANTED_SETTINGS: [&str; 14] = [
    "mounts: ['/:/host']",
    "docker_socket: true",
    "criu: true",
    "env: {PLANTED: 'yes'}",
    "ports: {kernel: 2222}",
    "bind: 0.0.0.0",
    "auth: false",
    "hosts: [evil.example]",
    "base: evil",
    "companion: /repo/osctl",
    "engine: embedded",
    "limits: {memory: 64g}",
    "evolve: {watch_period: 0, grace: 100000}",
    "desktop: {run: always}",
];

fn a_planted_configuration_gains_nothing() {
    let home = small("it-escape-planted");
    home.up();
    remember(&home);
    let api = home.api();
    let api_port = api.address.clone();
    let made_of = || {
        let path = format!("/containers/{}/json", home.container());
        let found = Engine.get(&path).json();
        let host = &found["HostConfig"];
        let of = [
            "Binds",
            "Mounts",
            "CapAdd",
            "SecurityOpt",
            "PortBindings",
            "Memory",
            "Privileged",
        ];
        let made = of.map(|key| host[key].clone());
        (
            made,
            found["Config"]["Env"].clone(),
            found["Mounts"].as_array().unwrap().len(),
        )
    };
    let before = made_of();
    let plant = |text: &str| {
        let reply = api.exec(&format!("open('/repo/osctl.yaml', 'w').write({text:?})"));
        assert_eq!(reply["status"], "completed", "{reply}");
    };
    // The next `up` names the key and the reason; the container keeps running.
    for setting in PLANTED_SETTINGS {
        plant(&format!("{setting}\n"));
        let key = setting.split([':', ' ']).next().unwrap();
        let ran = home.run(["up", "--yes"]);
        assert_eq!(ran.code, 2, "{setting}: {ran:?}");
        assert!(
            ran.stderr.contains(&format!("`{key}"))
                && ran.stderr.contains("osctl.yaml")
                && ran.stderr.contains("because the agent can write the file"),
            "{setting}: {ran:?}"
        );
    }
    // `up` waits for neither a pipe nor an endless device.
    for (planted, why) in [
        ("os.mkfifo('/repo/osctl.yaml')", "the file is not regular"),
        (
            "os.symlink('/dev/zero', '/repo/osctl.yaml')",
            "the file is a link",
        ),
    ] {
        let reply = api.exec(&format!(
            "import os\nos.remove('/repo/osctl.yaml')\n{planted}"
        ));
        assert_eq!(reply["status"], "completed", "{reply}");
        let ran = home.run(["up", "--yes"]);
        assert!(
            ran.code == 2 && ran.stderr.contains(why),
            "{planted}: {ran:?}"
        );
    }
    api.exec("os.remove('/repo/osctl.yaml')");
    // The keeper does not read the file.
    plant(&format!("{}\n", PLANTED_SETTINGS.join("\n")));
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    api.exec(ASK);
    let reply = api.exec("print(ask({'ask': 'evolve'}))");
    assert!(
        reply["stdout"].as_str().unwrap().contains("started"),
        "{reply}"
    );
    until("the end of the run", || {
        let record = latest(&home);
        assert_ne!(record["status"], "failed", "{record:#}");
        record["status"] == "succeeded"
    });
    // Commands that do not use the project's file work and print a warning.
    let ran = home.ok(["status"]);
    assert!(
        ran.stderr.contains("warning: the project's file"),
        "{ran:?}"
    );
    fs::remove_file(home.project.join("osctl.yaml")).unwrap();
    assert_one_that_remembers(&home);
    let after = made_of();
    assert_eq!(after, before);
    assert_eq!(home.api().address, api_port);
    // Settings that a project may have must stay in the project.
    for (body, why) in [
        ("../elsewhere", "must be in the project"),
        ("/etc", "must be in the project"),
        ("out", "is not a folder"),
    ] {
        let planted = format!(
            "import os\nos.path.lexists('/repo/out') or os.symlink('/etc', '/repo/out')\n\
             open('/repo/osctl.yaml', 'w').write('body: {body}')"
        );
        let reply = api.exec(&planted);
        assert_eq!(reply["status"], "completed", "{reply}");
        let ran = home.run(["up", "--yes"]);
        assert!(ran.code != 0 && ran.stderr.contains(why), "{body}: {ran:?}");
    }
    // A link in the data folder, where osctl writes the servers.
    let reply = api.exec(
        "import os, shutil\nshutil.rmtree('/data/mcp', ignore_errors=True)\n\
         os.symlink('/tmp', '/data/mcp')\n\
         open('/repo/osctl.yaml', 'w').write('servers: {a: {command: x}}')",
    );
    assert_eq!(reply["status"], "completed", "{reply}");
    let ran = home.run(["up", "--yes"]);
    let is_reported = ran.stderr.contains("mcp/servers.json` is a link");
    assert!(ran.code == 4 && is_reported, "{ran:?}");
    api.exec("os.remove('/data/mcp'), os.remove('/repo/osctl.yaml')");
    home.ok(["up", "--yes"]);
    assert_eq!(made_of().0, before.0);
    assert_one_that_remembers(&home);
    home.down();
}

/// A self-test that tries to write to the state and to reach the keeper, the engine and the host.
const SPY: &str = r#"#!/bin/sh
test -d /run/os-before/cryo || { echo no state; exit 1; }
if touch /run/os-before/x 2> /dev/null; then echo the state can be written; exit 1; fi
if touch /repo/x 2> /dev/null; then echo the project can be written; exit 1; fi
if test -e /run/os-before/planted/theirs; then echo a link of the host was followed; exit 1; fi
if test -e /run/os/keeper.sock; then echo the keeper can be reached; exit 1; fi
if test -e /var/run/docker.sock; then echo the engine can be reached; exit 1; fi
test -z "$(ls -A /root/host)" || { echo files of the person are here; exit 1; }
touch /data/mine /root/host/mine
"#;

fn a_self_test_reads_the_state_and_can_not_change_it() {
    let home = small("it-escape-trial");
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    home.ok(["exec", "open('/root/host/theirs', 'w').write('x')"]);
    // The link leads to a folder of the host.
    let files = home.files().display().to_string();
    home.ok([
        "exec",
        &format!("import os\nos.symlink({files:?}, '/data/planted')"),
    ]);
    write(&home, "selftest.d/10-spy", SPY);
    let record = home.json(["evolve", "--dry-run"]);
    assert_eq!(record["status"], "succeeded", "{record:#}");
    assert!(!home.data().join("mine").exists() && !home.files().join("mine").exists());
    assert_eq!(latest(&home)["dry_run"], true);
    home.down();
}
