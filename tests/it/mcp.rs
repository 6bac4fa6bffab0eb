//! The hub of MCP servers, as its clients and the command line use it.

use crate::harness::{Api, Events, Home, Response, SERVERS_CONFIG, TEST_TIMEOUT, servers};
use crate::trials;
use serde_json::{Value, json};
use std::fs;

trials![
    the_three_servers_do_real_work_through_the_command_line,
    the_hubs_port_needs_the_token_like_the_kernels_port,
    all_servers_together_offer_tools_with_the_servers_name,
    a_changed_server_list_applies_while_the_container_runs,
    sessions_and_lists_outlive_the_container,
    memory_of_large_answers_is_given_back = "session::tests::only_the_last_ended_streams_are_kept",
];

pub(crate) const JSON: (&str, &str) = ("Content-Type", "application/json");

pub(crate) const ACCEPT_JSON_OR_SSE: (&str, &str) =
    ("Accept", "application/json, text/event-stream");

/// A client of Streamable HTTP after the handshake.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) api: Api,
    pub(crate) path: String,
    pub(crate) session: String,
}

pub(crate) fn hello(version: &str, capabilities: &Value) -> String {
    let info = json!({"name": "test", "version": "1"});
    let params =
        json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": info});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string()
}

impl Client {
    #[track_caller]
    pub(crate) fn new(path: &str) -> Self {
        Self::with(path, &json!({}))
    }

    #[track_caller]
    pub(crate) fn with(path: &str, capabilities: &Value) -> Self {
        Self::of(servers().hub(), path, capabilities)
    }

    /// A client of another instance.
    #[track_caller]
    pub(crate) fn of(api: Api, path: &str, capabilities: &Value) -> Self {
        let mut client = Self {
            api,
            path: path.into(),
            session: String::new(),
        };
        let response = client.post(&hello("2025-11-25", capabilities));
        assert_eq!(response.status, 200, "{response:?}");
        client.session = response.headers["mcp-session-id"].clone();
        let ready = client.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert_eq!((ready.status, ready.body.len()), (202, 0));
        client
    }

    pub(crate) fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![JSON, ACCEPT_JSON_OR_SSE];
        if !self.session.is_empty() {
            headers.push(("Mcp-Session-Id", &self.session));
        }
        headers
    }

    #[track_caller]
    pub(crate) fn post(&self, body: &str) -> Response {
        let mut connection = self.api.connect();
        connection.send("POST", &self.path, &self.headers(), body.as_bytes())
    }

    /// The result of a request.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, params: &Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = last_message(&self.post(&body.to_string()).body);
        assert!(answer["result"] != Value::Null, "{method}: {answer}");
        answer["result"].clone()
    }

    /// Opens the stream of messages that belong to no call.
    #[track_caller]
    pub(crate) fn listen(&self) -> Events {
        let connection = self.api.connect();
        connection.open("GET", &self.path, &self.headers(), "")
    }

    /// The text of a tool's result.
    #[track_caller]
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> String {
        let result = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}));
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

/// The answer; a response that takes long sends it as the last event.
pub(crate) fn last_message(body: &[u8]) -> Value {
    let text = String::from_utf8_lossy(body);
    let last = text.trim_end().lines().last().unwrap_or_default();
    let last = last.strip_prefix("data: ").unwrap_or(last);
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The status of one server.
pub(crate) fn status(api: &Api, name: &str) -> Value {
    let all = api.get("/status").json();
    let servers = all["servers"].as_array().unwrap();
    let found = servers.iter().find(|server| server["name"] == name);
    found.unwrap_or(&Value::Null).clone()
}

fn the_three_servers_do_real_work_through_the_command_line() {
    let home = servers();
    let listed = home.json(["mcp", "list"]);
    let names: Vec<&str> = listed["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|server| server["name"].as_str().unwrap())
        .collect();
    for name in ["browser-use", "linux", "filesystem"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let content = "content=zwei Zeilen\nund ö";
    home.ok([
        "mcp",
        "call",
        "filesystem",
        "write_file",
        "path=/root/host/mcp.txt",
        content,
    ]);
    let written = fs::read_to_string(home.files().join("mcp.txt")).unwrap();
    assert_eq!(written, "zwei Zeilen\nund ö");
    let read = [
        "mcp",
        "call",
        "filesystem",
        "read_text_file",
        "path=/root/host/mcp.txt",
    ];
    assert_eq!(home.ok(read).stdout, "zwei Zeilen\nund ö\n");
    let outside = home.run([
        "mcp",
        "call",
        "filesystem",
        "read_text_file",
        "path=/etc/passwd",
    ]);
    assert_eq!(outside.code, 1);
    assert!(outside.stdout.contains("Access denied"), "{outside:?}");
    // Only a call with wrong arguments is answered with the arguments.
    let expected = "the arguments of `read_text_file`:\n  path (string, required)";
    assert!(!outside.stderr.contains(expected), "{outside:?}");
    let wrong = home.run(["mcp", "call", "filesystem", "read_text_file", "file=/x"]);
    assert!(wrong.stderr.contains(expected), "{wrong:?}");
    for (server, tool, hint) in [
        (
            "filesystem",
            "read_text_fil",
            " mcp call filesystem read_text_file`",
        ),
        ("filesystm", "x", " mcp call filesystem x`"),
        ("filesystem", "nosuch", " mcp tools filesystem`"),
    ] {
        let unknown = home.run(["mcp", "call", server, tool]);
        assert_eq!((unknown.code, &*unknown.stdout), (2, ""), "{unknown:?}");
        assert!(unknown.stderr.contains(hint), "{unknown:?}");
    }
    let processes = home.ok(["mcp", "call", "linux", "list_processes"]).stdout;
    assert!(
        processes.contains("osctl") || processes.contains("companion"),
        "{processes}"
    );
    let tools = home.ok(["mcp", "tools", "linux"]).stdout;
    assert!(
        tools.lines().count() > 10 && tools.contains("list_processes"),
        "{tools}"
    );
    let _client = Client::new("/servers/echo/mcp");
    let clients = home.ok(["mcp", "status"]).stdout;
    let is_listed = |line: &str| line.starts_with("test ") && line.contains(" echo ");
    assert!(clients.lines().any(is_listed), "{clients}");
    let log = home.ok(["logs", "mcp/linux", "-n", "50"]).stdout;
    assert!(log.contains("osctl: the hub starts the server"), "{log}");
    let unknown = home.run(["mcp", "call", "nobody", "x"]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.stderr.contains("there is no server `nobody`"),
        "{unknown:?}"
    );
    let refused = home.run(["mcp", "call", "echo", "x", "y"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("`y` is not NAME=VALUE"),
        "{refused:?}"
    );
}

fn the_hubs_port_needs_the_token_like_the_kernels_port() {
    let api = servers().hub();
    let get = |path: &str, headers: &[(&str, &str)]| {
        let answer = api.connect().send("GET", path, headers, b"");
        (
            answer.status,
            answer.json()["error"]["type"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    for path in ["/status", "/mcp", "/servers/echo/sse", "/nowhere"] {
        let (status, kind) = get(path, &[("Authorization", "")]);
        assert_eq!((status, kind.as_str()), (401, "missing_token"), "{path}");
    }
    let wrong = get("/status", &[("Authorization", "Bearer wrong")]);
    assert_eq!(wrong, (401, "wrong_token".into()));
    let foreign = get("/status", &[("Host", "evil.example:8765")]);
    assert_eq!(foreign, (403, "foreign_host".into()));
    let page = get("/status", &[("Origin", "http://evil.example")]);
    assert_eq!(page, (403, "foreign_origin".into()));
    let ping = api
        .connect()
        .send("GET", "/ping", &[("Authorization", "")], b"");
    assert_eq!(ping.status, 200);
    assert_eq!(get("/nowhere", &[]), (404, "unknown_path".into()));
    assert_eq!(
        get("/servers/nobody/log", &[]),
        (404, "unknown_server".into())
    );
}

fn memory_of_large_answers_is_given_back() {
    const ANSWER_BYTES: usize = 32 << 20;
    const MAX_GROWTH_KIB: u64 = 8 << 10;
    let home = servers();
    let client = Client::new("/servers/filesystem/mcp");
    client.tool("list_allowed_directories", json!({}));
    let before = home.companion_memory_kib();
    let file = home.files().join("large.txt");
    fs::write(&file, "0123456789abcde\n".repeat(ANSWER_BYTES / 16)).unwrap();
    for _ in 0..3 {
        let read = client.tool("read_text_file", json!({"path": "/root/host/large.txt"}));
        let text = read["content"][0]["text"].as_str().unwrap();
        assert_eq!(text.len(), ANSWER_BYTES);
    }
    fs::remove_file(&file).unwrap();
    // The client still has its session.
    let hub = home.hub();
    hub.until_within(4 * TEST_TIMEOUT, "the return of the memory", |_| {
        (home.companion_memory_kib() < before + MAX_GROWTH_KIB).then_some(())
    });
}

/// The parameters of a list request that waits for starting servers.
fn waiting_params() -> Value {
    json!({"_meta": {"osctl/wait": 100}})
}

fn all_servers_together_offer_tools_with_the_servers_name() {
    let client = Client::new("/mcp?servers=echo,filesystem&tools=echo__e*,filesystem__*");
    let listed = client.ask("tools/list", &waiting_params());
    let names: Vec<&str> = listed["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"echo__echo") && names.contains(&"filesystem__read_text_file"),
        "{names:?}"
    );
    assert!(!names.contains(&"echo__other"), "{names:?}");
    let result = client.ask(
        "tools/call",
        &json!({"name": "echo__echo", "arguments": {"a": 1}}),
    );
    assert_eq!(result, json!({"name": "echo", "arguments": {"a": 1}}));
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo__other"}}"#;
    assert_eq!(client.post(body).json()["error"]["code"], -32602);
    let resources = client.ask("resources/list", &waiting_params());
    assert_eq!(
        resources["resources"][0],
        json!({"uri": "echo:a", "name": "echo__a"})
    );
    let read = client.ask("resources/read", &json!({"uri": "echo:a"}));
    assert_eq!(read["uri"], "echo:a");
    // A server that can't be started does not prevent the use of the others.
    let all = Client::new("/mcp?servers=broken,missing,echo");
    assert!(
        all.ask("tools/list", &waiting_params())["tools"]
            .as_array()
            .unwrap()
            .len()
            == 2
    );
    let bad =
        all.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"broken__x"}}"#);
    let why = bad.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        why.contains("`broken` failed") && why.contains("it is broken"),
        "{why}"
    );
}

/// A stream of notifications without a session, after its acknowledgement.
fn listener(api: &Api, path: &str) -> Events {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"_meta": meta, "notifications": {"toolsListChanged": true}});
    let body =
        json!({"jsonrpc": "2.0", "id": "l", "method": "subscriptions/listen", "params": params});
    let headers = [
        JSON,
        ACCEPT_JSON_OR_SSE,
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "subscriptions/listen"),
    ];
    let connection = api.connect();
    let mut events = connection.open("POST", path, &headers, &body.to_string());
    assert!(events.sse().unwrap().1.contains("acknowledged"));
    events
}

fn a_changed_server_list_applies_while_the_container_runs() {
    let home = servers();
    let api = home.hub();
    let path = home.data().join("mcp.json");
    let before = fs::read_to_string(&path).unwrap();
    let started = container_start(home);
    let echo = Client::new("/servers/echo/mcp");
    let pid = echo.ask("test/pid", &json!({}));
    let mut other: Value = serde_json::from_str(&before).unwrap();
    other["mcpServers"]["added"] = json!({"command": "python3", "args": ["/repo/echo.py"]});
    fs::write(&path, other.to_string()).unwrap();
    api.until("the new server", |api| {
        status(api, "added").is_object().then_some(())
    });
    let added = Client::new("/servers/added/mcp");
    assert_eq!(added.ask("test/x", &json!({"a": 1})), json!({"a": 1}));
    // The hub reports an unreadable configuration and changes nothing; unchanged servers keep running.
    fs::write(&path, "{").unwrap();
    api.until("the problem", |api| {
        let problems = api.get("/status").json()["problems"].to_string();
        problems.contains("mcp.json` can't be read").then_some(())
    });
    assert_eq!(echo.ask("test/pid", &json!({})), pid);
    assert_eq!(added.ask("test/x", &json!({"a": 2})), json!({"a": 2}));
    let mut told = listener(&api, "/servers/added/mcp");
    fs::write(&path, &before).unwrap();
    api.until("its end", |api| {
        status(api, "added").is_null().then_some(())
    });
    // The stream reports the change, and then ends.
    let heard: Vec<String> = std::iter::from_fn(|| told.sse())
        .map(|(_, data)| data)
        .collect();
    let is_change = |data: &String| data.contains("/list_changed");
    assert!(
        !heard.is_empty() && heard.iter().all(is_change),
        "{heard:?}"
    );
    assert_eq!(
        added
            .post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
            .status,
        404
    );
    assert_eq!(echo.ask("test/pid", &json!({})), pid);
    // `up` adds the user's own configuration to the same container, and names a server that does not start.
    let mine = "servers:\n  lost: {command: /lost}\n  mine:\n    command: python3\n    args: [/repo/echo.py]\n    tools: [\"o*\"]\n";
    home.write_config(&format!("{SERVERS_CONFIG}{mine}"));
    let up = home.ok(["up", "--yes", "--auto-ports"]).stderr;
    let (begin, end) = (
        "the MCP server `lost` failed: ",
        "logs mcp/lost` shows its log",
    );
    assert!(up.contains(begin) && up.contains(end), "{up}");
    assert!(!up.contains("`mine` failed"), "{up}");
    let lost = status(&api, "lost");
    let states = ["failed", "backing_off"].map(Value::from);
    assert!(states.contains(&lost["state"]), "{lost}");
    assert_eq!(status(&api, "mine")["tools"], 1);
    // The server offers the configured tools, alone and among all servers.
    for (path, prefix) in [("/servers/mine/mcp", ""), ("/mcp?servers=mine", "mine__")] {
        let mine = Client::new(path);
        let listed = mine.ask("tools/list", &waiting_params())["tools"].clone();
        assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(listed[0]["name"], format!("{prefix}other"));
        let params = json!({"name": format!("{prefix}echo")});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let refused = last_message(&mine.post(&call.to_string()).body);
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    // The value of a marked argument must also be in a header; osctl's own client is exempt.
    let arguments = json!({"region": "eu"});
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"name": "other", "arguments": arguments, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let asked = |more: &[(&str, &str)]| {
        let mut headers = vec![
            JSON,
            ACCEPT_JSON_OR_SSE,
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", "other"),
        ];
        headers.extend(more);
        let body = body.to_string();
        let path = "/servers/mine/mcp";
        api.connect().send("POST", path, &headers, body.as_bytes())
    };
    assert_eq!(asked(&[("Mcp-Param-Region", "eu")]).status, 200);
    let refused = asked(&[]);
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["code"], -32020);
    let answer = home.json(["mcp", "call", "mine", "other", "region=eu"]);
    assert_eq!(answer["result"]["arguments"], arguments, "{answer}");
    home.write_config(SERVERS_CONFIG);
    home.ok(["up", "--yes", "--auto-ports"]);
    api.until("its end", |api| status(api, "mine").is_null().then_some(()));
    assert_eq!(container_start(home), started);
    assert_eq!(echo.ask("test/pid", &json!({})), pid);
}

fn container_start(home: &Home) -> Value {
    let path = format!("/containers/{}/json", home.container());
    crate::harness::Engine.get(&path).json()["State"]["StartedAt"].clone()
}

fn sessions_and_lists_outlive_the_container() {
    let home = servers();
    let shared = Client::new("/servers/linux/mcp");
    let own = Client::new("/servers/echo-own/mcp");
    let listed = shared.ask("tools/list", &json!({}));
    let subscribed = own.ask("test/x", &json!({"before": true}));
    assert_eq!(subscribed["before"], true);
    let listens = Client::new("/servers/echo/mcp");
    listens.ask("resources/subscribe", &json!({"uri": "echo:a"}));
    home.ok(["restart"]);
    let (shared, own) = (again(shared), again(own));
    let listens = again(listens);
    let mut told = listens.listen();
    Client::new("/servers/echo/mcp").ask("test/touch", &json!({}));
    while !told.sse().unwrap().1.contains("resources/updated") {}
    // The list comes from the cache: the hub starts no server for it.
    assert_eq!(shared.ask("tools/list", &json!({})), listed);
    assert_eq!(status(&shared.api, "linux")["state"], "unstarted");
    assert_eq!(own.ask("test/x", &json!({"after": true}))["after"], true);
    assert_eq!(status(&own.api, "echo-own")["state"], "running");
    // The hub repeated the client's messages to the new server.
    let log = home.ok(["logs", "mcp/echo-own", "-n", "1"]).stdout;
    assert!(log.contains("the hub starts the server"), "{log}");
}

/// The same client, with the ports of the restarted instance.
fn again(client: Client) -> Client {
    let api = servers().hub();
    Client { api, ..client }
}
