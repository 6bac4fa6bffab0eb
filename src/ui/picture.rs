//! Pictures on terminals that can show them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::env;
use std::io::{self, IsTerminal};

/// Bytes of base64 in one command of the kitty protocol.
const CHUNK: usize = 4096;

/// What a terminal understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Kitty,
    Iterm2,
}

/// Shows a picture in the terminal on stdout; `false` where that can't be done.
pub(crate) fn show(bytes: &[u8], ending: &str) -> bool {
    if !io::stdout().is_terminal() {
        return false;
    }
    let commands = match protocol(|name| env::var(name).ok()) {
        Some(Protocol::Kitty) if ending == "png" => kitty(bytes),
        Some(Protocol::Iterm2) if ["png", "jpg", "gif"].contains(&ending) => iterm2(bytes),
        _ => return false,
    };
    super::write_all(io::stdout(), commands.as_bytes());
    true
}

/// What the terminal says of itself.
fn protocol(variable: impl Fn(&str) -> Option<String>) -> Option<Protocol> {
    let term = variable("TERM").unwrap_or_default();
    let program = variable("TERM_PROGRAM").unwrap_or_default();
    // Multiplexers pass neither on.
    if variable("TMUX").is_some() || term.starts_with("screen") {
        return None;
    }
    if variable("KITTY_WINDOW_ID").is_some()
        || term.contains("kitty")
        || ["ghostty", "WezTerm"].contains(&program.as_str())
    {
        return Some(Protocol::Kitty);
    }
    ["iTerm.app", "vscode", "mintty"]
        .contains(&program.as_str())
        .then_some(Protocol::Iterm2)
}

fn kitty(png: &[u8]) -> String {
    let packed = BASE64_STANDARD.encode(png);
    let chunks: Vec<&[u8]> = packed.as_bytes().chunks(CHUNK).collect();
    let mut commands = String::new();
    for (number, chunk) in chunks.iter().enumerate() {
        let more = u8::from(number + 1 < chunks.len());
        let control = match number {
            0 => format!("a=T,f=100,m={more}"),
            _ => format!("m={more}"),
        };
        let chunk = String::from_utf8_lossy(chunk);
        commands.push_str(&format!("\x1b_G{control};{chunk}\x1b\\"));
    }
    commands + "\n"
}

fn iterm2(bytes: &[u8]) -> String {
    let packed = BASE64_STANDARD.encode(bytes);
    let size = bytes.len();
    format!("\x1b]1337;File=inline=1;size={size}:{packed}\x07\n")
}
