//! Watching the clipboard: each copied text is sent to all listeners.

use super::{Desktop, DesktopRefusal};
use tokio::sync::watch;

/// A listener on the clipboard.
#[derive(Debug)]
pub(crate) struct ClipboardWatcher {
    desktop: Desktop,
    changes: watch::Receiver<u64>,
    stop: watch::Receiver<bool>,
    /// The clipboard has changed, and its text has not been read since.
    is_read_pending: bool,
    last_text: Option<String>,
}

impl Desktop {
    /// Starts a listener; its first text is the current one.
    ///
    /// # Errors
    /// Why there is no screen.
    pub(crate) async fn watch_clipboard_texts(&self) -> Result<ClipboardWatcher, DesktopRefusal> {
        self.ensure_screen().await?;
        Ok(ClipboardWatcher {
            changes: self.0.display.watch_clipboard(),
            stop: self.0.stop.clone(),
            is_read_pending: true,
            last_text: None,
            desktop: self.clone(),
        })
    }
}

impl ClipboardWatcher {
    /// Waits for a text other than the last one returned; `None` when the companion ends. Cancel safe.
    pub(crate) async fn next_text(&mut self) -> Option<String> {
        loop {
            if !self.is_read_pending {
                tokio::select! {
                    _ = self.stop.wait_for(|stop| *stop) => return None,
                    changed = self.changes.changed() => changed.ok()?,
                }
            }
            self.is_read_pending = true;
            // Reads from the display directly, without starting a screen: a listener alone needs no screen.
            let read = self.desktop.0.display.read_clipboard().await;
            self.is_read_pending = false;
            match read {
                Ok(text) if self.last_text.as_ref() != Some(&text) => {
                    self.last_text = Some(text.clone());
                    return Some(text);
                }
                // There is nothing to report until the next change.
                Ok(_) | Err(_) => {}
            }
        }
    }
}
