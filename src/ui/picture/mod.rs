//! Pictures on terminals that can show them.
//!
//! The environment variables of a terminal say which protocol it supports; other terminals are queried. Multiplexers
//! count as unsupported: what they pass through, and to which of their terminals, is unknown.

mod inline;
mod sixel;
#[cfg(unix)]
mod terminal_query;

use std::env;
use std::io::{self, IsTerminal};

/// Width of a column in pixels if the terminal does not report it: that of a small font.
const COLUMN_PIXELS: usize = 8;

/// A protocol that a terminal supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PictureProtocol {
    Kitty,
    Iterm2,
    Sixel,
}

/// The support that the environment variables indicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PictureSupport {
    Supported(PictureProtocol),
    /// Unknown: the terminal must be queried.
    Unknown,
    Unsupported,
}

/// Shows a picture in the terminal on stdout; `false` if that is not possible.
pub(crate) fn show_picture(bytes: &[u8], ending: &str) -> bool {
    if !io::stdout().is_terminal() {
        return false;
    }
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let protocol = match detect_support(variable) {
        PictureSupport::Supported(protocol) => protocol,
        PictureSupport::Unknown if ending == "png" && terminal_answers().sixel => {
            PictureProtocol::Sixel
        }
        PictureSupport::Unknown | PictureSupport::Unsupported => return false,
    };
    let commands = match protocol {
        PictureProtocol::Kitty if ending == "png" => inline::encode_kitty(bytes),
        PictureProtocol::Iterm2 if ["png", "jpg", "gif"].contains(&ending) => {
            inline::encode_iterm2(bytes)
        }
        PictureProtocol::Sixel if ending == "png" => {
            match sixel::encode_sixel(bytes, max_picture_width()) {
                Some(commands) => commands,
                None => return false,
            }
        }
        _ => return false,
    };
    // A write error also affects the text output that follows, which reports it.
    let _ = super::write_all(io::stdout(), commands.as_bytes());
    true
}

fn detect_support(variable: impl Fn(&str) -> Option<String>) -> PictureSupport {
    let term = variable("TERM").unwrap_or_default();
    let program = variable("TERM_PROGRAM").unwrap_or_default();
    let is_set = |name| variable(name).is_some();
    let is_multiplexed = ["TMUX", "STY", "ZELLIJ"].into_iter().any(is_set)
        || ["screen", "tmux"].iter().any(|name| term.starts_with(name));
    if is_multiplexed || ["", "dumb", "linux"].contains(&term.as_str()) {
        return PictureSupport::Unsupported;
    }
    if is_set("KITTY_WINDOW_ID") || term.contains("kitty") || program == "ghostty" {
        return PictureSupport::Supported(PictureProtocol::Kitty);
    }
    // `LC_` variables pass through ssh, the others do not.
    if ["iTerm.app", "WezTerm", "mintty"].contains(&program.as_str())
        || variable("LC_TERMINAL").is_some_and(|name| name == "iTerm2")
        || ["WEZTERM_PANE", "WEZTERM_EXECUTABLE"]
            .into_iter()
            .any(is_set)
    {
        return PictureSupport::Supported(PictureProtocol::Iterm2);
    }
    if ["foot", "mlterm"].iter().any(|name| term.starts_with(name)) {
        return PictureSupport::Supported(PictureProtocol::Sixel);
    }
    PictureSupport::Unknown
}

/// The responses of a terminal to the queries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct TerminalAnswers {
    sixel: bool,
    /// Width of the text area in pixels.
    width: Option<usize>,
}

#[cfg(unix)]
fn terminal_answers() -> TerminalAnswers {
    static CACHED_ANSWERS: std::sync::OnceLock<TerminalAnswers> = std::sync::OnceLock::new();
    *CACHED_ANSWERS.get_or_init(|| terminal_query::query_terminal().unwrap_or_default())
}

#[cfg(not(unix))]
fn terminal_answers() -> TerminalAnswers {
    TerminalAnswers::default()
}

/// Maximum width of a picture in pixels.
fn max_picture_width() -> usize {
    terminal_answers().width.unwrap_or_else(|| {
        let (_, columns) = console::Term::stdout().size();
        usize::from(columns) * COLUMN_PIXELS
    })
}

#[cfg(test)]
mod tests {
    use super::{PictureProtocol, PictureSupport, detect_support};

    fn of(variables: &[(&str, &str)]) -> PictureSupport {
        detect_support(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn terminals_are_recognized_by_their_variables() {
        let xterm = ("TERM", "xterm-256color");
        let iterm = ("TERM_PROGRAM", "iTerm.app");
        assert_eq!(
            of(&[xterm, iterm]),
            PictureSupport::Supported(PictureProtocol::Iterm2)
        );
        let over_ssh = [xterm, ("LC_TERMINAL", "iTerm2")];
        assert_eq!(
            of(&over_ssh),
            PictureSupport::Supported(PictureProtocol::Iterm2)
        );
        let wezterm = [xterm, ("WEZTERM_PANE", "0")];
        assert_eq!(
            of(&wezterm),
            PictureSupport::Supported(PictureProtocol::Iterm2)
        );
        for kitty in [
            ("KITTY_WINDOW_ID", "1"),
            ("TERM", "xterm-kitty"),
            ("TERM_PROGRAM", "ghostty"),
        ] {
            assert_eq!(
                of(&[kitty, xterm]),
                PictureSupport::Supported(PictureProtocol::Kitty),
                "{kitty:?}"
            );
        }
        for sixel in ["foot", "foot-extra", "mlterm-256color"] {
            assert_eq!(
                of(&[("TERM", sixel)]),
                PictureSupport::Supported(PictureProtocol::Sixel)
            );
        }
        assert_eq!(of(&[xterm]), PictureSupport::Unknown);
    }

    #[test]
    fn multiplexers_and_plain_terminals_show_none() {
        let iterm = ("TERM_PROGRAM", "iTerm.app");
        for hidden in [
            ("TMUX", "/tmp/tmux-0/default,1,0"),
            ("STY", "1.pts-0"),
            ("ZELLIJ", "0"),
        ] {
            let variables = [("TERM", "xterm-256color"), iterm, hidden];
            assert_eq!(of(&variables), PictureSupport::Unsupported, "{hidden:?}");
        }
        for term in ["screen-256color", "tmux-256color", "dumb", "linux"] {
            assert_eq!(
                of(&[("TERM", term), iterm]),
                PictureSupport::Unsupported,
                "{term}"
            );
        }
        assert_eq!(of(&[]), PictureSupport::Unsupported);
    }
}
