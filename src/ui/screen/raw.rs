//! Raw mode of the user's terminal, while it is connected to a program elsewhere.

use crate::error::Error;
#[cfg(not(unix))]
use crate::error::Result;

#[cfg(unix)]
pub(in crate::ui) use unix::RawMode;

#[cfg(unix)]
mod unix {
    use super::raw_mode_error;
    use crate::error::Result;
    use nix::sys::termios::{
        InputFlags, LocalFlags, OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr,
    };
    use std::io;

    /// Raw mode, in which every key passes through unchanged. The earlier mode is restored on drop.
    #[derive(Debug)]
    pub(in crate::ui) struct RawMode {
        before: Termios,
    }

    impl RawMode {
        /// Keeps the current mode, which is restored on drop.
        ///
        /// # Errors
        /// When there is no terminal.
        pub(in crate::ui) fn save() -> Result<Self> {
            let mut before = tcgetattr(io::stdin()).map_err(|e| raw_mode_error(&e.to_string()))?;
            // An earlier program may have been killed and left the terminal in raw mode.
            if !before.local_flags.contains(LocalFlags::ICANON) {
                restore_line_mode(&mut before);
            }
            Ok(Self { before })
        }

        /// # Errors
        /// When there is no terminal.
        pub(in crate::ui::screen) fn enter() -> Result<Self> {
            let raw = Self::save()?;
            raw.reenter()?;
            Ok(raw)
        }

        /// Enters raw mode again after another process used the terminal.
        pub(in crate::ui::screen) fn reenter(&self) -> Result<()> {
            let mut mode = self.before.clone();
            cfmakeraw(&mut mode);
            let done = tcsetattr(io::stdin(), SetArg::TCSANOW, &mode);
            done.map_err(|e| raw_mode_error(&e.to_string()))
        }
    }

    /// Sets the line mode that a shell expects.
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
            // The terminal may be gone.
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
        }
    }
}

#[cfg(not(unix))]
#[derive(Debug)]
pub(in crate::ui) struct RawMode;

#[cfg(not(unix))]
impl RawMode {
    pub(super) fn enter() -> Result<Self> {
        Err(raw_mode_error(
            "osctl does not support terminals of this system",
        ))
    }

    pub(super) fn reenter(&self) -> Result<()> {
        Ok(())
    }
}

fn raw_mode_error(why: &str) -> anyhow::Error {
    let hint = "use Linux, macOS or WSL";
    Error::precondition(format!("can't use the terminal: {why}"), hint).into()
}
