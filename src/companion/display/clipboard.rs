//! The clipboard. X stores no clipboard: the program that copied a text owns a selection and serves the text on
//! request. This module owns the selection for texts that the companion copies.

use super::DisplayRefusal;
use super::connection::{X11Connection, x11_call_failed};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use x11rb::connection::{Connection as _, RequestConnection as _};
use x11rb::protocol::Event;
use x11rb::protocol::xfixes::{ConnectionExt as _, SelectionEventMask};
use x11rb::protocol::xproto::{
    Atom, AtomEnum, ConnectionExt as _, EventMask, PropMode, Property, SELECTION_NOTIFY_EVENT,
    SelectionNotifyEvent, SelectionRequestEvent,
};
use x11rb::wrapper::ConnectionExt as _;

/// Time in which a program that owns the selection answers.
const SELECTION_OWNER_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum bytes of text.
pub(super) const MAX_CLIPBOARD_BYTES: usize = 8 << 20;

/// The XFIXES version that reports owner changes of selections.
const XFIXES_VERSION: (u32, u32) = (1, 0);

/// The selections of the companion and their text.
#[derive(Debug)]
pub(super) struct X11Clipboard {
    text: Option<String>,
    /// The selections that the companion owns.
    owned_selections: Vec<Atom>,
    /// Changes whenever another program becomes the owner, or the owner copies again.
    change_sender: watch::Sender<u64>,
}

impl X11Clipboard {
    pub(super) fn new(change_sender: watch::Sender<u64>) -> Self {
        Self {
            text: None,
            owned_selections: Vec::new(),
            change_sender,
        }
    }

    /// Subscribes to owner changes. If the server was not watched before, the change counter changes, because an owner
    /// may have changed unnoticed.
    pub(super) fn watch_owner_changes(
        &self,
        connection: &X11Connection,
    ) -> Result<(), DisplayRefusal> {
        let x = &connection.x;
        let (major, minor) = XFIXES_VERSION;
        let version = x
            .xfixes_query_version(major, minor)
            .map_err(x11_call_failed)?;
        version.reply().map_err(x11_call_failed)?;
        let changes = SelectionEventMask::SET_SELECTION_OWNER
            | SelectionEventMask::SELECTION_WINDOW_DESTROY
            | SelectionEventMask::SELECTION_CLIENT_CLOSE;
        let (window, selection) = (connection.helper_window, connection.atoms.CLIPBOARD);
        x.xfixes_select_selection_input(window, selection, changes)
            .map_err(x11_call_failed)?
            .check()
            .map_err(x11_call_failed)?;
        self.notify_change();
        Ok(())
    }

    fn notify_change(&self) {
        self.change_sender.send_modify(|number| *number += 1);
    }

    /// Becomes the owner of both selections, clipboard and primary, and serves `text` for them.
    pub(super) fn write_text(
        &mut self,
        connection: &X11Connection,
        text: String,
    ) -> Result<(), DisplayRefusal> {
        let max_bytes = connection
            .x
            .maximum_request_bytes()
            .min(MAX_CLIPBOARD_BYTES)
            - 64;
        if text.len() > max_bytes {
            return Err(DisplayRefusal::Invalid(format!(
                "the text is longer than {max_bytes} bytes; write it to a file"
            )));
        }
        self.text = Some(text);
        self.owned_selections = vec![connection.atoms.CLIPBOARD, AtomEnum::PRIMARY.into()];
        for selection in self.owned_selections.iter().copied() {
            let (window, now) = (connection.helper_window, x11rb::CURRENT_TIME);
            connection
                .x
                .set_selection_owner(window, selection, now)
                .map_err(x11_call_failed)?;
        }
        connection.sync()
    }

    /// The copied text; empty when nothing or something other than text was copied.
    pub(super) fn read_text(
        &mut self,
        connection: &X11Connection,
    ) -> Result<String, DisplayRefusal> {
        let (x, atoms) = (&connection.x, connection.atoms);
        let selection = atoms.CLIPBOARD;
        let owner = x.get_selection_owner(selection).map_err(x11_call_failed)?;
        let owner = owner.reply().map_err(x11_call_failed)?.owner;
        if owner == x11rb::NONE {
            return Ok(String::new());
        }
        if owner == connection.helper_window {
            return Ok(self.text.clone().unwrap_or_default());
        }
        let (atom, now) = (atoms.OSCTL_SELECTION, x11rb::CURRENT_TIME);
        x.delete_property(connection.helper_window, atom)
            .map_err(x11_call_failed)?;
        x.convert_selection(
            connection.helper_window,
            selection,
            atoms.UTF8_STRING,
            atom,
            now,
        )
        .map_err(x11_call_failed)?;
        let answered = self.wait_for_event(connection, |event| match event {
            Event::SelectionNotify(event_data) if event_data.selection == selection => {
                Some(event_data.property)
            }
            _ => None,
        })?;
        if answered == x11rb::NONE {
            return Ok(String::new());
        }
        let bytes = match read_and_delete_property(connection, atom)? {
            (kind, _) if kind == atoms.INCR => self.read_incremental(connection, atom)?,
            (_, bytes) => bytes,
        };
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Receives a large text in pieces: the owner writes each piece after the previous one was deleted.
    fn read_incremental(
        &mut self,
        connection: &X11Connection,
        atom: Atom,
    ) -> Result<Vec<u8>, DisplayRefusal> {
        let mut all = Vec::new();
        loop {
            self.wait_for_event(connection, |event| match event {
                Event::PropertyNotify(event_data)
                    if event_data.atom == atom && event_data.state == Property::NEW_VALUE =>
                {
                    Some(())
                }
                _ => None,
            })?;
            let (_, mut piece) = read_and_delete_property(connection, atom)?;
            if piece.is_empty() {
                return Ok(all);
            }
            all.append(&mut piece);
            if all.len() > MAX_CLIPBOARD_BYTES {
                let why = format!("the clipboard has more than {MAX_CLIPBOARD_BYTES} bytes");
                return Err(DisplayRefusal::Invalid(why));
            }
        }
    }

    /// Waits for the first event for which `select` returns a value; handles the others.
    fn wait_for_event<T>(
        &mut self,
        connection: &X11Connection,
        select: impl Fn(&Event) -> Option<T>,
    ) -> Result<T, DisplayRefusal> {
        connection.x.flush().map_err(x11_call_failed)?;
        let begin = Instant::now();
        loop {
            while let Some(event) = connection.x.poll_for_event().map_err(x11_call_failed)? {
                if let Some(selected) = select(&event) {
                    return Ok(selected);
                }
                self.handle_event(connection, &event)?;
            }
            let left = SELECTION_OWNER_TIMEOUT.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let why = "the program that owns the clipboard does not send the text";
                return Err(DisplayRefusal::NotApplied(why.into()));
            }
            let mut polled = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            // An interrupted poll counts as a wake-up.
            let _ = poll(&mut polled, left);
        }
    }

    /// Serves a program that pastes; ignores other events.
    pub(super) fn handle_event(
        &mut self,
        connection: &X11Connection,
        event: &Event,
    ) -> Result<(), DisplayRefusal> {
        match event {
            Event::SelectionRequest(request) => self.send_selection(connection, request),
            Event::SelectionClear(event_data) => {
                self.release_selection(event_data.selection);
                Ok(())
            }
            Event::XfixesSelectionNotify(_) => {
                self.notify_change();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Another program owns this selection now. The text is kept while the companion owns any selection.
    fn release_selection(&mut self, selection: Atom) {
        self.owned_selections.retain(|owned| *owned != selection);
        if self.owned_selections.is_empty() {
            self.text = None;
        }
    }

    fn send_selection(
        &self,
        connection: &X11Connection,
        request: &SelectionRequestEvent,
    ) -> Result<(), DisplayRefusal> {
        let (x, atoms) = (&connection.x, connection.atoms);
        // Old programs name no property.
        let atom = match request.property {
            x11rb::NONE => request.target,
            atom => atom,
        };
        let (window, text) = (request.requestor, self.text.as_deref().unwrap_or_default());
        let latin: Atom = AtomEnum::STRING.into();
        let replace = PropMode::REPLACE;
        let is_supported = if request.target == atoms.TARGETS {
            let targets = [atoms.TARGETS, atoms.UTF8_STRING, latin];
            let kind = AtomEnum::ATOM;
            x.change_property32(replace, window, atom, kind, &targets)
                .map_err(x11_call_failed)?;
            true
        } else if request.target == atoms.UTF8_STRING {
            let bytes = text.as_bytes();
            x.change_property8(replace, window, atom, atoms.UTF8_STRING, bytes)
                .map_err(x11_call_failed)?;
            true
        } else if request.target == latin {
            let narrow = |c: char| u8::try_from(u32::from(c)).unwrap_or(b'?');
            let bytes: Vec<u8> = text.chars().map(narrow).collect();
            x.change_property8(replace, window, atom, latin, &bytes)
                .map_err(x11_call_failed)?;
            true
        } else {
            false
        };
        let notification = SelectionNotifyEvent {
            response_type: SELECTION_NOTIFY_EVENT,
            sequence: 0,
            time: request.time,
            requestor: window,
            selection: request.selection,
            target: request.target,
            property: if is_supported { atom } else { x11rb::NONE },
        };
        x.send_event(false, window, EventMask::NO_EVENT, notification)
            .map_err(x11_call_failed)?;
        x.flush().map_err(x11_call_failed)
    }
}

/// Reads a property and deletes it: its type and bytes.
fn read_and_delete_property(
    connection: &X11Connection,
    atom: Atom,
) -> Result<(Atom, Vec<u8>), DisplayRefusal> {
    let any = AtomEnum::ANY;
    let longest = u32::try_from(MAX_CLIPBOARD_BYTES / 4).unwrap_or(u32::MAX);
    let property = connection
        .x
        .get_property(true, connection.helper_window, atom, any, 0, longest)
        .map_err(x11_call_failed)?;
    let property = property.reply().map_err(x11_call_failed)?;
    Ok((property.type_, property.value))
}

#[cfg(test)]
mod tests {
    use super::X11Clipboard;
    use tokio::sync::watch;

    #[test]
    fn a_text_is_kept_while_a_program_can_request_it() {
        let (copied, marked) = (7, 1);
        let mut clipboard = X11Clipboard::new(watch::Sender::new(0));
        clipboard.text = Some("words".into());
        clipboard.owned_selections = vec![copied, marked];
        clipboard.release_selection(copied);
        clipboard.release_selection(copied);
        assert_eq!(clipboard.text.as_deref(), Some("words"));
        clipboard.release_selection(marked);
        assert_eq!(clipboard.text, None);
    }
}
