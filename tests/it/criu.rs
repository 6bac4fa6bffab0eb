//! Trials of checkpoints of whole kernel processes: what survives a restore, and how losses are reported.

use crate::evolve_inside::inside;
use crate::harness::{Api, Engine, Home, Response};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::sync::OnceLock;

trials![
    the_flag_warns_about_root_on_the_host,
    a_kernel_survives_into_another_container,
    a_running_kernel_can_return_to_a_checkpoint,
    each_session_has_its_own_checkpoint,
    a_process_continues_in_the_evolved_container,
    the_flag_can_be_removed,
    without_a_container_the_flag_is_refused,
];

static CRIU_INSTANCE: OnceLock<Home> = OnceLock::new();

/// An instance whose kernels can be checkpointed.
pub(crate) fn criu_instance() -> &'static Home {
    CRIU_INSTANCE.get_or_init(|| {
        let home = Home::new("criu");
        let ran = home.ok(["up", "--yes", "--auto-ports", "--criu"]);
        assert!(ran.stderr.contains("root on this machine"), "{ran:?}");
        home
    })
}

/// Removes the instance; called after all trials.
pub(crate) fn clean_up() {
    if let Some(home) = CRIU_INSTANCE.get() {
        home.down();
    }
}

/// Restarts the default kernel; returns the API.
pub(crate) fn restart_kernel() -> Api {
    let api = criu_instance().api();
    let answer = api.post("/restart", &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.json());
    api.exec("0");
    api
}

#[track_caller]
fn done(answer: Response) -> Value {
    let body = answer.json();
    assert_eq!(answer.status, 200, "{body}");
    assert_eq!(body["status"], "completed");
    body
}

#[track_caller]
pub(crate) fn checkpoint(api: &Api, request: Value) -> Value {
    done(api.post("/criu/checkpoint", &request))
}

#[track_caller]
pub(crate) fn restore(api: &Api, request: Value) -> Value {
    done(api.post("/criu/restore", &request))
}

/// Processes of CRIU, mounts of unfinished restores, and unfinished folders.
pub(crate) fn leftovers(api: &Api) -> String {
    let look = "import glob, subprocess\n\
        print(subprocess.run('pgrep -x criu; mount | grep -c \" /proc type proc \"', shell=True, capture_output=True, text=True).stdout.strip(), \
        glob.glob('/data/criu/*/.new-*'), glob.glob('/run/osctl/criu/*'))";
    let reply = api.exec_with(json!({"code": look, "silent": true}));
    reply["stdout"].as_str().unwrap().trim().to_owned()
}

pub(crate) const NOTHING_LEFT: &str = "1 [] []";

const STATE: &str = r#"
import threading, time, numpy as np
def counting():
    number = 0
    while True:
        number += 1
        yield number
numbers = counting()
first = next(numbers)
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.01)
ticker = threading.Thread(target=tick, daemon=True)
ticker.start()
array = np.arange(100_000_000 // 8)
checksum = int(array.sum())
import subprocess
child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
file = open('/root/host/kept.txt', 'w+')
file.write('before, ')
file.flush()
import signal
rings = 0
def ring(*_):
    global rings
    rings += 1
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
late = []
soon = threading.Timer(2, late.append, ['soon'])
far = threading.Timer(600, late.append, ['far'])
soon.start(); far.start()
"#;

/// Trials of the shared instance, which has no right to checkpoint.
pub(crate) mod refused {
    use crate::harness::shared;
    use crate::trials;
    use serde_json::json;

    trials![without_the_flag_status_names_the_missing_right];

    fn without_the_flag_status_names_the_missing_right() {
        let api = shared().api();
        let status = api.get("/criu/status").json();
        assert_eq!(status["available"], false);
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("osctl up --criu"), "{message}");
        let checks = status["checks"].to_string();
        for word in [
            "without `--criu`",
            "SYS_PTRACE",
            "seccomp",
            "osctl up --criu",
        ] {
            assert!(checks.contains(word), "{checks}");
        }
        let (code, kind, message) = api.post("/criu/checkpoint", &json!({})).error();
        assert_eq!(
            (code, kind.as_str()),
            (501, "criu_unavailable"),
            "{message}"
        );
        let ran = shared().run(["criu", "status"]);
        assert_eq!(ran.code, 1);
        assert!(ran.stdout.contains("missing") && ran.stdout.contains("seccomp"));
    }
}

fn the_flag_warns_about_root_on_the_host() {
    let home = criu_instance();
    let has_warning = |warnings: &Value| warnings.to_string().contains("root on this machine");
    assert!(has_warning(&home.json(["status"])["warnings"]));
    let found = home.run(["doctor"]);
    assert!(found.stdout.contains("root on this machine"), "{found:?}");
    // The second `up` repeats the warning and changes nothing.
    let again = home.json(["up", "--yes", "--auto-ports"]);
    assert!(has_warning(&again["warnings"]), "{again}");
    let status = home.json(["criu", "status"]);
    assert_eq!(status["available"], true, "{status}");
    let checks = status["checks"].as_array().unwrap();
    assert!(
        checks.iter().all(|check| check["verdict"] == "ok"),
        "{status}"
    );
    assert!(checks.iter().any(|check| check["name"] == "trial"));
}

fn a_kernel_survives_into_another_container() {
    let home = criu_instance();
    let api = restart_kernel();
    let reply = api.exec(STATE);
    assert_eq!(reply["status"], "completed", "{reply}");
    let generation = reply["kernel"]["generation"].as_u64().unwrap();
    api.post(
        "/shell",
        &json!({"command": "cd /root/host; export KEPT=yes; kept() { echo function; }"}),
    );
    let taken = home.json(["criu", "checkpoint"]);
    assert_eq!(taken["status"], "completed", "{taken}");
    assert!(taken["size_bytes"].as_u64().unwrap() > 100_000_000);
    let path = taken["path"].as_str().unwrap();
    assert!(path.starts_with("/data/criu/default/"), "{path}");

    let refused = api.post("/exec", &json!({"code": "1"}));
    let body = refused.json();
    assert_eq!(refused.status, 503);
    assert_eq!(body["is_checkpointed"], true, "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains(path));
    let number = taken["generation"].as_u64().unwrap();
    let hint = body["error"]["hint"].as_str().unwrap();
    let back = format!("`osctl criu restore default --generation {number}`");
    assert!(
        hint.contains(&back) && hint.contains("`osctl reset`"),
        "{hint}"
    );
    let health = api.get("/health");
    assert_eq!(health.status, 200, "{}", health.json());
    let status = api.get("/criu/status").json();
    assert_eq!(status["is_checkpointed"], true);

    // Restore in a container of another image with the same mapped files.
    let image = home.json(["status"])["image"].clone();
    home.ok(["down"]);
    home.ok(["init", "--full"]);
    let kernel = home.project.join("body/kernel/__init__.py");
    let edited = fs::read_to_string(&kernel).unwrap() + "# edited\n";
    fs::write(kernel, edited).unwrap();
    home.ok(["up", "--yes", "--auto-ports"]);
    assert_ne!(home.json(["status"])["image"], image);
    let api = home.api();
    // The kernel is still checkpointed after the restart.
    let refused = api.post("/exec", &json!({"code": "1"}));
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["is_checkpointed"], true);
    let ran = home.ok(["criu", "restore"]);
    assert!(ran.stdout.contains("restored"), "{ran:?}");
    let reply = api.exec(
        "before, until = ticks, time.monotonic() + 20\n\
         while ticks == before and time.monotonic() < until: time.sleep(0.01)\n\
         file.write('after'); file.flush(); file.seek(0)\n\
         [next(numbers), ticks > before, int(array.sum()) == checksum, file.read(), ticker.is_alive()]",
    );
    assert_eq!(
        reply["result"], "[2, True, True, 'before, after', True]",
        "{reply}"
    );
    // The timers of threads and of the process continue.
    let timers = api.exec(
        "seen, until = rings, time.monotonic() + 20\n\
         while rings == seen and time.monotonic() < until: time.sleep(0.01)\n\
         soon.join(20); signal.setitimer(signal.ITIMER_REAL, 0)\n\
         waits = far.is_alive(); far.cancel(); far.join(20)\n\
         [rings > seen, late, waits, far.is_alive()]",
    );
    assert_eq!(
        timers["result"], "[True, ['soon'], True, False]",
        "{timers}"
    );
    let child = api.exec("child.communicate(b'still there'), child.returncode");
    assert_eq!(child["result"], "((b'still there', None), 0)", "{child}");
    assert_eq!(reply["kernel"]["state"], "restored", "{reply}");
    assert!(reply["kernel"]["generation"].as_u64().unwrap() > generation);
    assert_eq!(api.exec("1")["kernel"]["state"], "kept");
    let shell = api.post("/shell", &json!({"command": "pwd; echo $KEPT; kept"}));
    assert_eq!(shell.json()["stdout"], "/root/host\nyes\nfunction\n");
    assert_eq!(leftovers(&api), NOTHING_LEFT);

    // The restored kernel can be interrupted, checkpointed again and ended.
    let stopped = api.exec_with(json!({"code": "time.sleep(60)", "timeout": 0.2}));
    assert_eq!(stopped["status"], "interrupted", "{stopped}");
    assert_eq!(stopped["kernel"]["state"], "kept");
    checkpoint(&api, json!({}));
    restore(&api, json!({}));
    assert_eq!(api.exec("next(numbers)")["result"], "3");
    let died = api.exec("import os, signal; os.kill(os.getpid(), signal.SIGKILL)");
    assert_eq!(died["kernel"]["state"], "lost", "{died}");
    let reply = api.exec("'numbers' in globals()");
    assert_eq!(reply["result"], "False");
    assert_eq!(leftovers(&api), NOTHING_LEFT);
}

fn a_running_kernel_can_return_to_a_checkpoint() {
    let api = restart_kernel();
    api.exec("gone = []\nr = runtime.resource(list).teardown(lambda _: gone.append(1))\nx = 1; r.get().append(5)");
    let kept = checkpoint(&api, json!({"name": "moment", "leave_running": true}));
    assert_eq!(kept["is_running"], true);
    let reply = api.exec("x += 1; [x, gone, r.get()]");
    // Live objects are closed before the checkpoint and reopened on their next use.
    assert_eq!(reply["result"], "[2, [1], []]");
    assert_eq!(reply["kernel"]["state"], "kept", "{reply}");
    let back = restore(&api, json!({"name": "moment"}));
    assert_eq!(back["kernel"]["state"], "restored", "{back}");
    let reply = api.exec("x");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("1"), &json!("restored"))
    );
    // A kernel that runs code is neither checkpointed nor replaced.
    let run = api.exec_with(json!({"code": "import time; time.sleep(60)", "wait": 0}));
    for path in ["/criu/checkpoint", "/criu/restore"] {
        let body = json!({"name": "moment"});
        let (code, kind, _) = api.post(path, &body).error();
        assert_eq!((code, kind.as_str()), (429, "busy"), "{path}");
    }
    let id = run["id"].as_str().unwrap();
    let stopped = api
        .connect()
        .send("DELETE", &format!("/exec/{id}"), &[], b"");
    assert_eq!(stopped.json()["status"], "interrupted");
    assert_eq!(api.exec("x")["result"], "1");
    let (code, kind, _) = api
        .post("/criu/restore", &json!({"name": "no-such"}))
        .error();
    assert_eq!((code, kind.as_str()), (404, "unknown_checkpoint"));
    let (code, _, _) = api
        .post("/criu/checkpoint", &json!({"name": "../x"}))
        .error();
    assert_eq!(code, 400);
    assert_eq!(leftovers(&api), NOTHING_LEFT);
}

fn each_session_has_its_own_checkpoint() {
    let api = restart_kernel();
    api.post("/sessions", &json!({"name": "second"}));
    api.exec_with(json!({"code": "y = 5", "session": "second"}));
    api.exec("y = 1");
    checkpoint(&api, json!({"session": "second"}));
    assert_eq!(api.exec("y")["result"], "1");
    let refused = api.post("/exec", &json!({"code": "y", "session": "second"}));
    assert_eq!(refused.json()["is_checkpointed"], true);
    // The checkpoint of a checkpointed session cannot be removed.
    let kept = api
        .connect()
        .send("DELETE", "/criu/second", &[], b"")
        .error();
    assert_eq!((kept.0, kept.1.as_str()), (409, "in_use"), "{}", kept.2);
    // A deleted session can be restored.
    let deleted = api.connect().send("DELETE", "/sessions/second", &[], b"");
    assert_eq!(deleted.status, 200);
    restore(&api, json!({"session": "second"}));
    let reply = api.exec_with(json!({"code": "y", "session": "second"}));
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("5"), &json!("restored"))
    );
    api.connect().send("DELETE", "/sessions/second", &[], b"");
    criu_instance().ok(["criu", "rm", "second"]);
    assert!(!criu_instance().data().join("criu/second").exists());
    let gone = criu_instance().run(["criu", "rm", "second"]);
    assert_eq!(gone.code, 2, "{gone:?}");
}

fn a_process_continues_in_the_evolved_container() {
    let (home, api) = (criu_instance(), restart_kernel());
    api.exec("def counting():\n    yield from range(1, 10)\nnumbers = counting()\nfirst = next(numbers)\nobject = [1]");
    let quiesced = inside(home, &["quiesce", "--grace", "5"]);
    assert_eq!(
        quiesced["receipt"][0]["restored_by"], "process",
        "{quiesced}"
    );
    // After `resume` the kernel continues, and no checkpoint is left.
    inside(home, &["resume"]);
    assert_eq!(api.exec("next(numbers)")["result"], "2");
    let checkpoints = api.get("/criu").json().to_string();
    assert!(!checkpoints.contains("evolve-"), "{checkpoints}");

    // A checkpointed session is still checkpointed after an evolve.
    api.post("/sessions", &json!({"name": "lies"}));
    api.exec_with(json!({"code": "y = 1", "session": "lies"}));
    checkpoint(&api, json!({"session": "lies"}));
    if !home.project.join("body").exists() {
        home.ok(["init", "--full"]);
    }
    let note = home.project.join("body/note.txt");
    fs::write(note, "another body with the same kernel\n").unwrap();
    let record = home.json(["evolve"]);
    assert_eq!(record["status"], "succeeded", "{record:#}");
    for session in ["default", "lies"] {
        let mut receipt = record["receipt"].as_array().unwrap().iter();
        let kept = receipt.find(|kept| kept["session"] == session);
        assert_eq!(kept.unwrap()["restored_by"], "process", "{record:#}");
    }
    let api = home.api();
    let refused = api.post("/exec", &json!({"code": "y", "session": "lies"}));
    assert_eq!(refused.json()["is_checkpointed"], true);
    api.connect().send("DELETE", "/sessions/lies", &[], b"");
    home.ok(["criu", "rm", "lies"]);
    let after = api.exec("next(numbers), object");
    assert_eq!(after["result"], "(3, [1])", "{after}");
    assert_eq!(after["kernel"]["state"], "restored", "{after}");

    // A checkpoint of another kernel version is replaced by the stored objects.
    let quiesced = inside(home, &["quiesce", "--grace", "5"]);
    let path = format!("/containers/{}/restart?t=20", home.container());
    let state_file = home.data().join("session-state.json");
    let mut kept: Value = serde_json::from_slice(&fs::read(&state_file).unwrap()).unwrap();
    kept["checkpoints"]["kernel_digest"] = "another".into();
    fs::write(&state_file, kept.to_string()).unwrap();
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    let api = home.api();
    api.until("the companion", |api| {
        let answer = std::panic::catch_unwind(|| api.get("/ping").status);
        (answer.ok() == Some(200)).then_some(())
    });
    let report = inside(
        home,
        &["verify", "--expected", &quiesced["expected"].to_string()],
    );
    assert_eq!(report["receipt"][0]["restored_by"], "objects", "{report:#}");
    let after = api.exec("object, 'numbers' in globals()");
    assert_eq!(after["result"], "([1], False)", "{after}");
}

fn the_flag_can_be_removed() {
    let home = criu_instance();
    let up = home.json(["up", "--yes", "--auto-ports", "--criu=false"]);
    assert!(
        !up["warnings"].to_string().contains("root on this machine"),
        "{up}"
    );
    let status = home.json(["criu", "status"]);
    assert_eq!(status["available"], false, "{status}");
    let api = home.api();
    let (code, kind, _) = api.post("/criu/checkpoint", &json!({})).error();
    assert_eq!((code, kind.as_str()), (501, "criu_unavailable"));
    // Without the flag, the stored objects are reloaded.
    let back = restore(&api, json!({"name": "moment"}));
    assert!(
        back["notes"].to_string().contains("without `--criu`"),
        "{back}"
    );
    assert_eq!(api.exec("x")["result"], "1");
}

fn without_a_container_the_flag_is_refused() {
    let home = Home::new("criu-embedded");
    let ran = home.run(["up", "--engine", "embedded", "--criu"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.stderr.contains("cannot checkpoint processes"),
        "{ran:?}"
    );
    home.down();
}
