//! Completion scripts: those in `completions/` are what the binary prints, and they complete.

use crate::commands::{Ran, terminal};
use crate::fake_companion::{FakeCompanion, respond};
use crate::harness::{Home, TEST_TIMEOUT, shared};
use crate::proxies::{Break, BreakingProxy, by_port};
use crate::trials;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

trials![
    the_scripts_in_the_repository_are_those_that_the_binary_prints,
    verbs_flags_and_instances_are_completed,
    paths_inside_are_completed_while_a_container_runs,
    paths_are_completed_in_the_named_instance_and_session,
    bash_executes_no_name_after_tab,
    runs_tools_and_services_are_completed,
];

const SHELLS: &[&str] = &["bash", "zsh", "fish", "powershell", "elvish"];

/// `OSCTL_TEST_UPDATE=1 cargo test completions` rewrites the scripts.
fn the_scripts_in_the_repository_are_those_that_the_binary_prints() {
    let home = Home::new("completions");
    for shell in SHELLS {
        let printed = home.ok(["completions", shell]).stdout;
        let path = Path::new("completions").join(format!("osctl.{shell}"));
        if std::env::var_os("OSCTL_TEST_UPDATE").is_some() {
            fs::create_dir_all("completions").unwrap();
            fs::write(&path, &printed).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), printed, "{shell}");
    }
}

pub(crate) fn complete(home: &Home, words: &[&str]) -> Vec<String> {
    let mut command = home.command([""; 0]);
    // The word to be completed is the last one; the rest is what bash's script sets.
    command
        .env("COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    let mut args = vec!["--", "osctl"];
    args.extend(words);
    let mut fresh = std::process::Command::new(command.get_program());
    fresh
        .envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .args(args);
    let ran = Ran::from(fresh.output().unwrap());
    ran.stdout.lines().map(str::to_owned).collect()
}

/// Asks until the candidates are the expected ones: a completion leaves out what takes too long.
#[track_caller]
pub(crate) fn assert_completes(home: &Home, words: &[&str], expected: &[&str]) {
    let begin = Instant::now();
    loop {
        let told = complete(home, words);
        if told == expected {
            return;
        }
        assert!(begin.elapsed() < TEST_TIMEOUT, "{told:?}, not {expected:?}");
    }
}

fn verbs_flags_and_instances_are_completed() {
    let home = Home::new("completions-names");
    let record = home.folder.join(".local/state/osctl/blue");
    fs::create_dir_all(&record).unwrap();
    fs::write(record.join("instance.json"), "{}").unwrap();
    let verbs = complete(&home, &["ex"]);
    assert!(verbs.contains(&"exec".to_owned()), "{verbs:?}");
    assert!(!complete(&home, &["comp"]).contains(&"companion".to_owned()));
    // Also where no other verb begins so.
    for hidden in ["keep", "verif", "quie"] {
        assert_eq!(complete(&home, &[hidden]), [""; 0]);
    }
    assert_eq!(complete(&home, &["jupyter", "kern"]), [""; 0]);
    assert_eq!(complete(&home, &["-i", "b"]), ["blue"]);
    assert!(complete(&home, &["up", "--auto"]).contains(&"--auto-ports".to_owned()));
    assert_eq!(complete(&home, &["--instance", "b"]), ["blue"]);
    // An empty word lists options only where nothing else can follow.
    let verbs = complete(&home, &[""]);
    assert!(verbs.contains(&"up".to_owned()), "{verbs:?}");
    assert!(!verbs.iter().any(|each| each.starts_with('-')), "{verbs:?}");
    assert!(complete(&home, &["up", ""]).contains(&"--yes".to_owned()));
}

fn paths_inside_are_completed_while_a_container_runs() {
    let home = shared();
    fs::create_dir_all(home.files().join("completed/folder")).unwrap();
    fs::write(home.files().join("completed/file name"), "").unwrap();
    let mut named = home.clone();
    let instance = home.instance.clone();
    named.env.insert("OSCTL_INSTANCE".into(), instance.clone());
    let of = |home: &Home, word: &str| complete(home, &["cp", word]);
    assert_completes(
        &named,
        &["cp", "os:/root/host/completed/f"],
        &[
            r"os:/root/host/completed/file\ name",
            "os:/root/host/completed/folder/",
        ],
    );
    assert_completes(
        &named,
        &["cp", "os:root/host/compl"],
        &["os:root/host/completed/"],
    );
    assert!(of(&named, "o").contains(&"os:".to_owned()));
    // Words of a command, from where the shell is.
    home.ok(["shell", "cd /root/host"]);
    assert_completes(&named, &["shell", "ls", "compl"], &["completed/"]);
    assert_completes(
        &named,
        &["shell", "ls", "/root/host/completed/fo"],
        &["/root/host/completed/folder/"],
    );
    assert_eq!(of(&named, "os:/missing/"), [""; 0]);
    // A companion that does not answer is not waited for, whatever it takes to notice.
    let middle = BreakingProxy::start(&home.api().address, 0, u64::MAX, Break::Stall);
    let mut silent = by_port(home, "completions-silent", middle.port);
    silent.env.insert("OSCTL_INSTANCE".into(), instance);
    assert_eq!(of(&silent, "os:/root/host/completed/f"), [""; 0]);
}

fn paths_are_completed_in_the_named_instance_and_session() {
    let home = shared();
    let instance = home.instance.as_str();
    fs::create_dir_all(home.files().join("looked/at/deep")).unwrap();
    for (session, folder) in [("line-a", "looked"), ("line-b", "looked/at")] {
        let command = format!("cd /root/host/{folder}");
        home.ok(["shell", "--session", session, &command]);
    }
    let of = |words: &str| complete(home, &words.split(' ').collect::<Vec<_>>());
    let named = |words: &str| of(&format!("--instance {instance} {words}"));
    let says = |words: &str, expected: &[&str]| {
        assert_completes(home, &words.split(' ').collect::<Vec<_>>(), expected);
    };
    let named_says = |words: &str, expected: &[&str]| {
        says(&format!("--instance {instance} {words}"), expected);
    };
    named_says("shell --session line-a ls a", &["at/"]);
    named_says("shell --session=line-b ls d", &["deep/"]);
    let last = format!("shell --instance {instance} --session line-b ls d");
    says(&last, &["deep/"]);
    // Flags of the command inside are no flags of this one.
    named_says("shell --session line-b ls --session line-a d", &["deep/"]);
    assert_eq!(named("shell --session line-none ls d"), [""; 0]);
    named_says("exec --session line-", &["line-a", "line-b"]);
    // Without a name, the instance of the folder.
    says("exec --session line-", &["line-a", "line-b"]);
    // The record says where an instance listens, whatever the configuration of today says.
    let config = home.folder.join("elsewhere.yaml");
    fs::write(&config, "bind: 127.0.0.2\n").unwrap();
    let path = "cp os:/root/host/looked/a";
    named_says(path, &["os:/root/host/looked/at/"]);
    named_says(
        &format!("--config {} {path}", config.display()),
        &["os:/root/host/looked/at/"],
    );
    for session in ["line-a", "line-b"] {
        let path = format!("/sessions/{session}");
        home.api().connect().send("DELETE", &path, &[], b"");
    }
}

fn runs_tools_and_services_are_completed() {
    let home = shared();
    let code = "completed_code = 1";
    home.ok(["exec", code]);
    let listed = home.json(["runs"])["runs"].clone();
    let run = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|run| run["code"] == code);
    let id = run.unwrap()["id"].as_str().unwrap();
    assert_completes(home, &["attach", &id[..8]], &[id]);
    // Shells that show descriptions get the first line of the code.
    let known = home.command([""; 0]);
    let mut command = Command::new(known.get_program());
    command.envs(known.get_envs().filter_map(|(k, v)| Some((k, v?))));
    command.env("COMPLETE", "fish");
    command.args([
        "--",
        "osctl",
        "--instance",
        &home.instance,
        "attach",
        &id[..8],
    ]);
    let begin = Instant::now();
    loop {
        let shown = Ran::from(command.output().unwrap()).stdout;
        if shown.trim_end() == format!("{id}\t{code}") {
            break;
        }
        assert!(begin.elapsed() < TEST_TIMEOUT, "{shown}");
    }
    let named = ["--instance", home.instance.as_str()];
    for (words, expected) in [
        (&["mcp", "call", "os", "run_"][..], "run_shell"),
        (&["logs", "kern"], "kernel"),
        (&["logs", "mcp/o"], "mcp/os"),
    ] {
        assert_completes(home, &[&named[..], words].concat(), &[expected]);
    }
}

/// A shell's word for a command behind a file's name.
const HOSTILE_NAME: &str = "summary;touch${IFS}OWNED;.csv";
const QUOTED_NAME: &str = r"summary\;touch\$\{IFS\}OWNED\;.csv";

fn bash_executes_no_name_after_tab() {
    let companion = FakeCompanion::start(|_, stream| {
        let entry = |name: &str| json!({"name": name, "path": "/x", "kind": "file", "size": 0, "allocated": 0, "mode": "0644", "mtime": "1.0"});
        let entries = [
            entry(HOSTILE_NAME),
            entry("summit\u{1b}[2J"),
            entry("sum\u{202e}vsc"),
        ];
        let listing = json!({"path": "/root/out/", "entries": entries, "more": false});
        respond(stream, "200 OK", &[], listing.to_string().as_bytes());
    });
    let home = companion.home("completions-bash");
    let cp = ["--instance", &home.instance, "cp"];
    fs::write(home.project.join(HOSTILE_NAME), "").unwrap();
    let script = home.folder.join("osctl.bash");
    fs::write(&script, home.ok(["completions", "bash"]).stdout).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_osctl")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"])
        .current_dir(&home.project)
        .envs(
            home.command([""; 0])
                .get_envs()
                .filter_map(|(k, v)| Some((k, v?))),
        )
        .env("PATH", path);
    let mut bash = terminal(&bash).spawn().unwrap();
    let typed = format!(
        "source {}\nosctl {} os:/root/out/su\t .\nosctl {} summ\t os:/root/\nexit\n",
        script.display(),
        cp.join(" "),
        cp.join(" "),
    );
    bash.stdin
        .take()
        .unwrap()
        .write_all(typed.as_bytes())
        .unwrap();
    let shown = Ran::from(bash.wait_with_output().unwrap()).stdout;
    assert!(!home.project.join("OWNED").exists(), "{shown}");
    assert!(shown.contains(&format!("cp {QUOTED_NAME}")), "{shown}");
    let inside = format!("os:/root/out/{QUOTED_NAME}");
    for word in [
        "os:/root/out/sum",
        r"os:/root/out/summary\;tou",
        "'os:/root/out/sum",
    ] {
        assert_completes(&home, &[&cp[..], &[word]].concat(), &[&inside]);
    }
}
