//! How commands end, and what they leave: timeouts, interrupts, background jobs, nothing else.

use crate::harness::{Api, shared};
use crate::shell::{create, delete, follow, shell};
use crate::trials;
use serde_json::json;
use std::collections::BTreeSet;

trials![
    a_command_that_runs_too_long_is_ended_with_all_it_started,
    a_command_is_stopped_as_by_ctrl_c,
    a_process_left_in_the_background_is_a_job,
    a_thousand_commands_leave_nothing_behind,
    ten_thousand_commands_leave_nothing_behind = "jobs::a_thousand_commands_leave_nothing_behind",
];

pub(crate) fn processes(api: &Api, word: &str) -> usize {
    let code = format!(
        "import glob\n\
         def words(path):\n    \
             try: return open(path, 'rb').read()\n    \
             except OSError: return b''\n\
         len([p for p in glob.glob('/proc/[0-9]*/cmdline') if {word:?}.encode() in words(p)])"
    );
    let told = api.exec(&code);
    let count = told["result"].as_str().and_then(|text| text.parse().ok());
    count.unwrap_or_else(|| panic!("{told}"))
}

fn a_command_that_runs_too_long_is_ended_with_all_it_started() {
    let api = shared().api();
    shell(&api, "default", "cd /tmp; sleep 7654 &");
    let command = "cd /usr; setsid sleep 7653 & (trap '' TERM; setsid sleep 7653) & sleep 7653";
    let body = json!({"command": command, "timeout": 0.5});
    let reply = api.post("/shell", &body).json();
    assert_eq!(
        (&reply["status"], &reply["returncode"]),
        (&json!("interrupted"), &json!(-1))
    );
    assert_eq!(reply["error"]["type"], "Timeout");
    api.until("all are ended", |api| {
        (processes(api, "7653") == 0).then_some(())
    });
    // What an earlier command left does not belong to this command.
    assert_eq!(processes(&api, "7654"), 1);
    end_jobs(&api);
    shell(&api, "default", "cd /root/host");
}

fn end_jobs(api: &Api) {
    for job in api.get("/jobs").json()["jobs"].as_array().unwrap() {
        let path = format!("/jobs/{}", job["pid"]);
        api.connect().send("DELETE", &path, &[], b"");
    }
    api.until("no jobs", |api| {
        api.get("/jobs").json()["jobs"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    });
}

fn a_command_is_stopped_as_by_ctrl_c() {
    let api = shared().api();
    let body = json!({"command": "trap 'echo cleaned up; exit 1' INT; echo begun; while :; do sleep 0.1; done", "id": "stopped"});
    let mut events = follow(&api, &body);
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    let ended = api
        .connect()
        .send("DELETE", "/shell/stopped", &[], b"")
        .json();
    assert_eq!(
        (&ended["status"], &ended["stdout"]),
        (&json!("interrupted"), &json!("begun\ncleaned up\n"))
    );
    let stubborn = json!({"command": "trap '' INT; echo begun; sleep 600", "id": "stubborn"});
    let mut events = follow(&api, &stubborn);
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    let ended = api
        .connect()
        .send("DELETE", "/shell/stubborn", &[], b"")
        .json();
    assert_eq!(
        (&ended["status"], &ended["returncode"]),
        (&json!("interrupted"), &json!(-1))
    );
}

fn a_process_left_in_the_background_is_a_job() {
    let api = shared().api();
    // It keeps its stdout open, and no process waits for it.
    let reply = shell(
        &api,
        "default",
        "echo first; (while :; do echo tick; sleep 0.05; done) & echo $!",
    );
    assert_eq!(reply["background"], true, "{reply}");
    let told = reply["stdout"].as_str().unwrap();
    assert!(told.starts_with("first\n"));
    let job = api.until("a job with output", |api| {
        let jobs = api.get("/jobs").json()["jobs"].clone();
        let mut found = jobs
            .as_array()
            .unwrap()
            .iter()
            .filter(|job| job["run"] == reply["id"]);
        found
            .find(|job| job["output"].as_str().unwrap().contains("tick"))
            .cloned()
    });
    assert_eq!(job["session"], "default");
    let pids: BTreeSet<i64> = job["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["pid"].as_i64().unwrap())
        .collect();
    let pid: i64 = told.lines().find_map(|line| line.parse().ok()).unwrap();
    assert!(pids.contains(&pid), "{job}");
    let ended = api
        .connect()
        .send("DELETE", &format!("/jobs/{}", job["pid"]), &[], b"");
    assert_eq!(ended.status, 200);
    let gone = api
        .connect()
        .send("DELETE", &format!("/jobs/{}", job["pid"]), &[], b"");
    assert_eq!(gone.error().0, 404);
    assert_eq!(
        api.exec(&format!("import os; os.path.exists('/proc/{pid}')"))["result"],
        "False"
    );
    // A job ends with its session.
    create(&api, "leaving");
    shell(&api, "leaving", "setsid sleep 7655 &");
    // The shell may end before its child has become that program.
    api.until("the job", |api| (processes(api, "7655") == 1).then_some(()));
    delete(&api, "leaving");
    api.until("its end", |api| (processes(api, "7655") == 0).then_some(()));
}

fn a_thousand_commands_leave_nothing_behind() {
    run_commands(1000);
}

fn ten_thousand_commands_leave_nothing_behind() {
    run_commands(10_000);
}

fn run_commands(total: u64) {
    let clients = 8;
    let api = shared().api();
    end_jobs(&api);
    let count = |api: &Api| -> (usize, usize, usize) {
        let code = "import os\n\
            def read(path):\n    \
                try: return open(path, 'rb').read()\n    \
                except OSError: return b''\n\
            pids = [p for p in os.listdir('/proc') if p.isdigit()]\n\
            companion = next(p for p in pids if read(f'/proc/{p}/cmdline').split(b'\\0')[1:2] == [b'companion'])\n\
            zombies = [p for p in pids if read(f'/proc/{p}/stat').rsplit(b')')[-1].split()[:1] == [b'Z']]\n\
            len(os.listdir(f'/proc/{companion}/fd')), len(pids), len(os.listdir('/tmp')) + len(zombies)";
        let told = api.exec(code)["result"].as_str().unwrap().to_owned();
        let mut numbers = told
            .trim_matches(['(', ')'])
            .split(", ")
            .map(|n| n.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        (next(), next(), next())
    };
    let settled = |api: &Api| {
        let mut last = (0, 0, 0);
        api.until("an idle state", |api| {
            let now = count(api);
            (std::mem::replace(&mut last, now) == now).then_some(now)
        })
    };
    shell(&api, "default", "true");
    let before = settled(&api);
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut connection = api.connect();
                for number in 0..total / clients {
                    let command = format!("(setsid true &); echo {number}; exit {}", number % 7);
                    let body = json!({"command": command}).to_string();
                    let reply = connection
                        .send("POST", "/shell", &[], body.as_bytes())
                        .json();
                    assert_eq!(reply["stdout"], format!("{number}\n"), "{reply}");
                    assert_eq!(reply["returncode"], number % 7);
                }
            });
        }
    });
    api.until("the former state", |api| {
        let now = count(api);
        (now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2).then_some(())
    });
}
