//! Connecting MCP clients: what is written into each one's configuration, and taken out again.
//!
//! `tests/clients/CLIENT/` holds what a person had (`before`) and what it is then (`after`); `new` is
//! what becomes of nothing, `narrowed` the same where less is asked for. `OSCTL_TEST_UPDATE=1` writes all but the
//! first anew.

use crate::commands::Ran;
use crate::harness::{Home, servers};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

trials![
    each_client_is_connected_as_its_makers_document_it,
    a_client_is_offered_no_more_than_is_asked_for,
    what_is_disconnected_is_what_it_was_to_the_byte,
    what_somebody_wrote_meanwhile_stays,
    nothing_is_written_before_a_yes,
    what_can_not_be_read_is_not_touched,
    links_and_rights_stay,
    a_link_may_lead_to_another_file_system_or_to_nothing_yet,
    a_copy_goes_with_the_entry_and_never_without_the_file,
    a_client_is_not_connected_to_what_does_not_answer,
];

/// Those that need a running instance.
pub(crate) mod running {
    use super::{Person, servers};
    use crate::trials;
    use serde_json::Value;
    use std::fs;

    trials![what_a_client_will_start_is_asked_for_its_tools_first];

    fn what_a_client_will_start_is_asked_for_its_tools_first() {
        let person = Person::of(servers().clone());
        let ran = person.ok(&["--json", "mcp", "connect", "codex", "--yes"]);
        let told: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(told["changed"], true, "{told}");
        assert!(told["tool_count"].as_u64() > Some(30), "{told}");
        // No token is in what was written.
        let text = fs::read_to_string(told["file"].as_str().unwrap()).unwrap();
        assert!(!text.contains(&person.0.hub().token), "{text}");
        let again = person.ok(&["mcp", "connect", "codex", "--yes"]);
        assert!(again.stderr.contains("it serves"), "{again:?}");
        // As many as are asked for.
        let narrow = ["--servers=echo,os", "--tools=echo__e*,os__run_shell"];
        let words = [&["--json", "mcp", "connect", "codex", "--yes"][..], &narrow];
        let ran = person.ok(&words.concat());
        let told: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(
            (&told["changed"], &told["tool_count"]),
            (&true.into(), &2.into())
        );
        person.disconnect("codex");
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

/// Variables that lead clients elsewhere.
const ELSEWHERE: [&str; 6] = [
    "APPDATA",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "CONTINUE_GLOBAL_DIR",
    "GEMINI_CLI_HOME",
    "GOOSE_PATH_ROOT",
];

/// A person with an empty home folder.
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
        for variable in ELSEWHERE {
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

    fn file(&self, path: &str) -> PathBuf {
        self.0.folder.join(path.replace("NAME", &self.0.instance))
    }

    /// Puts a text there, and the folders to it.
    fn write(&self, path: &str, text: &str) -> PathBuf {
        let file = self.file(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file
    }

    /// What a file says, without what is this machine's and this test's.
    fn said(&self, path: &str) -> String {
        let text = fs::read_to_string(self.file(path)).unwrap();
        let home = self.0.folder.display().to_string();
        let text = text.replace(env!("CARGO_BIN_EXE_osctl"), "/usr/local/bin/osctl");
        text.replace(&home, "/home/me")
            .replace(&self.0.instance, "NAME")
    }
}

/// What a client's file is to be.
fn golden(client: &str, kind: &str) -> PathBuf {
    let folder = Path::new("tests/clients").join(client);
    let (_, path) = CLIENTS.iter().find(|(name, _)| *name == client).unwrap();
    let end = path.rsplit('.').next().unwrap();
    folder.join(format!("{kind}.{end}"))
}

#[track_caller]
fn is_as_agreed(client: &str, kind: &str, said: &str) {
    let golden = golden(client, kind);
    if std::env::var_os("OSCTL_TEST_UPDATE").is_some() {
        fs::write(&golden, said).unwrap();
    }
    let agreed = fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(said, agreed, "`{}`", golden.display());
}

fn each_client_is_connected_as_its_makers_document_it() {
    for (client, path) in CLIENTS {
        let person = Person::new();
        person.connect(client);
        is_as_agreed(client, "new", &person.said(path));
        // A second time, nothing is to do.
        let again = person.connect(client);
        assert!(again.stderr.contains("connected already"), "{again:?}");
        is_as_agreed(client, "new", &person.said(path));
        person.disconnect(client);
        assert!(!person.file(path).exists(), "{client}");
        let again = person.disconnect(client);
        assert!(again.stderr.contains("is not connected"), "{again:?}");
    }
}

fn a_client_is_offered_no_more_than_is_asked_for() {
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
        is_as_agreed(client, "narrowed", &person.said(path));
        let again = person.ok(&narrow);
        assert!(again.stderr.contains("connected already"), "{again:?}");
        // What is asked for the next time is what is offered then.
        person.connect(client);
        is_as_agreed(client, "new", &person.said(path));
        person.ok(&narrow);
        person.disconnect(client);
        assert!(!person.file(path).exists(), "{client}");
    }
}

fn what_is_disconnected_is_what_it_was_to_the_byte() {
    for (client, path) in CLIENTS {
        let Ok(before) = fs::read_to_string(golden(client, "before")) else {
            assert_eq!(client, "continue", "it has a file of its own");
            continue;
        };
        let person = Person::new();
        let file = person.write(path, &before);
        person.connect(client);
        is_as_agreed(client, "after", &person.said(path));
        let backup = format!("{path}.before-osctl-NAME");
        assert_eq!(fs::read_to_string(person.file(&backup)).unwrap(), before);
        person.disconnect(client);
        assert_eq!(fs::read_to_string(&file).unwrap(), before, "{client}");
        assert!(!person.file(&backup).exists(), "{client}");
    }
}

fn what_somebody_wrote_meanwhile_stays() {
    let mine = "# mine, too\n";
    for (client, path) in CLIENTS {
        let person = Person::new();
        let Ok(before) = fs::read_to_string(golden(client, "before")) else {
            // A file of its own that holds something else is nobody's to remove.
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
        // What osctl is to start has changed, too.
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
            // Where all was one line, it may be several now.
            1 => assert_eq!(said(&left), said(&expected), "{client}"),
            _ => assert_eq!(left, expected, "{client}"),
        }
    }
}

/// Without blanks.
fn said(text: &str) -> String {
    text.split_whitespace().collect()
}

fn nothing_is_written_before_a_yes() {
    let person = Person::new();
    let before = "{\n  \"mcpServers\": {\n    \"a\": {\"env\": {\"KEY\": \"geheim\"}}\n  }\n}\n";
    let file = person.write(".cursor/mcp.json", before);
    let dry = person.ok(&["mcp", "connect", "cursor", "--dry-run"]);
    assert!(dry.stdout.contains("+     \"osctl-"), "{dry:?}");
    // What stands around it is nobody's business.
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

fn what_can_not_be_read_is_not_touched() {
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
    // No text at all.
    let file = person.file(CLIENTS[4].1);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, b"{\"a\": \"\xff\"}").unwrap();
    let ran = person.osctl(&["mcp", "connect", "windsurf", "--yes", "--no-verify"]);
    assert_eq!(ran.code, 4, "{ran:?}");
}

fn links_and_rights_stay() {
    let person = Person::new();
    let kept = person.write("dotfiles/mcp.json", "{}\n");
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o640)).unwrap();
    let file = person.file(".cursor/mcp.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    symlink(&kept, &file).unwrap();
    person.connect("cursor");
    assert!(file.is_symlink());
    let text = fs::read_to_string(&kept).unwrap();
    assert!(text.contains("\"mcp\", \"stdio\""), "{text}");
    assert_eq!(fs::metadata(&kept).unwrap().mode() & 0o777, 0o640);
    person.disconnect("cursor");
    assert!(file.is_symlink());
    assert_eq!(fs::read_to_string(&kept).unwrap(), "{}\n");
}

fn a_link_may_lead_to_another_file_system_or_to_nothing_yet() {
    let person = Person::new();
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let kept = elsewhere.path().join("mcp.json");
    let file = person.file(".cursor/mcp.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(elsewhere.path()), device(file.parent().unwrap()));
    symlink(&kept, &file).unwrap();
    // First to nothing, which connecting makes and disconnecting takes away.
    person.connect("cursor");
    assert!(file.is_symlink() && kept.is_file());
    person.disconnect("cursor");
    assert!(file.is_symlink() && !kept.exists());
    fs::write(&kept, "{}\n").unwrap();
    person.connect("cursor");
    let backup = format!(".cursor/mcp.json.before-osctl-{}", person.0.instance);
    assert_eq!(fs::read_to_string(person.file(&backup)).unwrap(), "{}\n");
    assert!(fs::read_to_string(&kept).unwrap().contains("stdio"));
    person.disconnect("cursor");
    assert_eq!(fs::read_to_string(&kept).unwrap(), "{}\n");
    assert!(file.is_symlink() && !person.file(&backup).exists());
    // What is not mounted is not made.
    drop(elsewhere);
    let ran = person.osctl(&["mcp", "connect", "cursor", "--yes", "--no-verify"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("whose folder is not there"), "{ran:?}");
    assert!(file.is_symlink() && !kept.exists());
}

fn a_copy_goes_with_the_entry_and_never_without_the_file() {
    let person = Person::new();
    let before = "{\n  \"mcpServers\": {}\n}\n";
    let file = person.write(".cursor/mcp.json", before);
    let backup = format!(".cursor/mcp.json.before-osctl-{}", person.0.instance);
    let backup = person.file(&backup);
    // Somebody has added something meanwhile, or has taken the entry out by hand.
    person.connect("cursor");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("// mine\n{text}")).unwrap();
    person.disconnect("cursor");
    assert!(!backup.exists());
    person.connect("cursor");
    fs::write(&file, before).unwrap();
    let ran = person.disconnect("cursor");
    assert!(
        ran.stdout.contains("goes") || ran.stderr.contains("goes"),
        "{ran:?}"
    );
    assert!(!backup.exists());
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    // Whoever has lost the file still has the copy.
    person.connect("cursor");
    fs::remove_file(&file).unwrap();
    person.disconnect("cursor");
    assert_eq!(fs::read_to_string(&backup).unwrap(), before);
    fs::remove_file(&backup).unwrap();
    // An entry of before is nobody's text to go back to.
    person.connect("cursor");
    let text = fs::read_to_string(&file).unwrap();
    let moved = text.replace(env!("CARGO_BIN_EXE_osctl"), "/old/place/osctl");
    fs::write(&file, moved).unwrap();
    person.connect("cursor");
    person.disconnect("cursor");
    assert!(!file.exists() && !backup.exists());
}

fn a_client_is_not_connected_to_what_does_not_answer() {
    let person = Person::new();
    let ran = person.osctl(&["mcp", "connect", "codex", "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("does not serve"), "{ran:?}");
    assert!(ran.stderr.contains("--no-verify"), "{ran:?}");
    assert!(!person.file(".codex/config.toml").exists());
}
