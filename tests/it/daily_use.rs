//! The first hour of a user: an agent gets a computer with the user's project, key, package and MCP server.

use crate::commands::Ran;
use crate::harness::{Home, forget, python};
use crate::instance_folders::{Folder, record};
use crate::soak::print_line;
use crate::trials;
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

trials![five_commands_give_an_agent_its_computer];

/// The user's second MCP server, a program of the project.
const NOTES: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {}
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "notes", "version": "1"}
    elif message["method"] == "tools/list":
        schema = {"type": "object", "properties": {}}
        result = {"tools": [{"name": "read", "inputSchema": schema}]}
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": "buy milk"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

/// The time for a user, with the image and the package at hand. The same took 43 minutes and 24 commands.
const FIRST_HOUR_TIMEOUT: Duration = Duration::from_secs(180);
const ADD_TIMEOUT: Duration = Duration::from_secs(30);

fn five_commands_give_an_agent_its_computer() {
    let home = Home::new("it-daily");
    // The first instance of a user is `os-host`, which is not for tests.
    record(&home, "default", &home.folder.join("elsewhere"));
    let project = home.folder.join("work").join(&home.instance);
    forget(&home.instance);
    fs::create_dir_all(&project).unwrap();
    fs::write(project.join("notes.py"), NOTES).unwrap();
    let servers = "servers:\n  notes: { command: python3, args: [/repo/notes.py] }\n";
    fs::write(project.join("osctl.yaml"), servers).unwrap();
    // The user has Claude Code.
    fs::write(home.folder.join(".claude.json"), "{}\n").unwrap();
    let agent = python("mcp").join("bin/python");
    // The image of the binary and the wheel of the package come from the network only once.
    let user = Folder {
        home: &home,
        path: &project,
    };
    user.ok(&["build"]);
    let begin = Instant::now();
    let ran = user.ok(&["up", "--yes"]);
    for next in ["connect your agent: ", "see the desktop: "] {
        assert!(ran.stderr.contains(next), "{ran:?}");
    }
    assert!(ran.stdout.contains(" is healthy ("), "{ran:?}");
    let up = begin.elapsed();
    let mut set = home.command_without_instance(["env", "set", "STRIPE_KEY", "--from-env"]);
    set.env("STRIPE_KEY", "sk-of-the-user");
    let ran = Ran::from(set.current_dir(&project).output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    user.ok(&["exec", "kept = 41"]);
    let adding = Instant::now();
    user.ok(&["add", "polars"]);
    let add = adding.elapsed();
    assert_eq!(user.exec("kept"), "41");
    user.ok(&["mcp", "connect", "--yes"]);
    let total = begin.elapsed();

    let ran = Command::new(agent)
        .args(["-B", "tests/mcp/agent.py"])
        .arg(home.folder.join(".claude.json"))
        .output()
        .unwrap();
    let ran = Ran::from(ran);
    assert_eq!(ran.code, 0, "{ran:?}");
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let worked = found["worked"].as_str().unwrap();
    assert!(
        worked.contains("sk-of-the-user /repo ['notes.py', 'osctl"),
        "{found}"
    );
    assert_eq!(found["noted"], "buy milk");
    // No server but that of the user has started before. Clients wait 5 s by default.
    assert!(found["listed_in_seconds"].as_f64() < Some(5.0), "{found}");
    // 25 of the packaged servers, and that of the user.
    assert_eq!(found["tools"].as_array().unwrap().len(), 26, "{found}");

    let activity = user.ok(&["activity", "--client", "claude-code"]).stdout;
    for part in [
        "os__execute_python_code",
        "notes__read",
        "import os, polars",
    ] {
        assert!(activity.contains(part), "{part}: {activity}");
    }
    assert!(!activity.contains("sk-of-the-user"), "{activity}");
    // The next image has the package.
    let lock = fs::read_to_string(project.join("osctl.lock")).unwrap();
    assert!(lock.contains("\"polars\""), "{lock}");
    print_line(&format!(
        "up {up:.1?}, add {add:.1?}, five commands {total:.1?}"
    ));
    assert!(add < ADD_TIMEOUT, "{add:?}");
    assert!(total < FIRST_HOUR_TIMEOUT, "{total:?}");
    home.down();
}
