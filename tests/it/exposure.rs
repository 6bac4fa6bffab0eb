//! Trials of files that the agent leaves in folders of the host, and of other users' access to them.

use crate::cp::folders;
use crate::evolve::{base, small, write_small};
use crate::harness::{Home, TEST_TIMEOUT, shared};
use crate::trials;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

trials![
    other_users_run_no_setuid_file_that_the_container_writes,
    other_users_read_no_output_and_no_file_of_the_container,
    other_users_can_not_lock_an_instance,
    up_closes_folders_that_were_open_and_doctor_names_what_was_planted,
    a_pipe_in_the_body_does_not_hold_init,
    names_and_logs_of_the_agent_send_no_terminal_controls,
    no_project_is_in_a_folder_that_another_agent_writes,
];

/// A user without any relation to the instance.
const OTHER: u32 = 65534;

fn as_other(program: impl AsRef<Path>, args: &[&str]) -> bool {
    let mut command = Command::new(program.as_ref());
    let ran = command.args(args).uid(OTHER).gid(OTHER).output();
    ran.is_ok_and(|ran| ran.status.success())
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// The `detail` of each finding of `osctl doctor` of one kind.
pub(crate) fn found(home: &Home, what: &str) -> Vec<String> {
    let all = home.json(["doctor"]);
    let of = all["findings"].as_array().unwrap().iter();
    let of = of.filter(|f| f["name"] == what);
    of.map(|f| f["detail"].as_str().unwrap().to_owned())
        .collect()
}

/// Asserts that other users can enter the folders above the instance's own folders.
#[track_caller]
fn assert_others_enter(home: &Home) {
    let open = home.project.join("open");
    fs::write(&open, "x").unwrap();
    assert!(as_other("cat", &[open.to_str().unwrap()]));
}

fn other_users_run_no_setuid_file_that_the_container_writes() {
    let home = shared();
    assert_others_enter(home);
    let token = home.state().join("token");
    let token = token.to_str().unwrap();
    for folder in [home.data(), home.files()] {
        // A program of the host; the agent could write its own.
        fs::copy("/bin/cat", folder.join("planted")).unwrap();
    }
    let plant = "import os\nfor place in ('/data', '/root/host'):\n    \
                 os.chown(place + '/planted', 0, 0); os.chmod(place + '/planted', 0o4755)";
    let reply = home.api().exec(plant);
    assert_eq!(reply["status"], "completed", "{reply}");
    for folder in [home.data(), home.files()] {
        let planted = folder.join("planted");
        assert_eq!(mode(&planted), 0o4755);
        assert!(!as_other(&planted, &[token]), "{}", planted.display());
    }
    let named = found(home, "setuid").join("\n");
    for folder in [home.data(), home.files()] {
        let planted = folder.join("planted");
        assert!(named.contains(planted.to_str().unwrap()), "{named}");
        fs::remove_file(planted).unwrap();
    }
    // Other trials leave such files in the shared instance.
    let named = found(home, "setuid").join("\n");
    for folder in [home.data(), home.files()] {
        let planted = format!("`{}`", folder.join("planted").display());
        assert!(!named.contains(&planted), "{named}");
    }
}

fn other_users_read_no_output_and_no_file_of_the_container() {
    let home = shared();
    assert_others_enter(home);
    home.ok(["exec", "print('OUTPUT-' + 'SECRET')"]);
    let plant = "import os\nfor place in ('/data', '/root/host'):\n    \
                 open(place + '/secret', 'w').write('OUTPUT-' + 'SECRET'); os.chmod(place + '/secret', 0o644)";
    let reply = home.api().exec(plant);
    assert_eq!(reply["status"], "completed", "{reply}");
    for folder in [home.data(), home.files(), home.state()] {
        let path = folder.to_str().unwrap();
        assert!(
            !as_other("grep", &["-rqs", "OUTPUT-SECRET", path]),
            "{path}"
        );
        assert!(!as_other("ls", &[path]), "{path}");
        assert_eq!(mode(&folder), 0o700, "{path}");
    }
}

fn other_users_can_not_lock_an_instance() {
    let home = shared();
    assert_others_enter(home);
    let lock = home.state().join("lock");
    assert!(!as_other("flock", &["-n", lock.to_str().unwrap(), "true"]));
    assert_eq!(mode(&lock), 0o600);
}

fn up_closes_folders_that_were_open_and_doctor_names_what_was_planted() {
    let home = shared();
    // The agent can open its folder again; the next `up` closes it.
    let reply = home.api().exec("import os; os.chmod('/data', 0o755)");
    assert_eq!(reply["status"], "completed", "{reply}");
    let named = found(home, "folders");
    assert!(
        named
            .iter()
            .any(|text| text.contains(home.data().to_str().unwrap())),
        "{named:?}"
    );
    home.ok(["up", "--yes"]);
    assert_eq!(mode(&home.data()), 0o700);
    assert_eq!(found(home, "folders"), [""; 0]);
    // Files that a user's git, shell and editor run.
    let plant = "import os, subprocess\nos.chdir('/repo')\nsubprocess.run(['git', 'init', '-q', 'planted'], check=True)\n\
                 os.chdir('planted')\nopen('.git/hooks/post-checkout', 'w').write('#!/bin/sh\\nevil\\n')\n\
                 subprocess.run(['git', 'config', 'core.fsmonitor', '/repo/evil'], check=True)\n\
                 open('.envrc', 'w').write('evil')\nos.mkdir('.vscode')\nopen('.vscode/tasks.json', 'w').write('{}')\n\
                 os.chdir('/root')";
    let reply = home.api().exec(plant);
    assert_eq!(reply["status"], "completed", "{reply}");
    let named = found(home, "autorun").join("\n");
    let places = [
        "`planted/.git/hooks/post-checkout` appeared",
        "`planted/.git/config`: core.fsmonitor appeared",
        "`planted/.envrc` appeared",
        "`planted/.vscode/tasks.json` appeared",
    ];
    for place in places {
        assert!(named.contains(place), "{place}: {named}");
    }
    // `up` also names the files; later calls do not repeat them.
    let up = home.ok(["up", "--yes"]);
    for place in places {
        assert!(up.stderr.contains(place), "{place}: {up:?}");
    }
    let named = found(home, "autorun").join("\n");
    assert!(!named.contains("appeared"), "{named}");
    fs::remove_dir_all(home.project.join("planted")).unwrap();
}

fn a_pipe_in_the_body_does_not_hold_init() {
    let (home, here, _) = folders("exposure-pipe");
    home.ok(["init", "--full", "exposure-pipe"]);
    for name in [".osctl-origin.json", "Dockerfile"] {
        let pipe = here.join("body").join(name);
        let content = fs::read(&pipe).unwrap();
        fs::remove_file(&pipe).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut bounded = home.clone();
        let limit = TEST_TIMEOUT.as_secs().to_string();
        bounded.wrapper = vec!["timeout".into(), "--signal=KILL".into(), limit];
        let ran = bounded.run(["init", "--update", "exposure-pipe"]);
        // A command that waits for a writer is killed and has another exit code.
        assert!((2..=5).contains(&ran.code), "{name}: {ran:?}");
        fs::remove_file(&pipe).unwrap();
        fs::write(&pipe, content).unwrap();
    }
}

fn no_project_is_in_a_folder_that_another_agent_writes() {
    let home = small("it-mounted");
    let usual = home.folder.join(".config/osctl/osctl.yaml");
    let own = home.folder.join("own.yaml");
    let mounted = home.folder.join("mounted");
    let nested = mounted.join("project");
    fs::create_dir_all(&nested).unwrap();
    let text = fs::read_to_string(usual).unwrap();
    let more = format!("mounts: ['{}:/mnt/data']\n", mounted.display());
    fs::write(&own, text + &more).unwrap();
    home.ok([
        "--config",
        own.to_str().unwrap(),
        "up",
        "--yes",
        "--auto-ports",
    ]);
    let mut other = home.clone();
    other.instance = format!("{}-other", home.instance);
    other.project = nested;
    write_small(&other, base());
    let ran = other.run(["up", "--yes", "--auto-ports"]);
    other.down();
    home.down();
    assert!(
        ran.code == 2 && ran.stderr.contains("can't be the project"),
        "{ran:?}"
    );
}

/// Sequences that set the title and the clipboard, clear the screen, and change the writing direction.
const CONTROL_SEQUENCES: &str = r"\x1b]0;owned\x07\x1b]52;c;AAAA\x07\x1b[2J\x9b2J\u202e\u200b";

fn names_and_logs_of_the_agent_send_no_terminal_controls() {
    let home = shared();
    let plant = format!(
        "nasty = 'nasty{CONTROL_SEQUENCES}'\nglobals()[nasty] = (n for n in 'x')\n\
         with open('/proc/1/fd/1', 'w') as out: print(nasty, file=out, flush=True)"
    );
    let reply = home.api().exec(&plant);
    assert_eq!(reply["status"], "completed", "{reply}");
    let mut seen = 0;
    for words in [
        &["runs"][..],
        &["logs", "-n", "50"],
        &["cryo", "store", "of-the-agent"],
        &["cryo", "show", "of-the-agent"],
        &["doctor"],
        &["restart"],
    ] {
        let ran = home.run(words);
        seen += usize::from((ran.stdout.clone() + &ran.stderr).contains("nasty"));
        for text in [&ran.stdout, &ran.stderr] {
            let bad = text.chars().find(|c| {
                c.is_control() && !['\n', '\t'].contains(c) || ['\u{202e}', '\u{200b}'].contains(c)
            });
            assert_eq!(bad, None, "{words:?}: {ran:?}");
        }
    }
    home.ok(["cryo", "rm", "of-the-agent"]);
    // All commands except `doctor` print the name.
    assert_eq!(seen, 5);
}
