//! `osctl completions`: prints the completion script of a shell.

use super::completer::SHELL_COMPLETERS;
use crate::error::{Result, VerbOutcome};
use crate::ui::Ui;
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete in
    shell: CompletionShell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CompletionShell {
    Bash,
    Zsh,
    Fish,
    Powershell,
    Elvish,
}

impl CompletionShell {
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

/// The script calls the binary at each completion, so it also completes existing names.
pub(crate) fn run(args: CompletionsArgs, ui: Ui) -> Result<VerbOutcome> {
    let CompletionsArgs { shell } = args;
    let completer = SHELL_COMPLETERS
        .completer(shell.name())
        .ok_or_else(|| anyhow::anyhow!("no script for {}", shell.name()))?;
    let mut script = Vec::new();
    completer.write_registration("COMPLETE", "osctl", "osctl", "osctl", &mut script)?;
    ui.print_data(&String::from_utf8_lossy(&script))?;
    Ok(VerbOutcome::Done)
}
