//! Interrupts: which code stops and keeps its state, and which code loses its kernel.

use crate::harness::{Api, shared};
use crate::trials;
use serde_json::json;
use std::thread;

trials![
    code_that_can_be_interrupted_keeps_its_state,
    code_that_can_not_be_interrupted_loses_its_state_and_says_so,
    code_that_asks_the_user_fails_and_never_waits,
];

/// Runs the code in a separate session until it has printed "begun", interrupts it, and compares the state in the
/// reply with the session's state.
fn interrupt(api: &Api, name: &str, code: &str, expected: &str) {
    let made = api.post("/sessions", &json!({"name": name}));
    assert_eq!(made.status, 200, "{}", made.json());
    let prepared = json!({"code": "survivor = 1", "session": name, "queue": true});
    let before = api.post("/exec", &prepared).json()["kernel"]["generation"]
        .as_u64()
        .unwrap();
    let run = json!({"code": code, "session": name, "id": name, "wait": 0});
    assert_eq!(api.post("/exec", &run).status, 200);
    api.until("the start", |api| {
        let run = api.get(&format!("/exec/{name}")).json();
        (run["stdout"] == "begun\n").then_some(())
    });
    let path = format!("/exec/{name}");
    let reply = api.connect().send("DELETE", &path, &[], b"").json();
    assert_eq!(
        (&reply["status"], &reply["kernel"]["state"]),
        (&json!("interrupted"), &json!(expected)),
        "{name}: {reply}"
    );
    let after =
        json!({"code": "'survivor' in globals()", "session": name, "queue": true, "seen": before});
    let after = api.post("/exec", &after).json();
    let is_kept = expected == "kept";
    assert_eq!(
        after["result"],
        if is_kept { "True" } else { "False" },
        "{name}"
    );
    assert_eq!(
        (
            &after["kernel"]["state"],
            after["kernel"]["generation"].as_u64()
        ),
        (&json!(expected), Some(before + u64::from(!is_kept))),
        "{name}"
    );
    let path = format!("/sessions/{name}");
    assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
}

fn interrupt_all(cases: &[(&str, &str)], expected: &str) {
    let api = shared().api();
    thread::scope(|scope| {
        for (name, code) in cases {
            let api = api.clone();
            scope.spawn(move || interrupt(&api, name, code, expected));
        }
    });
}

fn code_that_can_be_interrupted_keeps_its_state() {
    let cases = [
        ("sleeping", "import time; print('begun'); time.sleep(600)"),
        ("looping", "print('begun')\nwhile True: pass"),
        (
            "sleeping-in-c",
            "import ctypes\nlibc = ctypes.CDLL(None)\nprint('begun')\nwhile True: libc.sleep(600)",
        ),
        (
            "accepting",
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\nprint('begun')\ns.accept()",
        ),
        (
            "reading-stdin",
            "import os, sys\nend, kept = os.pipe()\nsys.stdin = os.fdopen(end)\nprint('begun')\nsys.stdin.read()",
        ),
        (
            "reading-stdin-in-a-child",
            "import subprocess\nchild = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\nprint('begun')\nchild.wait()",
        ),
        (
            "waiting-for-a-queue",
            "import queue; print('begun'); queue.Queue().get()",
        ),
        (
            "awaiting",
            "import asyncio; print('begun'); await asyncio.sleep(600)",
        ),
        (
            "waiting-for-a-child",
            "import subprocess; print('begun'); subprocess.run(['sleep', '600'])",
        ),
        ("in-a-shell", "!echo begun; sleep 600"),
        (
            "deadlocked-threads",
            "import threading, time\na, b = threading.Lock(), threading.Lock()\ndef take(first, second):\n    with first:\n        time.sleep(0.05)\n        with second: pass\nthreads = [threading.Thread(target=take, args=pair, daemon=True) for pair in ((a, b), (b, a))]\n[t.start() for t in threads]\nprint('begun')\n[t.join() for t in threads]",
        ),
    ];
    interrupt_all(&cases, "kept");
}

/// Python swallows an interrupt that comes between the first output and the call in C.
fn code_that_can_not_be_interrupted_loses_its_state_and_says_so() {
    let cases = [
        (
            "swallowing",
            "import time\nis_told = False\nwhile True:\n    try:\n        if not is_told: is_told = True; print('begun')\n        time.sleep(600)\n    except KeyboardInterrupt: pass",
        ),
        (
            "blocking-the-signal",
            "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nprint('begun')\nwhile True: time.sleep(600)",
        ),
        (
            "deadlocked-in-c",
            "import ctypes\nlibc = ctypes.CDLL(None)\nmutex = ctypes.create_string_buffer(64)\nlibc.pthread_mutex_lock(mutex)\nprint('begun')\nwhile True:\n    try: libc.pthread_mutex_lock(mutex)\n    except KeyboardInterrupt: pass",
        ),
        (
            "computing-in-c",
            "import numpy\nmatrix = numpy.random.rand(3000, 3000)\nprint('begun')\nwhile True:\n    try: numpy.linalg._umath_linalg.eigvals(matrix, signature='d->D')\n    except KeyboardInterrupt: pass",
        ),
    ];
    interrupt_all(&cases, "lost");
}

/// There is nothing to interrupt: a question fails with a message, and stdin has an end.
fn code_that_asks_the_user_fails_and_never_waits() {
    let api = shared().api();
    api.exec("survivor = 1");
    for code in [
        "input()",
        "input('name? ')",
        "import getpass; getpass.getpass()",
    ] {
        let reply = api.exec(code);
        assert_eq!(
            (&reply["status"], &reply["error"]["type"]),
            (&json!("failed"), &json!("RuntimeError")),
            "{code}: {reply}"
        );
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("input() is not available"),
            "{code}: {reply}"
        );
    }
    for code in [
        "import sys; sys.stdin.read()",
        "import sys; sys.stdin.readline()",
        "import os; os.read(0, 1).decode()",
        "import subprocess; subprocess.run(['cat'], capture_output=True, text=True).stdout",
    ] {
        let reply = api.exec(code);
        assert_eq!(
            (&reply["status"], &reply["result"]),
            (&json!("completed"), &json!("''")),
            "{code}: {reply}"
        );
    }
    let after = api.exec("survivor");
    assert_eq!(
        (&after["result"], &after["kernel"]["state"]),
        (&json!("1"), &json!("kept"))
    );
}
