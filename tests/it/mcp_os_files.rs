//! The built-in MCP server: commands, files, stored variables, resources, and what it refuses.

use crate::harness::{Home, servers};
use crate::mcp::last_message;
use crate::mcp_os::os;
use crate::trials;
use serde_json::{Value, json};
use std::fs;

trials![
    commands_keep_their_folder_and_installed_packages_can_be_imported,
    files_are_written_listed_read_and_shown,
    variables_are_stored_and_restored,
    resources_are_files_runs_and_the_screen,
    wrong_arguments_are_reported_and_change_nothing,
    each_tool_has_a_valid_schema_and_says_its_answer_once,
    files_are_edited_patched_and_found,
];

fn commands_keep_their_folder_and_installed_packages_can_be_imported() {
    let os = os();
    let failed = os.tool("run_shell", json!({"command": "echo out; exit 3"}));
    assert_eq!(failed["isError"], false);
    assert_eq!(failed["content"][0]["text"], "out\n(exit code 3)");
    let fed = os.fields("run_shell", json!({"command": "cat", "stdin": "ä"}));
    assert_eq!(fed["stdout"], "ä");
    let late = os.tool("run_shell", json!({"command": "sleep 60", "timeout": 0.1}));
    assert_eq!(
        (&late["isError"], &late["structuredContent"]["returncode"]),
        (&json!(true), &json!(-1))
    );
    // A local package, so that the test needs no registry.
    let project = "[project]\nname = \"made-here\"\nversion = \"1.0\"\n[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n";
    let backend = "import zipfile\ndef build_wheel(folder, *_):\n    name = 'made_here-1.0-py3-none-any.whl'\n    with zipfile.ZipFile(f'{folder}/{name}', 'w') as z:\n        z.writestr('made_here.py', 'value = 5')\n        z.writestr('made_here-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: made-here\\nVersion: 1.0\\n')\n        z.writestr('made_here-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n        z.writestr('made_here-1.0.dist-info/RECORD', '')\n    return name\n";
    os.fields(
        "write_file",
        json!({"path": "/tmp/made/pyproject.toml", "content": project}),
    );
    os.fields(
        "write_file",
        json!({"path": "/tmp/made/backend.py", "content": backend}),
    );
    let installed = os.tool("install_package", json!({"packages": ["/tmp/made"]}));
    assert_eq!(installed["isError"], false, "{installed}");
    let imported = os.fields(
        "execute_python_code",
        json!({"code": "import made_here\nmade_here.value"}),
    );
    assert_eq!(imported["result"], "5");
    let missing = os.tool("install_package", json!({"packages": ["/tmp/not-there"]}));
    assert_eq!(missing["isError"], true, "{missing}");
    let option = os.refusal("install_package", json!({"packages": ["--target=/x"]}));
    assert!(option.contains("is not a package"), "{option}");
}

fn files_are_written_listed_read_and_shown() {
    let os = os();
    let path = "/root/host/mcp-os/text.txt";
    let written = os.fields(
        "write_file",
        json!({"path": path, "content": "zwei\nZeilen ö"}),
    );
    assert_eq!(
        written,
        json!({"path": path, "bytes": 14, "replaced": false})
    );
    let found = fs::read_to_string(servers().files().join("mcp-os/text.txt")).unwrap();
    assert_eq!(found, "zwei\nZeilen ö");
    // A relative path is in the project, as for the other tools and for the shell.
    let note = os.fields(
        "write_file",
        json!({"path": "mcp-note.txt", "content": "eins"}),
    );
    assert_eq!(note["path"], "/repo/mcp-note.txt");
    let edit = json!({"path": "mcp-note.txt", "old_text": "eins", "new_text": "zwei"});
    os.fields("edit_file", edit);
    let printed = os.fields("run_shell", json!({"command": "cat /repo/mcp-note.txt"}));
    assert_eq!(printed["stdout"], "zwei");
    let listed = os.fields("list_files", json!({})).to_string();
    assert!(listed.contains("\"mcp-note.txt\""), "{listed}");
    os.fields("run_shell", json!({"command": "rm /repo/mcp-note.txt"}));
    // Below the root, and in pages that end with whole characters.
    let read = os.fields(
        "read_file",
        json!({"path": "~/host/mcp-os/text.txt", "limit": 13}),
    );
    assert_eq!(
        (&read["text"], &read["next"]),
        (&json!("zwei\nZeilen "), &json!(12))
    );
    let rest = os.fields("read_file", json!({"path": path, "offset": 12}));
    assert_eq!((&rest["text"], &rest["next"]), (&json!("ö"), &Value::Null));
    let pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
    os.fields(
        "write_file",
        json!({"path": "/root/host/mcp-os/a.png", "content": pixel, "encoding": "base64"}),
    );
    let shown = os.tool("read_file", json!({"path": "/root/host/mcp-os/a.png"}));
    assert_eq!(
        (&shown["content"][0]["type"], &shown["content"][0]["data"]),
        (&json!("image"), &json!(pixel))
    );
    let binary = os.fields("read_file", json!({"path": "/bin/true", "limit": 16}));
    assert!(
        binary["base64"].as_str().unwrap().starts_with("f0VMR"),
        "{binary}"
    );
    let listed = os.fields("list_files", json!({"path": "~/host/mcp-os"}));
    let names: Vec<_> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["name"])
        .collect();
    assert_eq!(names, ["a.png", "text.txt"]);
    let first = os.fields(
        "list_files",
        json!({"path": "/root/host/mcp-os", "limit": 1}),
    );
    assert_eq!(first["more"], true);
    let second = os.fields(
        "list_files",
        json!({"path": "/root/host/mcp-os", "after": "a.png"}),
    );
    assert_eq!(second["entries"][0]["name"], "text.txt");
    let endless = os.fields("read_file", json!({"path": "/proc/version"}));
    assert!(endless["text"].as_str().unwrap().starts_with("Linux"));
    for (path, why) in [
        ("/root/nowhere", "there is no `/root/nowhere`"),
        ("/root", "is a folder, not a file"),
    ] {
        let refused = os.refusal("read_file", json!({"path": path}));
        assert!(refused.contains(why), "{refused}");
    }
}

fn variables_are_stored_and_restored() {
    let os = os();
    os.fields(
        "execute_python_code",
        json!({"code": "stored = [1, 2]", "session": "cold"}),
    );
    let stored = os.fields("cryo_store", json!({"name": "from-mcp", "session": "cold"}));
    assert_eq!(stored["receipt"][0]["verdict"], "saved");
    os.fields("reset", json!({"session": "cold", "restart": true}));
    let back = os.fields(
        "cryo_reload",
        json!({"name": "from-mcp", "session": "cold"}),
    );
    assert_eq!(back["generation"], stored["generation"]);
    let found = os.fields(
        "execute_python_code",
        json!({"code": "stored", "session": "cold"}),
    );
    assert_eq!(found["result"], "[1, 2]");
    let none = os.refusal("cryo_reload", json!({"name": "never-stored"}));
    assert_eq!(none, "nothing is stored as `never-stored`");
}

fn resources_are_files_runs_and_the_screen() {
    let os = os();
    os.fields(
        "write_file",
        json!({"path": "/root/listed ö.md", "content": "# eins"}),
    );
    os.fields("run_shell", json!({"command": "ln -sf /etc/passwd /root/out; mkdir -p /root/folder; touch /root/folder/inner"}));
    let listed = os.ask("resources/list", &json!({}));
    let all = listed["resources"].as_array().unwrap();
    let uris: Vec<_> = all.iter().map(|r| r["uri"].as_str().unwrap()).collect();
    assert!(
        uris.contains(&"os://screen") && uris.contains(&"os://runs"),
        "{uris:?}"
    );
    let file = all.iter().find(|r| r["name"] == "listed ö.md").unwrap();
    assert_eq!(
        (&file["mimeType"], &file["size"]),
        (&json!("text/markdown"), &json!(6))
    );
    let read = |uri: &str| os.ask("resources/read", &json!({"uri": uri}))["contents"][0].clone();
    assert_eq!(read(file["uri"].as_str().unwrap())["text"], "# eins");
    assert!(
        read("file:///root/folder")["text"]
            .as_str()
            .unwrap()
            .contains("inner")
    );
    let screen = read("os://screen");
    assert_eq!(screen["mimeType"], "image/png");
    assert!(screen["blob"].as_str().unwrap().starts_with("iVBOR"));
    let run = os.fields(
        "execute_python_code",
        json!({"code": "print('as resource')", "session": "resource"}),
    );
    let id = run["id"].as_str().unwrap();
    assert!(read("os://runs")["text"].as_str().unwrap().contains(id));
    assert!(
        read(&format!("os://runs/{id}"))["text"]
            .as_str()
            .unwrap()
            .contains("as resource")
    );
    assert_eq!(
        read(&format!("os://runs/{id}/stdout"))["text"],
        "as resource\n"
    );
    let templates = os.ask("resources/templates/list", &json!({}));
    assert_eq!(templates["resourceTemplates"].as_array().unwrap().len(), 3);
    // A file outside the root is not a resource, also through a link or `..`.
    for uri in [
        "file:///etc/passwd",
        "file:///root/out",
        "file:///root/../etc/passwd",
        "file:///root/none",
        "os://runs/none",
        "os://other",
        "x:y",
    ] {
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": uri}});
        let answer = last_message(&os.post(&body.to_string()).body);
        assert!(answer["error"]["message"].is_string(), "{uri}: {answer}");
    }
}

fn wrong_arguments_are_reported_and_change_nothing() {
    let os = os();
    let answer = |method: &str, params: Value| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        last_message(&os.post(&body.to_string()).body)["error"]["code"].clone()
    };
    assert_eq!(
        answer("tools/call", json!({"name": "no_such_tool"})),
        -32602
    );
    assert_eq!(answer("tools/call", json!({})), -32602);
    assert_eq!(answer("resources/read", json!({"uri": 1})), -32602);
    assert_eq!(answer("no/method", json!({})), -32601);
    for (tool, arguments, why) in [
        (
            "execute_python_code",
            json!({}),
            "needs the argument `code`, a string",
        ),
        (
            "execute_python_code",
            json!({"code": "1", "cod": 2}),
            "no argument `cod`; did you mean `code`?",
        ),
        (
            "execute_python_code",
            json!({"code": "1", "timeout": "10"}),
            "`timeout` must be a number, not a string",
        ),
        (
            "desktop_input",
            json!({"actions": [{"type": "jump"}]}),
            "jump",
        ),
        (
            "execute_python_code",
            json!({"code": "1", "timeout": 0}),
            "`timeout` is 0",
        ),
        (
            "execute_python_code",
            json!({"code": "1", "wait": -1}),
            "`wait` is -1",
        ),
        ("run_shell", json!({"command": "a\u{0}b"}), "NUL"),
        (
            "write_file",
            json!({"path": "x", "content": "!", "encoding": "base64"}),
            "not valid base64",
        ),
        (
            "wait_for_run",
            json!({"id": "none"}),
            "there is no run `none`",
        ),
        (
            "read_output",
            json!({"id": "none"}),
            "there is no run `none`",
        ),
        (
            "reset",
            json!({"session": "nobody"}),
            "there is no session `nobody`",
        ),
        ("install_package", json!({"packages": []}), "empty"),
    ] {
        let refused = os.refusal(tool, arguments);
        assert!(refused.contains(why), "{tool}: {refused}");
    }
    // A server of the configuration can replace the built-in server, which returns without it.
    let home: &Home = servers();
    let path = home.data().join("mcp.json");
    let before = fs::read_to_string(&path).unwrap();
    let mut without: Value = serde_json::from_str(&before).unwrap();
    without["mcpServers"]["os"] = json!({"tools": ["read_*"]});
    fs::write(&path, without.to_string()).unwrap();
    // The session stays, and sees the tools of the new configuration.
    let count = || {
        os.ask("tools/list", &json!({}))["tools"]
            .as_array()
            .unwrap()
            .len()
    };
    home.hub()
        .until("the other configuration", |_| (count() == 2).then_some(()));
    let refused = answer(
        "tools/call",
        json!({"name": "run_shell", "arguments": {"command": "true"}}),
    );
    assert_eq!(refused, -32602);
    fs::write(&path, &before).unwrap();
    home.hub()
        .until("the old configuration", |_| (count() > 10).then_some(()));
}

/// A validator accepts each tool's arguments.
fn each_tool_has_a_valid_schema_and_says_its_answer_once() {
    let home = servers();
    let os = os();
    let listed = os.ask("tools/list", &json!({}));
    let calls = json!({
        "execute_python_code": {"code": "print(6 * 7)"},
        "run_shell": {"command": "echo 42"},
        "read_file": {"path": "/etc/hostname"},
        "write_file": {"path": "/tmp/w", "content": ""},
        "list_files": {},
        "list_sessions": {},
        "find_files": {"glob": "*", "path": "/etc/apt"},
        "search_files": {"pattern": "x", "path": "/etc/apt"},
        "cryo_store": {"dry_run": true},
        "desktop_windows": {},
        "desktop_read_clipboard": {},
        "reset": {"session": "default"},
        "interrupt": {},
    });
    let mut pairs = Vec::new();
    for (name, arguments) in calls.as_object().unwrap() {
        os.text(name, arguments.clone());
        let mut tools = listed["tools"].as_array().unwrap().iter();
        let tool = tools.find(|tool| tool["name"] == *name).unwrap();
        assert!(tool["outputSchema"].is_null(), "{tool}");
        pairs.push(json!({"schema": tool["inputSchema"], "value": arguments}));
    }
    fs::write(home.files().join("pairs.json"), json!(pairs).to_string()).unwrap();
    let check = "import json, jsonschema\nfor p in json.load(open('/root/host/pairs.json')):\n    jsonschema.Draft202012Validator.check_schema(p['schema'])\n    jsonschema.validate(p['value'], p['schema'], cls=jsonschema.Draft202012Validator)\nprint('fine')";
    let command = format!(
        "/opt/osctl/servers/linux/bin/python -c \"{}\"",
        check.replace('"', "\\\"")
    );
    let ran = home.run(["shell", &command]);
    assert_eq!(ran.stdout.trim(), "fine", "{ran:?}");
    // A picture that models can't see is drawn as one that they see.
    let code = "from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"40\" height=\"20\"><text x=\"2\" y=\"15\">hi</text></svg>')";
    let drawn = os.tool("execute_python_code", json!({"code": code}));
    assert_eq!(drawn["content"][1]["mimeType"], "image/png", "{drawn}");
    let binary = os.text("read_file", json!({"path": "/bin/true", "limit": 64}));
    assert!(binary.contains("00000000  7f 45 4c 46"), "{binary}");
}

fn files_are_edited_patched_and_found() {
    let os = os();
    let folder = "/repo/mcp-edit";
    let path = &format!("{folder}/src/calc.py");
    let content = "def add(a, b):\n    return a - b\n\ndef sub(a, b):\n    return a - b\n";
    os.text("write_file", json!({"path": path, "content": content}));
    os.text("run_shell", json!({"command": format!("chmod 750 {path}")}));
    let wrong = json!({"path": path, "old_text": "return a - b", "new_text": "return a + b"});
    let refused = os.refusal("edit_file", wrong);
    assert!(
        refused.contains("occurs 2 times, at the lines 2, 5"),
        "{refused}"
    );
    let right = json!({"path": path, "old_text": "add(a, b):\n    return a - b", "new_text": "add(a, b):\n    return a + b"});
    let shown = os.text("edit_file", right);
    assert!(
        shown.contains("-    return a - b\n+    return a + b\n"),
        "{shown}"
    );
    let patch = "--- a/src/calc.py\n+++ b/src/calc.py\n@@ -9,9 +9,9 @@\n def sub(a, b):\n-    return a - b\n+    return b - a\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+needle\n";
    let broken = patch.replace("def sub", "def other");
    let refused = os.refusal("apply_patch", json!({"patch": broken, "folder": folder}));
    assert!(refused.contains("hunk 1 does not fit"), "{refused}");
    let none = os.text("find_files", json!({"glob": "new.txt", "path": folder}));
    assert!(none.starts_with("no such files"), "{none}");
    let applied = os.text("apply_patch", json!({"patch": patch, "folder": folder}));
    assert_eq!(
        applied,
        format!("changed `{path}` (+1 -1)\ncreated `{folder}/new.txt` (+1 -0)")
    );
    let mode = os.text(
        "run_shell",
        json!({"command": format!("stat -c %a {path}; tail -1 {path}")}),
    );
    assert_eq!(mode, "750\n    return b - a");
    // Without a path, the tools search the project.
    let found = os.text(
        "search_files",
        json!({"pattern": "need(le)", "glob": "*.txt"}),
    );
    assert!(found.contains("\n\nmcp-edit/new.txt\n1: needle"), "{found}");
    let found = os.text("find_files", json!({"glob": "mcp-edit/**/*.py"}));
    assert!(found.ends_with("\nmcp-edit/src/calc.py"), "{found}");
    let refused = os.refusal("search_files", json!({"pattern": "(", "path": folder}));
    assert!(refused.contains("not a regular expression"), "{refused}");
    let refused = os.refusal("search_files", json!({"pattern": "x", "path": "/proc"}));
    assert_eq!(refused, "files in `/proc` are not searched");
    os.text("run_shell", json!({"command": format!("rm -r {folder}")}));
}
