//! The hub, through common MCP clients, and the official conformance suite through the hub.

use crate::commands::Ran;
use crate::harness::{Home, servers};
use crate::lanes::TestCase;
use crate::pages::page;
use crate::pytest::{self, REPORTING};
use crate::trials;
use serde_json::{Deserializer, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

trials![
    the_typescript_client_of_mcp_does_real_work,
    the_documented_python_examples_work,
    the_conformance_suites_have_the_same_outcome_through_the_hub,
    the_tests_of_mcp_in_python_are_clean,
];

/// MCP's Python client does real work through each transport.
pub(crate) fn python_trials() -> Vec<TestCase> {
    pytest::cases("mcp_clients", "tests/mcp", report)
}

fn report(file: &Path) -> String {
    let home = servers();
    let (hub, page) = (home.hub(), page(home, "press"));
    let mut command = Command::new(python().join("bin/python"));
    command
        .args(REPORTING)
        .arg(file)
        .env("HUB", format!("http://{}", hub.address))
        .env("TOKEN", &hub.token)
        .env("PAGE", page)
        .env(
            "OSCTL",
            json!([env!("CARGO_BIN_EXE_osctl"), "--instance", home.instance]).to_string(),
        )
        .env("OSCTL_ENV", json!({"HOST_HOME": home.folder}).to_string())
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    )
}

fn the_typescript_client_of_mcp_does_real_work() {
    let home = servers();
    provide_node(home, &["clients.ts"]);
    let page = page(home, "press");
    let script = format!(
        "cd /repo/suite && HUB=http://localhost:8765 PAGE={page} node --disable-warning=ExperimentalWarning --test-reporter=tap clients.ts"
    );
    let mut command = home.command(["shell", &script]);
    let mut node = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let token = home.hub().token;
    { node.stdin.take() }
        .unwrap()
        .write_all(token.as_bytes())
        .unwrap();
    let ran = Ran::from(node.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("# pass 7"), "{ran:?}");
}

fn the_documented_python_examples_work() {
    let (home, page) = (servers(), fs::read_to_string("docs/guide/mcp.md").unwrap());
    let hub = home.hub();
    home.ok(["exec", "open('/root/host/readme.txt', 'w').close()"]);
    let blocks: Vec<&str> = page.split("```python\n").skip(1).collect();
    assert!(blocks.len() >= 2, "mcp's client and the Agents SDK");
    for block in blocks {
        let (code, _) = block.split_once("```").unwrap();
        assert!(code.contains("127.0.0.1:8765"), "{code}");
        let code = code.replace("127.0.0.1:8765", &hub.address);
        let code = code.replace("\"/root\"", "\"/root/host\"");
        let mut command = Command::new(python().join("bin/python"));
        command
            .args(["-B", "-c", &code])
            .env("TOKEN", &hub.token)
            .env_remove("OPENAI_API_KEY");
        let ran = Ran::from(command.output().unwrap());
        assert_eq!(ran.code, 0, "{code}\n{ran:?}");
        assert!(ran.stdout.contains("[FILE] readme.txt"), "{code}\n{ran:?}");
    }
}

/// Copies these scripts to `/repo/suite`, and installs the packages that they need.
fn provide_node(home: &Home, scripts: &[&str]) {
    let suite = home.project.join("suite");
    fs::create_dir_all(&suite).unwrap();
    for file in [&["package.json", "package-lock.json"], scripts].concat() {
        fs::copy(Path::new("tests/mcp").join(file), suite.join(file)).unwrap();
    }
    home.ok([
        "shell",
        "cd /repo/suite && npm ci --ignore-scripts --no-audit --no-fund",
    ]);
}

/// The suites run in the container, so that the machine needs no other Node.
const SUITE: &str =
    "node node_modules/@modelcontextprotocol/conformance/dist/index.js server --suite all --url";
const NEXT_SUITE: &str = "node node_modules/conformance-next/dist/index.js server";
const NEWEST: &str =
    "node node_modules/conformance-next/dist/index.js server --requirements 2026-07-28 --url";

/// The scenarios that need nothing but a server with tools, resources and messages.
const APPLICABLE: [&str; 7] = [
    "server-initialize",
    "ping",
    "logging-set-level",
    "tools-list",
    "resources-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
];

/// The same for the newest revision.
const APPLICABLE_NEWEST: [&str; 7] = [
    "tools-list",
    "resources-list",
    "server-sse-multiple-streams",
    "sep-2164-resource-not-found",
    "dns-rebinding-protection",
    "http-header-validation",
    "input-required-result-unsupported-methods",
];

/// What passes and fails of `server-stateless`: the four checks call tools that only the suite's server has.
const STATELESS: (usize, usize) = (24, 4);

/// The scenarios that the built-in server can't pass, by what they require and it does not have.
const INAPPLICABLE: [(&str, &[&str]); 6] = [
    (
        "tools of the suite's own",
        &[
            "elicitation-sep1034-defaults",
            "elicitation-sep1330-enums",
            "http-custom-header-server-validation",
            "input-required-result-basic-elicitation",
            "input-required-result-basic-list-roots",
            "input-required-result-basic-sampling",
            "input-required-result-capability-check",
            "input-required-result-multi-round",
            "input-required-result-multiple-input-requests",
            "input-required-result-request-state",
            "input-required-result-result-type",
            "input-required-result-tampered-state",
            "json-schema-2020-12",
            "server-stateless",
            "tools-call-audio",
            "tools-call-elicitation",
            "tools-call-embedded-resource",
            "tools-call-error",
            "tools-call-image",
            "tools-call-mixed-content",
            "tools-call-sampling",
            "tools-call-simple-text",
            "tools-call-with-logging",
            "tools-call-with-progress",
        ],
    ),
    (
        "resources of the suite's own",
        &[
            "resources-read-binary",
            "resources-read-text",
            "resources-templates-read",
        ],
    ),
    (
        "subscriptions to resources",
        &["resources-subscribe", "resources-unsubscribe"],
    ),
    (
        "prompts",
        &[
            "caching",
            "input-required-result-non-tool-request",
            "prompts-get-embedded-resource",
            "prompts-get-simple",
            "prompts-get-with-args",
            "prompts-get-with-image",
            "prompts-list",
        ],
    ),
    ("completions", &["completion-complete"]),
    (
        "tasks, an extension",
        &[
            "tasks-capability-negotiation",
            "tasks-dispatch-and-envelope",
            "tasks-lifecycle",
            "tasks-mrtr-composition",
            "tasks-mrtr-input",
            "tasks-request-headers",
            "tasks-request-state-removal",
            "tasks-required-task-error",
            "tasks-wire-fields",
        ],
    ),
];

/// The only check of `caching` that lists prompts, and the suite's error where the server has no prompts.
const NO_PROMPTS: (&str, &str) = (
    "sep-2549-prompts-list-caching-hints",
    "prompts/list returned JSON-RPC error -32601",
);

fn the_conformance_suites_have_the_same_outcome_through_the_hub() {
    let home = Home::new("it-mcp-open");
    // The suites send no token.
    home.write_config("auth: off\n");
    let script =
        |name: &str| json!({"command": "node", "args": [format!("/repo/suite/{name}.mjs")]});
    let elsewhere = |port: u16| json!({"url": format!("http://localhost:{port}/mcp")});
    let mut modern = script("modern");
    modern["shared"] = json!(true);
    let all = json!({"mcpServers": {
        "reference": script("reference"),
        "elsewhere": elsewhere(3999),
        "modern": modern,
        "modern-elsewhere": elsewhere(3998),
    }});
    fs::create_dir_all(home.data()).unwrap();
    fs::write(home.data().join("mcp.json"), all.to_string()).unwrap();
    home.up();
    let home = RemovedAtEnd(home);
    provide_node(&home, &["stock.mjs", "reference.mjs", "modern.mjs"]);
    for (name, port) in [("reference", 3999), ("modern", 3998)] {
        home.ok(["shell", &format!("cd /repo/suite && PORT={port} setsid node {name}.mjs > /tmp/{name}.log 2>&1 & until grep -q listening /tmp/{name}.log; do sleep 0.1; done")]);
    }
    let mut failing = BTreeSet::new();
    for (suite, port, least, servers, applicable) in [
        (SUITE, 3999, 44, ["reference", "elsewhere"], &APPLICABLE[..]),
        (
            NEWEST,
            3998,
            107,
            ["modern", "modern-elsewhere"],
            &APPLICABLE_NEWEST[..],
        ),
    ] {
        let directly = outcome(&home, suite, &format!("http://localhost:{port}/mcp"));
        let passed: usize = directly.values().map(|(passed, _)| passed).sum();
        assert!(passed >= least, "{passed}: {directly:?}");
        for server in servers {
            let url = format!("http://localhost:8765/servers/{server}/mcp");
            assert_eq!(outcome(&home, suite, &url), directly, "`{server}`");
        }
        let built_in = outcome(&home, suite, "http://localhost:8765/servers/os/mcp");
        for scenario in applicable {
            let (passed, failed) = built_in[*scenario];
            assert!(passed > 0 && failed == 0, "`os`: {scenario}: {built_in:?}");
        }
        let stateless = built_in.get("server-stateless");
        assert_eq!(stateless.is_some(), suite == NEWEST);
        assert!(
            stateless.is_none_or(|found| *found == STATELESS),
            "{stateless:?}"
        );
        let failed = built_in.into_iter().filter(|(_, (_, failed))| *failed > 0);
        failing.extend(failed.map(|(scenario, _)| scenario));
    }
    // Each failed scenario is listed.
    let named = INAPPLICABLE.iter().flat_map(|(_, names)| *names);
    let named: BTreeSet<String> = named.map(|&name| name.to_owned()).collect();
    assert_eq!(failing, named);
    // Check by check: the sessions, which neither suite chooses, and caching.
    let at = |port: u16, server: &str| format!("http://localhost:{port}{server}/mcp");
    let hub = |server: &str| at(8765, server);
    let sessions = ("server-session-lifecycle", "2025-11-25");
    let directly = checks(&home, sessions, &at(3999, ""));
    let passed = |found: &Checks| found.values().all(|(how, _)| how == "SUCCESS");
    assert!(directly.len() >= 3 && passed(&directly), "{directly:?}");
    for server in [
        "/servers/reference",
        "/servers/elsewhere",
        "/servers/os",
        "",
    ] {
        assert_eq!(checks(&home, sessions, &hub(server)), directly, "{server}");
    }
    let caching = ("caching", "2026-07-28");
    let directly = checks(&home, caching, &at(3998, ""));
    assert!(directly.len() >= 7 && passed(&directly), "{directly:?}");
    for server in ["/servers/modern", "/servers/modern-elsewhere", ""] {
        assert_eq!(checks(&home, caching, &hub(server)), directly, "{server}");
    }
    let mut built_in = checks(&home, caching, &hub("/servers/os"));
    let (how, why) = built_in.remove(NO_PROMPTS.0).unwrap();
    assert!(how == "FAILURE" && why.starts_with(NO_PROMPTS.1), "{why}");
    assert!(passed(&built_in), "{built_in:?}");
    assert_eq!(built_in.len() + 1, directly.len());
}

/// Each check of a scenario by its id: the outcome, and why.
type Checks = BTreeMap<String, (String, String)>;

fn checks(home: &Home, (scenario, revision): (&str, &str), url: &str) -> Checks {
    let words = format!("--scenario {scenario} --spec-version {revision} --verbose --url {url}");
    let ran = home.run(["shell", &format!("cd /repo/suite && {NEXT_SUITE} {words}")]);
    let begin = ran.stdout.find("\n[").unwrap_or_else(|| panic!("{ran:?}"));
    let mut printed = Deserializer::from_str(&ran.stdout[begin..]).into_iter::<Vec<Value>>();
    let all = printed.next().unwrap().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let how = |one: &Value| (text(&one["status"]), text(&one["errorMessage"]));
    all.iter().map(|one| (text(&one["id"]), how(one))).collect()
}

/// An instance that is removed at the end of its test, also when the test fails.
struct RemovedAtEnd(Home);

impl std::ops::Deref for RemovedAtEnd {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.0
    }
}

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        self.0.down();
    }
}

/// What passed and what failed, by scenario.
fn outcome(home: &Home, suite: &str, url: &str) -> BTreeMap<String, (usize, usize)> {
    // The exit code only says that not all passed.
    let ran = home.run(["shell", &format!("cd /repo/suite && {suite} {url}")]);
    let line = |line: &str| {
        let (scenario, rest) = line.trim_start_matches(['✓', '✗', ' ']).split_once(": ")?;
        let (passed, rest) = rest.split_once(" passed, ")?;
        // Warnings may follow.
        let (failed, _) = rest.split_once(" failed")?;
        Some((
            scenario.to_owned(),
            (passed.parse().ok()?, failed.parse().ok()?),
        ))
    };
    let mut found: BTreeMap<_, _> = ran.stdout.lines().filter_map(line).collect();
    found.remove("Total");
    assert!(found.len() > 30, "{ran:?}");
    found
}

fn the_tests_of_mcp_in_python_are_clean() {
    for check in [&["check"][..], &["format", "--check"]] {
        let mut command = Command::new(python().join("bin/ruff"));
        command.args(check).args(["--no-cache", "tests/mcp"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

static PYTHON: OnceLock<PathBuf> = OnceLock::new();

/// A Python environment with MCP's client.
fn python() -> &'static Path {
    PYTHON.get_or_init(|| crate::harness::python("mcp"))
}
