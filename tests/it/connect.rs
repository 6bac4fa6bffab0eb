//! Trials of `osctl mcp connect` and `disconnect`: the entries in each client's configuration.
//!
//! `tests/clients/CLIENT/` holds a user's file (`before`), the file after `connect` (`after`), a file that `connect`
//! creates (`new`), and one with selected servers and tools (`narrowed`). `OSCTL_TEST_UPDATE=1` rewrites all files
//! except `before`.

use crate::commands::Ran;
use crate::harness::{Home, servers};
use crate::terminal::Terminal;
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

trials![
    each_client_gets_the_documented_configuration,
    a_client_gets_only_the_selected_servers_and_tools,
    disconnect_restores_the_file_byte_for_byte,
    edits_between_connect_and_disconnect_stay,
    nothing_is_written_without_confirmation,
    malformed_files_are_not_changed,
    links_and_permissions_stay,
    a_link_may_point_to_another_file_system_or_a_missing_file,
    the_backup_is_removed_with_the_entry_but_not_without_the_file,
    no_client_is_connected_to_a_server_that_does_not_answer,
    without_a_name_the_installed_clients_are_listed,
    without_a_name_the_only_installed_client_is_connected,
    the_question_has_all_installed_clients_selected,
    the_scope_of_a_project_changes_its_file_only,
];

/// Trials that need a running instance.
pub(crate) mod running {
    use super::{Person, servers};
    use crate::trials;
    use serde_json::Value;
    use std::fs;

    trials![connect_first_requests_the_tools_from_the_configured_command];

    fn connect_first_requests_the_tools_from_the_configured_command() {
        let person = Person::of(servers().clone());
        let ran = person.ok(&["--json", "mcp", "connect", "codex", "--yes"]);
        let reply: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(reply["changed"], true, "{reply}");
        assert!(reply["tool_count"].as_u64() > Some(20), "{reply}");
        // The configuration contains no token.
        let text = fs::read_to_string(reply["file"].as_str().unwrap()).unwrap();
        assert!(!text.contains(&person.0.hub().token), "{text}");
        let again = person.ok(&["mcp", "connect", "codex", "--yes"]);
        assert!(again.stderr.contains("the connection works"), "{again:?}");
        // The selection limits the number of tools.
        let narrow = ["--servers=echo,os", "--tools=echo__e*,os__run_shell"];
        let words = [&["--json", "mcp", "connect", "codex", "--yes"][..], &narrow];
        let ran = person.ok(&words.concat());
        let reply: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(
            (&reply["changed"], &reply["tool_count"]),
            (&true.into(), &2.into())
        );
        person.disconnect("codex");
        assert!(!person.file(".codex/config.toml").exists());
        // A selection without tools is a mistake.
        let words = ["mcp", "connect", "codex", "--yes", "--servers=nope"];
        let ran = person.osctl(&words);
        assert!(
            ran.code != 0 && ran.stderr.contains("the client would get no tools"),
            "{ran:?}"
        );
        assert!(!person.file(".codex/config.toml").exists());
    }
}

/// Each client's file in the home folder.
const CLIENTS: [(&str, &str); 11] = [
    (
        "claude-desktop",
        ".config/Claude/claude_desktop_config.json",
    ),
    ("claude-code", ".claude.json"),
    ("cursor", ".cursor/mcp.json"),
    ("vscode", ".config/Code/User/mcp.json"),
    ("windsurf", ".codeium/windsurf/mcp_config.json"),
    ("zed", ".config/zed/settings.json"),
    ("codex", ".codex/config.toml"),
    ("gemini", ".gemini/settings.json"),
    ("opencode", ".config/opencode/opencode.json"),
    ("goose", ".config/goose/config.yaml"),
    ("continue", ".continue/mcpServers/osctl-NAME.yaml"),
];

/// Variables that move the configuration of clients.
const RELOCATING_VARIABLES: [&str; 6] = [
    "APPDATA",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "CONTINUE_GLOBAL_DIR",
    "GEMINI_CLI_HOME",
    "GOOSE_PATH_ROOT",
];

/// A user with an empty home folder.
struct Person(Home);

impl Person {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::of(Home::new(&format!("it-connect-{number}")))
    }

    fn of(mut home: Home) -> Self {
        let config = home.folder.join(".config").display().to_string();
        home.env.insert("XDG_CONFIG_HOME".into(), config);
        Self(home)
    }

    fn osctl(&self, words: &[&str]) -> Ran {
        let mut command = self.0.command(words);
        for variable in RELOCATING_VARIABLES {
            command.env_remove(variable);
        }
        Ran::from(command.output().unwrap())
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> Ran {
        let ran = self.osctl(words);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    }

    #[track_caller]
    fn connect(&self, client: &str) -> Ran {
        self.ok(&["mcp", "connect", client, "--yes", "--no-verify"])
    }

    #[track_caller]
    fn disconnect(&self, client: &str) -> Ran {
        self.ok(&["mcp", "disconnect", client, "--yes"])
    }

    #[track_caller]
    fn assert_not_connected(&self, client: &str) {
        let ran = self.osctl(&["mcp", "disconnect", client, "--yes"]);
        let is_refused = ran.code == 2 && ran.stderr.contains("is not connected");
        assert!(is_refused, "{ran:?}");
    }

    fn file(&self, path: &str) -> PathBuf {
        self.0.folder.join(path.replace("NAME", &self.0.instance))
    }

    /// Writes a file and creates its folders.
    fn write(&self, path: &str, text: &str) -> PathBuf {
        let file = self.file(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file
    }

    /// The text of a file, with neutral paths and instance name.
    fn contents(&self, path: &str) -> String {
        let text = fs::read_to_string(self.file(path)).unwrap();
        let home = self.0.folder.display().to_string();
        let text = text.replace(env!("CARGO_BIN_EXE_osctl"), "/usr/local/bin/osctl");
        text.replace(&home, "/home/me")
            .replace(&self.0.instance, "NAME")
    }
}

/// The expected file of a client.
fn golden(client: &str, kind: &str) -> PathBuf {
    let folder = Path::new("tests/clients").join(client);
    let (_, path) = CLIENTS.iter().find(|(name, _)| *name == client).unwrap();
    let end = path.rsplit('.').next().unwrap();
    folder.join(format!("{kind}.{end}"))
}

#[track_caller]
fn assert_golden(client: &str, kind: &str, text: &str) {
    let golden = golden(client, kind);
    if std::env::var_os("OSCTL_TEST_UPDATE").is_some() {
        fs::write(&golden, text).unwrap();
    }
    let agreed = fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(text, agreed, "`{}`", golden.display());
}

fn each_client_gets_the_documented_configuration() {
    for (client, path) in CLIENTS {
        let person = Person::new();
        person.connect(client);
        assert_golden(client, "new", &person.contents(path));
        // A second call changes nothing.
        let again = person.connect(client);
        assert!(again.stderr.contains("already connected"), "{again:?}");
        assert_golden(client, "new", &person.contents(path));
        person.disconnect(client);
        assert!(!person.file(path).exists(), "{client}");
        person.assert_not_connected(client);
    }
}

fn a_client_gets_only_the_selected_servers_and_tools() {
    for (client, path) in CLIENTS {
        let person = Person::new();
        let narrow = [
            "mcp",
            "connect",
            client,
            "--yes",
            "--no-verify",
            "--servers",
            "filesystem,linux",
            "--tools=filesystem__read_*",
            "--tools=linux__*",
        ];
        person.ok(&narrow);
        assert_golden(client, "narrowed", &person.contents(path));
        let again = person.ok(&narrow);
        assert!(again.stderr.contains("already connected"), "{again:?}");
        // The next call replaces the selection.
        person.connect(client);
        assert_golden(client, "new", &person.contents(path));
        person.ok(&narrow);
        person.disconnect(client);
        assert!(!person.file(path).exists(), "{client}");
    }
}

fn disconnect_restores_the_file_byte_for_byte() {
    for (client, path) in CLIENTS {
        let Ok(before) = fs::read_to_string(golden(client, "before")) else {
            assert_eq!(client, "continue", "only `continue` has its own file");
            continue;
        };
        let person = Person::new();
        let file = person.write(path, &before);
        person.connect(client);
        assert_golden(client, "after", &person.contents(path));
        let backup = format!("{path}.before-osctl-NAME");
        assert_eq!(fs::read_to_string(person.file(&backup)).unwrap(), before);
        person.disconnect(client);
        assert_eq!(fs::read_to_string(&file).unwrap(), before, "{client}");
        assert!(!person.file(&backup).exists(), "{client}");
    }
}

fn edits_between_connect_and_disconnect_stay() {
    let mine = "# mine, too\n";
    for (client, path) in CLIENTS {
        let person = Person::new();
        let Ok(before) = fs::read_to_string(golden(client, "before")) else {
            // `disconnect` does not remove osctl's own file after a user has added to it.
            person.connect(client);
            let more = "  - name: mine\n    command: x\n";
            let text = fs::read_to_string(person.file(path)).unwrap() + more;
            let file = person.write(path, &text);
            let ran = person.osctl(&["mcp", "disconnect", client, "--yes"]);
            assert_eq!(ran.code, 4, "{ran:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            continue;
        };
        let file = person.write(path, &before);
        person.connect(client);
        let remark = match path.ends_with("json") {
            true => "// mine, too\n",
            false => mine,
        };
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{remark}{text}")).unwrap();
        // The path of the osctl binary has changed, too.
        let moved = fs::read_to_string(&file).unwrap();
        let moved = moved.replace(env!("CARGO_BIN_EXE_osctl"), "/old/place/osctl");
        fs::write(&file, &moved).unwrap();
        person.connect(client);
        let renewed = format!("{remark}{text}");
        assert_eq!(fs::read_to_string(&file).unwrap(), renewed, "{client}");
        person.disconnect(client);
        let left = fs::read_to_string(&file).unwrap();
        let expected = format!("{remark}{before}");
        match before.lines().count() {
            // A file of one line may have several lines now.
            1 => assert_eq!(without_blanks(&left), without_blanks(&expected), "{client}"),
            _ => assert_eq!(left, expected, "{client}"),
        }
    }
}

/// The text without blanks.
fn without_blanks(text: &str) -> String {
    text.split_whitespace().collect()
}

fn nothing_is_written_without_confirmation() {
    let person = Person::new();
    let before = "{\n  \"mcpServers\": {\n    \"a\": {\"env\": {\"KEY\": \"geheim\"}}\n  }\n}\n";
    let file = person.write(".cursor/mcp.json", before);
    let dry = person.ok(&["mcp", "connect", "cursor", "--dry-run"]);
    assert!(dry.stdout.contains("+     \"osctl-"), "{dry:?}");
    // The preview does not show other entries.
    assert!(!dry.stdout.contains("geheim"), "{dry:?}");
    person.ok(&["mcp", "connect", "cursor", "--dry-run", "--no-verify"]);
    let shown = person.osctl(&["--json", "mcp", "connect", "cursor", "--dry-run"]);
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["changed"], false);
    assert_eq!(shown["file"], json!(file));
    let asked = person.osctl(&["mcp", "connect", "cursor", "--no-verify"]);
    assert_eq!(asked.code, 4, "{asked:?}");
    assert!(asked.stderr.contains("--yes"), "{asked:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    let folder = fs::read_dir(file.parent().unwrap()).unwrap();
    assert_eq!(folder.count(), 1);
    let unknown = person.osctl(&["mcp", "connect", "emacs"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.stderr.contains("claude-desktop"), "{unknown:?}");
}

fn malformed_files_are_not_changed() {
    let person = Person::new();
    for (client, path, text) in [
        ("claude-desktop", CLIENTS[0].1, "{\"mcpServers\": "),
        ("claude-code", CLIENTS[1].1, "[]"),
        ("cursor", CLIENTS[2].1, "{\"mcpServers\": \"none\"}"),
        ("zed", CLIENTS[5].1, "{unquoted: 1}"),
        ("codex", CLIENTS[6].1, "mcp_servers = "),
        (
            "goose",
            CLIENTS[9].1,
            "extensions: {developer: {enabled: true}}\n",
        ),
        ("goose", CLIENTS[9].1, "a: [1\n"),
        (
            "vscode",
            CLIENTS[3].1,
            "{\"servers\": {\"osctl-NAME\": {\"command\": \"theirs\"}}}",
        ),
    ] {
        let text = text.replace("NAME", &person.0.instance);
        let file = person.write(path, &text);
        let ran = person.osctl(&["mcp", "connect", client, "--yes", "--no-verify"]);
        assert_eq!(ran.code, 4, "{client}: {ran:?}");
        assert!(ran.stderr.contains(path), "{client}: {ran:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "{client}");
        let backup = format!("{path}.before-osctl-NAME");
        assert!(!person.file(&backup).exists(), "{client}");
    }
    // The file is not text.
    let file = person.file(CLIENTS[4].1);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, b"{\"a\": \"\xff\"}").unwrap();
    let ran = person.osctl(&["mcp", "connect", "windsurf", "--yes", "--no-verify"]);
    assert_eq!(ran.code, 4, "{ran:?}");
}

fn links_and_permissions_stay() {
    let person = Person::new();
    let target = person.write("dotfiles/mcp.json", "{}\n");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    let file = person.file(".cursor/mcp.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    symlink(&target, &file).unwrap();
    person.connect("cursor");
    assert!(file.is_symlink());
    let text = fs::read_to_string(&target).unwrap();
    assert!(text.contains("\"mcp\", \"stdio\""), "{text}");
    assert_eq!(fs::metadata(&target).unwrap().mode() & 0o777, 0o640);
    person.disconnect("cursor");
    assert!(file.is_symlink());
    assert_eq!(fs::read_to_string(&target).unwrap(), "{}\n");
}

fn a_link_may_point_to_another_file_system_or_a_missing_file() {
    let person = Person::new();
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let target = elsewhere.path().join("mcp.json");
    let file = person.file(".cursor/mcp.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(elsewhere.path()), device(file.parent().unwrap()));
    symlink(&target, &file).unwrap();
    // First to a missing file: `connect` creates the target and `disconnect` removes it.
    person.connect("cursor");
    assert!(file.is_symlink() && target.is_file());
    person.disconnect("cursor");
    assert!(file.is_symlink() && !target.exists());
    fs::write(&target, "{}\n").unwrap();
    person.connect("cursor");
    let backup = format!(".cursor/mcp.json.before-osctl-{}", person.0.instance);
    assert_eq!(fs::read_to_string(person.file(&backup)).unwrap(), "{}\n");
    assert!(fs::read_to_string(&target).unwrap().contains("stdio"));
    person.disconnect("cursor");
    assert_eq!(fs::read_to_string(&target).unwrap(), "{}\n");
    assert!(file.is_symlink() && !person.file(&backup).exists());
    // A missing folder, such as an unmounted one, is not created.
    drop(elsewhere);
    let ran = person.osctl(&["mcp", "connect", "cursor", "--yes", "--no-verify"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr.contains("whose folder does not exist"),
        "{ran:?}"
    );
    assert!(file.is_symlink() && !target.exists());
}

fn the_backup_is_removed_with_the_entry_but_not_without_the_file() {
    let person = Person::new();
    let before = "{\n  \"mcpServers\": {}\n}\n";
    let file = person.write(".cursor/mcp.json", before);
    let backup = format!(".cursor/mcp.json.before-osctl-{}", person.0.instance);
    let backup = person.file(&backup);
    // A user has added text after `connect`, or has removed the entry by hand.
    person.connect("cursor");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("// mine\n{text}")).unwrap();
    person.disconnect("cursor");
    assert!(!backup.exists());
    person.connect("cursor");
    fs::write(&file, before).unwrap();
    let ran = person.disconnect("cursor");
    assert!(ran.stderr.contains("removing the backup"), "{ran:?}");
    assert!(!backup.exists());
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    // A user who has lost the file still has the backup.
    person.connect("cursor");
    fs::remove_file(&file).unwrap();
    person.assert_not_connected("cursor");
    assert_eq!(fs::read_to_string(&backup).unwrap(), before);
    fs::remove_file(&backup).unwrap();
    // A file with an old entry of osctl is not a backup to restore.
    person.connect("cursor");
    let text = fs::read_to_string(&file).unwrap();
    let moved = text.replace(env!("CARGO_BIN_EXE_osctl"), "/old/place/osctl");
    fs::write(&file, moved).unwrap();
    person.connect("cursor");
    person.disconnect("cursor");
    assert!(!file.exists() && !backup.exists());
}

fn no_client_is_connected_to_a_server_that_does_not_answer() {
    let person = Person::new();
    let ran = person.osctl(&["mcp", "connect", "codex", "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("did not start"), "{ran:?}");
    assert!(ran.stderr.contains("--no-verify"), "{ran:?}");
    assert!(!person.file(".codex/config.toml").exists());
}

fn without_a_name_the_installed_clients_are_listed() {
    let person = Person::new();
    let none = person.osctl(&["mcp", "connect"]);
    assert_eq!(none.code, 2, "{none:?}");
    assert!(
        none.stderr.contains("no known MCP client is installed"),
        "{none:?}"
    );
    person.write(".cursor/other.json", "{}");
    person.write(".claude.json", "{}");
    let ran = person.osctl(&["mcp", "connect"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.stderr.contains("installed: `claude-code`, `cursor`"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("mcp connect claude-code`"), "{ran:?}");
    let both = person.osctl(&["mcp", "connect", "--yes", "--no-verify"]);
    assert_eq!(both.code, 2, "{both:?}");
}

fn without_a_name_the_only_installed_client_is_connected() {
    let person = Person::new();
    person.write(".cursor/other.json", "{}");
    let ran = person.osctl(&["mcp", "connect", "--no-verify"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let ran = person.ok(&["--json", "mcp", "connect", "--yes", "--no-verify"]);
    let reply: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (&reply["client"], &reply["changed"]),
        (&"cursor".into(), &true.into())
    );
    person.disconnect("cursor");
    assert!(!person.file(".cursor/mcp.json").exists());
    assert!(person.file(".cursor/other.json").exists());
    // A folder that `connect` has made does not count as a client later.
    person.connect("windsurf");
    person.disconnect("windsurf");
    assert!(!person.file(".codeium").exists());
}

fn the_question_has_all_installed_clients_selected() {
    let person = Person::new();
    person.write(".cursor/other.json", "{}");
    person.write(".claude.json", "{}");
    let words = ["mcp", "connect", "--no-verify"];
    let mut command = person.0.command(words);
    for variable in RELOCATING_VARIABLES {
        command.env_remove(variable);
    }
    let mut terminal = Terminal::start(command);
    terminal.wait_for("Which clients?");
    terminal.types("\r");
    for title in ["Claude Code", "Cursor"] {
        terminal.wait_for(&format!("Change the configuration of {title}?"));
        terminal.types("y");
    }
    assert_eq!(terminal.end().0, 0);
    for path in [".claude.json", ".cursor/mcp.json"] {
        let text = fs::read_to_string(person.file(path)).unwrap();
        assert!(text.contains("\"mcp\", \"stdio\""), "{path}: {text}");
    }
}

fn the_scope_of_a_project_changes_its_file_only() {
    let person = Person::new();
    let file = person.0.project.join(".mcp.json");
    let name = format!("osctl-{}", person.0.instance);
    let scope = ["--scope", "project", "--yes"];
    let connect = [&["mcp", "connect", "--no-verify"][..], &scope].concat();
    person.ok(&connect);
    let settings: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let entry = &settings["mcpServers"][&name];
    // Others who work on the project have the program elsewhere.
    assert_eq!(entry["command"], "osctl", "{settings}");
    let arguments = json!(["--instance", person.0.instance, "mcp", "stdio"]);
    assert_eq!(entry["args"], arguments, "{settings}");
    assert!(!person.file(".claude.json").exists());
    let cursor = [&["mcp", "connect", "cursor", "--no-verify"][..], &scope].concat();
    let refused = person.osctl(&cursor);
    assert!(
        refused.code == 2 && refused.stderr.contains("does not read `.mcp.json`"),
        "{refused:?}"
    );
    let disconnect = [&["mcp", "disconnect", "claude-code"][..], &scope].concat();
    person.ok(&disconnect);
    assert!(!file.exists() && person.0.project.is_dir());
}
