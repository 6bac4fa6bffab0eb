//! Many requests: the service answers each of them, and its memory does not grow.

use crate::harness::{Home, shared};
use crate::trials;
use serde_json::json;

trials![
    sixty_four_concurrent_clients_lose_no_reply,
    four_thousand_requests_neither_freeze_nor_grow,
    a_hundred_thousand_requests_neither_freeze_nor_grow =
        "load::four_thousand_requests_neither_freeze_nor_grow",
];

fn sixty_four_concurrent_clients_lose_no_reply() {
    let api = shared().api();
    std::thread::scope(|scope| {
        for client in 0..64 {
            let api = api.clone();
            scope.spawn(move || {
                let mut connection = api.connect();
                for number in 0..25 {
                    let code = format!("{client} * 1000 + {number}");
                    let body = json!({"code": code, "queue": true}).to_string();
                    let reply = connection
                        .send("POST", "/exec", &[], body.as_bytes())
                        .json();
                    assert_eq!(reply["result"], (client * 1000 + number).to_string());
                }
            });
        }
    });
}

/// The memory of the kernel and of the companion in KiB, without the pages of files.
fn memory(home: &Home) -> [u64; 2] {
    let code =
        "import re\nint(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1])";
    let reply = home.api().exec(code);
    let kernel = reply["result"].as_str().and_then(|text| text.parse().ok());
    let kernel = kernel.unwrap_or_else(|| panic!("{reply}"));
    [kernel, home.companion_memory_kib()]
}

fn four_thousand_requests_neither_freeze_nor_grow() {
    serve(1_000, 4_000, 4 * 1024);
}

fn a_hundred_thousand_requests_neither_freeze_nor_grow() {
    serve(5_000, 95_000, 8 * 1024);
}

const ROUNDS: usize = 3;

/// After the `first` requests, `count` more make neither process grow by more than `growth` KiB.
fn serve(first: usize, count: usize, growth: u64) {
    let home = shared();
    let api = home.api();
    let mut connection = api.connect();
    let body = json!({"code": "1+1", "queue": true}).to_string();
    let mut send = |count: usize| {
        for _ in 0..count {
            let response = connection.send("POST", "/exec", &[], body.as_bytes());
            let text = String::from_utf8_lossy(&response.body);
            assert_eq!(response.status, 200, "{text}");
            assert!(text.contains("\"result\":\"2\""), "{text}");
        }
    };
    send(first);
    // A leak grows in every round. What an allocator keeps grows in one round, and is used again in the next: the
    // limit is lower than the growth from a leak of 100 bytes per request in the long run, or about equal to a leak of
    // 1 KiB per request in the short run.
    let mut seen = vec![memory(home)];
    for _ in 0..ROUNDS {
        send(count);
        seen.push(memory(home));
        let is_steady = |process: usize| {
            let keeps = |pair: &[[u64; 2]]| pair[1][process] < pair[0][process] + growth;
            seen.windows(2).any(keeps)
        };
        if is_steady(0) && is_steady(1) {
            return;
        }
    }
    panic!("KiB of kernel and companion after each round: {seen:?}");
}
