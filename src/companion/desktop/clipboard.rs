//! What is copied inside, told as it happens to whoever listens.

use super::{Desktop, DesktopRefusal};
use tokio::sync::watch;

/// Somebody who listens.
#[derive(Debug)]
pub(crate) struct ClipboardWatcher {
    desktop: Desktop,
    changes: watch::Receiver<u64>,
    stop: watch::Receiver<bool>,
    /// There was a change, and the text has not been read since.
    is_due: bool,
    told: Option<String>,
}

impl Desktop {
    /// Tells what is copied, beginning with what is there now.
    ///
    /// # Errors
    /// Why there is no screen.
    pub(crate) async fn listen_to_clipboard(&self) -> Result<ClipboardWatcher, DesktopRefusal> {
        self.ensure_screen().await?;
        Ok(ClipboardWatcher {
            changes: self.0.display.watch_clipboard(),
            stop: self.0.stop.clone(),
            is_due: true,
            told: None,
            desktop: self.clone(),
        })
    }
}

impl ClipboardWatcher {
    /// The text, once it is another one than was told before; nothing when the companion ends. Loses
    /// nothing when dropped.
    pub(crate) async fn next_text(&mut self) -> Option<String> {
        loop {
            if !self.is_due {
                tokio::select! {
                    _ = self.stop.wait_for(|stop| *stop) => return None,
                    changed = self.changes.changed() => changed.ok()?,
                }
            }
            self.is_due = true;
            // Past what would start a screen: whoever only listens needs none.
            let read = self.desktop.0.display.read_clipboard().await;
            self.is_due = false;
            match read {
                Ok(text) if self.told.as_ref() != Some(&text) => {
                    self.told = Some(text.clone());
                    return Some(text);
                }
                // Nothing can be told until something is copied again.
                Ok(_) | Err(_) => {}
            }
        }
    }
}
