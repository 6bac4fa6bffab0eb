//! `osctl completions`: the script that a shell loads.

use crate::error::{Outcome, Result};
use crate::ui::Ui;
use clap::{Args, ValueEnum};
use clap_complete::env::Shells;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
    Elvish,
}

/// To bash a colon ends a word, which would take `os:/PATH` apart.
const COLONS: &str = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n";

impl Shell {
    fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
            Self::Powershell => "powershell",
            Self::Elvish => "elvish",
        }
    }
}

/// The script asks the binary at each completion, so names that exist are completed, too.
pub(crate) fn run(args: CompletionsArgs, ui: Ui) -> Result<Outcome> {
    let CompletionsArgs { shell } = args;
    let shells = Shells::builtins();
    let completer = shells
        .completer(shell.name())
        .ok_or_else(|| anyhow::anyhow!("no script for {}", shell.name()))?;
    let mut script = Vec::new();
    completer.write_registration("COMPLETE", "osctl", "osctl", "osctl", &mut script)?;
    if shell == Shell::Bash {
        script.extend(COLONS.as_bytes());
    }
    ui.data(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Done)
}
