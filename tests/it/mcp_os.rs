//! The built-in MCP server: code, its runs and its output.

use crate::harness::servers;
use crate::mcp::Client;
use crate::trials;
use serde_json::{Value, json};

trials![
    code_keeps_its_variables_and_returns_its_result,
    code_reports_its_output_while_it_runs,
    a_cancelled_call_interrupts_the_code_and_keeps_the_variables,
    a_long_run_continues_and_is_found_by_its_id,
    long_output_comes_in_pages,
    each_session_has_its_own_variables,
    sessions_and_jobs_are_listed_and_ended,
    few_tools_are_listed_by_default_and_all_on_request,
];

pub(crate) fn os() -> Client {
    Client::new("/servers/os/mcp")
}

impl Client {
    /// The answer with its fields, which only clients that request them get.
    #[track_caller]
    pub(crate) fn tool(&self, name: &str, arguments: Value) -> Value {
        let params =
            json!({"name": name, "arguments": arguments, "_meta": {"osctl/structured": true}});
        self.ask("tools/call", &params)
    }

    /// The text of an answer, as a model gets it.
    #[track_caller]
    pub(crate) fn text(&self, name: &str, arguments: Value) -> String {
        let answer = self.ask("tools/call", &json!({"name": name, "arguments": arguments}));
        assert!(answer["structuredContent"].is_null(), "{name}: {answer}");
        assert_ne!(answer["isError"], true, "{name}: {answer}");
        answer["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// The fields of an answer that is not an error.
    #[track_caller]
    pub(crate) fn fields(&self, name: &str, arguments: Value) -> Value {
        let answer = self.tool(name, arguments);
        assert_ne!(answer["isError"], true, "{name}: {answer}");
        answer["structuredContent"].clone()
    }

    /// The error text of a refused tool call.
    #[track_caller]
    pub(crate) fn refusal(&self, name: &str, arguments: Value) -> String {
        let answer = self.tool(name, arguments);
        assert_eq!(answer["isError"], true, "{name}: {answer}");
        answer["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

fn code_keeps_its_variables_and_returns_its_result() {
    let os = os();
    let run = |code: &str| os.tool("execute_python_code", json!({"code": code}));
    // The first call reports a new kernel; this test needs a later call.
    run("None");
    let first = run("import sys\nkept = 20\nprint('out')\nprint('err', file=sys.stderr)\nkept + 1");
    let fields = &first["structuredContent"];
    assert_eq!(
        (&fields["stdout"], &fields["stderr"], &fields["result"]),
        (&json!("out\n"), &json!("err\n"), &json!("21"))
    );
    assert_eq!(first["content"][0]["text"], "out\nstderr:\nerr\n21");
    assert_eq!(run("kept * 2")["structuredContent"]["result"], "40");
    let raised = run("1/0");
    assert_eq!(raised["isError"], true);
    assert_eq!(
        raised["structuredContent"]["error"]["type"],
        "ZeroDivisionError"
    );
    let text = raised["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("ZeroDivisionError: division by zero"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let figure = run(
        "from IPython.display import Image, display\nimport base64\ndisplay(Image(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==')))",
    );
    let image = &figure["content"][1];
    assert_eq!(
        (&image["type"], &image["mimeType"]),
        (&json!("image"), &json!("image/png"))
    );
    assert!(image["data"].as_str().unwrap().starts_with("iVBOR"));
    assert_eq!(figure["structuredContent"]["images"], 1);
    // The command line sees the same variables.
    assert_eq!(servers().ok(["exec", "kept"]).stdout, "20\n");
}

/// The messages of a call, as they come.
fn events(
    os: &Client,
    id: &str,
    name: &str,
    arguments: &Value,
    token: Option<&str>,
) -> crate::harness::Events {
    let mut params =
        json!({"name": name, "arguments": arguments, "_meta": {"osctl/structured": true}});
    if let Some(token) = token {
        params["_meta"]["progressToken"] = token.into();
    }
    let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    let headers = os.headers();
    os.api
        .connect()
        .open("POST", &os.path, &headers, &body.to_string())
}

fn code_reports_its_output_while_it_runs() {
    let os = os();
    let gate = "/tmp/mcp-gate";
    let code = format!(
        "import os, time\nif os.path.exists('{gate}'): os.remove('{gate}')\nprint('first', flush=True)\nwhile not os.path.exists('{gate}'): time.sleep(0.01)\nprint('last')"
    );
    let arguments = json!({"code": code, "session": "told"});
    let mut told = events(&os, "a", "execute_python_code", &arguments, Some("t"));
    let (_, data) = told.sse().unwrap();
    let report: Value = serde_json::from_str(&data).unwrap();
    assert_eq!(report["method"], "notifications/progress");
    let params = &report["params"];
    assert_eq!(
        (&params["progressToken"], &params["message"]),
        (&json!("t"), &json!("first\n"))
    );
    os.fields("write_file", json!({"path": gate, "content": ""}));
    let mut before = params["progress"].as_f64().unwrap();
    let mut messages = String::new();
    let answer = loop {
        let (_, data) = told.sse().unwrap();
        let message: Value = serde_json::from_str(&data).unwrap();
        if message["method"].is_null() {
            break message;
        }
        let progress = message["params"]["progress"].as_f64().unwrap();
        assert!(progress > before, "{message}");
        before = progress;
        messages += message["params"]["message"].as_str().unwrap();
    };
    assert_eq!(messages, "last\n");
    assert_eq!(
        answer["result"]["structuredContent"]["stdout"],
        "first\nlast\n"
    );
    // A call without a progress token, of a client that set a log level, gets log messages.
    os.ask("logging/setLevel", &json!({"level": "info"}));
    let mut told = events(
        &os,
        "b",
        "run_shell",
        &json!({"command": "echo one; sleep 2; echo two >&2"}),
        None,
    );
    let mut found = Vec::new();
    while let Some((_, data)) = told.sse() {
        let message: Value = serde_json::from_str(&data).unwrap();
        let params = &message["params"];
        if message["method"] == "notifications/message" {
            found.push(format!(
                "{} {} {}",
                params["level"], params["logger"], params["data"]
            ));
        }
    }
    assert_eq!(
        found,
        [
            r#""info" "stdout" "one\n""#,
            r#""warning" "stderr" "two\n""#
        ]
    );
}

fn a_cancelled_call_interrupts_the_code_and_keeps_the_variables() {
    let os = os();
    os.ask("logging/setLevel", &json!({"level": "notice"}));
    let code = json!({"code": "kept = 7\nimport time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)", "session": "back"});
    let mut told = events(&os, "long", "execute_python_code", &code, Some("t"));
    let (_, begun) = told.sse().unwrap();
    assert!(begun.contains("begun"), "{begun}");
    let mut general = os.api.connect().open("GET", &os.path, &os.headers(), "");
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"long","reason":"enough"}}"#;
    assert_eq!(os.post(cancel).status, 202);
    let (_, notice) = general.sse().unwrap();
    assert!(
        notice.contains("was interrupted; its variables are kept"),
        "{notice}"
    );
    // A cancelled call has no answer.
    while let Some((_, data)) = told.sse() {
        assert!(data.contains("notifications/"), "{data}");
    }
    let after = os.fields(
        "execute_python_code",
        json!({"code": "kept", "session": "back"}),
    );
    assert_eq!(
        (&after["result"], &after["kernel"]["state"]),
        (&json!("7"), &json!("kept"))
    );
    // Without a session the end of the connection cancels a call.
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}, "progressToken": 1});
    let params = json!({"name": "execute_python_code", "arguments": code, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let headers = [
        ("Content-Type", "application/json"),
        crate::mcp::ACCEPT_JSON_OR_SSE,
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "execute_python_code"),
    ];
    let mut told = os
        .api
        .connect()
        .open("POST", &os.path, &headers, &body.to_string());
    assert!(told.sse().unwrap().1.contains("begun"));
    drop(told);
    let after = os.fields(
        "execute_python_code",
        json!({"code": "kept + 1", "session": "back"}),
    );
    assert_eq!(after["result"], "8");
}

fn a_long_run_continues_and_is_found_by_its_id() {
    let os = os();
    let gate = "/tmp/mcp-long";
    os.fields("run_shell", json!({"command": format!("rm -f {gate}")}));
    let code =
        format!("import os, time\nwhile not os.path.exists('{gate}'): time.sleep(0.01)\n'there'");
    let begun = os.fields(
        "execute_python_code",
        json!({"code": code, "wait": 0.05, "session": "long"}),
    );
    assert_eq!(begun["status"], "running");
    let id = begun["id"].as_str().unwrap();
    let waited = os.fields("wait_for_run", json!({"id": id, "wait": 0.01}));
    assert_eq!(waited["status"], "running");
    let command = os.fields("run_shell", json!({"command": format!("until [ -e {gate} ]; do sleep 0.01; done; echo done"), "wait": 0}));
    assert_eq!(command["status"], "running");
    os.fields("run_shell", json!({"command": format!("touch {gate}")}));
    assert_eq!(
        os.fields("wait_for_run", json!({"id": id}))["result"],
        "'there'"
    );
    let ended = os.fields("wait_for_run", json!({"id": command["id"]}));
    assert_eq!(
        (&ended["stdout"], &ended["returncode"]),
        (&json!("done\n"), &json!(0))
    );
    // Code that never ends is interrupted by its id.
    let begun = os.fields(
        "execute_python_code",
        json!({"code": "x = 1\nwhile True: pass", "wait": 0.05, "session": "long"}),
    );
    let became = os.fields("interrupt", json!({"id": begun["id"]}));
    assert_eq!(
        (&became["session"], &became["kernel"]["state"]),
        (&json!("long"), &json!("kept"))
    );
    let reset = os.fields("reset", json!({"session": "long"}));
    assert_eq!(reset["session"], "long");
    let gone = os.refusal(
        "execute_python_code",
        json!({"code": "x", "session": "long"}),
    );
    assert!(gone.contains("NameError"), "{gone}");
}

fn long_output_comes_in_pages() {
    let os = os();
    let code = "for i in range(100000): print(f'{i:09d}')";
    let answer = os.tool(
        "execute_python_code",
        json!({"code": code, "max_output": 1000}),
    );
    let fields = &answer["structuredContent"];
    let stdout = fields["stdout"].as_str().unwrap();
    assert!(
        stdout.len() < 1200 && stdout.contains("999000 bytes are omitted"),
        "{stdout}"
    );
    assert_eq!(fields["omitted"][0]["total"], 1_000_000);
    let link = &answer["content"][1];
    assert_eq!(
        (&link["type"], &link["uri"]),
        (&json!("resource_link"), &fields["omitted"][0]["uri"])
    );
    let page = os.fields(
        "read_output",
        json!({"id": fields["id"], "offset": 500_000, "limit": 20}),
    );
    assert_eq!(page["text"], "000050000\n000050001\n");
    assert_eq!(page["next"], 500_020);
    let all = os.ask("resources/read", &json!({"uri": link["uri"]}));
    assert_eq!(
        all["contents"][0]["text"].as_str().unwrap().len(),
        1_000_000
    );
}

fn each_session_has_its_own_variables() {
    let (one, other) = (os(), os());
    one.fields(
        "execute_python_code",
        json!({"code": "whose = 'one'", "session": "one"}),
    );
    other.fields(
        "execute_python_code",
        json!({"code": "whose = 'other'", "session": "other"}),
    );
    let of = |session: &str| {
        one.fields(
            "execute_python_code",
            json!({"code": "whose", "session": session}),
        )["result"]
            .clone()
    };
    assert_eq!((of("one"), of("other")), (json!("'one'"), json!("'other'")));
    one.fields("run_shell", json!({"command": "cd /tmp", "session": "one"}));
    let cwd = |session: &str| {
        one.fields("run_shell", json!({"command": "pwd", "session": session}))["stdout"].clone()
    };
    assert_eq!(cwd("one"), "/tmp\n");
    assert_ne!(cwd("other"), "/tmp\n");
    let wrong = one.refusal(
        "execute_python_code",
        json!({"code": "1", "session": "a/b"}),
    );
    assert!(wrong.contains("can't be a session's name"), "{wrong}");
}

fn sessions_and_jobs_are_listed_and_ended() {
    let os = os();
    let server = json!({"command": "sleep 1000 & echo started", "session": "work"});
    let text = os.text("run_shell", server);
    let job = text
        .strip_prefix("started\n(processes continue in the background as job ")
        .and_then(|rest| rest.strip_suffix("; `end_job` ends them)"));
    let job: i32 = job.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
    let busy = json!({"code": "while True: pass", "session": "work", "wait": 0});
    let busy = os.fields("execute_python_code", busy)["id"].clone();
    let next = json!({"code": "1", "session": "work", "wait": 0});
    let queued = os.text("execute_python_code", next);
    let blocker = busy.as_str().unwrap();
    let told = format!("(queued, not started: it waits for the run `{blocker}`");
    assert!(queued.starts_with(&told), "{queued}");
    let list = os.text("list_sessions", json!({}));
    for line in [
        "`work`: busy\n".to_owned(),
        format!("  run `{blocker}`, running for "),
        ", queued: 1\n".to_owned(),
        format!("  job {job}: sleep 1000 & echo started"),
    ] {
        assert!(list.contains(&line), "{line:?} in {list}");
    }
    let ended = os.text("end_job", json!({"pid": job}));
    assert_eq!(
        ended,
        format!("the job {job} has ended: `sleep 1000 & echo started`")
    );
    let refused = os.refusal("end_job", json!({"pid": job}));
    assert!(refused.contains(&job.to_string()), "{refused}");
    os.fields("end_session", json!({"session": "work"}));
    let list = os.text("list_sessions", json!({}));
    assert!(!list.contains("`work`"), "{list}");
    let refused = os.refusal("end_session", json!({"session": "default"}));
    assert!(refused.contains("can't be deleted"), "{refused}");
    let late = json!({"code": "while True: pass", "timeout": 0.2, "session": "late"});
    let late = os.refusal("execute_python_code", late);
    assert!(
        late.ends_with("(interrupted after its `timeout` of 0.2 s)"),
        "{late}"
    );
    os.fields("end_session", json!({"session": "late"}));
}

/// The tools of the packaged servers that a client of this path lists.
fn packaged_tools(client: &Client) -> Vec<Value> {
    let waiting = json!({"_meta": {"osctl/wait": 100}});
    let listed = client.ask("tools/list", &waiting);
    let is_packaged = |tool: &&Value| {
        let name = tool["name"].as_str().unwrap();
        let servers = ["os__", "browser-use__", "filesystem__", "linux__"];
        servers.iter().any(|server| name.starts_with(server))
    };
    let tools = listed["tools"].as_array().unwrap().iter();
    tools.filter(is_packaged).cloned().collect()
}

fn few_tools_are_listed_by_default_and_all_on_request() {
    let lean = Client::new("/mcp");
    let tools = packaged_tools(&lean);
    let words = tiktoken_rs::o200k_base_singleton();
    let sizes = tools.iter().map(|tool| {
        let parts = [&tool["name"], &tool["description"]].map(|part| part.as_str().unwrap());
        let schema = tool["inputSchema"].to_string();
        let parts = [parts[0], parts[1], &schema];
        let count = |part: &&str| words.encode_with_special_tokens(part).len();
        parts.iter().map(count).sum::<usize>()
    });
    let tokens: usize = sizes.sum();
    assert_eq!(tools.len(), 25, "{tools:?}");
    assert!((2000..=6000).contains(&tokens), "{tokens} tokens");
    let names = |tools: &[Value]| -> Vec<String> {
        let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    };
    let full = names(&packaged_tools(&Client::new("/mcp?profile=full")));
    assert!(full.len() > 60, "{full:?}");
    for tool in names(&tools) {
        assert!(full.contains(&tool), "{tool}");
    }
    // Tools that need systemd, network programs or a model's key do not work in the container.
    for tool in [
        "linux__list_services",
        "linux__get_listening_ports",
        "browser-use__browser_extract_content",
    ] {
        assert!(!full.contains(&tool.to_owned()), "{tool}");
    }
    // A tool that is not listed can be called.
    let listed = lean.tool("os__list_files", json!({"path": "/repo"}));
    assert_eq!(listed["isError"], false, "{listed}");
    let mistake = |name: &str| {
        let params = json!({"name": name, "arguments": {}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let answer = lean.post(&body.to_string()).json();
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        mistake("execute_python_code"),
        "there is no `execute_python_code`; did you mean `os__execute_python_code`?"
    );
    assert_eq!(
        mistake("os_run_shell"),
        "there is no `os_run_shell`; did you mean `os__run_shell`?"
    );
    assert_eq!(
        mistake("os__edit_fil"),
        "there is no tool `edit_fil`; did you mean `edit_file`?"
    );
    let answer = lean.post(&crate::mcp::hello("2025-11-25", &json!({})));
    let instructions = answer.json()["result"]["instructions"].to_string();
    for part in [
        "`os__execute_python_code`",
        "`/data/mcp.json`",
        "`osctl add NAME` in `os__run_shell`",
        "--profile full",
    ] {
        assert!(instructions.contains(part), "{part} in {instructions}");
    }
}
