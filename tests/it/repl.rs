//! `osctl repl`: the console, used on a real terminal.

use crate::harness::{Home, shared};
use crate::terminal::Terminal;
use crate::trials;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;

trials![
    cells_of_one_and_several_lines_run_and_enter_the_history,
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

/// A console on a separate session, so that only its cells are counted.
fn console(home: &Home, session: &str) -> Terminal {
    let mut terminal = Terminal::start(home.command(["repl", "--session", session]));
    terminal.wait_for("In [1]: ");
    terminal
}

/// Leaves at the next prompt, with exit code 0, and ends the session.
#[track_caller]
fn leave(home: &Home, session: &str, mut terminal: Terminal) {
    terminal.wait_for("In [");
    terminal.types(CTRL_D);
    let (code, shown) = terminal.end();
    assert_eq!(code, 0, "{shown}");
    home.ok(["sessions", "rm", session]);
}

fn cells_of_one_and_several_lines_run_and_enter_the_history() {
    let home = shared();
    let mut terminal = console(home, "repl-cells");
    terminal.types("6*7\r");
    terminal.wait_for("\n42\r\n");
    terminal.wait_for("In [2]: ");
    terminal.types("def f(x):\r");
    terminal.wait_for("   ...:     ");
    terminal.types("return x + 1\r");
    terminal.wait_for("   ...:     ");
    terminal.types("\r");
    terminal.wait_for("In [3]: ");
    terminal.types("f(40)\r");
    terminal.wait_for("\n41\r\n");
    terminal.types("f?\r");
    terminal.wait_for("Signature");
    terminal.wait_for("In [");
    terminal.types("print('no end', end='')\r");
    terminal.wait_for("\nno end\r\n");
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
    terminal.wait_for("\n'found it'\r\n");
    // On a later line of a cell, where the cursor is counted from the start of the cell.
    terminal.types("if True:\r");
    terminal.wait_for("...:     ");
    terminal.types("größe_of");
    terminal.press_until("\t", name);
    terminal.types("[:5].upper() != print('in the block')\r\r");
    terminal.wait_for("\nin the block\r\n");
    leave(home, "repl-tab", terminal);
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
    terminal.wait_for("\n5\r\n");
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
    let mut seen = Terminal::start(command);
    seen.wait_for("In [1]: ");
    seen.types(plot);
    seen.wait_for("\x1b]1337;File=inline=1;size=");
    leave(home, "repl-seen", seen);

    let out = home.folder.join("repl-figures");
    let folder = out.to_str().unwrap();
    let mut saved =
        Terminal::start(home.command(["repl", "--session", "repl-saved", "--out", folder]));
    saved.wait_for("In [1]: ");
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
    terminal.wait_for("\n'after'\r\n");
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
    let ran = home.run(["--json", "repl"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stdout.contains("no JSON"), "{ran:?}");
}
