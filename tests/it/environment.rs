//! The variables of `osctl env`: they reach what runs, survive the container, and are shown nowhere.

use crate::commands::Ran;
use crate::evolve::small;
use crate::harness::{Engine, Home};
use crate::instance::container_id;
use crate::mcp::Client;
use crate::trials;
use crate::window::Window;
use nix::sys::termios::LocalFlags;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

trials![
    variables_reach_running_kernels_and_shells_and_survive_the_container,
    the_question_for_a_value_can_be_ended,
];

/// Ends each server `echo`.
const KILL_ECHO: &str = r"
import glob, os, signal
for file in glob.glob('/proc/[0-9]*/cmdline'):
    try:
        if b'servers/echo.py' in open(file, 'rb').read():
            os.kill(int(file.split('/')[2]), signal.SIGKILL)
    except OSError:
        pass";

/// Whether each server `echo` has the variable.
const ECHO_HAS_LIVE: &str = r"
import glob

def read(process, name):
    try:
        with open(f'{process}/{name}', 'rb') as file:
            return file.read()
    except OSError:
        return b''

servers = [each for each in glob.glob('/proc/[0-9]*') if b'servers/echo.py' in read(each, 'cmdline')]
bool(servers) and all(b'LIVE=hunter2-live' in read(each, 'environ') for each in servers)
";

/// The start of every secret value.
const SECRET: &str = "hunter2";

/// `NAME=VALUE` of the variables in Python and in bash.
#[track_caller]
fn assert_variables(home: &Home, expected: &str) {
    let names = "('FIRST', 'LIVE', 'PIPED')";
    let code = format!("import os; ' '.join(os.environ.get(name, '-') for name in {names})");
    let reply = home.api().exec(&code);
    assert_eq!(reply["result"], format!("'{expected}'"), "{reply}");
    let command = "echo ${FIRST--} ${LIVE--} ${PIPED--} $OWN";
    let ran = home.ok(["shell", command]);
    assert_eq!(
        ran.stdout,
        format!("{expected} of-the-session\n"),
        "{ran:?}"
    );
}

fn set_from_stdin(home: &Home, name: &str, value: &str) -> Ran {
    let mut command = home.command(["env", "set", name]);
    let pipes = command.stdin(Stdio::piped());
    let mut child = pipes
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(value.as_bytes()).unwrap();
    drop(stdin);
    Ran::from(child.wait_with_output().unwrap())
}

fn variables_reach_running_kernels_and_shells_and_survive_the_container() {
    let mut home = small("it-environment");
    let ran = home.ok(["env", "set", "FIRST=one"]);
    assert!(ran.stderr.contains("next start"), "{ran:?}");
    let ran = home.ok(["up", "--yes", "--auto-ports"]);
    assert!(ran.stderr.contains("set by `osctl"), "{ran:?}");
    home.ok(["exec", "kept = 41"]);
    home.ok(["shell", "export OWN=of-the-session"]);
    assert_variables(&home, "one - -");

    // Without a restart: the kernel keeps its variables, the session its own environment.
    let container = container_id(&home);
    home.env.insert("LIVE".into(), format!("{SECRET}-live"));
    let live = home.ok(["env", "set", "LIVE", "--from-env"]);
    home.env.clear();
    let piped = set_from_stdin(&home, "PIPED", "hunter2-piped\n");
    assert_eq!(piped.code, 0, "{piped:?}");
    assert_variables(&home, "one hunter2-live hunter2-piped");
    assert_eq!(home.ok(["exec", "kept + 1"]).stdout, "42\n");
    assert_eq!(container_id(&home), container);
    // A server that starts now has the variables; `up` has started this one.
    home.ok(["exec", KILL_ECHO]);
    let echo = Client::of(home.hub(), "/servers/echo/mcp", &json!({}));
    echo.ask("tools/call", &json!({"name": "echo", "arguments": {}}));
    assert_eq!(home.api().exec(ECHO_HAS_LIVE)["result"], "True");

    // No answer, container setting or log has a value.
    let listed = home.json(["env", "ls"]);
    assert_eq!(
        listed,
        json!({"names": ["FIRST", "LIVE", "PIPED"], "is_applied": null})
    );
    let api = home.api();
    assert_eq!(api.get("/environment").json()["names"], listed["names"]);
    let inspected = Engine.get(&format!("/containers/{}/json", home.container()));
    let image = inspected.json()["Image"].as_str().unwrap().to_owned();
    let history = Engine.get(&format!("/images/{image}/history"));
    let logs = home.ok(["logs"]);
    for (what, text) in [
        (
            "inspect",
            String::from_utf8_lossy(&inspected.body).into_owned(),
        ),
        (
            "history",
            String::from_utf8_lossy(&history.body).into_owned(),
        ),
        ("logs", format!("{logs:?}")),
        ("set", format!("{live:?}{piped:?}")),
        (
            "record",
            fs::read_to_string(home.state().join("instance.json")).unwrap(),
        ),
        ("session state", read_data(&home)),
    ] {
        assert!(!text.contains(SECRET), "{what}: {text}");
    }
    for file in [home.state(), home.data()].map(|folder| folder.join("environment.json")) {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }

    // Names on which the container depends are refused, by the command and by the API.
    let ran = home.run(["env", "set", "PATH=hunter2"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("reserved") && ran.stderr.contains("config edit"),
        "{ran:?}"
    );
    let ran = home.run(["env", "rm", "NONE"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("`NONE` is not set"),
        "{ran:?}"
    );
    let mut connection = api.connect();
    let body = json!({"variables": {"LD_PRELOAD": "/agent.so"}}).to_string();
    let refused = connection.send("PUT", "/environment", &[], body.as_bytes());
    assert_eq!(refused.status, 400, "{refused:?}");

    // The next container has the variables, and what changed in between.
    home.ok(["env", "rm", "PIPED"]);
    assert_variables(&home, "one hunter2-live -");
    home.ok(["down"]);
    home.ok(["env", "set", "FIRST=two"]);
    home.ok(["env", "rm", "LIVE"]);
    home.up();
    assert_variables(&home, "two - -");
    assert_eq!(home.ok(["exec", "kept + 1"]).stdout, "42\n");
    home.ok(["env", "set", "LIVE=again"]);
    home.ok(["restart"]);
    assert_variables(&home, "two again -");
    home.down();
    assert!(!home.state().join("environment.json").exists());
}

/// The files in the data folder that keep the state of sessions.
fn read_data(home: &Home) -> String {
    let files = fs::read_dir(home.data()).unwrap().flatten();
    let files = files.filter(|file| file.file_name() != "environment.json");
    let texts = files.filter_map(|file| fs::read(file.path()).ok());
    let texts: Vec<Value> = texts
        .map(|text| String::from_utf8_lossy(&text).into_owned().into())
        .collect();
    json!(texts).to_string()
}

fn the_question_for_a_value_can_be_ended() {
    let home = Home::new("env-question");
    home.ok(["env", "set", "KEY=old"]);
    // Ctrl-C, Ctrl-D and Enter.
    for (keys, code, text) in [
        ("\x03", 5, "error: interrupted"),
        (
            "\x04",
            2,
            "no value was given for `KEY`; nothing was changed",
        ),
        ("\n", 2, "no value was given for `KEY`; nothing was changed"),
    ] {
        let mut window = Window::open(home.command(["env", "set", "KEY"]));
        window.wait_for("Value of KEY: ");
        while window.mode().local_flags.contains(LocalFlags::ECHO) {
            std::thread::yield_now();
        }
        window.types(keys);
        assert_eq!(window.wait(), code, "{keys:?}");
        assert_eq!(window.mode(), window.before, "{keys:?}");
        let (_, shown) = window.end();
        assert!(shown.contains(text), "{keys:?}: {shown}");
    }
}
