//! The activity log: what each client did, across containers.

use crate::evolve::small;
use crate::harness::Home;
use crate::instance::container_id;
use crate::mcp::{Client, JSON};
use crate::trials;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

trials![each_client_leaves_records_that_survive_the_container];

/// `osctl activity -f`, ended on drop.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        // It has ended if the test failed before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn records(home: &Home, more: &[&str]) -> Vec<Value> {
    let words = [&["activity"][..], more].concat();
    home.json(words)["actions"].as_array().unwrap().clone()
}

/// The record with this text.
#[track_caller]
fn find<'a>(records: &'a [Value], text: &str) -> &'a Value {
    let found = records.iter().find(|record| record["text"] == text);
    found.unwrap_or_else(|| panic!("{text}: {records:#?}"))
}

/// Code that its time limit interrupts, and code that continues after its call: the call and the end are recorded.
fn record_unfinished_runs(home: &Home, client: &Client) {
    home.ok(["exec", "import os, time"]);
    let code = json!({"code": "time.sleep(99)  # too long", "timeout": 0.2});
    let run = json!({"name": "os__execute_python_code", "arguments": code});
    client.ask("tools/call", &run);
    let waiting = "while not os.path.exists('/tmp/go'): time.sleep(0.05)";
    let code = json!({"code": waiting, "wait": 0});
    let run = json!({"name": "os__execute_python_code", "arguments": code});
    client.ask("tools/call", &run);
    let found = || -> Vec<String> {
        let records = records(home, &["--client", "test"]);
        let records = records.iter().filter(|record| record["text"] == waiting);
        let words = records.map(|record| format!("{} {}", record["kind"], record["verdict"]));
        words.collect()
    };
    assert_eq!(found(), [r#""tool" "running""#]);
    home.ok(["shell", "touch /tmp/go"]);
    let ended = [r#""tool" "running""#, r#""exec" "completed""#];
    home.api().until("the record of the end", |_| {
        (found() == ended).then_some(())
    });
}

fn each_client_leaves_records_that_survive_the_container() {
    let home = small("it-activity");
    home.up();
    home.ok(["env", "set", "KEY=hunter2-secret"]);
    home.ok(["exec", "1 + 1\nprint('never shown')"]);
    home.run(["exec", "1 / 0"]);
    home.ok(["shell", "echo hunter2-secret"]);
    home.run(["shell", "exit 4"]);
    home.ok(["packages"]);
    home.run(["remove", "never-added"]);
    let api = home.api();
    let mut connection = api.connect();
    let agent = ("User-Agent", "curl/8.5.0");
    // The code clears the screen of a terminal that shows it as it is.
    let code = json!({"code": "'\u{1b}[2J\u{202e}'"}).to_string();
    let sent = connection.send("POST", "/exec", &[JSON, agent], code.as_bytes());
    assert_eq!(sent.status, 200, "{sent:?}");
    let sent = connection.send("PUT", "/files/tmp/a%20b", &[agent], b"content");
    assert_eq!(sent.status, 201, "{sent:?}");
    let client = Client::of(home.hub(), "/mcp", &json!({}));
    let run = json!({"name": "os__run_shell", "arguments": {"command": "false; exit 3"}});
    client.ask("tools/call", &run);
    record_unfinished_runs(&home, &client);

    let before = records(&home, &[]);
    let field = |text: &str, key: &str| find(&before, text)[key].clone();
    for (text, client, kind, verdict) in [
        ("1 + 1", "osctl", "exec", "completed"),
        ("1 / 0", "osctl", "exec", "failed"),
        ("echo ***", "osctl", "shell", "completed"),
        ("'\u{1b}[2J\u{202e}'", "curl", "exec", "completed"),
        ("/tmp/a b", "curl", "file", "completed"),
        ("mcp", "test", "sign_in", "completed"),
        ("exit 4", "osctl", "shell", "failed"),
        ("osctl remove never-added", "osctl", "shell", "failed"),
        ("false; exit 3", "test", "tool", "failed"),
        ("time.sleep(99)  # too long", "test", "tool", "interrupted"),
    ] {
        let record = find(&before, text);
        assert_eq!(record["client"], client, "{record}");
        assert_eq!(record["kind"], kind, "{record}");
        assert_eq!(record["verdict"], verdict, "{record}");
    }
    assert_eq!(field("1 + 1", "session"), "default");
    assert_eq!(field("1 + 1", "transferred_bytes"), 12);
    assert_eq!(field("/tmp/a b", "transferred_bytes"), 7);
    assert_eq!(field("false; exit 3", "tool"), "os__run_shell");
    let whole = json!(before).to_string();
    assert!(!whole.contains("never shown") && !whole.contains("osctl packages"));
    let shown = home.ok(["activity"]).stdout;
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");

    // A follower continues in the next container, which has all earlier records.
    let mut command = home.command(["--json", "activity", "-f", "-n", "1"]);
    let follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut follower = Follower(follower);
    let mut lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["seq"], before.last().unwrap()["seq"]);
    let container = container_id(&home);
    home.ok(["up", "--yes", "--env", "MODE=x"]);
    assert_ne!(container_id(&home), container);
    home.ok(["exec", "'after'"]);
    while next()["text"] != "'after'" {}
    let after = records(&home, &[]);
    assert_eq!(after[..before.len()], before);
    assert!(after.last().unwrap()["seq"].as_u64() > before.last().unwrap()["seq"].as_u64());
    // The runs survive, too, with their time.
    let runs = home.json(["runs"])["runs"].clone();
    let run = runs
        .as_array()
        .unwrap()
        .iter()
        .find(|run| run["code"] == "1 + 1");
    assert!(run.unwrap()["created_at"].is_string(), "{runs}");

    let of_curl = records(
        &home,
        &["--client", "curl", "--since", "1h", "--session", "default"],
    );
    assert_eq!(of_curl.len(), 1, "{of_curl:#?}");
    assert_eq!(records(&home, &["-n", "1"]).len(), 1);
    // Without a container, the records are read on the host; the value of `--env` is gone.
    home.ok(["down"]);
    assert_eq!(
        records(&home, &["--client", "curl", "--session", "default"]),
        of_curl
    );
    let ran = home.ok(["up"]);
    assert!(
        ran.stderr
            .contains("the value of `--env MODE=…` is not kept"),
        "{ran:?}"
    );
    home.down();
}
