//! The companion's API, in the real container: what is promised to clients.

use crate::harness::{Followed, Home, shared};
use crate::trials;
use serde_json::{Value, json};
use std::time::Instant;

trials![
    state_is_kept_across_processes_of_the_command_line,
    ctrl_c_interrupts_the_code_and_a_second_one_stops_waiting,
    a_reply_has_every_promised_field,
    an_exception_is_a_failed_run_with_the_cells_own_lines,
    the_description_lists_what_the_document_describes,
    status_tells_counts_and_generation,
    only_ping_needs_no_token,
    a_wrong_token_is_told_from_a_missing_one,
    foreign_hosts_and_origins_are_refused,
    what_can_not_be_read_is_said_in_words,
    a_body_over_the_limit_is_refused,
    a_wrong_method_and_an_unknown_path_are_told_apart,
    a_busy_kernel_refuses_or_queues,
    the_same_id_finds_the_run_again,
    waiting_ends_and_the_code_goes_on,
    a_timeout_interrupts_and_keeps_the_state,
    a_run_is_interrupted_by_another_client,
    a_queued_run_can_be_taken_back,
    a_client_that_leaves_does_not_end_the_run,
    a_keep_alive_request_is_answered_in_one_packet,
    large_code_and_large_results_pass,
];

fn state_is_kept_across_processes_of_the_command_line() {
    let home = shared();
    home.ok(["exec", "kept_across = 41"]);
    assert_eq!(home.ok(["exec", "kept_across + 1"]).stdout, "42\n");
    let ran = home.run(["exec", "raise ValueError('x')"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("ValueError: x"), "{ran:?}");
    let mut piped = home.command(["exec", "-"]);
    piped
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = piped.spawn().unwrap();
    std::io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        b"for i in range(2):\n    print(i)\n",
    )
    .unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"0\n1\n");
}

fn ctrl_c_interrupts_the_code_and_a_second_one_stops_waiting() {
    let home = shared();
    let api = home.api();
    api.exec("before_ctrl_c = 7");
    let begun = home.files().join("ctrl-c");
    let code = "import time; open('/root/host/ctrl-c', 'w').close(); time.sleep(600)";
    let running = Followed::start(home.command(["exec", code]));
    api.until("the begin", |_| begun.exists().then_some(()));
    running.signal("INT");
    let (status, said) = running.end();
    assert_eq!(status, 5, "{said:?}");
    assert!(said.concat().contains("its state is kept"), "{said:?}");
    assert_eq!(api.exec("before_ctrl_c")["result"], "7");

    std::fs::remove_file(&begun).unwrap();
    let stubborn = "import os, time\nopen('/root/host/ctrl-c', 'w').close()\n\
                    while not os.path.exists('/root/host/ctrl-c.off'):\n    try: time.sleep(0.1)\n    except KeyboardInterrupt: pass\n'obeyed'";
    let mut running = Followed::start(home.command(["exec", stubborn]));
    api.until("the begin", |_| begun.exists().then_some(()));
    running.signal("INT");
    assert!(running.wait_for("interrupting the code"));
    running.signal("INT");
    let (status, said) = running.end();
    assert_eq!(status, 5, "{said:?}");
    let told = said.concat();
    let id = told
        .split("run `")
        .nth(1)
        .and_then(|rest| rest.split('`').next())
        .unwrap();
    std::fs::write(home.files().join("ctrl-c.off"), "").unwrap();
    let reply = api.get(&format!("/exec/{id}?wait=60")).json();
    assert_eq!(reply["result"], "'obeyed'", "{reply}");
}

fn a_reply_has_every_promised_field() {
    let reply = shared()
        .api()
        .exec("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6*7");
    assert_eq!(
        (reply["status"].as_str(), reply["result"].as_str()),
        (Some("completed"), Some("42"))
    );
    assert_eq!(
        (reply["stdout"].as_str(), reply["stderr"].as_str()),
        (Some("out\n"), Some("err\n"))
    );
    assert_eq!(reply["data"], json!([{"text/plain": "42"}]));
    assert_eq!(
        (&reply["error"], &reply["truncated"]),
        (&Value::Null, &Value::Null)
    );
    assert!(
        reply["execution_count"].as_u64().unwrap() > 0
            && reply["timing_ms"].as_f64().unwrap() > 0.0
    );
    assert!(
        reply["kernel"]["generation"].as_u64().unwrap() > 0 && reply["kernel"]["state"].is_string()
    );
    assert!(!reply["id"].as_str().unwrap().is_empty());
}

fn an_exception_is_a_failed_run_with_the_cells_own_lines() {
    let reply = shared().api().exec("def f():\n    return 1/0\nf()");
    assert_eq!(
        (reply["status"].as_str(), reply["error"]["type"].as_str()),
        (Some("failed"), Some("ZeroDivisionError"))
    );
    let traceback = reply["error"]["traceback"].to_string();
    assert!(traceback.contains("return 1/0"), "{traceback}");
}

fn the_description_lists_what_the_document_describes() {
    let api = shared().api();
    let described = api.get("/").json();
    let document = api.get("/openapi.json").json();
    for endpoint in [
        "POST /exec",
        "GET /exec/{id}",
        "DELETE /exec/{id}",
        "POST /reset",
        "GET /status",
        "GET /ping",
        "GET /health",
        "GET /",
    ] {
        assert!(
            described["endpoints"][endpoint]
                .as_str()
                .is_some_and(|s| !s.is_empty()),
            "{endpoint}"
        );
        let (method, path) = endpoint.split_once(' ').unwrap();
        assert!(
            document["paths"][path][method.to_lowercase()].is_object(),
            "{endpoint}"
        );
    }
    assert!(document["components"]["schemas"]["Execute"]["properties"]["code"].is_object());
}

fn status_tells_counts_and_generation() {
    let api = shared().api();
    let reply = api.exec("status_counts = 1");
    let status = api.get("/status").json();
    assert_eq!(status["status"], "ok");
    assert!(status["exec_count"].as_u64() >= reply["execution_count"].as_u64());
    assert!(status["globals_count"].as_u64().unwrap() >= 1);
    assert!(status["kernel"]["generation"].as_u64() >= reply["kernel"]["generation"].as_u64());
    assert_eq!(status["sessions"][0]["name"], "default");
    let health = api.get("/health");
    assert_eq!(
        (health.status, health.json()["status"].as_str()),
        (200, Some("healthy"))
    );
}

fn only_ping_needs_no_token() {
    let api = shared().api();
    let without = |method: &str, path: &str| {
        api.connect()
            .send(method, path, &[("Authorization", "")], b"{}")
    };
    assert_eq!(without("GET", "/ping").json(), json!({"status": "ok"}));
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/status"),
        ("GET", "/health"),
        ("GET", "/openapi.json"),
        ("POST", "/exec"),
        ("GET", "/nothing"),
    ] {
        let answer = without(method, path);
        assert_eq!(answer.error().0, 401, "{path}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
    let by_key = api
        .connect()
        .send("GET", "/status", &[("X-API-Key", &api.token)], b"");
    assert_eq!(by_key.status, 200);
}

fn a_wrong_token_is_told_from_a_missing_one() {
    let api = shared().api();
    let wrong = format!("Bearer {}x", api.token);
    let cases = [
        ("Authorization", ""),
        ("Authorization", "Basic abc"),
        ("Authorization", &wrong),
        ("X-API-Key", "nonsense"),
    ];
    let kinds = cases.map(|header| {
        api.connect()
            .send("GET", "/status", &[header], b"")
            .error()
            .1
    });
    assert_eq!(
        kinds,
        [
            "missing_token",
            "missing_token",
            "wrong_token",
            "wrong_token"
        ]
    );
}

fn foreign_hosts_and_origins_are_refused() {
    let api = shared().api();
    let port = api.address.rsplit(':').next().unwrap();
    let ask = |headers: &[(&str, &str)]| api.connect().send("GET", "/ping", headers, b"");
    for host in [
        "evil.example",
        "127.0.0.1.evil.example:8080",
        "169.254.169.254",
    ] {
        assert_eq!(ask(&[("Host", host)]).error().1, "foreign_host");
    }
    for origin in [
        "http://evil.example",
        "null",
        "https://127.0.0.1",
        "http://127.0.0.1:1",
    ] {
        assert_eq!(ask(&[("Origin", origin)]).error().1, "foreign_origin");
    }
    assert_eq!(ask(&[("Host", &format!("localhost:{port}"))]).status, 200);
    assert_eq!(
        ask(&[("Origin", &format!("http://{}", api.address))]).status,
        200
    );
}

fn what_can_not_be_read_is_said_in_words() {
    let api = shared().api();
    let cases: &[(&str, &str, &str)] = &[
        ("{", "malformed_json", "EOF"),
        ("{\"code\": }", "malformed_json", "expected value"),
        ("[1]", "invalid_field", "invalid type"),
        ("", "invalid_field", "missing field `code`"),
        ("{}", "invalid_field", "missing field `code`"),
        ("{\"code\": 1}", "invalid_field", "invalid type"),
        (
            "{\"code\": \"1\", \"cod\": 1}",
            "invalid_field",
            "unknown field `cod`",
        ),
        (
            "{\"code\": \"1\", \"timeout\": \"soon\"}",
            "invalid_field",
            "invalid type",
        ),
        (
            "{\"code\": \"1\", \"timeout\": -1}",
            "invalid_field",
            "`timeout` must be",
        ),
        (
            "{\"code\": \"1\", \"wait\": 1e12}",
            "invalid_field",
            "`wait` must be",
        ),
        (
            "{\"code\": \"1\", \"id\": \"../x\"}",
            "invalid_field",
            "can't be an id",
        ),
        ("\u{0}\u{1}", "malformed_json", "expected value"),
    ];
    for (body, kind, part) in cases {
        let answer = api.connect().send("POST", "/exec", &[], body.as_bytes());
        let (status, found, message) = answer.error();
        assert_eq!((status, found.as_str()), (400, *kind), "{body}: {message}");
        assert!(message.contains(part), "{body}: {message}");
        assert!(answer.headers["content-type"].starts_with("application/json"));
    }
    assert_eq!(
        api.post("/exec", &json!({"code": "1", "session": "other"}))
            .error()
            .1,
        "unknown_session"
    );
    assert_eq!(
        api.exec_with(json!({"command": "'an alias'"}))["result"],
        "'an alias'"
    );
}

fn a_body_over_the_limit_is_refused() {
    let api = shared().api();
    let body = format!("{{\"code\": \"{}\"}}", "x".repeat(64 << 20));
    let (status, kind, message) = api
        .connect()
        .send("POST", "/exec", &[], body.as_bytes())
        .error();
    assert_eq!((status, kind.as_str()), (413, "too_large"));
    assert!(message.contains("64 MiB"));
    assert_eq!(api.exec("1")["status"], "completed");
}

fn a_wrong_method_and_an_unknown_path_are_told_apart() {
    let api = shared().api();
    for (method, path, status, kind) in [
        ("GET", "/exec", 405, "wrong_method"),
        ("DELETE", "/status", 405, "wrong_method"),
        ("POST", "/", 405, "wrong_method"),
        ("GET", "/nothing", 404, "unknown_path"),
        ("GET", "/exec/a/b", 404, "unknown_path"),
        ("GET", "/exec/nobody", 404, "unknown_run"),
        ("GET", "/exec/nobody?wait=nan", 400, "invalid_field"),
        ("GET", "/exec/nobody?wait=-1", 400, "invalid_field"),
        ("GET", "/exec/nobody?until=1", 400, "invalid_query"),
        ("GET", "/exec/%ff", 400, "invalid_path"),
        ("DELETE", "/exec/nobody", 404, "unknown_run"),
    ] {
        let (found, found_kind, _) = api.connect().send(method, path, &[], b"").error();
        assert_eq!(
            (found, found_kind.as_str()),
            (status, kind),
            "{method} {path}"
        );
    }
}

/// Code that runs until `stop` is called, and is known to have begun.
struct Held<'a> {
    home: &'a Home,
    name: String,
}

impl<'a> Held<'a> {
    fn start(home: &'a Home, name: &str) -> Self {
        let api = home.api();
        let code = format!(
            "import os, time\nwhile not os.path.exists('/root/host/{name}.off'): time.sleep(0.01)\n'{name} done'"
        );
        let taken = api.exec_with(json!({"code": code, "id": name, "wait": 0}));
        assert_eq!(taken["status"], "running");
        let held = Self {
            home,
            name: name.into(),
        };
        api.until("the start", |api| {
            let run = api.get(&format!("/exec/{name}")).json();
            run["execution_count"].is_u64().then_some(())
        });
        held
    }

    fn stop(self) -> Value {
        std::fs::write(self.home.files().join(format!("{}.off", self.name)), "").unwrap();
        self.home
            .api()
            .get(&format!("/exec/{}?wait=60", self.name))
            .json()
    }
}

fn a_busy_kernel_refuses_or_queues() {
    let home = shared();
    let api = home.api();
    let held = Held::start(home, "busy");
    let refused = api.post("/exec", &json!({"code": "1"}));
    assert_eq!(
        (refused.error().0, refused.error().1.as_str()),
        (429, "busy")
    );
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(api.post("/reset", &json!({})).error().1, "busy");
    let queued = api.exec_with(json!({"code": "'after'", "id": "busy-queued", "wait": 0}));
    assert_eq!(queued["status"], "running");
    assert_eq!(held.stop()["result"], "'busy done'");
    assert_eq!(
        api.get("/exec/busy-queued?wait=60").json()["result"],
        "'after'"
    );
}

fn the_same_id_finds_the_run_again() {
    let api = shared().api();
    let request = json!({"code": "import random; random.random()", "id": "same-id"});
    let first = api.exec_with(request.clone());
    let again = api.exec_with(request);
    assert_eq!(
        (&first["result"], &first["execution_count"]),
        (&again["result"], &again["execution_count"])
    );
    let other = api.post("/exec", &json!({"code": "2", "id": "same-id"}));
    assert_eq!(
        (other.error().0, other.error().1.as_str()),
        (409, "id_in_use")
    );
}

fn waiting_ends_and_the_code_goes_on() {
    let home = shared();
    let held = Held::start(home, "waited");
    let begin = Instant::now();
    let reply = home.api().get("/exec/waited?wait=0.2").json();
    assert_eq!(reply["status"], "running");
    assert!(begin.elapsed().as_secs_f64() >= 0.2);
    assert_eq!(held.stop()["status"], "completed");
}

fn a_timeout_interrupts_and_keeps_the_state() {
    let api = shared().api();
    api.exec("before_timeout = 7");
    let reply = api
        .exec_with(json!({"code": "import time\nprint('begun')\ntime.sleep(600)", "timeout": 0.3}));
    assert_eq!(
        (reply["status"].as_str(), reply["error"]["type"].as_str()),
        (Some("interrupted"), Some("Timeout"))
    );
    assert_eq!(
        (reply["kernel"]["state"].as_str(), reply["stdout"].as_str()),
        (Some("kept"), Some("begun\n"))
    );
    assert!(
        reply["error"]["message"]
            .as_str()
            .unwrap()
            .contains("its state is kept")
    );
    assert_eq!(api.exec("before_timeout")["result"], "7");
}

fn a_run_is_interrupted_by_another_client() {
    let home = shared();
    let held = Held::start(home, "stopped");
    let reply = home
        .api()
        .connect()
        .send("DELETE", "/exec/stopped", &[], b"")
        .json();
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some("interrupted"), Some("kept"))
    );
    assert_eq!(held.stop()["status"], "interrupted");
}

fn a_queued_run_can_be_taken_back() {
    let home = shared();
    let api = home.api();
    let held = Held::start(home, "holder");
    api.exec_with(json!({"code": "taken_back = True", "id": "taken-back", "wait": 0}));
    let reply = api
        .connect()
        .send("DELETE", "/exec/taken-back", &[], b"")
        .json();
    assert_eq!(
        (reply["status"].as_str(), &reply["execution_count"]),
        (Some("interrupted"), &Value::Null)
    );
    held.stop();
    assert_eq!(api.exec("'taken_back' in globals()")["result"], "False");
}

fn a_client_that_leaves_does_not_end_the_run() {
    let api = shared().api();
    let mut connection = api.connect();
    let body = json!({"code": "import time; time.sleep(0.3); left = 'done'; left", "id": "left-alone", "queue": true}).to_string();
    let head = format!(
        "POST /exec HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
        api.address,
        api.token,
        body.len()
    );
    connection.write_raw(head.as_bytes());
    api.until("the run", |api| {
        (api.get("/exec/left-alone").status == 200).then_some(())
    });
    drop(connection);
    assert_eq!(
        api.get("/exec/left-alone?wait=60").json()["result"],
        "'done'"
    );
}

fn a_keep_alive_request_is_answered_in_one_packet() {
    let api = shared().api();
    let mut connection = api.connect();
    for _ in 0..20 {
        let bytes = connection.first_bytes("GET", "/ping");
        assert!(
            bytes.ends_with(b"{\"status\":\"ok\"}"),
            "{}",
            String::from_utf8_lossy(&bytes)
        );
    }
}

fn large_code_and_large_results_pass() {
    let api = shared().api();
    let reply = api.exec(&format!("len('{}')", "ä".repeat(5 << 20)));
    assert_eq!(reply["result"], (5 << 20).to_string());
    let reply = api.exec("class Big:\n    def __repr__(self): return 'y' * (3 << 20)\nBig()");
    assert_eq!(reply["result"].as_str().unwrap().len(), 3 << 20);
}
