//! `osctl shell`: a terminal in the container, used in a window of the host.

use crate::harness::{Home, shared};
use crate::trials;
use crate::window::Window;
use nix::sys::signal::Signal;
use serde_json::json;
use std::fs;
use std::process::Command;

trials![
    vim_edits_and_saves_a_file,
    less_pages_and_quits,
    top_paints_the_screen,
    python_computes_line_by_line,
    a_resized_window_is_a_resized_terminal,
    a_full_screen_program_redraws_when_the_window_is_resized,
    control_keys_reach_the_program_inside,
    colours_pass_unchanged,
    the_exit_code_is_the_shells_own,
    an_ended_osctl_leaves_the_window_as_it_was,
    a_killed_osctl_does_not_break_the_next_one,
    a_detached_terminal_continues_and_can_be_attached_again,
    attaching_again_shows_the_screen_and_repeats_no_query,
    all_processes_of_a_terminal_end_with_it,
    a_terminal_that_another_client_ends_says_so,
    several_clients_see_the_same_and_one_writes,
    a_terminal_opens_in_the_folder_of_the_sessions_shell,
    an_unknown_terminal_type_becomes_xterm,
    without_a_terminal_the_error_names_the_alternative,
    invalid_arguments_are_refused_with_a_reason,
];

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";
const DETACH: &str = "\x1d\x1d";

/// A terminal whose shell waits for a command.
#[track_caller]
fn open(home: &Home) -> Window {
    let mut window = Window::open(home.command(["shell"]));
    window.wait_for("# ");
    window
}

/// Ends the shell when its prompt is shown.
#[track_caller]
fn leave(mut window: Window) {
    window.wait_for("# ");
    // The exit code of the shell is that of the last command.
    window.types("true\r");
    window.wait_for("# ");
    window.types(CTRL_D);
    let (code, shown) = window.end();
    assert_eq!(code, 0, "{shown:?}");
}

/// The id of the most recently used terminal.
#[track_caller]
fn last(home: &Home) -> String {
    let found = home.json(["shell", "--list"]);
    let all = found["terminals"].as_array().unwrap();
    let living = all.iter().filter(|t| t["returncode"].is_null());
    let idle = |t: &&serde_json::Value| t["idle_seconds"].as_f64().unwrap();
    let last = living.min_by(|a, b| idle(a).total_cmp(&idle(b)));
    last.unwrap()["id"].as_str().unwrap().to_owned()
}

fn vim_edits_and_saves_a_file() {
    let home = shared();
    let mut window = open(home);
    window.types("vim /root/host/edited\r");
    window.wait_for("[New]");
    window.types("ihello from vim\x1b:wq\r");
    window.wait_for("written");
    leave(window);
    let edited = fs::read_to_string(home.files().join("edited")).unwrap();
    assert_eq!(edited, "hello from vim\n");
}

fn less_pages_and_quits() {
    let mut window = open(shared());
    window.types("seq 1 1000 | less\r");
    let first = window.wait_for("\n29\r\n");
    assert!(first.contains("\r1\r\n2\r\n"), "{first:?}");
    window.types(" ");
    window.wait_for("\n58\r\n");
    window.types("G");
    window.wait_for("\n1000\r\n");
    window.types("q");
    leave(window);
}

fn top_paints_the_screen() {
    let mut window = open(shared());
    window.types("top\r");
    window.wait_for("load average");
    window.wait_for("COMMAND");
    window.types("q");
    leave(window);
}

fn python_computes_line_by_line() {
    let mut window = open(shared());
    window.types("python3 -q\r");
    window.wait_for(">>> ");
    window.types("6 * 7\r");
    window.wait_for("42");
    window.wait_for(">>> ");
    window.types(CTRL_D);
    leave(window);
}

fn a_resized_window_is_a_resized_terminal() {
    let mut window = open(shared());
    window.types("stty size\r");
    window.wait_for("30 100\r\n");
    let watch = "import os, signal\n\
                 signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n\
                 print('watching', flush=True)\n\
                 signal.sigwait([signal.SIGWINCH])\n\
                 print('now', *os.get_terminal_size())\n";
    shared().ok([
        "exec",
        &format!("open('/tmp/watch.py', 'w').write({watch:?})"),
    ]);
    window.types("python3 /tmp/watch.py\r");
    window.wait_for("watching\r\n");
    window.resize(71, 23);
    window.wait_for("now 71 23\r\n");
    window.types("stty size\r");
    window.wait_for("23 71\r\n");
    leave(window);
}

fn a_full_screen_program_redraws_when_the_window_is_resized() {
    let mut window = open(shared());
    window.types("vim\r");
    // The last of the lines below the end of the file.
    window.wait_for("\x1b[29;1H");
    window.resize(60, 41);
    window.wait_for("\x1b[40;1H");
    window.types(":q\r");
    leave(window);
}

fn control_keys_reach_the_program_inside() {
    let mut window = open(shared());
    let begin = |window: &mut Window| {
        window.types("sh -c 'echo be''gun; exec sleep 1000'\r");
        window.wait_for("begun\r\n");
    };
    begin(&mut window);
    window.types(CTRL_C);
    window.wait_for("# ");
    window.types("echo code $?\r");
    window.wait_for("code 130\r\n");
    begin(&mut window);
    window.types(CTRL_Z);
    window.wait_for("Stopped");
    window.wait_for("# ");
    window.types("kill %1; wait; echo it was $?\r");
    window.wait_for("it was 0\r\n");
    // While bash reads a line, Enter has another code.
    window.types("echo be''gun; cat\r");
    window.wait_for("begun\r\n");
    window.types("through\r");
    window.wait_for("through\r\nthrough\r\n");
    window.types(CTRL_D);
    leave(window);
}

fn colours_pass_unchanged() {
    let mut window = Window::open(shared().command(["shell"]));
    window.wait_for("\x1b[1;32mroot@");
    window.wait_for("# ");
    window.types("tput colors; printf '\\033[38;5;196mred\\033[0m\\n'\r");
    window.wait_for("256\r\n\x1b[38;5;196mred\x1b[0m\r\n");
    leave(window);
}

fn the_exit_code_is_the_shells_own() {
    let home = shared();
    let mut window = open(home);
    window.types("exit 7\r");
    assert_eq!(window.end().0, 7);
    let mut window = open(home);
    window.types("kill -9 $$\r");
    assert_eq!(window.end().0, 137);
}

fn an_ended_osctl_leaves_the_window_as_it_was() {
    let home = shared();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        let mut window = open(home);
        window.types("vim\r");
        window.wait_for("\x1b[?1049h");
        window.wait_for("\x1b[29;1H");
        assert_ne!(window.mode(), window.before);
        window.signal(signal);
        assert_eq!(window.wait(), 5);
        assert_eq!(window.mode(), window.before);
        let (_, shown) = window.end();
        let off = shown.find("\x1b[?1049l").unwrap();
        assert!(shown[off..].contains("keeps running"), "{shown:?}");
        let id = last(home);
        let api = home.api();
        let ended = api
            .connect()
            .send("DELETE", &format!("/pty/{id}"), &[], b"");
        assert_eq!(ended.status, 200);
    }
}

fn a_killed_osctl_does_not_break_the_next_one() {
    let home = shared();
    let shell = home.command(["shell"]);
    let mut twice = Command::new("sh");
    twice
        .args(["-c", "\"$@\"; \"$@\"; stty -a; stty sane", "sh"])
        .arg(shell.get_program())
        .args(shell.get_args())
        .envs(shell.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .current_dir(shell.get_current_dir().unwrap());
    let mut window = Window::open(twice);
    window.wait_for("# ");
    let sh = window.pid();
    let children = fs::read_to_string(format!("/proc/{sh}/task/{sh}/children")).unwrap();
    let osctl = nix::unistd::Pid::from_raw(children.trim().parse().unwrap());
    nix::sys::signal::kill(osctl, Signal::SIGKILL).unwrap();
    window.wait_for("# ");
    window.types("echo $((6*7))\r");
    window.wait_for("42\r\n");
    window.types("exit\r");
    let (code, shown) = window.end();
    assert_eq!(code, 0, "{shown:?}");
    for mode in ["icanon", "echo", "isig", "icrnl", "opost"] {
        let mut words = shown.split([' ', ';', '\r', '\n']);
        assert!(words.any(|word| word == mode), "{mode}: {shown:?}");
    }
    // The killed osctl could not end its terminal.
    let path = format!("/pty/{}", last(home));
    assert_eq!(
        home.api().connect().send("DELETE", &path, &[], b"").status,
        200
    );
}

fn a_detached_terminal_continues_and_can_be_attached_again() {
    let home = shared();
    let mut window = open(home);
    window.types("kept=here; echo se''t\r");
    window.wait_for("set\r\n");
    window.wait_for("# ");
    window.types(DETACH);
    let (code, shown) = window.end();
    assert_eq!(code, 0, "{shown:?}");
    let id = last(home);
    assert!(shown.contains(&format!("shell --attach {id}")), "{shown:?}");
    for again in [vec!["shell", "--attach"], vec!["shell", "--attach", &id]] {
        let mut window = Window::open(home.command(again));
        window.wait_for("set\r\n");
        window.wait_for("# ");
        window.types("echo still $kept\r");
        window.wait_for("still here\r\n");
        window.types(DETACH);
        assert_eq!(window.end().0, 0);
    }
    // With other detach keys, and on a terminal with a full-screen program.
    let keys = ["--detach-keys", "ctrl-p,x"];
    let mut window = Window::open(home.command(["shell", "--attach"].iter().chain(&keys)));
    window.wait_for("# ");
    window.types("vim\r");
    window.wait_for("\x1b[29;1H");
    window.types("\x10x");
    assert_eq!(window.wait(), 0);
    assert_eq!(window.mode(), window.before);
    drop(window);
    let mut window = Window::open(home.command(["shell", "--attach", &id]));
    window.wait_for("\x1b[29;1H");
    window.types(":q\r");
    leave(window);
    let ran = home.run(["--json", "shell", "--list"]);
    assert!(ran.stdout.contains(&id), "{ran:?}");
    assert!(home.ok(["shell", "--list"]).stdout.contains("ended with 0"));
}

/// Queries of programs to a terminal, whose answers would be typed into the shell.
const QUERIES: [&str; 9] = [
    "\x1b[c",
    "\x1b[>c",
    "\x1b[6n",
    "\x1b[?2026$p",
    "\x1b[18t",
    "\x1b]10;?\x07",
    "\x1b]11;?\x07",
    "\x1bP+q544e\x1b\\",
    "\x1b[?u",
];

fn attaching_again_shows_the_screen_and_repeats_no_query() {
    let home = shared();
    let asks = format!(
        "import sys; sys.stdout.write({:?} + '\\x1b[31mred\\x1b[m seen\\n')",
        QUERIES.concat()
    )
    .replace("\\u{1b}", "\\x1b")
    .replace("\\u{7}", "\\x07");
    fs::write(home.files().join("asks.py"), asks).unwrap();
    let mut window = open(home);
    window.types("python3 /root/host/asks.py\r");
    let live = window.wait_for("seen\r\n");
    assert!(live.contains(&QUERIES.concat()), "{live:?}");
    window.wait_for("# ");
    let id = last(home);
    let attach = || Window::open(home.command(["shell", "--attach", &id]));
    window.types(DETACH);
    assert_eq!(window.end().0, 0);
    let check = |shown: &str| assert!(!QUERIES.iter().any(|q| shown.contains(q)), "{shown:?}");
    let mut window = attach();
    let shown = window.wait_for("seen") + &window.wait_for("# ");
    assert!(shown.contains("\x1b[31mred"), "{shown:?}");
    check(&shown);
    // A full-screen program also sends queries when it starts.
    window.types("vim -u NONE /root/host/asks.py\r");
    window.wait_for("import sys");
    window.types("Oabove\x1b");
    window.wait_for("above");
    window.types(DETACH);
    assert_eq!(window.wait(), 0);
    let mut window = attach();
    let shown = window.wait_for("\x1b[?1049h") + &window.wait_for("above");
    check(&shown);
    // The shell's screen is below the program's screen, unchanged.
    assert!(shown.contains("seen"), "{shown:?}");
    window.types(":q!\r");
    leave(window);
}

fn all_processes_of_a_terminal_end_with_it() {
    let home = shared();
    let mut window = open(home);
    window.types("setsid sh -c 'trap \"\" HUP TERM; echo se''t off; sleep 4711' & disown -a\r");
    window.wait_for("set off");
    let count = "__import__('subprocess').run(['pgrep', '-fc', '[s]leep 4711'], capture_output=True, text=True).stdout";
    assert_ne!(home.api().exec(count)["result"], "'0\\n'");
    // The prompt may come before the output of the background process.
    window.types("\r");
    leave(window);
    assert_eq!(home.api().exec(count)["result"], "'0\\n'");
}

fn a_terminal_that_another_client_ends_says_so() {
    let home = shared();
    let mut window = open(home);
    window.types("vim\r");
    window.wait_for("\x1b[29;1H");
    let path = format!("/pty/{}", last(home));
    let ended = home.api().connect().send("DELETE", &path, &[], b"");
    assert_eq!(ended.status, 200, "{}", ended.json());
    assert_eq!(ended.json()["status"], "completed");
    let code = ended.json()["code"].as_i64().unwrap();
    assert!(code > 128, "{}", ended.json());
    let (ours, shown) = window.end();
    assert_eq!(i64::from(ours), code);
    assert!(shown.contains("another client ended terminal"), "{shown:?}");
}

fn several_clients_see_the_same_and_one_writes() {
    let home = shared();
    let mut first = open(home);
    let id = last(home);
    let attach = |how: &[&str]| {
        let args = ["shell", "--attach", &id];
        Window::open(home.command(args.iter().chain(how)))
    };
    let (mut second, mut looks) = (attach(&[]), attach(&["--view"]));
    for window in [&mut second, &mut looks] {
        window.wait_for("read-only; ");
    }
    first.types("printf '\\033[1mbo''th\\303\\274\\033[0m\\n'\r");
    for window in [&mut first, &mut second, &mut looks] {
        window.wait_for("\x1b[1mboth\u{fc}\x1b[0m\r\n");
    }
    // osctl reports to a viewer that its keys are not sent.
    for window in [&mut second, &mut looks] {
        window.types("echo never\r");
        window.wait_for("not typed: another client has the keyboard");
    }
    first.types("echo aga''in\r");
    for window in [&mut first, &mut second, &mut looks] {
        let shown = window.wait_for("again\r\n");
        assert!(!shown.contains("never"), "{shown:?}");
    }
    // The terminal has the size of the writer's window.
    let mut third = attach(&["--take"]);
    first.wait_for("another client has the keyboard now");
    third.types("echo tak''en\r");
    for window in [&mut first, &mut second, &mut looks, &mut third] {
        window.wait_for("taken\r\n");
    }
    first.types("echo never\r");
    first.wait_for("not typed: another client has the keyboard; `--take` takes over");
    // A client that leaves ends nothing; the next client writes.
    for mut window in [second, third] {
        window.types(DETACH);
        assert_eq!(window.wait(), 0);
    }
    let mut fourth = attach(&[]);
    fourth.wait_for("# ");
    fourth.types("exit 6\r");
    for window in [fourth, first, looks] {
        let (code, shown) = window.end();
        assert_eq!(code, 6, "{shown:?}");
        assert!(!shown.contains("never"), "{shown:?}");
    }
}

fn a_terminal_opens_in_the_folder_of_the_sessions_shell() {
    let home = shared();
    home.ok([
        "shell",
        "--session",
        "terminals",
        "mkdir -p '/tmp/works here'; cd '/tmp/works here'; export GIVEN=\"it's \\$1\"; unset LANG; own=1",
    ]);
    let mut window = Window::open(home.command(["shell", "--session", "terminals"]));
    window.wait_for("# ");
    window.types("echo \"in $PWD of $OSCTL_SESSION, knows ${OSCTL_TOKEN_SHA256-nothing}\"\r");
    window.wait_for("in /tmp/works here of terminals, knows nothing\r\n");
    window.wait_for("# ");
    // Exported variables are there; the others belong only to the other shell.
    window.types(
        "echo \"given $GIVEN, ${own-no more}, lang ${LANG-unset}, level $SHLVL, term $TERM\"\r",
    );
    window.wait_for("given it's $1, no more, lang unset, level 1, term xterm-256color\r\n");
    leave(window);
    home.ok(["sessions", "rm", "terminals"]);
}

fn an_unknown_terminal_type_becomes_xterm() {
    let api = shared().api();
    let mut peer = crate::pty::Peer::open(&api, "term=xterm-of-tomorrow&client=kind").unwrap();
    let hello = peer.hello();
    peer.types("echo kind $TERM; exit\r");
    peer.until("kind xterm-256color\r\n");
    assert_eq!(
        peer.exit(),
        json!({"type": "exit", "code": 0, "why": "exited"})
    );
    assert_eq!(hello["writer"], true);
}

fn without_a_terminal_the_error_names_the_alternative() {
    let home = shared();
    let ran = home.run(["shell"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("shell COMMAND"), "{ran:?}");
    let ran = home.run(["--json", "shell"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stdout.contains("--json shell --list"), "{ran:?}");
}

fn invalid_arguments_are_refused_with_a_reason() {
    let home = shared();
    let refused = |args: &[&str], code: i32, words: &str| {
        let window = Window::open(home.command(args));
        let (ended, shown) = window.end();
        assert_eq!(ended, code, "{shown:?}");
        assert!(shown.contains(words), "{shown:?}");
    };
    refused(
        &["shell", "--attach", "nobody"],
        2,
        "there is no terminal `nobody`",
    );
    refused(
        &["shell", "--detach-keys", "ctrl-1"],
        2,
        "`ctrl-1` are not valid detach keys",
    );
    refused(&["shell", "--view"], 2, "--attach");
    let mut never = home.clone();
    never.instance = "it-never-up".into();
    let window = Window::open(never.command(["shell"]));
    let (code, shown) = window.end();
    assert_eq!(code, 3, "{shown:?}");
    assert!(shown.contains("is not running"), "{shown:?}");
}
