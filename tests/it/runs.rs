//! Runs: queued, waited for, found again, interrupted.

use crate::commands::Ran;
use crate::harness::{Home, shared};
use crate::terminal::Terminal;
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::time::Instant;

trials![
    a_busy_kernel_refuses_or_queues,
    the_same_id_finds_the_run_again,
    code_outside_the_history_is_not_counted,
    a_wait_ends_and_the_code_continues,
    a_timeout_interrupts_and_keeps_the_state,
    a_run_is_interrupted_by_another_client,
    a_queued_run_can_be_cancelled,
    an_interrupt_does_not_wait_for_queued_runs,
    a_client_that_disconnects_does_not_end_the_run,
    the_first_characters_of_an_id_find_the_run,
    a_file_runs_as_a_program_with_its_arguments_and_exit_code,
    the_last_lines_of_a_service_are_counted_without_those_of_others,
    status_and_doctor_are_colored_and_name_what_the_container_uses,
    a_terminal_shows_that_code_waits_for_other_code,
];

/// Code that has started and runs until `stop` is called.
struct Held<'a> {
    home: &'a Home,
    name: String,
}

impl<'a> Held<'a> {
    fn start(home: &'a Home, name: &str) -> Self {
        let api = home.api();
        let code = format!(
            "import os, time\nwhile not os.path.exists('/root/host/{name}.off'): time.sleep(0.01)\n'{name} done'"
        );
        let taken = api.exec_with(json!({"code": code, "id": name, "wait": 0}));
        assert_eq!(taken["status"], "running");
        let held = Self {
            home,
            name: name.into(),
        };
        api.until("the start", |api| {
            let run = api.get(&format!("/exec/{name}")).json();
            run["execution_count"].is_u64().then_some(())
        });
        held
    }

    fn stop(self) -> Value {
        std::fs::write(self.home.files().join(format!("{}.off", self.name)), "").unwrap();
        self.home
            .api()
            .get(&format!("/exec/{}?wait=60", self.name))
            .json()
    }
}

fn a_busy_kernel_refuses_or_queues() {
    let home = shared();
    let api = home.api();
    let held = Held::start(home, "busy");
    let refused = api.post("/exec", &json!({"code": "1"}));
    assert_eq!(
        (refused.error().0, refused.error().1.as_str()),
        (429, "busy")
    );
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(api.post("/reset", &json!({})).error().1, "busy");
    let queued = api.exec_with(json!({"code": "'after'", "id": "busy-queued", "wait": 0}));
    assert_eq!(queued["status"], "running");
    let listed = home.ok(["runs", "--running"]).stdout;
    let line = listed.lines().find(|line| line.starts_with("busy-queued"));
    assert!(line.unwrap().contains(" queued "), "{listed}");
    let listed = home.json(["runs", "--running"]);
    let runs = listed["runs"].as_array().unwrap();
    let status = |id: &str| &runs.iter().find(|run| run["id"] == id).unwrap()["status"];
    assert_eq!(
        (status("busy"), status("busy-queued")),
        (&json!("running"), &json!("queued"))
    );
    assert_eq!(held.stop()["result"], "'busy done'");
    assert_eq!(
        api.get("/exec/busy-queued?wait=60").json()["result"],
        "'after'"
    );
}

fn the_same_id_finds_the_run_again() {
    let api = shared().api();
    let request = json!({"code": "import random; random.random()", "id": "same-id"});
    let first = api.exec_with(request.clone());
    let again = api.exec_with(request);
    assert_eq!(
        (&first["result"], &first["execution_count"]),
        (&again["result"], &again["execution_count"])
    );
    let other = api.post("/exec", &json!({"code": "2", "id": "same-id"}));
    assert_eq!(
        (other.error().0, other.error().1.as_str()),
        (409, "id_in_use")
    );
}

fn code_outside_the_history_is_not_counted() {
    let api = shared().api();
    // Other tests count in the default session.
    assert_eq!(
        api.post("/sessions", &json!({"name": "uncounted"})).status,
        200
    );
    let exec = |code: &str, store_history: bool| {
        api.exec_with(json!({"code": code, "session": "uncounted", "store_history": store_history}))
    };
    assert_eq!(exec("0", true)["execution_count"], 1);
    assert_eq!(exec("'unseen'", false)["result"], "'unseen'");
    assert_eq!(exec("1", true)["execution_count"], 2);
    api.exec_with(json!({"code": "2", "id": "counted"}));
    let other = json!({"code": "2", "id": "counted", "store_history": false});
    let (status, kind, _) = api.post("/exec", &other).error();
    assert_eq!((status, kind.as_str()), (409, "id_in_use"));
    let ended = api
        .connect()
        .send("DELETE", "/sessions/uncounted", &[], b"");
    assert_eq!(ended.status, 200);
}

fn a_wait_ends_and_the_code_continues() {
    let home = shared();
    let held = Held::start(home, "waited");
    let begin = Instant::now();
    let reply = home.api().get("/exec/waited?wait=0.2").json();
    assert_eq!(reply["status"], "running");
    assert!(begin.elapsed().as_secs_f64() >= 0.2);
    assert_eq!(held.stop()["status"], "completed");
}

fn a_timeout_interrupts_and_keeps_the_state() {
    let api = shared().api();
    api.exec("before_timeout = 7");
    let reply = api
        .exec_with(json!({"code": "import time\nprint('begun')\ntime.sleep(600)", "timeout": 2}));
    assert_eq!(
        (reply["status"].as_str(), reply["error"]["type"].as_str()),
        (Some("interrupted"), Some("Timeout"))
    );
    assert_eq!(
        (reply["kernel"]["state"].as_str(), reply["stdout"].as_str()),
        (Some("kept"), Some("begun\n"))
    );
    assert!(
        reply["error"]["message"]
            .as_str()
            .unwrap()
            .contains("variables are kept")
    );
    assert_eq!(api.exec("before_timeout")["result"], "7");
}

fn a_run_is_interrupted_by_another_client() {
    let home = shared();
    let held = Held::start(home, "stopped");
    let reply = home
        .api()
        .connect()
        .send("DELETE", "/exec/stopped", &[], b"")
        .json();
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some("interrupted"), Some("kept"))
    );
    assert_eq!(held.stop()["status"], "interrupted");
}

fn a_queued_run_can_be_cancelled() {
    let home = shared();
    let api = home.api();
    let held = Held::start(home, "holder");
    api.exec_with(json!({"code": "taken_back = True", "id": "taken-back", "wait": 0}));
    let reply = api
        .connect()
        .send("DELETE", "/exec/taken-back", &[], b"")
        .json();
    assert_eq!(
        (reply["status"].as_str(), &reply["execution_count"]),
        (Some("interrupted"), &Value::Null)
    );
    held.stop();
    assert_eq!(api.exec("'taken_back' in globals()")["result"], "False");
}

fn a_client_that_disconnects_does_not_end_the_run() {
    let api = shared().api();
    let mut connection = api.connect();
    let body = json!({"code": "import time; time.sleep(0.3); left = 'done'; left", "id": "left-alone", "queue": true}).to_string();
    let head = format!(
        "POST /exec HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
        api.address,
        api.token,
        body.len()
    );
    connection.write_raw(head.as_bytes());
    api.until("the run", |api| {
        (api.get("/exec/left-alone").status == 200).then_some(())
    });
    drop(connection);
    assert_eq!(
        api.get("/exec/left-alone?wait=60").json()["result"],
        "'done'"
    );
}

fn an_interrupt_does_not_wait_for_queued_runs() {
    let home = shared();
    let api = home.api();
    let made = api.post("/sessions", &json!({"name": "queueing"}));
    assert_eq!(made.status, 200);
    let run = |id: &str| json!({"code": "import time; time.sleep(600)", "session": "queueing", "id": id, "queue": true, "wait": 0});
    for id in ["first-asleep", "second-asleep"] {
        assert_eq!(api.post("/exec", &run(id)).json()["status"], "running");
        api.until("the start", |api| {
            let first = api.get("/exec/first-asleep").json();
            first["execution_count"].is_u64().then_some(())
        });
    }
    let told = api.post("/interrupt", &json!({"session": "queueing"}));
    assert_eq!(told.json()["kernel"]["state"], "kept");
    let first = api.get("/exec/first-asleep").json();
    let second = api.get("/exec/second-asleep").json();
    assert_eq!(
        (&first["status"], &second["status"]),
        (&json!("interrupted"), &json!("running"))
    );
    let ended = api.connect().send("DELETE", "/sessions/queueing", &[], b"");
    assert_eq!(ended.status, 200);
    let second = api.get("/exec/second-asleep").json();
    let message = second["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("the session was deleted"), "{second}");
}

fn the_first_characters_of_an_id_find_the_run() {
    let home = shared();
    let api = home.api();
    for id in ["short-ab", "short-ac"] {
        let code = format!("print('{id}')");
        api.exec_with(json!({"code": code, "id": id}));
    }
    assert_eq!(home.ok(["attach", "short-ab"]).stdout, "short-ab\n");
    let ran = home.run(["attach", "short-a"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    for words in ["`short-ab`", "`short-ac`", "runs` lists the IDs"] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let _held = Held::start(home, "short-b-held");
    let interrupted = home.ok(["interrupt", "short-b"]);
    assert!(
        interrupted.stderr.contains("`short-b-held`"),
        "{interrupted:?}"
    );
    // The code has printed nothing, and the prefix of a command's ID works as well.
    let id = home.ok(["shell", "--detach", "echo found"]).stdout;
    let ran = home.ok(["attach", &id.trim()[..12]]);
    assert_eq!(ran.stdout, "found\n");
    let ran = home.run(["attach", "short-x"]);
    assert!(ran.code != 0 && !ran.stderr.contains("short-ab"), "{ran:?}");
}

fn a_file_runs_as_a_program_with_its_arguments_and_exit_code() {
    let home = shared();
    let file = home.project.join("program.py");
    let code = "import sys\nprint(sys.argv, __file__)\nsys.exit(int(sys.argv[1]))\n";
    fs::write(&file, code).unwrap();
    let file = file.to_str().unwrap();
    let ran = home.run(["exec", "-s", "program", "-f", file, "3", "--", "--fast"]);
    let shown = "['/repo/program.py', '3', '--fast'] /repo/program.py\n";
    assert_eq!(
        (ran.code, &*ran.stdout, &*ran.stderr),
        (3, shown, ""),
        "{ran:?}"
    );
    assert_eq!(home.run(["exec", "-s", "program", "-f", file, "0"]).code, 0);
    let listed = home.ok(["runs"]).stdout;
    assert!(listed.contains("  -f program.py\n"), "{listed}");
    // The arguments are gone, and so is the pipe's code.
    let mut piped = home.command(["exec", "-s", "program"]);
    let code = "print('__file__' in globals()); sys.exit('no file')";
    fs::write(home.folder.join("code"), code).unwrap();
    piped.stdin(fs::File::open(home.folder.join("code")).unwrap());
    let ran = Ran::from(piped.output().unwrap());
    assert_eq!(
        (ran.code, &*ran.stdout, &*ran.stderr),
        (1, "False\n", "no file\n"),
        "{ran:?}"
    );
    let ran = home.run(["exec", "x", "=", "1"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("the code has several words: `x`, `=`"),
        "{ran:?}"
    );
    let ran = home.run(["--color", "always", "exec", "-s", "program", "1/0"]);
    assert!(ran.stderr.contains("\u{1b}[1mZeroDivisionError"), "{ran:?}");
    home.ok(["sessions", "rm", "program"]);
}

fn status_and_doctor_are_colored_and_name_what_the_container_uses() {
    let home = shared();
    let wait = "import time; time.sleep(600)";
    let begun = home.ok(["exec", "--session", "colored", "--detach", wait]);
    let id = begun.stdout.trim();
    let status = home.ok(["--color", "always", "status"]).stdout;
    assert!(
        status.contains("\u{1b}[32mrunning, healthy\u{1b}[0m"),
        "{status}"
    );
    let row = |what: &str| {
        let rows = status.lines().filter(|line| line.starts_with(what));
        rows.map(|row| row[10..].to_owned()).collect::<Vec<_>>()
    };
    assert!(row("services  ")[0].contains("kernel ("), "{status}");
    for what in ["uptime    ", "memory    ", "clients   ", "desktop   "] {
        assert_eq!(row(what).len(), 1, "{what}: {status}");
    }
    assert!(
        row("running   ").iter().any(|row| row.starts_with(id)),
        "{status}"
    );
    let answer = home.json(["status"]);
    assert!(answer["uptime_seconds"].as_f64() > Some(0.0), "{answer}");
    assert!(answer["memory_bytes"].as_u64() > Some(1 << 20), "{answer}");
    let runs = answer["runs"].as_array().unwrap();
    assert!(runs.iter().any(|run| run["id"] == id), "{answer}");
    home.ok(["interrupt", id]);
    home.ok(["sessions", "rm", "colored"]);
    let doctor = home.run(["--color", "always", "doctor"]);
    let lines = ["ok\u{1b}[0m       keeper", "published", "memory", "clients"];
    for line in lines {
        assert!(doctor.stdout.contains(line), "{doctor:?}");
    }
    assert!(
        doctor.stdout.contains("\u{1b}[32mok\u{1b}[0m"),
        "{doctor:?}"
    );
    let summary = doctor.stderr.lines().last().unwrap_or_default();
    assert!(
        summary.contains("warning") && summary.contains("broken"),
        "{doctor:?}"
    );
}

fn the_last_lines_of_a_service_are_counted_without_those_of_others() {
    let home = shared();
    let whole = home.ok(["logs", "kernel"]).stdout;
    let last = home.ok(["logs", "kernel", "-n", "1"]).stdout;
    assert!(!whole.is_empty());
    assert_eq!(last.lines().count(), 1, "{last}");
    assert!(last.contains("osctl::companion::kernel"), "{last}");
}

fn a_terminal_shows_that_code_waits_for_other_code() {
    let home = shared();
    let held = Held::start(home, "before");
    let mut terminal = Terminal::start(home.command(["exec", "'after the other'"]));
    terminal.wait_for("queued behind 1 run");
    assert_eq!(held.stop()["result"], "'before done'");
    let (code, shown) = terminal.end();
    assert_eq!(code, 0, "{shown:?}");
    assert!(shown.contains("after the other"), "{shown:?}");
}
