//! Commands over HTTP: their contexts, stdin and output.

use crate::harness::{Api, Events, shared};
use crate::jobs::processes;
use crate::trials;
use serde_json::{Value, json};

trials![
    each_session_has_its_own_context,
    folder_and_environment_can_be_set_by_requests,
    changes_during_a_command_last,
    stdin_is_sent_with_the_command_or_streamed,
    code_uses_the_same_shell,
    a_broken_input_stream_is_not_the_end_of_the_input,
    output_comes_as_it_is_written_and_exactly,
    a_flood_of_output_is_kept_whole,
    bad_requests_are_refused_with_a_reason,
];

/// The output, byte by byte.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShellOutput {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) code: i64,
}

#[track_caller]
pub(crate) fn shell(api: &Api, session: &str, command: &str) -> Value {
    let reply = api.post("/shell", &json!({"command": command, "session": session}));
    assert_eq!(reply.status, 200, "{}", reply.json());
    reply.json()
}

pub(crate) fn follow(api: &Api, body: &Value) -> Events {
    let accept = ("Accept", "application/x-ndjson");
    api.connect().events("POST", "/shell", &[accept], body)
}

fn bytes(event: &Value) -> Vec<u8> {
    match event["base64"].as_str() {
        Some(text) => decode_base64(text),
        None => event["text"].as_str().unwrap().as_bytes().to_vec(),
    }
}

/// A separate decoder of Base64, independent of the program's.
pub(crate) fn decode_base64(text: &str) -> Vec<u8> {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let values: Vec<u32> = text
        .chars()
        .filter_map(|c| digits.find(c))
        .map(|v| v as u32)
        .collect();
    let mut bytes = Vec::new();
    for four in values.chunks(4) {
        let bits = four.iter().fold(0, |bits, v| (bits << 6) | v) << (6 * (4 - four.len()));
        bytes.extend(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

pub(crate) fn shell_output(api: &Api, session: &str, command: &str) -> ShellOutput {
    let mut output = ShellOutput {
        stdout: Vec::new(),
        stderr: Vec::new(),
        code: 0,
    };
    for event in follow(api, &json!({"command": command, "session": session})) {
        match event["type"].as_str().unwrap() {
            "stdout" => output.stdout.extend(bytes(&event)),
            "stderr" => output.stderr.extend(bytes(&event)),
            "done" => output.code = event["reply"]["returncode"].as_i64().unwrap(),
            _ => {}
        }
    }
    output
}

pub(crate) fn create(api: &Api, name: &str) {
    let made = api.post("/sessions", &json!({"name": name}));
    assert_eq!(made.status, 200, "{}", made.json());
}

pub(crate) fn delete(api: &Api, name: &str) {
    let path = format!("/sessions/{name}");
    assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
}

fn each_session_has_its_own_context() {
    let api = shared().api();
    for name in ["first", "second"] {
        create(&api, name);
        shell(&api, name, &format!("cd /tmp; export WHO={name}"));
    }
    assert_eq!(shell(&api, "first", "echo $WHO")["stdout"], "first\n");
    delete(&api, "first");
    create(&api, "first");
    let again = shell(&api, "first", "echo ${WHO-nobody}");
    assert_eq!(again["stdout"], "nobody\n");
    assert_ne!(again["cwd"], "/tmp");
    assert_eq!(shell(&api, "second", "pwd")["stdout"], "/tmp\n");
    for name in ["first", "second"] {
        delete(&api, name);
    }
}

fn changes_during_a_command_last() {
    let api = shared().api();
    create(&api, "meanwhile");
    for command in ["export OWN=1; cd /usr", "export OWN=2 MORE=3; cd /usr/bin"] {
        let body = json!({"command": format!("echo begun; read line; {command}"), "session": "meanwhile", "stdin_open": true});
        let mut events = follow(&api, &body);
        assert_eq!(events.next().unwrap()["text"], "begun\n");
        let id = api.get("/shell/runs").json()["runs"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let set = json!({"key": "OUTSIDE", "value": command, "session": "meanwhile"});
        assert_eq!(api.post("/shell/env", &set).status, 200);
        let cd = json!({"path": "/etc", "session": "meanwhile"});
        assert_eq!(api.post("/shell/cd", &cd).status, 200);
        let path = format!("/shell/{id}/stdin");
        api.connect().send("POST", &path, &[], b"go on\n");
        assert_eq!(events.last().unwrap()["type"], "done");
        let after = shell(&api, "meanwhile", "echo $OUTSIDE:$OWN; pwd");
        let own = &command[11..12];
        assert_eq!(after["stdout"], format!("{command}:{own}\n/etc\n"));
    }
    delete(&api, "meanwhile");
}

fn folder_and_environment_can_be_set_by_requests() {
    let api = shared().api();
    create(&api, "outside");
    let post = |path: &str, mut body: Value| {
        body["session"] = "outside".into();
        api.post(path, &body)
    };
    assert_eq!(
        post("/shell/cd", json!({"path": "/usr"})).json()["cwd"],
        "/usr"
    );
    assert_eq!(
        post("/shell/cd", json!({"path": "lib"})).json()["cwd"],
        "/usr/lib"
    );
    for path in ["no/such", "/etc/passwd", ""] {
        let answer = post("/shell/cd", json!({"path": path}));
        assert_eq!(answer.error().0, 400, "{path}");
    }
    assert_eq!(
        shell(&api, "outside", "pwd; echo $OLDPWD")["stdout"],
        "/usr/lib\n/usr\n"
    );
    let odd = "a'b \"c\" $HOME `id`\nž";
    assert_eq!(
        post("/shell/env", json!({"key": "ODD", "value": odd})).status,
        200
    );
    assert_eq!(
        shell(&api, "outside", "printenv ODD")["stdout"],
        format!("{odd}\n")
    );
    assert_eq!(
        post("/shell/env", json!({"key": "ODD", "value": null})).status,
        200
    );
    assert_eq!(
        shell(&api, "outside", "echo ${ODD-unset}")["stdout"],
        "unset\n"
    );
    for key in ["", "A-B", "1A", "A=B"] {
        assert_eq!(
            post("/shell/env", json!({"key": key, "value": "1"}))
                .error()
                .0,
            400
        );
    }
    assert_eq!(post("/shell/env", json!({"value": "1"})).error().0, 400);
    delete(&api, "outside");
}

fn stdin_is_sent_with_the_command_or_streamed() {
    let api = shared().api();
    let body = json!({"command": "cat; echo; wc -c </dev/null", "stdin": "given žluť"});
    assert_eq!(
        api.post("/shell", &body).json()["stdout"],
        "given žluť\n0\n"
    );
    let open =
        json!({"command": "sha256sum; echo end", "stdin_open": true, "id": "streamed", "wait": 0});
    assert_eq!(api.post("/shell", &open).json()["status"], "running");
    let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let sent = api
        .connect()
        .send("POST", "/shell/streamed/stdin", &[], &bytes);
    assert_eq!(sent.status, 204);
    let ended = api.get("/shell/streamed?wait=60").json();
    let real = api.exec(
        "import hashlib; hashlib.sha256(bytes(n % 251 for n in range(5_000_000))).hexdigest()",
    );
    let digest = real["result"].as_str().unwrap().trim_matches('\'');
    assert_eq!(ended["stdout"], format!("{digest}  -\nend\n"));
    let late = api
        .connect()
        .send("POST", "/shell/streamed/stdin", &[], b"x");
    assert_eq!(late.error().0, 409);
    // A command that reads nothing ends, however much stdin it has.
    let unread = json!({"command": "true", "stdin": "x".repeat(1 << 20)});
    assert_eq!(api.post("/shell", &unread).json()["returncode"], 0);
}

fn code_uses_the_same_shell() {
    let api = shared().api();
    create(&api, "namespace");
    let value = |code: &str| {
        let reply = api.exec_with(json!({"code": code, "session": "namespace"}));
        reply["result"]
            .as_str()
            .unwrap_or_else(|| panic!("{code}: {reply}"))
            .to_owned()
    };
    shell(
        &api,
        "namespace",
        "cd /usr; export FROM=outside; greet() { echo hi $1; }",
    );
    assert_eq!(
        value(
            "r = runtime.shell.run('pwd; echo $FROM; greet you; echo err >&2; exit 3'); r.stdout, r.stderr, r.returncode, r.cwd"
        ),
        "('/usr\\noutside\\nhi you\\n', 'err\\n', 3, '/usr')"
    );
    value(
        "runtime.shell.cd('lib'); runtime.shell.env('FROM', 'inside'); runtime.shell.env('GONE', None); 1",
    );
    let told = shell(&api, "namespace", "pwd; echo $FROM")["stdout"].clone();
    assert_eq!(told, "/usr/lib\ninside\n");
    assert_eq!(
        value("runtime.shell.cwd, runtime.shell.environment['FROM']"),
        "('/usr/lib', 'inside')"
    );
    assert_eq!(
        value("import os; os.getcwd() != '/usr/lib' and 'FROM' not in os.environ"),
        "True"
    );
    assert_eq!(
        value("runtime.shell.run('cat; wc -c </dev/null', stdin='given').stdout"),
        "'given0\\n'"
    );
    assert_eq!(
        value("runtime.shell.run('wc -c', stdin=b'\\xff\\x00').stdout.strip()"),
        "'2'"
    );
    assert_eq!(
        value("len(runtime.shell.run('head -c 3000000 /dev/zero | tr \\\\\\\\0 x').stdout)"),
        "3000000"
    );
    assert_eq!(
        value("r = runtime.shell.run('echo begun; sleep 100', timeout=3); r.stdout, r.returncode"),
        "('begun\\n', -1)"
    );
    for (code, kind) in [
        ("runtime.shell.cd('no/such')", "FileNotFoundError"),
        ("runtime.shell.cd('/etc/passwd')", "NotADirectoryError"),
        ("runtime.shell.env('a b', 'x')", "ValueError"),
        ("runtime.shell.env('A', 'a\\0b')", "ValueError"),
        ("runtime.shell.env(5, 'x')", "ValueError"),
        ("runtime.shell.run('a\\0b')", "ValueError"),
    ] {
        let reply = api.exec_with(json!({"code": code, "session": "namespace"}));
        assert_eq!(reply["error"]["type"], kind, "{code}");
    }
    // More than the buffers hold, in both directions at the same time.
    assert_eq!(
        value("len(runtime.shell.run('cat', stdin=b'x' * 8_000_000).stdout)"),
        "8000000"
    );
    assert_eq!(
        value("runtime.shell.run('head -c 1', stdin=b'x' * 8_000_000).stdout"),
        "'x'"
    );
    // An interrupt of the cell also interrupts the command.
    let run = json!({"code": "runtime.shell.run('sleep 7652')", "session": "namespace", "id": "in-shell", "wait": 0});
    api.post("/exec", &run);
    api.until("the start", |api| {
        (processes(api, "7652") > 0).then_some(())
    });
    let ended = api
        .connect()
        .send("DELETE", "/exec/in-shell", &[], b"")
        .json();
    assert_eq!(
        (&ended["status"], &ended["kernel"]["state"]),
        (&json!("interrupted"), &json!("kept"))
    );
    api.until("its end", |api| (processes(api, "7652") == 0).then_some(()));
    delete(&api, "namespace");
}

fn a_broken_input_stream_is_not_the_end_of_the_input() {
    let api = shared().api();
    let open = json!({"command": "cat >/dev/null; echo all of it", "stdin_open": true, "id": "cut", "wait": 0});
    assert_eq!(api.post("/shell", &open).status, 200);
    let mut connection = api.connect();
    let head = format!(
        "POST /shell/cut/stdin HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: 1000000\r\n\r\nbegun",
        api.address, api.token
    );
    connection.write_raw(head.as_bytes());
    drop(connection);
    let ended = api.get("/shell/cut?wait=30").json();
    assert_eq!(ended["status"], "interrupted", "{ended}");
    assert_eq!(ended["error"]["type"], "InputCut");
    assert!(!ended["stdout"].as_str().unwrap().contains("all of it"));
}

fn output_comes_as_it_is_written_and_exactly() {
    let api = shared().api();
    let output = shell_output(
        &api,
        "default",
        "head -c 300000 /dev/urandom | tee /tmp/osctl-noise; exit 7",
    );
    assert_eq!((output.stdout.len(), output.code), (300_000, 7));
    let code =
        "import base64; print(base64.b64encode(open('/tmp/osctl-noise', 'rb').read()).decode())";
    let noise = api.exec(code);
    assert_eq!(
        output.stdout,
        decode_base64(noise["stdout"].as_str().unwrap().trim())
    );
    let gate = "rm -f /tmp/osctl-gate; mkfifo /tmp/osctl-gate";
    assert_eq!(shell(&api, "default", gate)["returncode"], 0);
    let command = "echo first; read -r x </tmp/osctl-gate; echo $x; rm /tmp/osctl-gate";
    let mut events = follow(&api, &json!({"command": command}));
    assert_eq!(events.next().unwrap()["text"], "first\n");
    shell(&api, "default", "echo opened > /tmp/osctl-gate");
    assert!(events.any(|event| event["type"] == "done"));
}

fn a_flood_of_output_is_kept_whole() {
    let api = shared().api();
    let reply = shell(&api, "default", "seq 1 14000000");
    let total = reply["truncated"]["stdout"]["total"].as_u64().unwrap();
    assert!(total > 100 << 20, "{total}");
    assert!(reply["stdout"].as_str().unwrap().ends_with("\n14000000\n"));
    let (id, mut offset, mut next) = (reply["id"].as_str().unwrap(), 0, 1u64);
    let mut cut = String::new();
    while offset < total {
        let page = api
            .get(&format!("/shell/{id}/output?stream=stdout&offset={offset}"))
            .json();
        let text = cut + page["text"].as_str().unwrap();
        let whole = text.rfind('\n').unwrap() + 1;
        for line in text[..whole].lines() {
            assert_eq!(line.parse::<u64>().unwrap(), next);
            next += 1;
        }
        cut = text[whole..].to_owned();
        offset = page["next"].as_u64().unwrap();
    }
    assert_eq!(next, 14_000_001);
}

fn bad_requests_are_refused_with_a_reason() {
    let api = shared().api();
    for (body, status, kind) in [
        (json!({}), 400, "invalid_field"),
        (json!({"command": 1}), 400, "invalid_field"),
        (json!({"command": "true", "more": 1}), 400, "invalid_field"),
        (json!({"command": "a\0b"}), 400, "invalid_field"),
        (
            json!({"command": "true", "timeout": -1}),
            400,
            "invalid_field",
        ),
        (
            json!({"command": "true", "timeout": 0}),
            400,
            "invalid_field",
        ),
        (json!({"command": "true", "id": "cd"}), 400, "invalid_field"),
        (
            json!({"command": "true", "id": "../x"}),
            400,
            "invalid_field",
        ),
        (
            json!({"command": "true", "session": "nobody"}),
            404,
            "unknown_session",
        ),
    ] {
        let (told, word, _) = api.post("/shell", &body).error();
        assert_eq!((told, word.as_str()), (status, kind), "{body}");
    }
    let first = api
        .post("/shell", &json!({"command": "echo $$", "id": "once"}))
        .json();
    let again = api
        .post("/shell", &json!({"command": "echo $$", "id": "once"}))
        .json();
    assert_eq!(first["stdout"], again["stdout"]);
    let other = api.post("/shell", &json!({"command": "echo 2", "id": "once"}));
    assert_eq!(other.error().0, 409);
    assert_eq!(api.get("/shell/nothing").error().0, 404);
    let long = format!("echo {}", "x".repeat(1 << 20));
    let reply = api.post("/shell", &json!({"command": long})).json();
    assert_eq!(reply["returncode"], 0);
}
