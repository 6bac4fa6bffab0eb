//! The hub's remote servers, which have an address.

use crate::harness::servers;
use crate::mcp::{Client, status};
use crate::mcp_children::with_servers;
use crate::trials;
use serde_json::json;
use std::thread;

trials![
    remote_servers_work_through_either_transport,
    a_remote_server_that_redirects_gets_no_token_there,
    a_refused_sign_in_at_a_remote_server_says_what_to_do,
    an_unreachable_remote_server_is_named_without_its_secret,
];

fn remote_servers_work_through_either_transport() {
    let home = servers();
    let token = home.hub().token;
    // The hub's own endpoints, from inside the container.
    let door = |path: &str| {
        let url = format!("http://127.0.0.1:8765/servers/echo/{path}");
        json!({"url": url, "headers": {"Authorization": format!("Bearer {token}")}})
    };
    let others = [("older", door("sse")), ("newer", door("mcp"))];
    with_servers(&others, || {
        for server in ["older", "newer"] {
            let client = Client::new(&format!("/servers/{server}/mcp"));
            let odd = r#"{"jsonrpc":"2.0","id":1.0,"method":"test/x","params":{"n":1e400}}"#;
            let answer = client.post(odd).body;
            let expected = r#"{"jsonrpc":"2.0","id":1.0,"result":{"n":1e400}}"#;
            assert_eq!(String::from_utf8_lossy(&answer), expected, "{server}");
            let body = r#"{"jsonrpc":"2.0","id":"p","method":"test/progress","params":{"_meta":{"progressToken":"t"},"steps":2}}"#;
            let connection = client.api.connect();
            let mut events = connection.open("POST", &client.path, &client.headers(), body);
            for step in 0..2 {
                let (_, told) = events.sse().unwrap();
                assert!(told.contains(&format!(r#""progress":{step}.0"#)), "{told}");
            }
            while events.sse().is_some() {}
            let open = || status(&client.api, "echo")["calls"].as_u64().unwrap();
            let until_open = |what: &str, count: u64| {
                client.api.until(what, |_| (open() == count).then_some(()));
            };
            // A call that is cancelled here is cancelled on the remote server, and leaves nothing open.
            let body = r#"{"jsonrpc":"2.0","id":"c","method":"test/silence","params":{}}"#;
            until_open("the end of the previous call", 0);
            let headers = client.headers();
            thread::scope(|scope| {
                let waiting = scope.spawn(|| client.post(body));
                until_open("the call", 1);
                let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}"#;
                assert_eq!(client.post(cancel).status, 202);
                waiting.join().unwrap();
            });
            until_open("its end", 0);
            let mut connection = client.api.connect();
            connection.send("DELETE", &client.path, &headers, b"");
        }
    });
}

/// A server that redirects every request to another port, which records the headers that it gets.
const ELSEWHERE: &str = r#"
import http.server, threading
brought = []
class There(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        brought.append(dict(self.headers))
        self.send_error(500)
    do_GET = do_POST
    def log_message(self, *_):
        pass
there = http.server.ThreadingHTTPServer(('127.0.0.1', 0), There)
class Here(There):
    def do_POST(self):
        self.send_response(307)
        self.send_header('Location', f'http://127.0.0.1:{there.server_port}/mcp')
        self.send_header('Content-Length', '0')
        self.end_headers()
    do_GET = do_POST
here = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Here)
for server in (there, here):
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(here.server_port)
"#;

fn a_remote_server_that_redirects_gets_no_token_there() {
    let home = servers();
    let port = home.ok(["exec", ELSEWHERE]).stdout;
    let url = format!("http://127.0.0.1:{}/mcp", port.trim());
    let moved = json!({"url": url, "headers": {"X-Api-Key": "secret"}});
    with_servers(&[("moved", moved)], || {
        let ran = home.run(["mcp", "tools", "moved"]);
        assert_eq!(ran.code, 3, "{ran:?}");
        assert!(ran.stderr.contains("it redirects to `http://"), "{ran:?}");
    });
    assert_eq!(home.api().exec("brought")["result"], "[]");
}

/// A server that requires a sign-in, except with its only token, which has no rights.
const GUARDED: &str = r#"
import http.server, threading
class Guarded(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        known = self.headers['Authorization'] == 'Bearer known'
        self.send_response(403 if known else 401)
        self.send_header('WWW-Authenticate', 'Bearer resource_metadata="http://localhost/.well-known/oauth-protected-resource"')
        self.send_header('Content-Type', 'application/json')
        self.end_headers()
        self.wfile.write(b'{"error": "invalid_token"}')
    do_GET = do_POST
    def log_message(self, *_):
        pass
guarded = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Guarded)
threading.Thread(target=guarded.serve_forever, daemon=True).start()
print(guarded.server_port)
"#;

fn a_refused_sign_in_at_a_remote_server_says_what_to_do() {
    let home = servers();
    let url = format!(
        "http://127.0.0.1:{}/mcp",
        home.ok(["exec", GUARDED]).stdout.trim()
    );
    let token = |token: &str| json!({"url": url, "headers": {"Authorization": token}});
    let guarded = [
        ("stranger", json!({"url": url})),
        ("expired", token("Bearer old")),
        ("weak", token("Bearer known")),
    ];
    with_servers(&guarded, || {
        for (server, why) in [
            ("stranger", "it requires a sign-in by OAuth"),
            ("expired", "it does not accept the token in `headers`"),
            ("weak", "the token in `headers` does not have the rights"),
        ] {
            let ran = home.run(["mcp", "tools", server]);
            assert_eq!(ran.code, 3, "{server}: {ran:?}");
            assert!(ran.stderr.contains(why), "{server}: {ran:?}");
        }
    });
}

fn an_unreachable_remote_server_is_named_without_its_secret() {
    // No program listens on the port.
    let dead = json!({"url": "http://127.0.0.1:9/mcp?key=hunter2"});
    with_servers(&[("dead", dead)], || {
        let ran = servers().run(["mcp", "tools", "dead"]);
        assert_eq!(ran.code, 3, "{ran:?}");
        assert!(ran.stderr.contains("http://127.0.0.1:9: "), "{ran:?}");
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    });
}
