//! The hub's servers: the hub forwards messages unchanged, and a server's crash affects no other server.

use crate::harness::servers;
use crate::mcp::{Client, last_message, status};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::thread;

trials![
    messages_pass_in_the_same_bytes,
    clients_of_one_server_process_never_get_each_others_messages,
    a_servers_request_goes_to_the_client_of_its_call,
    a_call_that_takes_too_long_fails_unless_it_reports_progress,
    a_cancelled_call_ends_and_its_server_keeps_running,
    other_output_of_a_server_is_in_its_log,
    a_server_without_calls_for_long_ends,
    a_subscription_to_a_resource_survives_a_crash,
    a_server_of_only_the_newest_revision_serves_clients_of_all_revisions,
    all_servers_together_offer_prompts_and_get_the_clients_roots,
    a_server_and_its_processes_end_with_its_session,
    a_server_that_never_works_pauses_and_says_why,
];

/// Ids and parameters: recorded between clients and servers in several languages, and less usual ones.
pub(crate) const ODD: &[(&str, &str)] = &[
    ("1", r#"{"n":1.0}"#),
    ("1.0", r#"{"n":1e400,"m":-0.0,"k":1E+2}"#),
    (
        "-0",
        r#"{"big":123456789012345678901234567890,"small":1e-999}"#,
    ),
    ("12345678901234567890", r#"{"a":{"a":{"a":[[[]]]}},"a":2}"#),
    (
        "null",
        r#"{"unknown":{"x-y":null},"_meta":{"vendor/x":1.50}}"#,
    ),
    (
        r#""\u0041\ud83d\ude00""#,
        r#"{"t":"\u0000\u2028 é 😀 \/ \"","": ""}"#,
    ),
    (r#""""#, r#"{ "spaces" : [ 1 , 2 ]  , "tab":	1 }"#),
    ("1e3", r#"[1, 2.50, "by position"]"#),
    ("0.1", "{}"),
    (r#""osctl-1""#, r#"{"progressToken":1,"id":7}"#),
];

/// More than 5 MB.
pub(crate) fn large() -> String {
    let large = format!(r#"{{"x":"{}","n":1.0}}"#, "é\\n0123456789".repeat(400_000));
    assert!(large.len() > 5_000_000);
    large
}

fn messages_pass_in_the_same_bytes() {
    for path in ["/servers/echo/mcp", "/servers/echo-own/mcp"] {
        let client = Client::new(path);
        let check = |id: &str, params: &str| {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"test/x","params":{params}}}"#);
            let answer = client.post(&body);
            let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{params}}}"#);
            let found = String::from_utf8_lossy(&answer.body);
            assert!(
                found == expected,
                "{id}: {}",
                &found[..found.len().min(300)]
            );
        };
        for (id, params) in ODD {
            check(id, params);
        }
        check("1.50", &large());
        // The hub also returns an unusual progress token unchanged.
        for token in ["1.0", r#""\u0041""#, "12345678901234567890"] {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"test/progress","params":{{"_meta":{{"progressToken":{token}}},"steps":1}}}}"#
            );
            let connection = client.api.connect();
            let mut events = connection.open("POST", &client.path, &client.headers(), &body);
            let (_, data) = events.sse().unwrap();
            let expected =
                format!(r#""params":{{"progressToken":{token},"progress":0.0,"x":[ ]}}"#);
            assert!(data.contains(&expected), "{data}");
        }
    }
}

fn clients_of_one_server_process_never_get_each_others_messages() {
    let clients: Vec<Client> = (0..8).map(|_| Client::new("/servers/echo/mcp")).collect();
    let pids: Vec<Value> = clients
        .iter()
        .map(|c| c.ask("test/pid", &json!({})))
        .collect();
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                for call in 0..50 {
                    // All clients use the same ids.
                    let params = json!({"who": number, "call": call});
                    assert_eq!(client.ask("test/x", &params), params);
                }
            });
        }
    });
    let own: Vec<Value> = (0..2)
        .map(|_| Client::new("/servers/echo-own/mcp").ask("test/pid", &json!({})))
        .collect();
    assert_ne!(own[0], own[1]);
}

fn a_servers_request_goes_to_the_client_of_its_call() {
    let can = json!({"sampling": {}});
    for path in [
        "/servers/echo/mcp",
        "/servers/echo-own/mcp",
        "/mcp?servers=echo-own",
    ] {
        let client = Client::with(path, &can);
        // All servers together forward only the methods that clients know, such as calls of tools.
        let (method, name) = match path.contains('?') {
            true => ("tools/call", "echo-own__ask"),
            false => ("test/ask", "x"),
        };
        let body =
            json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": {"name": name, "n": 1}});
        let connection = client.api.connect();
        let mut events =
            connection.open("POST", &client.path, &client.headers(), &body.to_string());
        let (_, asked) = events.sse().unwrap();
        let asked: Value = serde_json::from_str(&asked).unwrap();
        assert_eq!(asked["method"], "sampling/createMessage");
        let id = asked["id"].to_string();
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"model":"m","n":1.0}}}}"#);
        // An answer of another client is ignored.
        let other = Client::with(path, &can);
        assert_eq!(other.post(&answer.replace(r#""m""#, r#""x""#)).status, 202);
        assert_eq!(client.post(&answer).status, 202);
        let (_, data) = events.sse().unwrap();
        assert!(
            data.ends_with(r#""result":{"model":"m","n":1.0}}"#),
            "{data}"
        );
    }
    // A client without the capability gets no request.
    let deaf = Client::new("/servers/echo/mcp");
    let result = deaf.post(r#"{"jsonrpc":"2.0","id":5,"method":"test/ask","params":{}}"#);
    assert!(
        result.body.ends_with(br#""result":"refused"}"#),
        "{result:?}"
    );
}

fn a_call_that_takes_too_long_fails_unless_it_reports_progress() {
    let client = Client::new("/servers/echo-own/mcp");
    let late = client.post(r#"{"jsonrpc":"2.0","id":1,"method":"test/silence","params":{}}"#);
    let told = late_message(&late.body);
    assert!(told.contains("did not answer within 5 s"), "{told}");
    // Seven seconds in all, and never more than one second without a message.
    let body = r#"{"jsonrpc":"2.0","id":2,"method":"test/progress","params":{"_meta":{"progressToken":2},"steps":7,"pause":1}}"#;
    let connection = client.api.connect();
    let mut events = connection.open("POST", &client.path, &client.headers(), body);
    let mut last = String::new();
    while let Some((_, data)) = events.sse() {
        last = data;
    }
    assert!(
        last.starts_with(r#"{"jsonrpc":"2.0","id":2,"result":"#),
        "{last}"
    );
}

/// The message of an error, which may come as an event.
fn late_message(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let json = text.lines().rev().find_map(|line| {
        let line = line.strip_prefix("data: ").unwrap_or(line);
        serde_json::from_str::<Value>(line).ok()
    });
    json.map(|json| json["error"]["message"].to_string())
        .unwrap_or_default()
}

fn a_cancelled_call_ends_and_its_server_keeps_running() {
    let client = Client::new("/servers/echo/mcp");
    let body = r#"{"jsonrpc":"2.0","id":"c","method":"test/progress","params":{"_meta":{"progressToken":1},"steps":1000,"pause":0.05}}"#;
    let mut events = client
        .api
        .connect()
        .open("POST", &client.path, &client.headers(), body);
    assert!(events.sse().is_some());
    let cancel =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}"#;
    // The hub ignores the id of another client's call.
    assert_eq!(Client::new("/servers/echo/mcp").post(cancel).status, 202);
    assert!(events.sse().is_some());
    assert_eq!(client.post(cancel).status, 202);
    while let Some((_, data)) = events.sse() {
        assert!(data.contains("notifications/progress"), "{data}");
    }
    assert_eq!(client.ask("test/x", &json!({"on": 1}))["on"], 1);
}

fn other_output_of_a_server_is_in_its_log() {
    let client = Client::new("/servers/echo/mcp");
    client.ask("test/noise", &json!({}));
    let log = || servers().ok(["logs", "mcp/echo"]).stdout;
    client.api.until("the log", |_| {
        let log = log();
        let is_there = log.contains("Z this goes to the log\n")
            && log.contains("Z osctl: not a message: this is no message\n");
        is_there.then_some(())
    });
}

fn a_server_without_calls_for_long_ends() {
    let client = Client::new("/servers/brief/mcp");
    let pid = client.ask("test/pid", &json!({}));
    client.api.until("its end", |api| {
        let is_over = status(api, "brief")["state"] == "unstarted" && !is_running(&pid);
        is_over.then_some(())
    });
    assert_eq!(status(&client.api, "brief")["crashes"], 0);
    assert_eq!(client.ask("test/x", &json!({"on": 1}))["on"], 1);
}

fn a_subscription_to_a_resource_survives_a_crash() {
    let client = Client::new("/servers/brief/mcp");
    client.ask("resources/subscribe", &json!({"uri": "echo:a"}));
    let mut told = client.listen();
    let pid = client.ask("test/pid", &json!({}));
    let kill = format!("import os; os.kill({pid}, 9)");
    servers().api().exec(&kill);
    // No client calls the server.
    client.api.until("the next server process", |api| {
        let now = status(api, "brief");
        let is_other = now["state"] == "running" && now["pids"][0] != pid;
        is_other.then_some(())
    });
    Client::new("/servers/brief/mcp").ask("test/touch", &json!({}));
    while !told.sse().unwrap().1.contains("resources/updated") {}
    client.ask("resources/unsubscribe", &json!({"uri": "echo:a"}));
    client.api.until("its end", |api| {
        (status(api, "brief")["state"] == "unstarted").then_some(())
    });
}

/// Calls a tool, answers the requests of the server, and returns the text of the result.
fn answering(client: &Client, tool: &str, answers: &[(&str, Value)]) -> String {
    let params = json!({"name": tool, "arguments": {}});
    let body = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
    let connection = client.api.connect();
    let headers = client.headers();
    let mut events = connection.open("POST", &client.path, &headers, &body.to_string());
    for (method, result) in answers {
        let (_, asked) = events.sse().unwrap();
        let asked: Value = serde_json::from_str(&asked).unwrap();
        assert_eq!(asked["method"], *method, "{asked}");
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
        assert_eq!(client.post(&answer.to_string()).status, 202);
    }
    let (_, answer) = events.sse().unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["id"], "c");
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn a_server_of_only_the_newest_revision_serves_clients_of_all_revisions() {
    let client = Client::with("/servers/modern/mcp", &json!({"elicitation": {}}));
    let said = client.call("test_client", &json!({}));
    let said: Value = serde_json::from_str(&said).unwrap();
    let version = "io.modelcontextprotocol/protocolVersion";
    assert_eq!(said[version], "2026-07-28");
    assert_eq!(said["io.modelcontextprotocol/clientInfo"]["name"], "test");
    let can = &said["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(*can, json!({"elicitation": {}}));
    // What the server must know it asks the client, as many times as necessary.
    let accepted = |field: &str| {
        let content = json!({field: "x"});
        (
            "elicitation/create",
            json!({"action": "accept", "content": content}),
        )
    };
    let tool = "test_input_required_result_multi_round";
    let told = answering(&client, tool, &[accepted("name"), accepted("color")]);
    assert_eq!(told, "both are known");
    let deaf = Client::new("/servers/modern/mcp");
    let params = json!({"name": tool});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let refused = last_message(&deaf.post(&body.to_string()).body)["error"].clone();
    let why = refused["message"].as_str().unwrap();
    assert!(why.contains("`elicitation/create`"), "{refused}");
    // Subscriptions and log levels are requests that the server does not know.
    let mut told = client.listen();
    let uri = json!({"uri": "test://watched-resource"});
    client.ask("resources/subscribe", &uri);
    deaf.ask(
        "tools/call",
        &json!({"name": "test_touch", "arguments": uri}),
    );
    deaf.ask("tools/call", &json!({"name": "test_trigger_tool_change"}));
    let (_, updated) = told.sse().unwrap();
    assert!(updated.contains("test://watched-resource"), "{updated}");
    let (_, changed) = told.sse().unwrap();
    assert!(changed.contains("tools/list_changed"), "{changed}");
    client.ask("logging/setLevel", &json!({"level": "warning"}));
    let body =
        r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"test_logging_tool"}}"#;
    let logged = client.post(body).body;
    let logged = String::from_utf8_lossy(&logged);
    assert!(logged.contains(r#""level":"warning""#), "{logged}");
    let prompt = client.ask("prompts/get", &json!({"name": "test_simple_prompt"}));
    assert!(prompt["messages"].is_array(), "{prompt}");
}

fn all_servers_together_offer_prompts_and_get_the_clients_roots() {
    let client = Client::with("/mcp?servers=modern,echo", &json!({"roots": {}}));
    let listed = client.ask("prompts/list", &json!({}));
    let names: Vec<&Value> = { listed["prompts"].as_array().unwrap().iter() }
        .map(|prompt| &prompt["name"])
        .collect();
    assert!(names.contains(&&json!("modern__test_simple_prompt")));
    let arguments = json!({"arg1": "1.0", "arg2": "x"});
    let name = "modern__test_prompt_with_arguments";
    let prompt = client.ask(
        "prompts/get",
        &json!({"name": name, "arguments": arguments}),
    );
    let said = prompt["messages"][0]["content"]["text"].as_str().unwrap();
    assert!(said.contains("arg1='1.0', arg2='x'"), "{said}");
    let roots = json!({"roots": [{"uri": "file:///a", "name": "a"}]});
    let tool = "modern__test_input_required_result_list_roots";
    let told = answering(&client, tool, &[("roots/list", roots)]);
    assert!(told.contains("file:///a"), "{told}");
}

/// Writes back the former content of a file when dropped.
struct RestoreFile<'a>(&'a Path, &'a str);

impl Drop for RestoreFile<'_> {
    fn drop(&mut self) {
        let written = fs::write(self.0, self.1);
        // A second failure would hide the first.
        assert!(written.is_ok() || thread::panicking(), "{written:?}");
    }
}

/// Runs `test` with more configured servers.
pub(crate) fn with_servers(more: &[(&str, Value)], test: impl FnOnce()) {
    let home = servers();
    let path = home.data().join("mcp.json");
    let before = fs::read_to_string(&path).unwrap();
    let mut all: Value = serde_json::from_str(&before).unwrap();
    for (name, server) in more {
        all["mcpServers"][name] = server.clone();
    }
    // Also when `test` fails, so that later trials find the former configuration.
    let back = RestoreFile(&path, &before);
    fs::write(&path, all.to_string()).unwrap();
    home.hub().until("the new servers", |api| {
        let is_there = |(name, _): &(&str, Value)| status(api, name).is_object();
        more.iter().all(is_there).then_some(())
    });
    test();
    drop(back);
    home.hub().until("their end", |api| {
        let is_gone = |(name, _): &(&str, Value)| status(api, name).is_null();
        more.iter().all(is_gone).then_some(())
    });
}

/// Whether a process of the container is running.
fn is_running(pid: &Value) -> bool {
    let code = format!("import os; os.path.exists('/proc/{pid}')");
    servers().api().exec(&code)["result"] == "True"
}

fn a_server_and_its_processes_end_with_its_session() {
    let client = Client::new("/servers/echo-own/mcp");
    let server = client.ask("test/pid", &json!({}));
    let escaped = client.ask("test/child", &json!({}));
    assert!(is_running(&server) && is_running(&escaped));
    let mut connection = client.api.connect();
    let ended = connection.send("DELETE", &client.path, &client.headers(), b"");
    assert_eq!(ended.status, 200);
    client.api.until("the end", |_| {
        (!is_running(&server) && !is_running(&escaped)).then_some(())
    });
}

fn a_server_that_never_works_pauses_and_says_why() {
    let api = servers().hub();
    let mut rested = false;
    for _ in 0..12 {
        let headers = [
            ("Content-Type", "application/json"),
            crate::mcp::ACCEPT_JSON_OR_SSE,
        ];
        let body = crate::mcp::hello("2025-11-25", &json!({}));
        let answer = api
            .connect()
            .send("POST", "/servers/broken/mcp", &headers, body.as_bytes());
        let why = last_message(&answer.body)["error"]["message"].to_string();
        assert!(
            why.contains("it exited with code 1 (it is broken)"),
            "{why}"
        );
        rested |= why.contains("will not restart the server for");
    }
    assert!(rested);
    assert_eq!(status(&api, "broken")["state"], "backing_off");
    let headers = [
        ("Content-Type", "application/json"),
        crate::mcp::ACCEPT_JSON_OR_SSE,
    ];
    let body = crate::mcp::hello("2025-11-25", &json!({}));
    let answer = api
        .connect()
        .send("POST", "/servers/missing/mcp", &headers, body.as_bytes());
    let why = last_message(&answer.body)["error"]["message"].to_string();
    assert!(why.contains("can't be started: No such file"), "{why}");
}
