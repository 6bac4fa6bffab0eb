//! The mode of the person's terminal: handed over while a program elsewhere has it.

use crate::error::Error;
#[cfg(not(unix))]
use crate::error::Result;

#[cfg(unix)]
pub(super) use unix::RawMode;

#[cfg(unix)]
mod unix {
    use super::handover_error;
    use crate::error::Result;
    use nix::sys::termios::{
        InputFlags, LocalFlags, OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr,
    };
    use std::io;

    /// Every key goes through as it is. Restored when dropped.
    #[derive(Debug)]
    pub(in crate::ui::screen) struct RawMode {
        before: Termios,
    }

    impl RawMode {
        /// # Errors
        /// Where there is no terminal.
        pub(in crate::ui::screen) fn enter() -> Result<Self> {
            let mut before = tcgetattr(io::stdin()).map_err(|e| handover_error(&e.to_string()))?;
            // Whoever had it before may have been killed, and left it like this.
            if !before.local_flags.contains(LocalFlags::ICANON) {
                restore_line_mode(&mut before);
            }
            let raw = Self { before };
            raw.reenter()?;
            Ok(raw)
        }

        /// After somebody else had the terminal.
        pub(in crate::ui::screen) fn reenter(&self) -> Result<()> {
            let mut mode = self.before.clone();
            cfmakeraw(&mut mode);
            let done = tcsetattr(io::stdin(), SetArg::TCSANOW, &mode);
            done.map_err(|e| handover_error(&e.to_string()))
        }
    }

    /// What a person expects of a terminal.
    fn restore_line_mode(mode: &mut Termios) {
        mode.local_flags.insert(
            LocalFlags::ICANON
                | LocalFlags::ECHO
                | LocalFlags::ECHOE
                | LocalFlags::ECHOK
                | LocalFlags::ISIG
                | LocalFlags::IEXTEN,
        );
        mode.input_flags
            .insert(InputFlags::ICRNL | InputFlags::IXON);
        mode.output_flags
            .insert(OutputFlags::OPOST | OutputFlags::ONLCR);
    }

    impl Drop for RawMode {
        fn drop(&mut self) {
            // A terminal that is gone has no mode.
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
        }
    }
}

#[cfg(not(unix))]
#[derive(Debug)]
pub(super) struct RawMode;

#[cfg(not(unix))]
impl RawMode {
    pub(super) fn enter() -> Result<Self> {
        Err(handover_error(
            "this system's terminals are not supported yet",
        ))
    }

    pub(super) fn reenter(&self) -> Result<()> {
        Ok(())
    }
}

fn handover_error(why: &str) -> anyhow::Error {
    let hint = "run it in a terminal of Linux or macOS, or WSL";
    Error::precondition(format!("the terminal can't be handed over: {why}"), hint).into()
}
