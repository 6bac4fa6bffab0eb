//! More kernels: their namespaces, their ends, their limits.

use crate::harness::{Api, Home, shared};
use crate::pty::Peer;
use crate::trials;
use serde_json::{Value, json};

trials![
    each_session_has_its_own_namespace,
    a_session_must_exist_and_have_a_valid_name,
    the_command_line_creates_and_ends_sessions,
    ending_a_session_ends_all_its_processes,
    a_name_is_free_again_when_its_session_has_ended,
    a_session_that_dies_affects_no_other,
    code_sent_to_a_dying_idle_kernel_runs_in_the_next_or_fails,
    a_template_that_dies_affects_no_session,
    eight_sessions_run_concurrently,
    variables_of_a_session_are_listed,
    code_is_completed_and_explained,
    an_extension_is_called_by_its_name,
    a_restart_ends_running_code_and_says_so,
    sessions_stay_within_their_limits,
];

#[track_caller]
fn create(api: &Api, name: &str) {
    let made = api.post("/sessions", &json!({"name": name}));
    assert_eq!(made.status, 200, "{}", made.json());
}

#[track_caller]
fn delete(api: &Api, name: &str) {
    let path = format!("/sessions/{name}");
    assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
}

#[track_caller]
fn exec(api: &Api, session: &str, code: &str) -> Value {
    api.exec_with(json!({"code": code, "session": session}))
}

fn each_session_has_its_own_namespace() {
    let api = shared().api();
    create(&api, "own");
    exec(&api, "own", "mine = 'own'");
    exec(&api, "default", "mine = 'default'");
    assert_eq!(exec(&api, "own", "mine")["result"], "'own'");
    let other = exec(
        &api,
        "own",
        "import os; os.getpid(), os.environ['OSCTL_SESSION']",
    );
    let ours = exec(
        &api,
        "default",
        "import os; os.getpid(), os.environ['OSCTL_SESSION']",
    );
    assert_ne!(other["result"], ours["result"]);
    assert!(other["result"].as_str().unwrap().ends_with("'own')"));
    // Creating an existing session changes nothing.
    create(&api, "own");
    assert_eq!(exec(&api, "own", "mine")["result"], "'own'");
    delete(&api, "own");
    create(&api, "own");
    let reply = exec(&api, "own", "'mine' in globals()");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("False"), &json!("lost"))
    );
    delete(&api, "own");
}

fn a_session_must_exist_and_have_a_valid_name() {
    let api = shared().api();
    let body = json!({"code": "1", "session": "nobody"});
    let (status, kind, _) = api.post("/exec", &body).error();
    assert_eq!((status, kind.as_str()), (404, "unknown_session"));
    for name in ["", "../up", ".hidden", "a b", "ä"] {
        let (status, kind, _) = api.post("/sessions", &json!({"name": name})).error();
        assert_eq!((status, kind.as_str()), (400, "invalid_field"), "{name}");
    }
    let refused = api
        .connect()
        .send("DELETE", "/sessions/default", &[], b"")
        .error();
    assert_eq!((refused.0, refused.1.as_str()), (400, "invalid_field"));
    let missing = api
        .connect()
        .send("DELETE", "/sessions/nobody", &[], b"")
        .error();
    assert_eq!((missing.0, missing.1.as_str()), (404, "unknown_session"));
    let made = api.post("/sessions", &json!({})).json();
    let name = made["name"].as_str().unwrap();
    assert!(name.starts_with("session-"), "{made}");
    delete(&api, name);
}

fn the_command_line_creates_and_ends_sessions() {
    let home = shared();
    assert_eq!(
        home.ok(["exec", "--session", "cli", "x = 7; x"]).stdout,
        "7\n"
    );
    assert_eq!(home.ok(["exec", "--session", "cli", "x"]).stdout, "7\n");
    let listed = home.ok(["sessions"]);
    assert!(listed.stdout.contains("\ncli "), "{listed:?}");
    home.ok(["reset", "--session", "cli"]);
    assert_eq!(home.run(["exec", "--session", "cli", "x"]).code, 1);
    home.ok(["sessions", "rm", "cli"]);
    assert!(!home.ok(["sessions"]).stdout.contains("\ncli "));
}

fn ending_a_session_ends_all_its_processes() {
    let home = shared();
    let api = home.api();
    create(&api, "ending");
    let code = "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '86398'])\nopen('/root/host/ending', 'w').close()\ntime.sleep(600)";
    let body = json!({"code": code, "session": "ending", "id": "ending", "wait": 0});
    api.post("/exec", &body);
    api.until("the start", |_| {
        home.files().join("ending").exists().then_some(())
    });
    delete(&api, "ending");
    let run = api.get("/exec/ending").json();
    assert_eq!(
        (&run["status"], &run["kernel"]["state"]),
        (&json!("interrupted"), &json!("lost"))
    );
    let left = api.exec("import subprocess\nsubprocess.run(['pgrep', '-fx', 'sleep 86398'], capture_output=True, text=True).stdout");
    assert_eq!(left["result"], "''");
}

fn a_name_is_free_again_when_its_session_has_ended() {
    let api = shared().api();
    create(&api, "again");
    let mut last = 0;
    for _ in 0..20 {
        let ended = {
            let api = api.clone();
            std::thread::spawn(move || delete(&api, "again"))
        };
        create(&api, "again");
        ended.join().unwrap();
        create(&api, "again");
        let generation = exec(&api, "again", "1")["kernel"]["generation"].as_u64();
        assert!(generation.unwrap() > last, "{generation:?} after {last}");
        last = generation.unwrap();
    }
    delete(&api, "again");
}

fn a_session_that_dies_affects_no_other() {
    let api = shared().api();
    create(&api, "dying");
    api.exec("alive = 1");
    let reply = exec(&api, "dying", "import os; os._exit(5)");
    assert_eq!(
        (&reply["error"]["type"], &reply["kernel"]["state"]),
        (&json!("KernelDied"), &json!("lost"))
    );
    assert_eq!(exec(&api, "dying", "1 + 1")["result"], "2");
    let reply = api.exec("alive");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("1"), &json!("kept"))
    );
    delete(&api, "dying");
}

fn code_sent_to_a_dying_idle_kernel_runs_in_the_next_or_fails() {
    let api = shared().api();
    create(&api, "struck");
    let lines = "/tmp/struck-lines";
    for round in 0..10 {
        let pid = exec(&api, "struck", "import os; os.getpid()")["result"].clone();
        let kill = format!("import os; os.kill({}, 9)", pid.as_str().unwrap());
        assert_eq!(api.exec(&kill)["status"], "completed");
        // The request may come before or after the kernel got the code.
        let line = format!("with open('{lines}', 'a') as f: _ = f.write('{round}\\n')\n6 * 7");
        let reply = exec(&api, "struck", &line);
        let is_run = reply["result"] == "42";
        assert!(is_run || reply["error"]["type"] == "KernelDied", "{reply}");
        assert_eq!(reply["kernel"]["state"], "lost", "{reply}");
        // A completed run ran once; a failed run ran at most once.
        let count = format!(
            "open('{lines}', 'a+').seek(0) or open('{lines}').read().split().count('{round}')"
        );
        let times = api.exec(&count)["result"].clone();
        let fits = times == "1" || (!is_run && times == "0");
        assert!(fits, "round {round} ran {times} times: {reply}");
    }
    api.exec(&format!("import os; os.remove('{lines}')"));
    delete(&api, "struck");
}

fn a_template_that_dies_affects_no_session() {
    let api = shared().api();
    api.exec("alive = 2");
    let code = "import glob, os\nfor path in glob.glob('/proc/[0-9]*/stat'):\n    pid = int(path.split('/')[2])\n    \
                parent = open(path).read().rsplit(')', 1)[1].split()[1]\n    words = open(f'/proc/{pid}/cmdline', 'rb').read()\n    \
                above = open(f'/proc/{parent}/cmdline', 'rb').read() if parent != '0' else b''\n    \
                if b'--template' in words and above.split(b'\\0')[1:2] == [b'companion']: os.kill(pid, 9); print('killed')";
    assert_eq!(api.exec(code)["stdout"], "killed\n");
    for name in ["after-1", "after-2", "after-3", "after-4"] {
        create(&api, name);
        assert_eq!(exec(&api, name, "6 * 7")["result"], "42");
    }
    let reply = api.exec("alive");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("2"), &json!("kept"))
    );
    for name in ["after-1", "after-2", "after-3", "after-4"] {
        delete(&api, name);
    }
}

fn eight_sessions_run_concurrently() {
    let api = shared().api();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let api = api.clone();
            scope.spawn(move || {
                let name = format!("crowd-{number}");
                create(&api, &name);
                exec(&api, &name, &format!("me = {number}"));
                for _ in 0..20 {
                    assert_eq!(exec(&api, &name, "me")["result"], number.to_string());
                }
                delete(&api, &name);
            });
        }
    });
}

fn variables_of_a_session_are_listed() {
    let api = shared().api();
    create(&api, "holding");
    exec(
        &api,
        "holding",
        "import numpy\nnumbers = numpy.zeros(1000)\nword = 'hello'\ndef f(): pass",
    );
    let told = api.get("/variables?session=holding").json();
    let find = |name: &str| {
        let all = told["variables"].as_array().unwrap();
        all.iter()
            .find(|v| v["name"] == name)
            .unwrap_or_else(|| panic!("{told}"))
            .clone()
    };
    assert_eq!(
        (&find("word")["type"], &find("word")["preview"]),
        (&json!("str"), &json!("'hello'"))
    );
    assert_eq!(find("numbers")["type"], "numpy.ndarray");
    assert!(find("numbers")["size"].as_u64().unwrap() >= 8000);
    let session = api.get("/sessions").json();
    let session = session["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|s| s["name"] == "holding")
        .unwrap()
        .clone();
    assert_eq!(
        (&session["busy"], &session["ready"], &session["exec_count"]),
        (&json!(false), &json!(true), &json!(1))
    );
    assert!(session["globals_count"].as_u64().unwrap() >= 4, "{session}");
    assert!(session["memory"].as_u64().unwrap() > 1 << 20, "{session}");
    delete(&api, "holding");
}

fn code_is_completed_and_explained() {
    let api = shared().api();
    create(&api, "helping");
    exec(
        &api,
        "helping",
        "some_long_name = 1\ndef explained(a, b=2):\n    'Says what it does.'",
    );
    let at = |code: &str| json!({"code": code, "session": "helping"});
    let completed = api.post("/complete", &at("some_lo")).json();
    assert_eq!(completed["matches"], json!(["some_long_name"]));
    assert_eq!(
        (
            completed["cursor_start"].as_u64(),
            completed["cursor_end"].as_u64()
        ),
        (Some(0), Some(7))
    );
    let told = api.post("/inspect", &at("explained(")).json();
    let text = told["data"]["text/plain"].as_str().unwrap();
    assert!(
        told["found"] == true && text.contains("Says what it does.") && text.contains("b=2"),
        "{told}"
    );
    assert_eq!(
        api.post("/inspect", &at("nothing_of_that_name")).json()["found"],
        false
    );
    for (code, status) in [
        ("x = 1", "complete"),
        ("def f():", "incomplete"),
        ("x = = 1", "invalid"),
    ] {
        assert_eq!(
            api.post("/is_complete", &at(code)).json()["status"],
            status,
            "{code}"
        );
    }
    let history = api.get("/history?session=helping&n=1").json();
    assert!(
        history["cells"][0][1]
            .as_str()
            .unwrap()
            .starts_with("some_long_name"),
        "{history}"
    );
    delete(&api, "helping");
}

fn an_extension_is_called_by_its_name() {
    let api = shared().api();
    let reply = api.post("/x/packages", &json!({})).json();
    assert_eq!(reply["status"], "completed", "{reply}");
    assert!(reply["value"].to_string().contains("numpy"), "{reply}");
    let missing = api.post("/x/nothing", &json!({})).error();
    assert_eq!((missing.0, missing.1.as_str()), (404, "UnknownExtension"));
    let wrong = api.post("/x/Not-A-Name", &json!({})).error();
    assert_eq!((wrong.0, wrong.1.as_str()), (400, "InvalidName"));
}

fn a_restart_ends_running_code_and_says_so() {
    let api = shared().api();
    create(&api, "again");
    let before = exec(&api, "again", "old = 1")["kernel"]["generation"]
        .as_u64()
        .unwrap();
    api.post("/exec", &json!({"code": "import time; time.sleep(600)", "session": "again", "id": "restarted", "wait": 0}));
    let became = api.post("/restart", &json!({"session": "again"})).json();
    assert_eq!(
        became["kernel"],
        json!({"generation": before + 1, "state": "lost"})
    );
    let run = api.get("/exec/restarted?wait=10").json();
    assert_eq!(
        (&run["status"], &run["kernel"]["state"]),
        (&json!("interrupted"), &json!("lost"))
    );
    assert_eq!(exec(&api, "again", "'old' in globals()")["result"], "False");
    delete(&api, "again");
}

fn sessions_stay_within_their_limits() {
    let home = Home::new("it-limits");
    home.write_config("sessions:\n  max: 5\n  memory: 200m\n  idle: 8\n  check: 2\n");
    home.up();
    let api = home.api();
    // A session with a running cell, a command's job or an open terminal is never idle.
    create(&api, "one");
    api.post(
        "/exec",
        &json!({"code": "import time; time.sleep(600)", "session": "one", "id": "long", "wait": 0}),
    );
    create(&api, "job");
    let left = api.post(
        "/shell",
        &json!({"command": "sleep 600 &", "session": "job"}),
    );
    assert_eq!(left.json()["background"], true);
    create(&api, "window");
    let terminal = Peer::open(&api, "session=window&cols=80&rows=24")
        .ok()
        .unwrap();
    create(&api, "two");
    let (status, kind, message) = api.post("/sessions", &json!({"name": "three"})).error();
    assert_eq!(
        (status, kind.as_str()),
        (429, "too_many_sessions"),
        "{message}"
    );
    // An idle kernel that stops answering is replaced, and the loss is reported.
    let hung = api.exec(
        "import ctypes, threading\nhold = lambda: ctypes.PyDLL(None).sleep(600)\nthreading.Timer(1, hold).start()",
    );
    assert_eq!(hung["status"], "completed", "{hung}");
    // An idle session is released.
    api.until("the idle session's end", |api| {
        let names = api.get("/sessions").json().to_string();
        assert!(
            ["one", "job", "window"]
                .iter()
                .all(|name| names.contains(&format!("\"{name}\""))),
            "{names}"
        );
        (!names.contains("\"two\"")).then_some(())
    });
    drop(terminal);
    for terminal in api.get("/pty").json()["terminals"].as_array().unwrap() {
        let path = format!("/pty/{}", terminal["id"].as_str().unwrap());
        assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
    }
    api.until("the end of the session without its terminal", |api| {
        let names = api.get("/sessions").json().to_string();
        (!names.contains("\"window\"")).then_some(())
    });
    let generation = hung["kernel"]["generation"].as_u64().unwrap();
    api.until("the next kernel", |api| {
        let view = api.get("/status").json();
        (view["kernel"]["generation"].as_u64() == Some(generation + 1)).then_some(())
    });
    let reply = api.exec_with(json!({"code": "'hold' in globals()", "seen": generation}));
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("False"), &json!("lost"))
    );
    delete(&api, "one");
    delete(&api, "job");
    create(&api, "large");
    let reply = exec(
        &api,
        "large",
        "import time\nhog = bytearray(b'x' * (400 << 20))\ntime.sleep(600)",
    );
    assert_eq!(
        (&reply["status"], &reply["kernel"]["state"]),
        (&json!("interrupted"), &json!("lost"))
    );
    assert!(
        reply["error"]["message"]
            .as_str()
            .unwrap()
            .contains("memory"),
        "{reply}"
    );
    assert_eq!(exec(&api, "large", "1 + 1")["result"], "2");
    home.down();
}
