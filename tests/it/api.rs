//! Trials of the companion's HTTP API in a real container.

use crate::commands::Followed;
use crate::harness::shared;
use crate::trials;
use serde_json::{Value, json};

trials![
    state_is_kept_across_processes_of_the_command_line,
    ctrl_c_interrupts_the_code_and_a_second_one_stops_waiting,
    a_reply_has_every_promised_field,
    an_exception_is_a_failed_run_with_the_cells_own_lines,
    the_description_lists_what_the_document_describes,
    status_shows_counts_and_generation,
    only_ping_needs_no_token,
    a_wrong_token_and_a_missing_one_get_different_errors,
    foreign_hosts_and_origins_are_refused,
    a_browser_gets_a_page_with_the_reason,
    malformed_requests_are_refused_with_a_reason,
    a_body_over_the_limit_is_refused,
    a_wrong_method_and_an_unknown_path_get_different_errors,
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
    let marker = home.files().join("ctrl-c");
    let code = "import time; open('/root/host/ctrl-c', 'w').close(); time.sleep(600)";
    let running = Followed::start(home.command(["exec", code]));
    api.until("the start of the code", |_| marker.exists().then_some(()));
    running.signal("INT");
    let (status, lines) = running.end();
    assert_eq!(status, 5, "{lines:?}");
    assert!(lines.concat().contains("variables are kept"), "{lines:?}");
    assert_eq!(api.exec("before_ctrl_c")["result"], "7");

    std::fs::remove_file(&marker).unwrap();
    let stubborn = "import os, time\nopen('/root/host/ctrl-c', 'w').close()\n\
                    while not os.path.exists('/root/host/ctrl-c.off'):\n    try: time.sleep(0.1)\n    except KeyboardInterrupt: pass\n'obeyed'";
    let mut running = Followed::start(home.command(["exec", stubborn]));
    api.until("the start of the code", |_| marker.exists().then_some(()));
    running.signal("INT");
    assert!(running.wait_for("interrupting the code"));
    running.signal("INT");
    let (status, lines) = running.end();
    assert_eq!(status, 5, "{lines:?}");
    let stderr = lines.concat();
    let id = stderr
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
    assert_eq!(reply["durable"], true);
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
        "POST /evolve",
        "POST /evolve/rollback",
        "GET /evolve/status",
        "GET /evolve/runs",
        "GET /evolve/runs/{run}",
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
    // Requests of the keeper are served on the private socket only.
    assert_eq!(api.post("/evolve/quiesce", &json!({})).status, 404);
    assert!(!document["paths"].to_string().contains("quiesce"));
    assert!(document["components"]["schemas"]["Execute"]["properties"]["code"].is_object());
}

fn status_shows_counts_and_generation() {
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

fn a_wrong_token_and_a_missing_one_get_different_errors() {
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

fn a_browser_gets_a_page_with_the_reason() {
    let home = shared();
    let types = ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    for api in [home.api(), home.hub()] {
        for path in ["/", "/desktop/", "/nothing"] {
            let name = format!("{}.localhost", home.container());
            let headers = [("Authorization", ""), ("Host", name.as_str()), types];
            let page = api.connect().send("GET", path, &headers, b"");
            assert_eq!(page.status, 401, "{path}");
            assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
            let policy = &page.headers["content-security-policy"];
            assert!(policy.starts_with("default-src 'none'"), "{policy}");
            let text = String::from_utf8(page.body).unwrap();
            let title = format!("<title>{} · osctl</title>", home.container());
            assert!(text.contains(&title), "{text}");
            for part in ["the token is missing", "<code>osctl desktop</code>"] {
                assert!(text.contains(part), "{text}");
            }
        }
        let headers = [types, ("Sec-Fetch-Dest", "document")];
        let missing = api.connect().send("GET", "/nothing", &headers, b"");
        assert_eq!(missing.status, 404);
        assert!(
            String::from_utf8(missing.body)
                .unwrap()
                .starts_with("<!doctype html>")
        );
    }
}

fn malformed_requests_are_refused_with_a_reason() {
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
            "is not a valid ID",
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

fn a_wrong_method_and_an_unknown_path_get_different_errors() {
    let api = shared().api();
    for (method, path, status, kind) in [
        ("PUT", "/exec", 405, "wrong_method"),
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
