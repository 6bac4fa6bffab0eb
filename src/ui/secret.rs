//! A question whose answer the terminal does not show.

#[cfg(unix)]
use super::screen::RawMode;
use super::{SanitizedText, Ui};
use crate::error::{Error, Result};
use anyhow::Context;
use console::Term;
use std::io::ErrorKind;

impl Ui {
    /// Asks for a text that the terminal does not show; `None` at its end, or if the text is empty. A signal that drops
    /// the future restores the terminal.
    ///
    /// # Errors
    /// When the terminal can't be used.
    pub(crate) async fn read_secret(self, question: &str) -> Result<Option<String>> {
        let question = String::from(SanitizedText::message(question)) + ": ";
        let mut asked = AskedQuestion::begin()?;
        let read = move || {
            let terminal = Term::stderr();
            terminal.write_str(&question)?;
            terminal.read_secure_line()
        };
        // The thread that reads the terminal can't be interrupted.
        let answer = tokio::task::spawn_blocking(read).await;
        asked.is_answered = true;
        let answer = answer.context("reading the terminal")?;
        let answer = answer.map_err(|error| match error.kind() {
            ErrorKind::Interrupted => Error::Interrupted.into(),
            _ => anyhow::Error::from(error),
        })?;
        Ok(Some(answer).filter(|text| !text.is_empty()))
    }
}

/// The mode of the terminal before the question, which is restored on drop.
struct AskedQuestion {
    #[cfg(unix)]
    _mode: RawMode,
    is_answered: bool,
}

impl AskedQuestion {
    fn begin() -> Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            _mode: RawMode::save()?,
            is_answered: false,
        })
    }
}

impl Drop for AskedQuestion {
    fn drop(&mut self) {
        if !self.is_answered {
            // The next message starts on a line of its own. The terminal may be gone.
            let _ = Term::stderr().write_line("");
        }
    }
}
