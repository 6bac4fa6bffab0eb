//! `osctl shell COMMAND`: words, bytes, exit codes, signals.

use crate::harness::shared;
use crate::trials;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

trials![
    one_argument_is_bash_and_several_are_passed_unchanged,
    the_exit_code_is_the_commands_own,
    stdin_and_output_pass_byte_by_byte,
    more_output_than_is_kept_arrives_whole,
    folder_and_environment_last_across_processes,
    a_closed_stdout_ends_the_command,
    ctrl_c_ends_the_command,
    a_detached_command_is_found_again,
];

fn one_argument_is_bash_and_several_are_passed_unchanged() {
    let home = shared();
    let shown = |words: &[&str]| home.ok([&["shell"], words].concat()).stdout;
    assert_eq!(shown(&["echo $((6*7)) | cat"]), "42\n");
    let words = [
        "printf", "<%s>", "a b", "$HOME", "*", "", "it's", "-n", "--", "\\", "\"", "ž\n",
    ];
    assert_eq!(
        shown(&words),
        "<a b><$HOME><*><><it's><-n><--><\\><\"><ž\n>"
    );
    assert_eq!(shown(&["--", "echo", "--session"]), "--session\n");
    let mut command = home.command(["shell", "printf", "%s"]);
    let output = command.arg(OsStr::from_bytes(b"\xff'\n")).output().unwrap();
    assert_eq!(output.stdout, b"\xff'\n");
    let document = home.json(["shell", "echo", "out"]);
    assert_eq!(
        (&document["stdout"], &document["returncode"]),
        (&"out\n".into(), &Value::from(0))
    );
}

fn the_exit_code_is_the_commands_own() {
    let home = shared();
    for (command, code) in [
        ("exit 7", 7),
        ("kill -KILL $$", 137),
        ("no_such_command 2>/dev/null", 127),
        ("/etc/passwd 2>/dev/null", 126),
        ("exit 255", 255),
    ] {
        let ran = home.run(["shell", command]);
        assert_eq!((ran.code, ran.stderr.as_str()), (code, ""), "{command}");
    }
    let ran = home.run(["shell", "--timeout", "0.3", "sleep 60"]);
    assert_eq!(ran.code, 5);
    assert!(ran.stderr.contains("longer than 0.3 s"), "{ran:?}");
    // A child process also gets time to end, and its output is read to the end.
    let child = "trap 'sleep 0.1; echo cleaned; exit' TERM; while :; do sleep 0.1; done";
    let ran = home.run(["shell", "--timeout", "3", &format!("({child}); true")]);
    assert_eq!((ran.code, ran.stdout.as_str()), (5, "cleaned\n"));
    let ran = home.run(["shell", "echo out; echo err >&2"]);
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("out\n", "err\n")
    );
}

fn stdin_and_output_pass_byte_by_byte() {
    let home = shared();
    let bytes: Vec<u8> = (0..20_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut child = home
        .command(["shell", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let given = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&given).unwrap());
    let mut came = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut came).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(came == bytes, "{} of {} bytes", came.len(), bytes.len());
}

fn more_output_than_is_kept_arrives_whole() {
    const BYTES: usize = 400_000_000;
    let home = shared();
    let mut child = home
        .command(["shell", &format!("yes 0123456 | head -c {BYTES}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut came, mut piece) = (0, vec![0; 1 << 16]);
    loop {
        let count = stdout.read(&mut piece).unwrap();
        for byte in &piece[..count] {
            assert_eq!(*byte, b"0123456\n"[came % 8], "byte {came}");
            came += 1;
        }
        if count == 0 {
            break;
        }
    }
    assert_eq!((came, child.wait().unwrap().code()), (BYTES, Some(0)));
}

fn folder_and_environment_last_across_processes() {
    let home = shared();
    home.ok([
        "shell",
        "--session",
        "lasts",
        "cd /usr && export A=1; greet() { echo hi $1; }",
    ]);
    let ran = home.ok(["shell", "--session", "lasts", "pwd; echo $A; greet you"]);
    assert_eq!(ran.stdout, "/usr\n1\nhi you\n");
    home.ok(["sessions", "rm", "lasts"]);
}

fn a_closed_stdout_ends_the_command() {
    let home = shared();
    let mut child = home
        .command(["shell", "yes osctl-flood"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1000]).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(141));
    let mut child = home
        .command(["exec", "while True: print('osctl-flood')"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1000]).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(141));
    assert_eq!(home.ok(["exec", "'free again'"]).stdout, "'free again'\n");
    let full = std::fs::File::create("/dev/full").unwrap();
    let told = home
        .command(["exec", "print('lost')"])
        .stdout(full)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(4), "{said}");
    assert!(said.contains("the output can't be written"), "{said}");
    // The pattern `[y]` does not match the `pgrep` command itself.
    let left = home.run(["shell", "pgrep -f '[y]es osctl-flood'"]);
    assert_eq!(left.code, 1, "{left:?}");
}

fn ctrl_c_ends_the_command() {
    let home = shared();
    let mut child = home
        .command([
            "shell",
            "trap 'echo cleaned; exit' INT; echo begun; while :; do sleep 0.1; done",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 6]).unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(
        (rest.as_str(), child.wait().unwrap().code()),
        ("cleaned\n", Some(130))
    );
}

fn a_detached_command_is_found_again() {
    let home = shared();
    let begun = home.ok([
        "shell",
        "--detach",
        "echo begun; sleep 0.2; echo done; exit 3",
    ]);
    let id = begun.stdout.trim();
    let attached = home.run(["attach", id]);
    assert_eq!(
        (attached.code, attached.stdout.as_str()),
        (3, "begun\ndone\n")
    );
    let path = format!("/shell/{id}?wait=30");
    assert_eq!(home.api().get(&path).json()["stdout"], "begun\ndone\n");

    let begun = home.ok([
        "shell",
        "--detach",
        "trap 'echo cleaned; exit 1' INT; sleep 60",
    ]);
    let id = begun.stdout.trim();
    let line = |verb: &[&str]| {
        let listed = home.ok(verb).stdout;
        listed
            .lines()
            .find(|line| line.starts_with(id))
            .map(str::to_owned)
    };
    assert!(line(&["runs", "--running"]).unwrap().contains("$ trap"));
    home.api()
        .get(&format!("/shell/{id}?offset=0&wait=0.5"))
        .json();
    home.ok(["interrupt", id]);
    let listed = line(&["runs"]).unwrap();
    assert!(listed.contains("interrupted"), "{listed}");
    assert_eq!(line(&["runs", "--running"]), None);
    for verb in ["attach", "interrupt"] {
        let missing = home.run([verb, "nobody"]);
        assert_eq!(missing.code, 2, "{missing:?}");
        assert!(missing.stderr.contains("there is no run `nobody`"));
    }
}
