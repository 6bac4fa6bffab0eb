//! What `osctl` finds on the host: too little disk for a build, setuid files, and files that other programs run.

use crate::exposure::{found, mode};
use crate::harness::{Home, shared};
use crate::second_engine::{Second, until, write_body};
use crate::trials;
use std::fs;
use std::process::Command;

trials![
    a_build_that_fills_the_disk_is_stopped,
    the_fix_for_setuid_files_works_for_any_file_name,
    a_scan_that_planted_files_stop_says_so,
    a_scan_reads_a_tree_that_is_deeper_than_a_path_may_be_long,
];

fn a_build_that_fills_the_disk_is_stopped() {
    let second = Second::start();
    let mut home = second.home("it-greedy", "");
    // osctl must see the engine's disk, as it does where the engine and osctl are on one machine.
    home.wrapper = second.wrapper();
    let inside = ["--mount", "--pid", "sh", "-c", "cd \"$0\" && exec \"$@\""];
    home.wrapper.extend(inside.map(str::to_owned));
    home.wrapper.push(home.project.display().to_string());
    // A twentieth of the disk has 30 MiB. The remaining space does not end the step, and the step would keep running.
    let megabytes = (second.free_disk() >> 20) - 15;
    // No other test sleeps for the same time.
    let step = format!("sleep {}", 1_000_000 + std::process::id());
    let greedy = format!("RUN dd if=/dev/zero of=/big bs=1M count={megabytes} && {step}");
    write_body(&home, &greedy);
    let ran = home.run(["build", "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    let words = "osctl stopped the build: the disk is nearly full";
    assert!(ran.stderr.contains(words), "{ran:?}");
    until("the end of the build's step", || !is_running(&step));
}

/// Whether a process of this machine or of a container on it has this text in its command.
fn is_running(words: &str) -> bool {
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    processes.any(|process| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        command.contains(words)
    })
}

/// Runs code inside, as root.
#[track_caller]
fn plant(home: &Home, code: &str) {
    let reply = home.api().exec(code);
    assert_eq!(reply["status"], "completed", "{reply}");
}

fn the_fix_for_setuid_files_works_for_any_file_name() {
    let home = shared();
    plant(
        home,
        "import os, shutil\nos.makedirs('/repo/set', exist_ok=True)\n\
         for name in ('plain', \"a'b\", '$(touch owned)', '`touch owned`', '-exec', 'x\\ny', 'z\\x1b[2J'):\n\
         \x20   path = '/repo/set/' + name\n    shutil.copy('/bin/true', path)\n    os.chmod(path, 0o6755)",
    );
    let set = home.project.join("set");
    let modes = || {
        fs::read_dir(&set)
            .unwrap()
            .map(|e| mode(&e.unwrap().path()))
    };
    assert!(modes().all(|mode| mode == 0o6755));
    assert_eq!(modes().count(), 7);
    let all = home.json(["doctor"]);
    let of = all["findings"].as_array().unwrap().iter();
    let planted = |f: &&serde_json::Value| {
        let detail = f["detail"].as_str().unwrap_or_default();
        f["name"] == "setuid" && detail.contains(set.to_str().unwrap())
    };
    let planted: Vec<_> = of.filter(planted).collect();
    assert_eq!(planted.len(), 7, "{all:#}");
    let cure = planted[0]["hint"].as_str().unwrap();
    for finding in &planted {
        // A command to copy has no name that the agent chose.
        assert_eq!(finding["hint"], cure);
    }
    assert!(
        cure.contains(&format!("{} down`, then", home.instance)),
        "{cure}"
    );
    let (_, command) = cure.split_once("`sudo ").unwrap();
    let command = command.strip_suffix('`').unwrap();
    let mut shell = Command::new("sh");
    let ran = shell
        .args(["-c", command])
        .current_dir(&home.folder)
        .status();
    assert!(ran.unwrap().success(), "{command}");
    assert!(modes().all(|mode| mode == 0o755));
    assert!(!home.folder.join("owned").exists());
    let named = found(home, "setuid").join("\n");
    assert!(!named.contains(set.to_str().unwrap()), "{named}");
    fs::remove_dir_all(&set).unwrap();
}

fn a_scan_that_planted_files_stop_says_so() {
    let home = shared();
    plant(
        home,
        "import os\nos.chdir('/repo')\nopen('.pdbrc', 'w').write('evil')\nos.mkdir('crowd')\n\
         for n in range(1001):\n    os.mkdir(f'crowd/{n}')\n    open(f'crowd/{n}/.envrc', 'w').write('evil')\n\
         os.chdir('/root')",
    );
    let named = found(home, "autorun").join("\n");
    assert!(
        named.contains("the scan stopped after 1000 findings"),
        "{named}"
    );
    // The scan reads the nearest folders first.
    assert!(named.contains("`.pdbrc` appeared"), "{named}");
    plant(
        home,
        "import os, shutil\nshutil.rmtree('/repo/crowd')\nos.remove('/repo/.pdbrc')",
    );
    assert!(!found(home, "autorun").join("\n").contains("appeared"));
}

fn a_scan_reads_a_tree_that_is_deeper_than_a_path_may_be_long() {
    let home = shared();
    // Names of 250 bytes: a path has at most 4096, and a scan reads few folders in its time.
    plant(
        home,
        "import os\nos.chdir('/repo')\nos.mkdir('scanned')\nos.chdir('scanned')\n\
         for n in range(20):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)\n\
         open('.envrc', 'w').write('evil')\nos.chdir('/root')",
    );
    let named = found(home, "autorun").join("\n");
    plant(
        home,
        "import subprocess\nsubprocess.run(['rm', '-r', '/repo/scanned'], check=True)",
    );
    assert!(named.contains("ddd/.envrc` appeared"), "{named}");
    assert!(!named.contains("the scan stopped"), "{named}");
    assert!(!found(home, "autorun").join("\n").contains("appeared"));
}
