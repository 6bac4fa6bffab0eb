//! The hub's servers when they are killed during many calls. The seed is printed; `OSCTL_KILL_SEED` repeats a run.

use crate::harness::{TEST_TIMEOUT, servers};
use crate::mcp::{Client, last_message, status};
use crate::soak::{Random, env_number, print_line};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

trials![
    killed_under_load_every_call_ends_and_other_servers_keep_running,
    killed_servers_of_the_image_affect_no_other_server_and_no_client_hangs,
];

/// The least number of calls, and the number of calls after which a server is killed.
const CALLS: usize = 1000;
const CALLS_PER_KILL: usize = 25;
/// The least number of kills.
const KILLS: usize = CALLS / 50;

fn killed_under_load_every_call_ends_and_other_servers_keep_running() {
    let api = servers().hub();
    let processes = "import os; len([p for p in os.listdir('/proc') if p.isdigit() and b'echo.py' in open(f'/proc/{p}/cmdline', 'rb').read()])";
    let (calls, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (results, errors) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let kills = AtomicUsize::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = env_number("OSCTL_KILL_SEED", u64::from(now.subsec_nanos()) | 1);
    print_line(&format!("OSCTL_KILL_SEED={seed}"));
    // A zero state stays zero forever.
    let mut random = Random(seed.max(1));
    let clients: Vec<Client> = (0..4)
        .flat_map(|_| ["/servers/echo/mcp", "/servers/echo-own/mcp"])
        .map(Client::new)
        .collect();
    let other = Client::new("/servers/filesystem/mcp");
    let kernel = servers().api();
    let begin = Instant::now();
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let ended = || results.load(Ordering::Relaxed) + errors.load(Ordering::Relaxed);
            while !done.load(Ordering::Relaxed) {
                let struck = kills.load(Ordering::Relaxed);
                if ended() < struck * CALLS_PER_KILL {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
                // A server that has answered restarts immediately.
                let client = &clients[random.below(clients.len())];
                let asked = client.post(r#"{"jsonrpc":"2.0","id":"pid","method":"test/pid"}"#);
                let pid = &last_message(&asked.body)["result"];
                // No pid: the hub does not know the last end yet.
                if pid.is_u64() {
                    let signal = ["SIGKILL", "SIGTERM", "SIGSEGV"][struck % 3];
                    kernel.exec(&format!(
                        "import os, signal; os.kill({pid}, signal.{signal})"
                    ));
                    kills.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let bystander = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                other.call("list_allowed_directories", &json!({}));
            }
        });
        let workers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| {
                let (calls, results, errors, kills) = (&calls, &results, &errors, &kills);
                scope.spawn(move || {
                    // The calls continue until there are enough kills, and one error.
                    let is_hurt = || errors.load(Ordering::Relaxed) > 0 && kills.load(Ordering::Relaxed) >= KILLS;
                    let next = |n| (n < CALLS || !(is_hurt() || begin.elapsed() > TEST_TIMEOUT)).then_some(n + 1);
                    let take = || calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
                    while let Ok(call) = take() {
                        let pause = if call % 3 == 0 { 0.02 } else { 0.0 };
                        let params = json!({"seconds": pause, "who": number, "call": call});
                        let body = json!({"jsonrpc": "2.0", "id": call, "method": "test/sleep", "params": params});
                        let answer = client.post(&body.to_string());
                        assert_eq!(answer.status, 200);
                        let answer = last_message(&answer.body);
                        assert_eq!(answer["id"], call);
                        if answer["result"] == params {
                            results.fetch_add(1, Ordering::Relaxed);
                        } else {
                            let why = answer["error"]["message"].as_str().unwrap();
                            assert!(why.contains("failed: it"), "{answer}");
                            errors.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(Result::unwrap);
        killer.join().unwrap();
        bystander.join().unwrap();
    });
    let (results, errors) = (results.into_inner(), errors.into_inner());
    assert_eq!(results + errors, calls.into_inner());
    assert!(
        results > CALLS / 2 && errors > 0,
        "{results} results, {errors} errors"
    );
    assert!(kills.into_inner() >= KILLS);
    for client in &clients {
        let mut connection = client.api.connect();
        connection.send("DELETE", &client.path, &client.headers(), b"");
    }
    let begin = Instant::now();
    loop {
        let shared = status(&api, "echo")["pids"].as_array().unwrap().len();
        let own = status(&api, "echo-own")["pids"].as_array().unwrap().len();
        let found = kernel.exec(processes)["result"].to_string();
        if found == format!("\"{}\"", shared + own) {
            break;
        }
        assert!(
            begin.elapsed() < TEST_TIMEOUT,
            "{found} are left of {shared} and {own}"
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// The image's servers, a call of each, what the answer contains, and the least number of calls: 1,000 in
/// all. There are fewer kills than above, because each costs a start, which takes seconds in Python.
const IMAGE_SERVERS: [(&str, &str, &str, &str, usize); 3] = [
    (
        "filesystem",
        "list_directory",
        r#"{"path":"/root/host"}"#,
        "[FILE] killed.txt",
        600,
    ),
    (
        "linux",
        "get_system_information",
        "{}",
        r#""hostname":"#,
        300,
    ),
    ("browser-use", "browser_list_tabs", "{}", "tab_id", 100),
];
/// The number of kills of each server.
const KILLS_PER_SERVER: usize = 3;

/// A server of the image, and the outcome of its calls.
struct Victim {
    name: &'static str,
    body: String,
    holds: &'static str,
    least: usize,
    calls: AtomicUsize,
    results: AtomicUsize,
    errors: AtomicUsize,
    kills: AtomicUsize,
    crashes: u64,
}

impl Victim {
    /// Calls the server once, so that it has what it needs.
    fn new(
        (name, tool, arguments, holds, least): (&'static str, &str, &str, &'static str, usize),
    ) -> Self {
        let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
        let victim = Self {
            name,
            body: format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#),
            holds,
            least,
            calls: AtomicUsize::new(0),
            results: AtomicUsize::new(0),
            errors: AtomicUsize::new(0),
            kills: AtomicUsize::new(0),
            crashes: 0,
        };
        let client = victim.client();
        victim.call(&client);
        assert_eq!(victim.results.load(Ordering::Relaxed), 1, "{name}");
        let crashes = victim.status()["crashes"].as_u64().unwrap();
        Self { crashes, ..victim }
    }

    fn client(&self) -> Client {
        Client::new(&format!("/servers/{}/mcp", self.name))
    }

    fn status(&self) -> Value {
        status(&servers().hub(), self.name)
    }

    fn ended(&self) -> usize {
        self.results.load(Ordering::Relaxed) + self.errors.load(Ordering::Relaxed)
    }

    /// Sends a call, which returns the expected result or reports that the server failed.
    fn call(&self, client: &Client) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let answer = last_message(&client.post(&self.body).body);
        let result = &answer["result"];
        if result.is_null() {
            let why = answer["error"]["message"].as_str().unwrap();
            let expected = format!("the server `{}` failed: it", self.name);
            assert!(why.contains(&expected), "{answer}");
            self.errors.fetch_add(1, Ordering::Relaxed);
        } else {
            assert_ne!(result["isError"], true, "{answer}");
            let text = result["content"][0]["text"].as_str().unwrap();
            assert!(text.contains(self.holds), "{answer}");
            self.results.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the killer kills the server next: it has answered since the last kill.
    fn is_due(&self) -> bool {
        let kills = self.kills.load(Ordering::Relaxed);
        kills < KILLS_PER_SERVER && self.ended() > kills * self.least / (KILLS_PER_SERVER + 1)
    }

    fn is_over(&self) -> bool {
        self.ended() >= self.least && self.kills.load(Ordering::Relaxed) >= KILLS_PER_SERVER
    }

    /// Kills the server, if it runs, and waits until the hub reports its end.
    fn kill(&self, signal: &str) {
        let found = self.status();
        if found["state"] != "running" {
            return;
        }
        let pid = &found["pids"][0];
        servers().api().exec(&format!(
            "import os, signal; os.kill({pid}, signal.{signal})"
        ));
        let kills = self.kills.fetch_add(1, Ordering::Relaxed) as u64 + 1;
        servers().hub().until("the end of a server", |_| {
            (self.status()["crashes"] == self.crashes + kills).then_some(())
        });
    }
}

fn killed_servers_of_the_image_affect_no_other_server_and_no_client_hangs() {
    let home = servers();
    fs::write(home.files().join("killed.txt"), "").unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = env_number("OSCTL_KILL_SEED", u64::from(now.subsec_nanos()) | 1);
    print_line(&format!("OSCTL_KILL_SEED={seed}"));
    let mut random = Random(seed.max(1));
    let other = Client::new("/servers/echo-own/mcp");
    let pid = other.ask("test/pid", &json!({}));
    let victims = IMAGE_SERVERS.map(Victim::new);
    let before = processes();
    let (begin, done) = (Instant::now(), AtomicBool::new(false));
    let is_late = || begin.elapsed() > 2 * TEST_TIMEOUT;
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            while !victims.iter().all(Victim::is_over) && !is_late() {
                let victim = &victims[random.below(victims.len())];
                if victim.is_due() {
                    victim.kill(["SIGKILL", "SIGTERM", "SIGSEGV"][random.below(3)]);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let bystander = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(other.ask("test/pid", &json!({})), pid);
            }
        });
        let workers: Vec<_> = victims
            .iter()
            .flat_map(|victim| [victim; 2])
            .map(|victim| {
                scope.spawn(|| {
                    let client = victim.client();
                    while !victim.is_over() && !is_late() {
                        victim.call(&client);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(Result::unwrap);
        killer.join().unwrap();
        bystander.join().unwrap();
    });
    for victim in &victims {
        let name = victim.name;
        assert_eq!(
            victim.ended(),
            victim.calls.load(Ordering::Relaxed),
            "{name}"
        );
        assert!(victim.is_over(), "{name} has not been killed often enough");
        // The hub counts no other crash.
        assert_eq!(
            victim.status()["crashes"],
            victim.crashes + KILLS_PER_SERVER as u64,
            "{name}"
        );
        // The server runs again, and answers.
        let results = victim.results.load(Ordering::Relaxed);
        victim.call(&victim.client());
        assert_eq!(
            victim.results.load(Ordering::Relaxed),
            results + 1,
            "{name}"
        );
        // The hub repeats calls of tools that the server declares as read-only.
        if name != "browser-use" {
            assert_eq!(victim.errors.load(Ordering::Relaxed), 0, "{name}");
        }
    }
    servers().hub().until("the end of the killed servers", |_| {
        let known = victims
            .iter()
            .map(|victim| victim.status()["pids"][0].clone());
        let mut known: Vec<Value> = known.collect();
        known.sort_by_key(Value::as_u64);
        let now = processes();
        (now["servers"] == json!(known) && now["guards"].as_u64() <= before["guards"].as_u64())
            .then_some(())
    });
}

/// The processes of the image's servers, and the number of supervisors, of which each server has one.
fn processes() -> Value {
    let code = r"
import json, os
def words(pid):
    try:
        return open(f'/proc/{pid}/cmdline', 'rb').read()
    except OSError:
        return b''
lines = {int(pid): words(pid) for pid in os.listdir('/proc') if pid.isdigit()}
of = lambda *names: sorted(pid for pid, line in lines.items() if any(name in line for name in names))
print(json.dumps({'servers': of(b'mcp-server-filesystem', b'linux-mcp-server', b'shared_browser.py'), 'guards': len(of(b'\0reaper\0'))}))
";
    let told = servers().api().exec(code);
    let told = told["stdout"].as_str().unwrap_or_else(|| panic!("{told}"));
    serde_json::from_str(told).unwrap()
}
