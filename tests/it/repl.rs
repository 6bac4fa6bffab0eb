//! `osctl repl`: the console, used on a real terminal.

use crate::commands::{Ran, terminal};
use crate::harness::{Home, shared};
use crate::terminal::Terminal;
use crate::trials;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

trials![
    cells_of_one_and_several_lines_run_and_enter_the_history,
    a_pasted_and_an_edited_cell_run_as_a_whole,
    code_is_colored_and_the_history_suggests_its_end,
    the_debugger_shows_the_frames_of_the_last_error,
    tab_completes_what_the_kernel_knows,
    ctrl_c_clears_the_line_at_the_prompt_and_interrupts_running_code,
    a_second_ctrl_c_stops_following_and_keeps_the_console,
    figures_are_shown_or_named_and_the_console_continues,
    the_console_waits_for_a_busy_kernel,
    a_loss_that_another_client_caused_is_reported,
    without_a_terminal_the_error_names_the_alternative,
];

/// Searches the history.
const CTRL_R: &str = "\x12";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";
const END: &str = "\x1b[F";

/// A console on a separate session, so that only its cells are counted.
fn console(home: &Home, session: &str) -> Terminal {
    start(home.command(["repl", "--session", session]))
}

fn start(command: Command) -> Terminal {
    let mut terminal = Terminal::start_with_cursor(command);
    terminal.wait_for("In [1]: ");
    terminal
}

/// Waits for an empty prompt, at which keys are read.
#[track_caller]
fn wait_for_prompt(terminal: &mut Terminal) -> String {
    terminal.wait_for_last_line(|line| line.starts_with("In [") && line.ends_with("]:"))
}

/// Waits for the first line that a cell prints, after the console has ended bracketed pastes.
#[track_caller]
fn wait_for_output(terminal: &mut Terminal, line: &str) {
    terminal.wait_for(&format!("\n\x1b[?2004l{line}\r\n"));
}

/// Waits for the result of a cell, after the console has ended bracketed pastes.
#[track_caller]
fn wait_for_result(terminal: &mut Terminal, value: &str) {
    terminal.wait_for("\n\x1b[?2004lOut[");
    terminal.wait_for(&format!("]: {value}\r\n"));
}

/// Leaves at the next prompt, with exit code 0, and ends the session.
#[track_caller]
fn leave(home: &Home, session: &str, mut terminal: Terminal) {
    wait_for_prompt(&mut terminal);
    terminal.types(CTRL_D);
    let (code, shown) = terminal.end();
    assert_eq!(code, 0, "{shown}");
    home.ok(["sessions", "rm", session]);
}

fn cells_of_one_and_several_lines_run_and_enter_the_history() {
    let home = shared();
    let mut terminal = console(home, "repl-cells");
    terminal.types("6*7\r");
    wait_for_output(&mut terminal, "Out[1]: 42");
    terminal.wait_for("In [2]: ");
    terminal.types("def f(x):\r");
    terminal.wait_for("   ...:     ");
    terminal.types("return x + 1\r");
    terminal.wait_for("   ...:     ");
    terminal.types("\r");
    terminal.wait_for("In [3]: ");
    terminal.types("f(40)\r");
    wait_for_result(&mut terminal, "41");
    terminal.types("f?\r");
    terminal.wait_for("Signature");
    terminal.wait_for("In [");
    terminal.types("print('no end', end='')\r");
    wait_for_output(&mut terminal, "no end");
    terminal.wait_for("In [");
    terminal.types("1/0\r");
    terminal.wait_for("ZeroDivisionError: division by zero");
    leave(home, "repl-cells", terminal);

    let file = home.state().join("history");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let history = fs::read_to_string(&file).unwrap();
    assert!(
        history.contains("def f(x):\\n    return x + 1\n"),
        "{history}"
    );

    // Another console has the history, and also leaves with a command.
    let mut terminal = console(home, "repl-again");
    terminal.types(&format!("{CTRL_R}def f"));
    terminal.wait_for("return x + 1");
    terminal.types(CTRL_C);
    terminal.wait_for("In [1]: ");
    terminal.types("exit\r");
    assert_eq!(terminal.end().0, 0);
    home.ok(["sessions", "rm", "repl-again"]);
}

fn tab_completes_what_the_kernel_knows() {
    let home = shared();
    let mut terminal = console(home, "repl-tab");
    let name = "größe_of_the_thing";
    home.ok([
        "exec",
        "--session",
        "repl-tab",
        &format!("{name} = 'found it'"),
    ]);
    terminal.types("größe_of");
    terminal.press_until("\t", name);
    terminal.types("\r");
    wait_for_result(&mut terminal, "'found it'");
    // On a later line of a cell, where the cursor is counted from the start of the cell.
    terminal.types("if True:\r");
    terminal.wait_for("...:     ");
    terminal.types("größe_of");
    terminal.press_until("\t", name);
    terminal.types("[:5].upper() != print('in the block')\r\r");
    wait_for_output(&mut terminal, "in the block");
    // Several names are in a popup with their types; Enter takes the one that Tab has selected.
    wait_for_prompt(&mut terminal);
    home.ok([
        "exec",
        "--session",
        "repl-tab",
        "popup_a, popup_b = 'first', 'second'",
    ]);
    terminal.types("popup_");
    terminal.types("\t");
    terminal.wait_for("popup_b");
    terminal.wait_for_last_line(|line| line.contains("popup_b"));
    // The console applies keys that arrive together before it selects.
    terminal.types("\x1b[B");
    terminal.wait_for("popup_b");
    terminal.types("\r");
    terminal.wait_for_last_line(|line| line.ends_with("popup_b") && line.starts_with("In ["));
    terminal.types("\r");
    wait_for_result(&mut terminal, "'second'");
    leave(home, "repl-tab", terminal);
}

fn a_pasted_and_an_edited_cell_run_as_a_whole() {
    let home = shared();
    let mut terminal = console(home, "repl-edit");
    // Enter inside of a paste adds no line of its own and no indentation.
    terminal.types("\x1b[200~def g(x):\r    y = x + 1\r\r    return y\r\r\rg(4)\x1b[201~");
    terminal.wait_for("g(4)");
    terminal.types("\r");
    wait_for_result(&mut terminal, "5");
    // A line is added above the last one, in a cell of the history, and the cell runs from its last line.
    wait_for_prompt(&mut terminal);
    terminal.types("for n in [1, 2]:\rprint('n is', n)\r\r");
    terminal.wait_for("\nn is 2\r\n");
    wait_for_prompt(&mut terminal);
    terminal.types(&format!("{UP}{END}"));
    terminal.wait_for_last_line(|line| line.ends_with("print('n is', n)"));
    terminal.types("\rn = n * 10");
    terminal.wait_for("n = n * 10");
    let screen = terminal.wait_for_last_line(|line| line.ends_with("print('n is', n)"));
    assert!(screen.contains("...:     n = n * 10"), "{screen}");
    terminal.types("\x1b[B\x1b[F\r");
    terminal.types("\r");
    terminal.wait_for("\nn is 20\r\n");
    leave(home, "repl-edit", terminal);
}

fn code_is_colored_and_the_history_suggests_its_end() {
    let home = shared();
    let colored = ["--color", "always", "repl", "--session", "repl-colors"];
    let mut terminal = start(home.command(colored));
    terminal.types("colored = 'a text'\r");
    wait_for_prompt(&mut terminal);
    terminal.types("if colored: pass # no");
    for piece in ["\x1b[1;34mif", "\x1b[1;34mpass", "\x1b[2;3m# no"] {
        terminal.wait_for(piece);
    }
    terminal.types(CTRL_C);
    wait_for_prompt(&mut terminal);
    // The rest of the cell is shown after the first characters, and the right arrow takes it.
    terminal.types("colored =");
    terminal.wait_for("\x1b[2m 'a text'");
    terminal.types("\x1b[C");
    terminal.wait_for("\x1b[33m'a text'");
    terminal.types(CTRL_C);
    leave(home, "repl-colors", terminal);
}

fn the_debugger_shows_the_frames_of_the_last_error() {
    let home = shared();
    let mut terminal = console(home, "repl-debug");
    home.ok([
        "exec",
        "--session",
        "repl-debug",
        "def divide(by):\n    half = by / 2\n    return 1 / by",
    ]);
    terminal.types("%debug\r");
    terminal.wait_for("there is no error to debug");
    wait_for_prompt(&mut terminal);
    terminal.types("divide(0)\r");
    terminal.wait_for("ZeroDivisionError");
    wait_for_prompt(&mut terminal);
    terminal.types("%debug\r");
    terminal.wait_for("-> return 1 / by");
    let in_debugger = |line: &str| line == "ipdb>";
    for (command, shown) in [
        ("p half, by", "(0.0, 0)"),
        ("u", "-> divide(0)"),
        ("p half", "NameError"),
        ("next", "needs running code"),
        ("d", "-> return 1 / by"),
        ("!half = {1: by}; print(f'{half[1]=}')", "half[1]=0"),
    ] {
        terminal.wait_for_last_line(in_debugger);
        terminal.types(&format!("{command}\r"));
        terminal.wait_for(shown);
    }
    terminal.wait_for_last_line(in_debugger);
    terminal.types("q\r");
    let screen = wait_for_prompt(&mut terminal);
    // Commands of the debugger are not cells and leave no names.
    let last = screen.trim_end().lines().last().unwrap();
    assert_eq!(last.trim_end(), "In [3]:", "{screen}");
    let names = home.ok([
        "exec",
        "--session",
        "repl-debug",
        "sorted(k for k in globals() if 'pdb' in k)",
    ]);
    assert_eq!(names.stdout, "[]\n");
    leave(home, "repl-debug", terminal);
    let history = fs::read_to_string(home.state().join("history")).unwrap();
    assert!(!history.contains("p half"), "{history}");
}

fn ctrl_c_clears_the_line_at_the_prompt_and_interrupts_running_code() {
    let home = shared();
    let mut terminal = console(home, "repl-ctrl-c");
    terminal.types("kept = 5\r");
    terminal.wait_for("In [2]: ");
    terminal.types("kept = 6");
    terminal.wait_for("kept = 6");
    terminal.types(CTRL_C);
    terminal.wait_for("In [2]: ");
    terminal.types("def spin():\r");
    terminal.wait_for("...:     ");
    terminal.types("print('be' + 'gun')\r");
    terminal.wait_for("...:     ");
    terminal.types("while True: pass\r\r");
    terminal.wait_for("In [3]: ");
    terminal.types("spin()\r");
    terminal.wait_for("begun");
    terminal.types(CTRL_C);
    let shown = terminal.wait_for("In [4]: ");
    assert!(shown.contains("variables are kept"), "{shown}");
    terminal.types("kept\r");
    wait_for_result(&mut terminal, "5");
    leave(home, "repl-ctrl-c", terminal);
}

fn a_second_ctrl_c_stops_following_and_keeps_the_console() {
    let home = shared();
    let mut terminal = console(home, "repl-stubborn");
    let off = home.files().join("repl-stubborn.off");
    let stubborn = "import os, time\ndef stay():\n    print('be' + 'gun')\n    while not os.path.exists('/root/host/repl-stubborn.off'):\n        try: time.sleep(0.1)\n        except KeyboardInterrupt: pass";
    home.ok(["exec", "--session", "repl-stubborn", stubborn]);
    terminal.types("stay()\r");
    terminal.wait_for("begun");
    terminal.types(CTRL_C);
    terminal.wait_for("interrupting the code");
    terminal.types(CTRL_C);
    terminal.wait_for("detached from run");
    terminal.wait_for("In [");
    fs::write(off, "").unwrap();
    terminal.types("'still ' + 'here'\r");
    terminal.wait_for("'still here'");
    leave(home, "repl-stubborn", terminal);
}

fn figures_are_shown_or_named_and_the_console_continues() {
    let plot = "import matplotlib.pyplot as plt; plt.plot([1, 4, 9]); plt.show()\r";
    let home = shared();
    let mut command = home.command(["repl", "--session", "repl-seen"]);
    command.env("TERM_PROGRAM", "iTerm.app");
    let mut seen = start(command);
    seen.types(plot);
    seen.wait_for("\x1b]1337;File=inline=1;size=");
    leave(home, "repl-seen", seen);

    let out = home.folder.join("repl-figures");
    let folder = out.to_str().unwrap();
    let mut saved = start(home.command(["repl", "--session", "repl-saved", "--out", folder]));
    saved.types(plot);
    saved.wait_for("figure: ");
    saved.wait_for("figure-1.png");
    leave(home, "repl-saved", saved);
    assert!(
        fs::read(out.join("figure-1.png"))
            .unwrap()
            .starts_with(b"\x89PNG")
    );
}

fn the_console_waits_for_a_busy_kernel() {
    let home = shared();
    let api = home.api();
    let mut terminal = console(home, "repl-busy");
    let holds =
        "import os, time\nwhile not os.path.exists('/root/host/repl-busy.off'): time.sleep(0.02)";
    let held = api.exec_with(json!({"code": holds, "session": "repl-busy", "wait": 0}));
    assert_eq!(held["status"], "running");
    terminal.types("'af' + 'ter'\r");
    terminal.wait_for("this code is queued");
    fs::write(home.files().join("repl-busy.off"), "").unwrap();
    terminal.wait_for("]: 'after'\r\n");
    leave(home, "repl-busy", terminal);
}

fn a_loss_that_another_client_caused_is_reported() {
    let home = shared();
    let mut terminal = console(home, "repl-lost");
    terminal.types("x = 1\r");
    terminal.wait_for("In [2]: ");
    home.ok(["reset", "--session", "repl-lost"]);
    home.ok([
        "exec",
        "--session",
        "repl-lost",
        "'the other one is told, too'",
    ]);
    terminal.types("2\r");
    terminal.wait_for("variables were lost");
    leave(home, "repl-lost", terminal);
}

fn without_a_terminal_the_error_names_the_alternative() {
    let home = Home::new("repl-piped");
    let ran = home.run(["repl"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.stderr
            .contains("`osctl repl` needs an interactive terminal"),
        "{ran:?}"
    );
    assert!(
        ran.stderr.contains(&format!("{} exec -`", home.instance)),
        "{ran:?}"
    );
    let mut dumb = home.command(["repl"]);
    dumb.env("TERM", "dumb");
    let ran = Ran::from(terminal(&dumb).output().unwrap());
    assert!(ran.stdout.contains("TERM is `dumb`"), "{ran:?}");
    let ran = home.run(["--json", "repl"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stdout.contains("no JSON"), "{ran:?}");
}
