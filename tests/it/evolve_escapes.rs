//! Who sits inside tries to get more than a new body: through the keeper's socket, and through /repo.

use crate::evolve::{DOCKERFILE, assert_one_that_remembers, latest, remember, small, write};
use crate::harness::{Engine, Home};
use crate::second_engine::until;
use crate::trials;
use serde_json::json;
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;

trials![
    the_keepers_socket_gives_nothing_but_a_new_body,
    many_questions_about_large_bodies_leave_the_keeper_alive,
    a_body_reaches_nothing_beyond_itself,
    what_is_planted_in_the_project_gains_nothing,
    a_trial_sees_the_state_and_can_not_touch_it,
    the_keeper_has_no_more_than_it_needs,
    no_more_runs_begin_from_inside_than_an_hour_may_have,
];

/// What the keeper answers to a line from inside.
const ASK: &str = r#"
import json, socket
def ask(line):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30)
        s.connect("/run/os/keeper.sock")
        s.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        s.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: s.recv(65536), b"")).decode()
"#;

fn keeper(home: &Home) -> String {
    format!("os-keeper-{}", home.instance)
}

fn the_keepers_socket_gives_nothing_but_a_new_body() {
    let home = small("it-escape");
    home.up();
    remember(&home);
    let api = home.api();
    api.exec(ASK);
    let said = |code: &str| {
        let reply = api.exec(code);
        assert_eq!(reply["status"], "completed", "{reply}");
        reply["stdout"].as_str().unwrap().to_owned()
    };
    for (wish, refusal) in [
        (
            r#"{"ask": "evolve", "image": "debian"}"#,
            "unknown field `image`",
        ),
        (
            r#"{"ask": "evolve", "mounts": ["/:/x"]}"#,
            "unknown field `mounts`",
        ),
        (
            r#"{"ask": "evolve", "capabilities": ["ALL"]}"#,
            "unknown field `capabilities`",
        ),
        (
            r#"{"ask": "evolve", "env": {"A": "b"}}"#,
            "unknown field `env`",
        ),
        (
            r#"{"ask": "remove", "container": "os-keeper"}"#,
            "unknown variant `remove`",
        ),
        (
            r#"{"ask": "exec", "command": ["sh"]}"#,
            "unknown variant `exec`",
        ),
        (
            r#"{"ask": "rollback", "run": "../../../etc"}"#,
            "is not a run ID",
        ),
        (
            r#"{"ask": "rollback", "run": "20200101-000000"}"#,
            "did not succeed",
        ),
        (
            r#"{"ask": "show", "run": "20200101-000000"}"#,
            "does not exist",
        ),
        (r#"{"ask": "stop"}"#, "only the host can stop"),
        (
            r#"b"GET /containers/json HTTP/1.1\r\n\r\n""#,
            "is malformed",
        ),
        (r#"b"x" * 100000"#, "longer than"),
        (
            r#"{"ask": "evolve", "reason": "x" * 2000}"#,
            "reason is longer",
        ),
    ] {
        let answer = said(&format!("print(ask({wish}))"));
        assert!(
            answer.contains(r#""reply":"refused""#) && answer.contains(refusal),
            "{wish}: {answer}"
        );
        assert_logged(&home, "refused: ", refusal);
    }
    // The folder can't be changed, and the keeper's own things are not here.
    for attempt in [
        "open('/run/os/x', 'w')",
        "__import__('os').remove('/run/os/keeper.sock')",
        "__import__('os').mkdir('/state')\nopen('/state/charge.json')",
        "open('/var/run/docker.sock')",
    ] {
        let reply = api.exec(attempt);
        assert_eq!(reply["status"], "failed", "{attempt}: {reply}");
    }
    assert_eq!(home.json(["evolve", "history"])["runs"], json!([]));
    assert_one_that_remembers(&home);
    home.down();
}

/// As many questions at once as the keeper's door takes: first those whose answers nobody reads to their end, then
/// those for whose answers `ask` waits.
const FLOOD: &str = r#"
from concurrent.futures import ThreadPoolExecutor
def hold(_):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect("/run/os/keeper.sock")
    s.sendall(json.dumps({"ask": "body", "run": run}).encode() + b"\n")
    return s, s.recv(16)
with ThreadPoolExecutor(32) as pool:
    held = list(pool.map(hold, range(32)))
    assert all(first for _, first in held)
    for s, _ in held: s.close()
    answers = list(pool.map(lambda _: ask({"ask": "diff", "run": run}), range(32)))
sorted({a[:16] for a in answers})
"#;

fn many_questions_about_large_bodies_leave_the_keeper_alive() {
    let home = small("it-escape-flood");
    home.up();
    // Random bytes, which nothing makes smaller; a rule refuses the body once it is kept.
    write(&home, "Dockerfile", "FROM debian\n");
    let mut random = fs::File::open("/dev/urandom").unwrap().take(63 << 20);
    let big = home.project.join("body/big");
    std::io::copy(&mut random, &mut fs::File::create(&big).unwrap()).unwrap();
    let run = home.json(["evolve"])["run"].as_str().unwrap().to_owned();
    let api = home.api();
    api.exec(ASK);
    let reply = api.exec(&format!("run = {run:?}\n{FLOOD}"));
    let found = Engine
        .get(&format!("/containers/{}/json", keeper(&home)))
        .json();
    assert_eq!(found["RestartCount"], 0, "{}", found["State"]);
    assert_eq!(found["State"]["OOMKilled"], false, "{}", found["State"]);
    assert_eq!(reply["status"], "completed", "{reply}");
    let kinds = reply["result"].as_str().unwrap();
    // Each is answered or refused, and none is cut off.
    assert!(!kinds.contains("''"), "{kinds}");
    assert_eq!(home.json(["evolve", "history"])["runs"][0]["run"], run);
    home.down();
}

/// What the keeper itself has written, as `docker logs` shows it.
fn keeper_log(home: &Home) -> String {
    let path = format!("/containers/{}/logs?stdout=true&stderr=true", keeper(home));
    String::from_utf8_lossy(&Engine.get(&path).body).into_owned()
}

/// One line of the keeper's log says both; the engine may be a little late with it.
#[track_caller]
fn assert_logged(home: &Home, what: &str, why: &str) {
    until(&format!("`{what}` and `{why}` in the keeper's log"), || {
        let log = keeper_log(home);
        let mut lines = log.lines();
        lines.any(|line| line.contains(what) && line.contains(why))
    });
}

fn a_body_reaches_nothing_beyond_itself() {
    let home = small("it-escape-body");
    home.up();
    remember(&home);
    let body = home.project.join("body");
    let refused = |why: &str| {
        let record = home.json(["evolve"]);
        assert_eq!(
            (&record["gate"], &record["status"]),
            (&json!("building"), &json!("failed")),
            "{record:#}"
        );
        assert!(
            record["why"].as_str().unwrap().contains(why),
            "{why}: {record:#}"
        );
        let run = record["run"].as_str().unwrap();
        assert_logged(&home, &format!("run={run} "), why);
    };
    for (line, why) in [
        (
            "FROM debian",
            "line 12 of the Dockerfile: `FROM debian` is not allowed",
        ),
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
            let run = latest(&home)["run"].as_str().unwrap().to_owned();
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
    // Links, wherever they lead.
    for target in [
        "/state/charge.json",
        "/var/run/docker.sock",
        "../../../..",
        "/",
    ] {
        symlink(target, body.join("kernel/link")).unwrap();
        refused("`kernel/link` is neither a file nor a folder");
        fs::remove_file(body.join("kernel/link")).unwrap();
    }
    // What makes a folder a body is no link, either, and no other body is taken for it.
    fs::remove_file(body.join("Dockerfile")).unwrap();
    symlink("/state/charge.json", body.join("Dockerfile")).unwrap();
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

/// What the agent may wish for in the project's own configuration.
const WISHES: [&str; 14] = [
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
    "evolve: {probation: 0, grace: 100000}",
    "desktop: {run: always}",
];

fn what_is_planted_in_the_project_gains_nothing() {
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
    // The person's next `up` names the key, and that an agent can write there; what runs goes on.
    for wish in WISHES {
        plant(&format!("{wish}\n"));
        let key = wish.split([':', ' ']).next().unwrap();
        let ran = home.run(["up", "--yes"]);
        assert_eq!(ran.code, 2, "{wish}: {ran:?}");
        assert!(
            ran.stderr.contains(&format!("`{key}"))
                && ran.stderr.contains("osctl.yaml")
                && ran.stderr.contains("because the agent can write the file"),
            "{wish}: {ran:?}"
        );
    }
    // Neither a pipe nor a whole disk is waited for.
    for (planted, why) in [
        ("os.mkfifo('/repo/osctl.yaml')", "not a regular file"),
        (
            "os.symlink('/dev/zero', '/repo/osctl.yaml')",
            "it is a link",
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
    // The keeper does not even read it.
    plant(&format!("{}\n", WISHES.join("\n")));
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    api.exec(ASK);
    let reply = api.exec("print(ask({'ask': 'evolve'}))");
    assert!(
        reply["stdout"].as_str().unwrap().contains("started"),
        "{reply}"
    );
    until("the run", || {
        let record = latest(&home);
        assert_ne!(record["status"], "failed", "{record:#}");
        record["status"] == "succeeded"
    });
    // What does not build from the project works, and warns.
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
    // What a project may set works, and leads nowhere else.
    for (body, why) in [
        ("../elsewhere", "must be in the project"),
        ("/etc", "must be in the project"),
        ("out", "no folder"),
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
    // A link in the data, where osctl writes the servers.
    let reply = api.exec(
        "import os, shutil\nshutil.rmtree('/data/mcp', ignore_errors=True)\n\
         os.symlink('/tmp', '/data/mcp')\n\
         open('/repo/osctl.yaml', 'w').write('servers: {a: {command: x}}')",
    );
    assert_eq!(reply["status"], "completed", "{reply}");
    let ran = home.run(["up", "--yes"]);
    let is_told = ran.stderr.contains("mcp/servers.json` leads elsewhere");
    assert!(ran.code == 4 && is_told, "{ran:?}");
    api.exec("os.remove('/data/mcp'), os.remove('/repo/osctl.yaml')");
    home.ok(["up", "--yes"]);
    assert_eq!(made_of().0, before.0);
    assert_one_that_remembers(&home);
    home.down();
}

/// Tries to write what it sees of the present state, and to leave where it is.
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

fn a_trial_sees_the_state_and_can_not_touch_it() {
    let home = small("it-escape-trial");
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    home.ok(["exec", "open('/root/host/theirs', 'w').write('x')"]);
    // A mount of what lies beneath would lead to the host's folder.
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

fn the_keeper_has_no_more_than_it_needs() {
    let home = small("it-keeper");
    home.up();
    let found = Engine
        .get(&format!("/containers/{}/json", keeper(&home)))
        .json();
    let host = &found["HostConfig"];
    assert_eq!(host["NetworkMode"], "none");
    assert_eq!(host["ReadonlyRootfs"], true);
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert_eq!(host["CapAdd"], json!(["DAC_READ_SEARCH"]));
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    assert_eq!(host["Privileged"], false);
    assert_eq!(host["NanoCpus"], 1_000_000_000);
    let mounts = found["Mounts"].as_array().unwrap();
    let written: Vec<_> = mounts
        .iter()
        .filter(|m| m["RW"] == true)
        .map(|m| &m["Destination"])
        .collect();
    for place in ["/state", "/door", "/var/run/docker.sock"] {
        assert!(written.contains(&&json!(place)), "{mounts:?}");
    }
    assert_eq!((written.len(), mounts.len()), (3, 4), "{mounts:?}");
    let host = Engine
        .get(&format!("/containers/{}/json", home.container()))
        .json();
    let mounts = host["Mounts"].as_array().unwrap();
    let door = mounts
        .iter()
        .find(|m| m["Destination"] == "/run/os")
        .unwrap();
    assert_eq!(door["RW"], false);
    assert!(
        !mounts
            .iter()
            .any(|m| m["Destination"] == "/var/run/docker.sock")
    );
    // Nothing that it is told of reaches its log or what the engine shows of it.
    let shown = found.to_string();
    assert!(!shown.contains("OSCTL_TOKEN_SHA256"), "{shown}");
    home.down();
}

fn no_more_runs_begin_from_inside_than_an_hour_may_have() {
    let home = small("it-escape-often");
    home.up();
    remember(&home);
    // Refused before anything is built, so that thirty of them take no time.
    write(&home, "Dockerfile", "FROM debian\n");
    let api = home.api();
    let mut begun = 0;
    let refused = loop {
        let asked = api.post("/evolve", &json!({}));
        match asked.status {
            200 => begun += 1,
            // The one before has not ended.
            409 => std::thread::sleep(std::time::Duration::from_millis(10)),
            _ => break asked,
        }
    };
    assert_eq!((begun, refused.status), (30, 429), "{:?}", refused.json());
    let (_, kind, message) = refused.error();
    assert_eq!(kind, "too_often");
    assert!(message.contains("no more than 30 runs"), "{message}");
    assert_logged(&home, "refused: ", "no more than 30 runs");
    // The person is not held up.
    write(&home, "Dockerfile", DOCKERFILE);
    home.ok(["evolve", "--dry-run"]);
    assert_one_that_remembers(&home);
    home.down();
}
