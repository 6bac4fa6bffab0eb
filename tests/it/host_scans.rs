//! What `osctl` finds on the host: too little room for a build, setuid files, and files that other programs run.

use crate::exposure::{found, mode};
use crate::harness::{Home, shared};
use crate::second_engine::{Second, write_body};
use crate::trials;
use std::fs;
use std::process::Command;

trials![
    a_build_that_leaves_too_little_of_the_machine_is_ended,
    the_cure_of_setuid_files_cures_whatever_their_names_say,
    a_scan_that_planted_files_end_says_so,
];

fn a_build_that_leaves_too_little_of_the_machine_is_ended() {
    let second = Second::start();
    let mut home = second.home("it-greedy", "");
    // The engine's disk is to be seen, as it is where engine and osctl are on one machine.
    home.wrapper = second.wrapper();
    let inside = ["--mount", "--pid", "sh", "-c", "cd \"$0\" && exec \"$@\""];
    home.wrapper.extend(inside.map(str::to_owned));
    home.wrapper.push(home.project.display().to_string());
    // A twentieth of the disk has 30 MiB. What is left does not end the step, and the step would go on.
    let megabytes = (second.room() >> 20) - 15;
    let greedy = format!("RUN dd if=/dev/zero of=/big bs=1M count={megabytes} && sleep 100");
    write_body(&home, &greedy);
    let ran = home.run(["build", "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    let words = "the build was ended: the disk is nearly full";
    assert!(ran.stderr.contains(words), "{ran:?}");
}

/// Runs code inside, as root.
#[track_caller]
fn plant(home: &Home, code: &str) {
    let reply = home.api().exec(code);
    assert_eq!(reply["status"], "completed", "{reply}");
}

fn the_cure_of_setuid_files_cures_whatever_their_names_say() {
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
    let of = all.as_array().unwrap().iter();
    let planted = |f: &&serde_json::Value| {
        let detail = f["detail"].as_str().unwrap_or_default();
        f["what"] == "setuid" && detail.contains(set.to_str().unwrap())
    };
    let planted: Vec<_> = of.filter(planted).collect();
    assert_eq!(planted.len(), 7, "{all:#}");
    let cure = planted[0]["cure"].as_str().unwrap();
    for finding in &planted {
        // No name of the agent's is in a command that a person copies.
        assert_eq!(finding["cure"], cure);
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

fn a_scan_that_planted_files_end_says_so() {
    let home = shared();
    // A crowd of files, and a tree that is deeper than a path may be long.
    plant(
        home,
        "import os\nos.chdir('/repo')\nopen('.pdbrc', 'w').write('evil')\nos.mkdir('crowd')\n\
         for n in range(1001):\n    os.mkdir(f'crowd/{n}')\n    open(f'crowd/{n}/.envrc', 'w').write('evil')\n\
         os.mkdir('deep')\nos.chdir('deep')\n\
         for n in range(500):\n    os.mkdir('d' * 20)\n    os.chdir('d' * 20)\n\
         open('.envrc', 'w').write('evil')\nos.chdir('/root')",
    );
    let named = found(home, "autorun").join("\n");
    assert!(named.contains("the scan stopped after"), "{named}");
    // What is nearest is read first.
    assert!(named.contains("`.pdbrc` appeared"), "{named}");
    plant(home, "import shutil\nshutil.rmtree('/repo/crowd')");
    // The deep one alone is read to its end, unless that takes too long.
    let named = found(home, "autorun").join("\n");
    let is_found = named.contains("ddd/.envrc` appeared");
    assert!(
        is_found || named.contains("the scan stopped after"),
        "{named}"
    );
    plant(
        home,
        "import os, subprocess\nsubprocess.run(['rm', '-r', '/repo/deep'], check=True)\nos.remove('/repo/.pdbrc')",
    );
    assert!(!found(home, "autorun").join("\n").contains("appeared"));
}
