//! The bridge from stdio to the hub, as a client uses it that starts a command.

use crate::evolve::small;
use crate::harness::{Home, TEST_TIMEOUT, servers};
use crate::mcp_children::{ODD, large};
use crate::proxies::{Break, BreakingProxy, by_port};
use crate::trials;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

trials![
    lines_pass_unchanged,
    only_the_selected_servers_and_tools_are_offered,
    a_stream_that_is_cut_continues_and_loses_nothing,
    a_session_that_the_hub_has_lost_is_opened_again,
    piped_requests_are_answered_before_the_end,
    an_ended_bridge_leaves_nothing_behind,
    a_malformed_message_and_an_unknown_server_are_reported,
    a_stopped_instance_is_started_if_configured,
    an_evolve_is_invisible_to_the_client,
];

/// A client and the command that it started.
struct Bridge {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Bridge {
    fn start(home: &Home, words: &[&str]) -> Self {
        let mut command = home.command(["mcp", "stdio"].iter().chain(words));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (told, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
        }
    }

    /// A bridge after the handshake.
    fn initialized(home: &Home, words: &[&str]) -> Self {
        let mut bridge = Self::start(home, words);
        bridge.say(&crate::mcp::hello("2025-11-25", &json!({})));
        let answer: Value = serde_json::from_str(&bridge.line()).unwrap();
        assert_eq!(
            answer["result"]["protocolVersion"], "2025-11-25",
            "{answer}"
        );
        bridge.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        bridge
    }

    fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(TEST_TIMEOUT).unwrap()
    }

    /// The next line that is not a notification.
    #[track_caller]
    fn answer(&self) -> Value {
        loop {
            let line: Value = serde_json::from_str(&self.line()).unwrap();
            if line["method"].is_null() {
                return line;
            }
        }
    }

    /// Ends the bridge as a client does; its remaining lines and its stderr.
    fn end(mut self) -> (Vec<String>, String) {
        drop(self.stdin.take());
        let ended = self.child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0));
        let rest = self.lines.iter().collect();
        (rest, String::from_utf8(ended.stderr).unwrap())
    }
}

fn lines_pass_unchanged() {
    let mut bridge = Bridge::initialized(servers(), &["--server", "echo"]);
    let large = large();
    let more = [
        ("9007199254740993", r#"{"n":1.0, "big":1e400, "u":{ }}"#),
        ("null", r#"{"a":[1.10]}"#),
        (r#""\u0041""#, r#"{"é":"\u00e9"}"#),
        ("1.50", &large),
    ];
    for (id, params) in ODD.iter().copied().chain(more) {
        bridge.say(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"test/x","params":{params}}}"#
        ));
        let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{params}}}"#);
        let line = bridge.line();
        assert!(line == expected, "{id}: {:.200}", line);
    }
    // The bridge also forwards requests of the revision without sessions.
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    bridge.say(&format!(
        r#"{{"jsonrpc":"2.0","id":"m","method":"tools/call","params":{{{meta},"name":"echo"}}}}"#
    ));
    assert_eq!(bridge.answer()["result"]["resultType"], "complete");
    let (rest, stderr) = bridge.end();
    assert_eq!((rest.len(), stderr.as_str()), (0, ""));
}

fn only_the_selected_servers_and_tools_are_offered() {
    let offered = |words: &[&str]| {
        let mut bridge = Bridge::initialized(servers(), words);
        bridge.say(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"osctl/wait":100}}}"#);
        let listed = bridge.answer();
        let tools = listed["result"]["tools"].as_array();
        let tools = tools.unwrap_or_else(|| panic!("{listed}")).iter();
        let names: BTreeSet<String> = tools
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect();
        (bridge, names)
    };
    let words = [
        "--servers",
        "echo,file*",
        "--tools",
        "echo__e*",
        "--tools=filesystem__list_dir*",
    ];
    let (mut bridge, names) = offered(&words);
    let expected = [
        "echo__echo",
        "filesystem__list_directory",
        "filesystem__list_directory_with_sizes",
    ];
    assert_eq!(names, BTreeSet::from(expected.map(str::to_owned)));
    // The hub refuses calls of tools that the bridge does not offer, and runs the others.
    let mut call = |name: &str| {
        let params = json!({"name": name, "arguments": {"path": "/root/host"}});
        let request = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
        bridge.say(&request.to_string());
        bridge.answer()
    };
    for name in ["echo__other", "filesystem__read_text_file"] {
        let refused = call(name);
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let listed = call("filesystem__list_directory");
    assert!(
        listed["result"]["content"][0]["text"].is_string(),
        "{listed}"
    );
    bridge.end();
    // Servers alone select all their tools; a single server keeps the tools' own names.
    let (bridge, names) = offered(&["--servers=echo"]);
    let expected = ["echo__echo", "echo__other"].map(str::to_owned);
    assert_eq!(names, BTreeSet::from(expected));
    bridge.end();
    let (bridge, names) = offered(&["--server", "os", "--tools", "read_f*,run_shell"]);
    let expected = ["read_file", "run_shell"].map(str::to_owned);
    assert_eq!(names, BTreeSet::from(expected));
    bridge.end();
    for (words, why) in [
        (
            &["--server", "os", "--servers", "echo"][..],
            "cannot be used with",
        ),
        (&["--tools", "a,,b"], "a pattern cannot be empty"),
    ] {
        let refused = servers().run(["mcp", "stdio"].iter().chain(words));
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}

fn a_stream_that_is_cut_continues_and_loses_nothing() {
    let home = servers();
    let middle = BreakingProxy::start(&home.hub().address, 3000, 4, Break::Cut);
    let other = by_port(home, "it-mcp-cut", 1);
    let path = other.state().join("instance.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["ports"]["mcp"] = middle.port.into();
    fs::write(&path, record.to_string()).unwrap();
    let mut bridge = Bridge::initialized(&other, &["--server", "echo"]);
    bridge.say(r#"{"jsonrpc":"2.0","id":"p","method":"test/progress","params":{"_meta":{"progressToken":"t"},"steps":150,"pause":0.01}}"#);
    for step in 0..150 {
        let line = bridge.line();
        assert!(line.contains(&format!(r#""progress":{step}.0"#)), "{line}");
    }
    let last = bridge.line();
    assert!(
        last.starts_with(r#"{"jsonrpc":"2.0","id":"p","result":"#),
        "{last}"
    );
    assert!(middle.left() < 4, "nothing was cut");
    bridge.end();
}

fn a_session_that_the_hub_has_lost_is_opened_again() {
    let home = servers();
    let mut bridge = Bridge::initialized(home, &["--server", "echo-own"]);
    bridge.say(r#"{"jsonrpc":"2.0","id":1,"method":"test/pid","params":{}}"#);
    let before = bridge.answer()["result"].clone();
    // The kept sessions are deleted, and then the restart clears the hub's memory of them.
    home.ok(["shell", "rm -rf /data/mcp/sessions"]);
    home.ok(["restart"]);
    bridge.say(r#"{"jsonrpc":"2.0","id":2,"method":"test/pid","params":{}}"#);
    let after = bridge.answer();
    assert_eq!(after["id"], 2);
    assert!(after["result"].is_number() && before.is_number(), "{after}");
    bridge.end();
}

fn piped_requests_are_answered_before_the_end() {
    let mut bridge = Bridge::start(servers(), &[]);
    bridge.say(&crate::mcp::hello("2025-06-18", &json!({})));
    bridge.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    bridge.say(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"os__run_shell","arguments":{"command":"sleep 0.5; echo piped"}}}"#);
    let (lines, _) = bridge.end();
    assert!(
        lines[0].contains(r#""protocolVersion":"2025-06-18""#),
        "{lines:?}"
    );
    assert!(lines.last().unwrap().contains("piped"), "{lines:?}");
}

fn an_ended_bridge_leaves_nothing_behind() {
    let home = servers();
    let api = home.hub();
    let sessions = || {
        // The folder does not exist before the first session.
        let folder = fs::read_dir(home.data().join("mcp/sessions"));
        let names = folder.into_iter().flatten();
        let names = names.map(|entry| entry.unwrap().file_name());
        names.collect::<BTreeSet<_>>()
    };
    let before = sessions();
    let until_left = || {
        api.until("the end of its session", |_| {
            sessions().is_subset(&before).then_some(())
        });
    };
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut bridge = Bridge::initialized(home, &["--server", "echo-own"]);
        bridge.say(r#"{"jsonrpc":"2.0","id":1,"method":"test/pid","params":{}}"#);
        let pid = bridge.answer()["result"].to_string();
        assert!(!sessions().is_subset(&before));
        // A running call does not delay the end.
        bridge.say(r#"{"jsonrpc":"2.0","id":2,"method":"test/progress","params":{"_meta":{"progressToken":"t"},"steps":1000,"pause":0.2}}"#);
        assert!(bridge.line().contains("progress"));
        kill(Pid::from_raw(bridge.child.id().cast_signed()), signal).unwrap();
        assert_eq!(bridge.child.wait().unwrap().code(), Some(0), "{signal}");
        until_left();
        api.until("the end of its own server", |_| {
            let runs = home.run(["shell", &format!("kill -0 {pid}")]);
            (runs.code != 0).then_some(())
        });
    }
    // A bridge whose client disconnects before the handshake ends.
    let mut bridge = Bridge::start(home, &["--server", "echo-own"]);
    bridge.say(&crate::mcp::hello("2025-11-25", &json!({})));
    let (lines, stderr) = bridge.end();
    assert!(lines[0].contains("protocolVersion"), "{lines:?}");
    assert_eq!(stderr, "");
    until_left();
}

fn a_malformed_message_and_an_unknown_server_are_reported() {
    let mut bridge = Bridge::start(servers(), &["--server", "nobody"]);
    bridge.say("no message");
    assert_eq!(bridge.answer()["error"]["code"], -32700);
    bridge.say(&crate::mcp::hello("2025-11-25", &json!({})));
    let refused = bridge.answer();
    assert_eq!(refused["error"]["message"], "there is no server `nobody`");
    let (_, stderr) = bridge.end();
    assert!(stderr.contains("there is no server `nobody`"), "{stderr}");
    let wrong = servers().run(["mcp", "stdio", "--server", "a/b"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let none = Home::new("it-mcp-none");
    let mut bridge = Bridge::start(&none, &[]);
    bridge.say(&crate::mcp::hello("2025-11-25", &json!({})));
    let refused = bridge.answer();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(0), &json!(-32000))
    );
    let hint = refused["error"]["data"]["hint"].to_string();
    assert!(hint.contains("osctl --instance"), "{refused}");
    let (_, stderr) = bridge.end();
    assert!(stderr.contains("is not running"), "{stderr}");
}

fn a_stopped_instance_is_started_if_configured() {
    let home = Home::new("it-mcp-start");
    home.write_config("mcp:\n  start: true\nauto_ports: true\n");
    home.up();
    home.ok(["down"]);
    let mut bridge = Bridge::initialized(&home, &["--server", "os"]);
    bridge.say(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_shell","arguments":{"command":"echo started"}}}"#);
    let answer = bridge.answer();
    home.down();
    assert_eq!(answer["result"]["content"][0]["text"], "started");
}

fn an_evolve_is_invisible_to_the_client() {
    let home = small("it-bridge-evolve");
    home.up();
    let mut bridge = Bridge::initialized(&home, &["--server", "os"]);
    let mut id = 0;
    let mut call = |name: &str, arguments: Value| {
        id += 1;
        let params =
            json!({"name": name, "arguments": arguments, "_meta": {"osctl/structured": true}});
        let request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        bridge.say(&request.to_string());
        let answer = bridge.answer();
        assert_eq!(answer["id"], id, "{answer}");
        assert_ne!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"]["structuredContent"].clone()
    };
    let generation = |told: Value| told["kernel"]["generation"].as_u64().unwrap();
    let before = generation(call("execute_python_code", json!({"code": "x = 41"})));
    let begun = call(
        "evolve",
        json!({"reason": "a client asks", "rebuild": true}),
    );
    assert_eq!(begun["status"], "started", "{begun}");
    home.api().until("the end of the run", |_| {
        let told = call("evolve_status", json!({}));
        assert_eq!(told["latest_run"], begun["run"], "{told}");
        let ended = told["evolve_in_progress"] == false;
        ended.then(|| assert_eq!(told["latest_status"], "succeeded", "{told}"))
    });
    let told = call("execute_python_code", json!({"code": "x + 1"}));
    assert_eq!(told["result"], "42", "{told}");
    assert!(generation(told) > before);
    assert_eq!(bridge.end().1, "");
    home.down();
}
