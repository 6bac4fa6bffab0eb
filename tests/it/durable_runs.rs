//! Trials of runs across kills of the companion and of its container: each acknowledged run is found again with one
//! end, and none is executed twice.
//!
//! The trial prints the seed of the random kills; `OSCTL_DURABLE_SEED` repeats them.

use crate::evolve::small;
use crate::harness::{Api, Engine, Home, TEST_TIMEOUT};
use crate::soak::{Random, env_number, print_line};
use crate::trials;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

trials![
    a_killed_companion_finds_its_runs_again,
    requests_repeated_across_kills_are_executed_once,
    a_killed_container_finds_its_runs_again,
    a_full_disk_refuses_only_runs_that_must_be_recorded,
];

/// Few enough that the companion still retains every run at the end.
const REQUESTS: usize = 200;
const KILLS: usize = 4;
const CLIENTS: usize = 4;

/// A small disk for the companion's records of runs, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(home: &Home) -> Self {
        let folder = home.data().join("runs");
        fs::create_dir_all(&folder).unwrap();
        let disk = Self(folder);
        disk.call("mount", &["-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs"]);
        disk
    }

    fn call(&self, program: &str, words: &[&str]) {
        let status = Command::new(program).args(words).arg(&self.0).status();
        assert!(status.unwrap().success(), "{program}");
    }

    fn fill(&self) -> PathBuf {
        let file = self.0.join("filler");
        // Write until the disk is full.
        assert!(fs::write(&file, vec![1; 8 << 20]).is_err());
        file
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A container may still use the mount.
        self.call("umount", &["-l"]);
    }
}

/// Kills the companion inside the container; the engine then restarts the container.
fn kill_companion(home: &Home) {
    let script = "for p in /proc/[0-9]*; do case \"$(tr '\\0' ' ' < $p/cmdline)\" in '/opt/osctl/bin/osctl companion'*) kill -9 ${p#/proc/};; esac; done";
    let command = json!({"Cmd": ["/bin/sh", "-c", script]});
    let path = format!("/containers/{}/exec", home.container());
    let made = Engine.send("POST", &path, &command).json();
    let path = format!("/exec/{}/start", made["Id"].as_str().unwrap());
    let started = Engine.send("POST", &path, &json!({"Detach": true}));
    assert_eq!(started.status, 200);
}

/// Sends a request over a new connection; `None` without a complete response.
pub(crate) fn ask(api: &Api, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let mut stream = send(api, method, path, body)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

/// Sends a request without reading the response.
pub(crate) fn send(api: &Api, method: &str, path: &str, body: &Value) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(&api.address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .ok()?;
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        api.address,
        api.token,
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    Some(stream)
}

/// Waits until a new companion answers; returns its generation.
fn wait_for_new_companion(api: &Api, was: u64) -> u64 {
    api.until("the restart of the companion", |api| {
        let now = generation(api)?;
        (now != was).then_some(now)
    })
}

fn generation(api: &Api) -> Option<u64> {
    let (_, reply) = ask(api, "POST", "/exec", &json!({"code": "1", "queue": true}))?;
    reply["kernel"]["generation"].as_u64()
}

/// The reply of an existing run.
fn get_run(api: &Api, path: &str) -> Value {
    let answer = api.get(path);
    assert_eq!(answer.status, 200, "{path}");
    answer.json()
}

fn appends(id: &str) -> String {
    format!("with open('/root/host/lines', 'a') as lines: lines.write('{id}\\n')")
}

fn lines(home: &Home) -> BTreeMap<String, usize> {
    let text = fs::read_to_string(home.files().join("lines")).unwrap_or_default();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

fn a_killed_companion_finds_its_runs_again() {
    let home = small("it-durable");
    home.up();
    let api = home.api();
    let was = generation(&api).unwrap();
    let ended = api.exec_with(json!({"code": "print('printed')\n6 * 7", "id": "ended"}));
    assert_eq!(
        (&ended["durable"], &ended["result"]),
        (&json!(true), &json!("42"))
    );
    let raised = api.exec_with(json!({"code": "1/0", "id": "raised"}));
    let command = api.done(
        "/shell",
        &json!({"command": "echo out; exit 3", "id": "command"}),
    );
    assert_eq!(command["durable"], true);
    let flood = api.exec_with(json!({"code": "print('x' * 2_000_000)", "id": "flood"}));
    let traded = api.exec_with(json!({"code": "1", "id": "traded", "durable": false}));
    assert_eq!(traded["durable"], false);
    let started = format!(
        "{}\nimport time\nprint('begun', flush=True)\ntime.sleep(600)",
        appends("going")
    );
    let going = json!({"code": started, "id": "going", "wait": 0, "queue": true});
    api.done("/exec", &going);
    let queued = json!({"code": appends("queued"), "id": "queued", "wait": 0, "queue": true});
    api.done("/exec", &queued);
    let fed = json!({"command": "cat; sleep 600", "id": "fed", "stdin": "a secret\n", "wait": 0});
    api.done("/shell", &fed);
    // The companion records output within some milliseconds of its arrival.
    api.until("the arrival of the output", |api| {
        let code = get_run(api, "/exec/going")["stdout"] == "begun\n";
        let command = get_run(api, "/shell/fed")["stdout"] == "a secret\n";
        (code && command).then_some(())
    });
    thread::sleep(Duration::from_millis(100));
    kill_companion(&home);
    let was = wait_for_new_companion(&api, was);
    for again in [false, true] {
        for (path, before) in [
            ("/exec/ended", &ended),
            ("/exec/raised", &raised),
            ("/shell/command", &command),
        ] {
            assert_eq!(&get_run(&api, path), before);
        }
        let text = get_run(&api, "/exec/flood")["stdout"].clone();
        assert_eq!(text, flood["stdout"]);
        let page = get_run(&api, "/exec/flood/output?offset=1000000&limit=10");
        assert_eq!(page["text"], "x".repeat(10));
        assert_eq!(api.get("/exec/traded").status, 404);
        for (path, printed) in [
            ("/exec/going", "begun\n"),
            ("/exec/queued", ""),
            ("/shell/fed", "a secret\n"),
        ] {
            let lost = get_run(&api, path);
            assert_eq!(
                (&lost["status"], &lost["stdout"]),
                (&json!("lost"), &json!(printed))
            );
            let why = lost["error"]["message"].as_str().unwrap();
            assert!(
                why.contains("the companion ended before the run had ended"),
                "{why}"
            );
        }
        // A repeated request finds its run; a different request with the same ID is refused.
        for (path, request) in [("/exec", &going), ("/exec", &queued), ("/shell", &fed)] {
            assert_eq!(api.done(path, request)["status"], "lost");
            let mut other = request.clone();
            other["timeout"] = 7.into();
            assert_eq!(api.post(path, &other).error().0, 409);
        }
        if !again {
            // The end of a run stays after further restarts.
            home.ok(["restart"]);
            wait_for_new_companion(&api, was);
        }
    }
    assert_eq!(lines(&home), BTreeMap::from([("going".into(), 1)]));
    let listed = home.ok(["runs"]).stdout;
    let row = |id: &str| {
        listed
            .lines()
            .find(|line| line.starts_with(id))
            .unwrap()
            .to_owned()
    };
    assert!(
        row("going").contains("lost") && row("ended").contains("completed"),
        "{listed}"
    );
    let followed = home.run(["attach", "going"]);
    assert_eq!((followed.code, &*followed.stdout), (1, "begun\n"));
    assert!(followed.stderr.contains("Lost: "), "{followed:?}");
    let reply = home.run(["mcp", "call", "os", "wait_for_run", "id=going"]);
    assert!(reply.stdout.contains("Lost: "), "{reply:?}");
    let shown = home.ok(["shell", "ls -lR /data/runs"]).stdout;
    assert!(shown.contains("journal-"), "{shown}");
    assert!(
        !shown
            .lines()
            .any(|line| line.starts_with("-rw") && !line.starts_with("-rw-------")),
        "{shown}"
    );
    home.down();
}

fn requests_repeated_across_kills_are_executed_once() {
    let home = small("it-durable-twice");
    home.up();
    let api = home.api();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = env_number("OSCTL_DURABLE_SEED", u64::from(now.subsec_nanos()) | 1);
    print_line(&format!("OSCTL_DURABLE_SEED={seed}"));
    let mut random = Random(seed.max(1));
    let next = Mutex::new(0);
    let is_done = AtomicBool::new(false);
    let ends: Mutex<BTreeMap<String, Value>> = Mutex::default();
    thread::scope(|scope| {
        let worker = || {
            loop {
                let count = {
                    let mut next = next.lock().unwrap();
                    *next += 1;
                    *next
                };
                if count > REQUESTS && is_done.load(Ordering::Relaxed) || count > 240 {
                    return;
                }
                let id = format!("r{count}");
                let is_code = count % 2 == 0;
                let (path, mut request) = match is_code {
                    true => {
                        let code = format!("import time; time.sleep(0.02)\n{}", appends(&id));
                        ("/exec", json!({"code": code, "queue": true}))
                    }
                    false => (
                        "/shell",
                        json!({"command": format!("sleep 0.02; echo {id} >> /root/host/lines")}),
                    ),
                };
                request["id"] = json!(id);
                // Half of the requests do not wait for the end and find the run again.
                if count % 4 < 2 {
                    request["wait"] = 0.into();
                }
                let begin = Instant::now();
                let end = loop {
                    assert!(begin.elapsed() < TEST_TIMEOUT, "{id} has no end");
                    match ask(&api, "POST", path, &request) {
                        Some((200, reply)) if reply["status"] != "running" => break reply,
                        Some((200 | 429 | 503, _)) | None => {
                            thread::sleep(Duration::from_millis(10))
                        }
                        Some(other) => panic!("{id}: {other:?}"),
                    }
                };
                ends.lock().unwrap().insert(format!("{path}/{id}"), end);
            }
        };
        let workers: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(worker)).collect();
        for _ in 0..KILLS {
            thread::sleep(Duration::from_millis(random.below(700) as u64));
            let was = api.until("an answer", generation);
            kill_companion(&home);
            // The engine answers before the kill happens.
            wait_for_new_companion(&api, was);
        }
        is_done.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
    });
    api.until("an answer", generation);
    let lines = lines(&home);
    let ends = ends.into_inner().unwrap();
    let lost = ends.values().filter(|end| end["status"] == "lost").count();
    print_line(&format!("{lost} of {} runs are lost", ends.len()));
    assert!(ends.len() >= REQUESTS && lost > 0);
    for (path, end) in &ends {
        let id = path.rsplit('/').next().unwrap();
        let count = lines.get(id).copied().unwrap_or_default();
        match end["status"].as_str().unwrap() {
            "completed" => assert_eq!(count, 1, "{path}: {end}"),
            "lost" => assert!(count <= 1, "{path} was executed {count} times"),
            other => panic!("{path}: {other}"),
        }
        assert_eq!(get_run(&api, path)["status"], end["status"], "{path}");
    }
    home.down();
}

fn a_killed_container_finds_its_runs_again() {
    let home = small("it-durable-container");
    home.up();
    let api = home.api();
    let ended = api.exec_with(json!({"code": "print('a'); 1", "id": "ended"}));
    let going = json!({"command": "echo b; sleep 600", "id": "going", "wait": 0});
    api.done("/shell", &going);
    api.until("the arrival of the output", |api| {
        (get_run(api, "/shell/going")["stdout"] == "b\n").then_some(())
    });
    thread::sleep(Duration::from_millis(100));
    let path = format!("/containers/{}/kill?signal=KILL", home.container());
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    home.ok(["up"]);
    let api = home.api();
    assert_eq!(get_run(&api, "/exec/ended"), ended);
    let lost = get_run(&api, "/shell/going");
    assert_eq!(
        (&lost["status"], &lost["stdout"]),
        (&json!("lost"), &json!("b\n"))
    );
    // A container that replaces the killed one finds the runs, too.
    home.ok(["evolve", "--force", "--rebuild"]);
    let api = home.api();
    assert_eq!(get_run(&api, "/exec/ended"), ended);
    assert_eq!(api.done("/shell", &going)["status"], "lost");
    home.down();
}

fn a_full_disk_refuses_only_runs_that_must_be_recorded() {
    let home = small("it-durable-full");
    let disk = SmallDisk::mount(&home);
    home.up();
    let api = home.api();
    let first = json!({"code": "'first'", "id": "first"});
    assert_eq!(api.exec_with(first.clone())["durable"], true);
    let filler = disk.fill();
    // The journal has reserved space for some more records.
    for printed in [400_000, 20_000, 1_000, 0] {
        api.until("a run that is not recorded", |api| {
            let reply = api.exec(&format!("print('x' * {printed})"));
            assert_eq!(reply["status"], "completed");
            (reply["durable"] == false).then_some(())
        });
    }
    // The last space may hold the start of a run but not its end, which the reply reports; then no start fits.
    for (path, key, text) in [("/exec", "code", "1"), ("/shell", "command", "true")] {
        let mut count = 0;
        let refused = api.until("a refusal", |api| {
            count += 1;
            let id = format!("insists-{count}");
            let answer = api.post(path, &json!({key: text, "id": id, "durable": true}));
            (answer.status != 200).then(|| answer.error())
        });
        assert_eq!((refused.0, &*refused.1), (507, "not_recorded"));
    }
    let insists = json!({"code": "1", "id": "insists", "durable": true});
    let ran = home.ok(["exec", "print(6 * 7)"]);
    assert_eq!(ran.stdout, "42\n");
    assert!(ran.stderr.contains("is not recorded on disk"), "{ran:?}");
    assert!(
        home.ok(["logs"])
            .stdout
            .contains("runs are not recorded on disk")
    );
    // Code that frees space is a run, too, and is accepted.
    api.exec("import os; os.remove('/data/runs/filler')");
    assert!(!filler.exists());
    api.until("a run that is recorded", |api| {
        (api.exec("1")["durable"] == true).then_some(())
    });
    assert_eq!(api.exec_with(insists.clone())["durable"], true);
    let was = generation(&api).unwrap();
    kill_companion(&home);
    wait_for_new_companion(&api, was);
    for request in [&first, &insists] {
        assert_eq!(api.exec_with(request.clone())["status"], "completed");
    }
    drop(disk);
    home.down();
}
