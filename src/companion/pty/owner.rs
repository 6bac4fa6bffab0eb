//! The task that owns one terminal: the device, the shell, and the input that waits to be written.
//!
//! The task never waits for a connection: it writes output to the shared buffer, and publishes a
//! [`PtyConnectionStatus`] for each connection, which reads it at its own pace.

use super::clients::{PtyAdmission, PtyClients, PtyConnectionId};
use super::device::{PtyDevice, TerminalSize};
use super::flow_control::PtyFlowControl;
use super::output::{PtyExit, PtyOutput};
use super::screen::PtyScreen;
use super::shell::PtyShell;
use super::{
    PtyAttachReply, PtyAttachRequest, PtyConnectionStatus, PtyDisconnectReason, PtyMessage, PtyView,
};
use crate::protocol::pty::TerminalEndReason;
use bytes::{Buf, Bytes};
use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Maximum bytes of waiting input; a client that sends more ignores the status it gets.
const MAX_UNTYPED_BYTES: usize = 1 << 20;

/// Maximum time for a shell to end after a request, including the timeout of its supervisor.
const PTY_SHELL_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time from the end of all processes to the end of their output, including the timeout for a slow writer. A
/// process holds the terminal open for longer only if its supervisor was killed.
const PTY_DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct PtyOwner {
    /// `None` once the end of the terminal was requested: closing the device hangs up the shell.
    device: Option<PtyDevice>,
    shell: PtyShell,
    output: PtyOutput,
    view: watch::Sender<PtyView>,
    seats: PtyClients,
    standings: BTreeMap<PtyConnectionId, watch::Sender<PtyConnectionStatus>>,
    pace: PtyFlowControl,
    size: TerminalSize,
    screen: PtyScreen,
    untyped: VecDeque<Bytes>,
    /// The shell's exit code, once the shell and all its descendants are gone.
    code: Option<u8>,
    why: TerminalEndReason,
    /// When a shell or device that did not end in time is ended by force.
    deadline: Option<Instant>,
    idle: Duration,
}

enum PtyEvent {
    Message(PtyMessage),
    /// Every handle is dropped.
    Left,
    Shown(Vec<u8>),
    Typed(usize),
    Ended(u8),
    /// A deadline has passed.
    Look,
}

impl PtyOwner {
    pub(super) fn new(
        (device, shell): (PtyDevice, PtyShell),
        output: PtyOutput,
        view: watch::Sender<PtyView>,
        size: TerminalSize,
        idle: Duration,
    ) -> Self {
        Self {
            device: Some(device),
            shell,
            output,
            view,
            seats: PtyClients::default(),
            standings: BTreeMap::new(),
            pace: PtyFlowControl::default(),
            size,
            screen: PtyScreen::new(size),
            untyped: VecDeque::new(),
            code: None,
            why: TerminalEndReason::Exited,
            deadline: None,
            idle,
        }
    }

    pub(super) async fn run(mut self, mut mailbox: mpsc::Receiver<PtyMessage>) {
        loop {
            // All output was read and all processes are gone.
            if let (Some(code), None) = (self.code, &self.device)
                && self.output.exit_status().is_none()
            {
                let why = self.why;
                self.deadline = None;
                self.output.finish(PtyExit { code, why });
            }
            match self.next_event(&mut mailbox).await {
                PtyEvent::Message(message) => self.handle_message(message),
                PtyEvent::Left => break,
                PtyEvent::Shown(bytes) if bytes.is_empty() => self.device = None,
                PtyEvent::Shown(bytes) => {
                    self.screen.process_output(&bytes);
                    self.output.push(&bytes);
                    self.mark_used();
                }
                PtyEvent::Typed(length) => self.record_typed(length),
                PtyEvent::Ended(code) => {
                    self.code = Some(code);
                    self.deadline = Some(Instant::now() + PTY_DRAIN_TIMEOUT);
                }
                PtyEvent::Look => self.handle_deadlines(),
            }
        }
    }

    async fn next_event(&mut self, mailbox: &mut mpsc::Receiver<PtyMessage>) -> PtyEvent {
        let now = Instant::now();
        let hold = self.pace.hold_until(self.output.end_offset(), now);
        let may_idle = self.seats.len() == 0 && self.code.is_none() && self.deadline.is_none();
        let idle = may_idle.then(|| self.view.borrow().used + self.idle);
        let wakes = [hold, idle, self.deadline].into_iter().flatten().min();
        let device = self.device.as_ref();
        let show = async {
            match device {
                Some(device) if hold.is_none() => device.read().await,
                _ => pending().await,
            }
        };
        let first = self.untyped.front();
        let write = async {
            match (device, first) {
                (Some(device), Some(bytes)) => device.write(bytes).await,
                _ => pending().await,
            }
        };
        let end = async {
            match self.code {
                Some(_) => pending().await,
                None => self.shell.wait_for_exit().await,
            }
        };
        let look = async {
            match wakes {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            message = mailbox.recv() => message.map_or(PtyEvent::Left, PtyEvent::Message),
            // A device that can't be read counts as closed.
            shown = show => PtyEvent::Shown(shown.unwrap_or_default()),
            // Input that can't be written has no reader any more.
            written = write => PtyEvent::Typed(written.unwrap_or(usize::MAX)),
            code = end => PtyEvent::Ended(code),
            () = look => PtyEvent::Look,
        }
    }

    fn handle_message(&mut self, message: PtyMessage) {
        let now = Instant::now();
        match message {
            PtyMessage::Attach { who, answer } => {
                let PtyAttachRequest {
                    client,
                    role,
                    take,
                    since,
                    size,
                } = who;
                let given = self.seats.add_client(client, role, take, now);
                let attached = self.register_client(given, since, size);
                let seat = attached.seat;
                if answer.send(attached).is_err() {
                    self.remove_client(seat, true);
                }
            }
            PtyMessage::Type { seat, bytes } if self.seats.is_writer(seat) => {
                if self.untyped_bytes() + bytes.len() > MAX_UNTYPED_BYTES {
                    self.disconnect_client(seat, PtyDisconnectReason::TooFast);
                } else {
                    self.seats.add_typed(seat, bytes.len() as u64);
                    self.untyped.push_back(bytes);
                }
            }
            PtyMessage::Type { seat, bytes } => self.update_status(seat, |standing| {
                standing.ignored += bytes.len() as u64;
            }),
            PtyMessage::Seen { seat, offset } if self.seats.is_writer(seat) => {
                // A client cannot have seen output that does not exist.
                self.pace.acknowledge(offset.min(self.output.end_offset()));
            }
            PtyMessage::Seen { .. } => {}
            PtyMessage::Resize { seat, size } if self.seats.is_writer(seat) => self.resize(size),
            PtyMessage::Resize { .. } => {}
            PtyMessage::Take { seat } => {
                self.seats.take_writer(seat);
                self.pace.set_writer(self.output.end_offset());
                self.publish_status();
            }
            PtyMessage::Repaint => self.device.iter().for_each(PtyDevice::repaint),
            PtyMessage::Program { answer } => {
                let device = self.device.as_ref();
                // The caller may have disconnected.
                let _ = answer.send(device.and_then(PtyDevice::foreground_program));
            }
            PtyMessage::Leave { seat, lost } => self.remove_client(seat, lost),
            PtyMessage::End { why } => self.begin_shutdown(why),
        }
        self.publish_view();
    }

    fn register_client(
        &mut self,
        given: PtyAdmission,
        since: Option<u64>,
        size: TerminalSize,
    ) -> PtyAttachReply {
        let PtyAdmission {
            seat,
            replaces,
            typed,
        } = given;
        if let Some(old) = replaces {
            self.disconnect_client(old, PtyDisconnectReason::Replaced);
        }
        let writes = self.seats.is_writer(seat);
        if writes {
            self.resize(size);
            if since.is_none() {
                // The rendered screen does not hold everything that programs draw with.
                self.device.iter().for_each(PtyDevice::repaint);
            }
        }
        let screen = since.is_none().then(|| self.screen.render());
        let begin =
            since.unwrap_or_else(|| self.output.end_offset() - self.screen.unparsed_length());
        let follower = self.output.follow(begin);
        if writes {
            self.pace.set_writer(follower.offset());
        }
        let standing = PtyConnectionStatus {
            writes,
            size: self.size,
            typed: typed.unwrap_or(0),
            ignored: 0,
            out: None,
        };
        let (sender, standing) = watch::channel(standing);
        self.standings.insert(seat, sender);
        self.publish_status();
        PtyAttachReply {
            seat,
            follower,
            screen,
            standing,
            typed,
        }
    }

    fn remove_client(&mut self, seat: PtyConnectionId, lost: bool) {
        self.standings.remove(&seat);
        self.seats.remove_client(seat, lost, Instant::now());
        if !self.seats.is_written() {
            self.pace.clear_writer();
        }
        // A client that leaves counts as activity.
        self.mark_used();
    }

    fn disconnect_client(&mut self, seat: PtyConnectionId, why: PtyDisconnectReason) {
        self.update_status(seat, |standing| standing.out = Some(why));
        self.standings.remove(&seat);
        if why != PtyDisconnectReason::Replaced {
            self.seats.remove_client(seat, false, Instant::now());
        }
    }

    fn resize(&mut self, size: TerminalSize) {
        // Programs divide by the size, so a size of zero is ignored.
        if size.cols == 0 || size.rows == 0 || size == self.size {
            return;
        }
        if let Some(Err(error)) = self.device.as_ref().map(|device| device.resize(size)) {
            tracing::warn!("the terminal can't be resized: {error}");
            return;
        }
        self.size = size;
        self.screen.resize(size);
        self.publish_status();
    }

    fn untyped_bytes(&self) -> usize {
        self.untyped.iter().map(Bytes::len).sum()
    }

    /// Removes `length` written bytes from the first waiting chunk.
    fn record_typed(&mut self, length: usize) {
        if let Some(bytes) = self.untyped.front_mut() {
            bytes.advance(length.min(bytes.len()));
            if bytes.is_empty() {
                self.untyped.pop_front();
            }
        }
        if let Some(writer) = self.seats.connected_writer() {
            let taken = self.seats.add_typed(writer, 0);
            let typed = taken.saturating_sub(self.untyped_bytes() as u64);
            self.update_status(writer, |standing| {
                standing.typed = standing.typed.max(typed)
            });
        }
        self.mark_used();
    }

    /// Handles all passed deadlines.
    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|at| at <= now) {
            self.deadline = None;
            match self.code {
                Some(_) => self.device = None,
                None => self.shell.end_now(),
            }
        }
        let since = self.view.borrow().used;
        if self.seats.len() == 0 && now >= since + self.idle {
            self.begin_shutdown(TerminalEndReason::Idle);
        }
    }

    fn begin_shutdown(&mut self, why: TerminalEndReason) {
        if self.code.is_some() || self.device.is_none() {
            return;
        }
        self.why = why;
        // Closing the device hangs up the shell and its processes, as closing a window does.
        self.device = None;
        self.untyped.clear();
        self.shell.hang_up();
        self.deadline = Some(Instant::now() + PTY_SHELL_EXIT_TIMEOUT);
    }

    /// Publishes to all connections who writes, and the size of the window.
    fn publish_status(&mut self) {
        for (seat, standing) in &self.standings {
            let (writes, size) = (self.seats.is_writer(*seat), self.size);
            standing.send_if_modified(|standing| {
                let is_new = standing.writes != writes || standing.size != size;
                (standing.writes, standing.size) = (writes, size);
                is_new
            });
        }
    }

    fn update_status(&self, seat: PtyConnectionId, change: impl FnOnce(&mut PtyConnectionStatus)) {
        if let Some(standing) = self.standings.get(&seat) {
            standing.send_modify(change);
        }
    }

    fn mark_used(&self) {
        self.view.send_modify(|view| view.used = Instant::now());
    }

    /// Publishes the state of the terminal.
    fn publish_view(&self) {
        self.view.send_modify(|view| {
            view.viewers = self.seats.len();
            view.has_writer = self.seats.connected_writer().is_some();
            view.size = self.size;
        });
    }
}
