//! The hub's servers when they are killed while many call them. The seed is printed; `OSCTL_KILL_SEED` strikes the same.

use crate::harness::{PATIENCE, servers};
use crate::mcp::{Client, status};
use crate::soak::{Random, number, say};
use crate::trials;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

trials![killed_under_load_every_call_ends_and_the_others_never_notice];

/// Calls in all, at least, and after how many a server is killed.
const CALLS: usize = 1000;
const EACH: usize = 25;
/// So many kills at least.
const KILLS: usize = CALLS / 50;

fn killed_under_load_every_call_ends_and_the_others_never_notice() {
    let api = servers().hub();
    let processes = "import os; len([p for p in os.listdir('/proc') if p.isdigit() and b'echo.py' in open(f'/proc/{p}/cmdline', 'rb').read()])";
    let (calls, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (results, errors) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let kills = AtomicUsize::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("OSCTL_KILL_SEED", u64::from(now.subsec_nanos()) | 1);
    say(&format!("OSCTL_KILL_SEED={seed}"));
    // Zero would stay zero for ever.
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
                if ended() < struck * EACH {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
                // One that has answered, so that it is started again at once.
                let client = &clients[random.below(clients.len())];
                let asked = client.post(r#"{"jsonrpc":"2.0","id":"pid","method":"test/pid"}"#);
                let pid = &last_message(&asked.body)["result"];
                // None, where the end of the one before is not known yet.
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
                    // They go on until the killer has struck often enough, and one of them.
                    let is_hurt = || errors.load(Ordering::Relaxed) > 0 && kills.load(Ordering::Relaxed) >= KILLS;
                    let next = |n| (n < CALLS || !(is_hurt() || begin.elapsed() > PATIENCE)).then_some(n + 1);
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
                            assert!(why.contains("is gone: it"), "{answer}");
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
            begin.elapsed() < PATIENCE,
            "{found} are left of {shared} and {own}"
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// The answer, which may have come as the last event.
fn last_message(body: &[u8]) -> Value {
    let text = String::from_utf8_lossy(body);
    let last = text.trim_end().lines().last().unwrap_or_default();
    let last = last.strip_prefix("data: ").unwrap_or(last);
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {text}"))
}
