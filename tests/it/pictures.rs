//! Figures: drawn on terminals that can draw them, otherwise saved, with the path reported.

use crate::harness::{Home, shared};
use crate::terminal::Terminal;
use crate::trials;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::fs;
use std::process::Command;

trials![
    iterm2_gets_the_file,
    kitty_gets_the_saved_file,
    a_terminal_that_answers_the_query_gets_sixels,
    other_and_silent_terminals_get_the_path_of_the_figure,
    without_a_terminal_figures_are_saved_and_named,
    out_chooses_the_folder_of_figures,
    a_drawing_is_saved_without_scripts,
];

/// 640 pixels wide.
const PLOT: &str = "import matplotlib.pyplot as plt; plt.plot([1, 4, 9]); plt.show()";

/// osctl's queries to an unknown terminal.
const QUERIES: &str = "\x1b[14t\x1b[c";

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

fn plot(home: &Home) -> Command {
    home.command(["exec", PLOT])
}

fn iterm2_gets_the_file() {
    let mut command = plot(shared());
    command.env("TERM_PROGRAM", "iTerm.app");
    let (code, shown) = Terminal::start(command).end();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("\x1b]1337;File=inline=1;size="), "{shown}");
    assert!(!shown.contains("figure:"), "{shown}");
    assert!(!shown.contains(QUERIES), "{shown}");
}

fn kitty_gets_the_saved_file() {
    let home = shared();
    let folder = home.folder.join("kitty");
    let out = folder.to_str().unwrap();
    let mut command = home.command(["exec", "--out", out, PLOT]);
    command.env("KITTY_WINDOW_ID", "1");
    let (code, shown) = Terminal::start(command).end();
    assert_eq!(code, 0, "{shown}");
    // osctl knows the terminal by its variables, and does not query it.
    assert!(!shown.contains(QUERIES), "{shown}");
    let mut payload = String::new();
    let mut controls = Vec::new();
    for command in shown.split("\x1b_G").skip(1) {
        let (command, _) = command.split_once("\x1b\\").unwrap();
        let (control, chunk) = command.split_once(';').unwrap();
        // The protocol allows no more in one command.
        assert!(chunk.len() <= 4096, "{} bytes", chunk.len());
        controls.push(control);
        payload += chunk;
    }
    let (last, others) = controls.split_last().unwrap();
    // A figure of this size takes several commands, and the first command has the parameters.
    let first = others.first().unwrap();
    assert!(first.contains("a=T") && first.contains("f=100"), "{first}");
    assert!(others.iter().all(|control| control.ends_with("m=1")));
    assert!(last.ends_with("m=0"), "{last}");
    // The shell would read answers as typed text.
    assert!(controls.iter().all(|control| control.contains("q=2")));
    let saved = fs::read(folder.join("figure-1.png")).unwrap();
    assert!(saved.starts_with(PNG));
    let drawn = BASE64_STANDARD.decode(payload).unwrap();
    assert!(drawn == saved, "{} bytes of {}", drawn.len(), saved.len());
}

fn a_terminal_that_answers_the_query_gets_sixels() {
    let ask = || {
        let mut terminal = Terminal::start(plot(shared()));
        terminal.wait_for(QUERIES);
        terminal.types("\x1b[4;600;320t\x1b[?62;4;22c");
        terminal.end()
    };
    // osctl does not wait for a late answer.
    let (code, shown) = (0..5)
        .map(|_| ask())
        .find(|(_, shown)| !shown.contains("figure:"))
        .unwrap();
    assert_eq!(code, 0, "{shown}");
    let (_, picture) = shown.split_once("\x1bP").unwrap();
    // Half of its width fits.
    let (_, picture) = picture.split_once("\"1;1;320;").unwrap();
    assert!(picture.contains("\x1b\\"), "the picture has no end");
}

fn other_and_silent_terminals_get_the_path_of_the_figure() {
    let home = shared();
    let mut asked = Terminal::start(plot(home));
    asked.wait_for(QUERIES);
    asked.types("\x1b[?1;2c");
    asked.wait_for("figure: ");
    assert_eq!(asked.end().0, 0);

    let mut silent = Terminal::start(plot(home));
    silent.wait_for("figure: ");
    assert_eq!(silent.end().0, 0);

    let mut multiplexed = plot(home);
    multiplexed.env("TMUX", "/tmp/tmux-0/default,1,0");
    let (code, shown) = Terminal::start(multiplexed).end();
    assert!(code == 0 && shown.contains("figure: "), "{shown}");
    // Neither a query nor a picture; the elapsed time may be shown.
    for begin in ["\x1b[14t", "\x1b[c", "\x1b]", "\x1b_", "\x1bP"] {
        assert!(!shown.contains(begin), "{shown:?}");
    }
}

fn without_a_terminal_figures_are_saved_and_named() {
    let ran = shared().ok(["exec", PLOT]);
    let path = ran.stderr.trim().strip_prefix("figure: ").unwrap();
    assert!(fs::read(path).unwrap().starts_with(PNG));
}

fn out_chooses_the_folder_of_figures() {
    let home = shared();
    let folder = home.folder.join("figures");
    let out = folder.to_str().unwrap();
    home.ok(["exec", "--out", out, PLOT]);
    home.ok(["exec", "--out", out, PLOT]);
    for name in ["figure-1.png", "figure-2.png"] {
        assert!(
            fs::read(folder.join(name)).unwrap().starts_with(PNG),
            "{name}"
        );
    }
}

fn a_drawing_is_saved_without_scripts() {
    let home = shared();
    let folder = home.folder.join("drawn");
    let drawing = "<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'>\
        <script>fetch('file:///etc/passwd')</script><a href='javascript:alert(1)'><path d='M 0 1 L 2 3'/></a>\
        <foreignObject><iframe src='http://attacker.example'/></foreignObject>\
        <image href='http://attacker.example/x.png'/></svg>";
    let code = format!(
        "class F:\n    def _repr_mimebundle_(self, **_): return {{'image/svg+xml': {drawing:?}}}\nF()"
    );
    home.ok(["exec", "--out", folder.to_str().unwrap(), &code]);
    let saved = fs::read_to_string(folder.join("figure-1.svg")).unwrap();
    assert!(saved.starts_with("<svg xmlns="), "{saved}");
    assert!(saved.contains("d=\"M 0 1 L 2 3\""), "{saved}");
    for word in ["onload", "script", "attacker", "iframe", "passwd", "<a"] {
        assert!(!saved.contains(word), "{word}: {saved}");
    }
}
