//! The task that owns one terminal: the device, the shell, and the input that waits to be written.
//!
//! The task never waits for a connection: it writes output to the shared buffer, and publishes a
//! [`PtyConnectionStatus`] for each connection, which reads it at its own pace.

use super::clients::{PtyAdmission, PtyClients, PtyConnectionId};
use super::device::{PtyDevice, TerminalSize};
use super::flow_control::PtyFlowControl;
use super::output::{PtyExit, PtyOutput};
use super::screen::PtyScreen;
use super::{
    PtyAttachReply, PtyAttachRequest, PtyConnectionStatus, PtyDisconnectReason, PtyInput,
    PtyMessage, PtyView,
};
use crate::protocol::pty::TerminalEndReason;
use crate::supervise::{SupervisedExit, Supervisor};
use bytes::{Buf, Bytes};
use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Maximum bytes of waiting input; a client that sends more ignores the status it gets.
const MAX_PENDING_INPUT_BYTES: usize = 1 << 20;

/// Time for a shell to end after its device was closed, until its supervisor kills it.
const PTY_SHELL_TEARDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for a shell to end after a request, including the timeout of its supervisor.
const PTY_SHELL_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time from the end of all processes to the end of their output, including the timeout for a slow writer. A
/// process holds the terminal open for longer only if its supervisor was killed.
const PTY_DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct PtyOwner {
    /// `None` once the device was closed: at the request to end, which hangs up the shell, or at the end of all output.
    device: Option<PtyDevice>,
    shell: Supervisor,
    output: PtyOutput,
    view: watch::Sender<PtyView>,
    clients: PtyClients,
    statuses: BTreeMap<PtyConnectionId, watch::Sender<PtyConnectionStatus>>,
    flow_control: PtyFlowControl,
    size: TerminalSize,
    screen: PtyScreen,
    pending_input: VecDeque<Bytes>,
    /// The shell's exit code, once the shell and all its descendants are gone.
    exit_code: Option<u8>,
    /// Set by the request to end.
    end_reason: Option<TerminalEndReason>,
    /// When a shell or device that did not end in time is ended by force.
    deadline: Option<Instant>,
    idle_timeout: Duration,
}

enum PtyEvent {
    Message(PtyMessage),
    /// Every handle is dropped.
    HandlesDropped,
    OutputRead(Vec<u8>),
    InputWritten(usize),
    ShellExited(SupervisedExit),
    /// A deadline has passed.
    DeadlinePassed,
}

impl PtyOwner {
    pub(super) fn new(
        (device, shell): (PtyDevice, Supervisor),
        output: PtyOutput,
        view: watch::Sender<PtyView>,
        size: TerminalSize,
        idle_timeout: Duration,
    ) -> Self {
        Self {
            device: Some(device),
            shell,
            output,
            view,
            clients: PtyClients::default(),
            statuses: BTreeMap::new(),
            flow_control: PtyFlowControl::default(),
            size,
            screen: PtyScreen::new(size),
            pending_input: VecDeque::new(),
            exit_code: None,
            end_reason: None,
            deadline: None,
            idle_timeout,
        }
    }

    pub(super) async fn run(mut self, mut mailbox: mpsc::Receiver<PtyMessage>) {
        loop {
            // All output was read and all processes are gone.
            if let (Some(code), None) = (self.exit_code, &self.device)
                && self.output.exit_status().is_none()
            {
                let reason = self.end_reason.unwrap_or(TerminalEndReason::Exited);
                self.deadline = None;
                self.output.finish(PtyExit { code, reason });
            }
            match self.next_event(&mut mailbox).await {
                PtyEvent::Message(message) => self.handle_message(message),
                PtyEvent::HandlesDropped => break,
                PtyEvent::OutputRead(bytes) if bytes.is_empty() => self.device = None,
                PtyEvent::OutputRead(bytes) => {
                    self.screen.process_output(&bytes);
                    self.output.push(&bytes);
                    self.mark_used();
                }
                PtyEvent::InputWritten(length) => self.record_written_input(length),
                PtyEvent::ShellExited(exit) => {
                    if let SupervisedExit::NotStarted(why) = &exit {
                        let text = format!("the shell can't be started: {why}\r\n");
                        self.screen.process_output(text.as_bytes());
                        self.output.push(text.as_bytes());
                    }
                    self.exit_code = Some(exit.code());
                    self.deadline = Some(Instant::now() + PTY_DRAIN_TIMEOUT);
                }
                PtyEvent::DeadlinePassed => self.handle_deadlines(),
            }
        }
    }

    async fn next_event(&mut self, mailbox: &mut mpsc::Receiver<PtyMessage>) -> PtyEvent {
        let now = Instant::now();
        let held_until = self.flow_control.hold_until(self.output.end_offset(), now);
        let may_idle =
            self.clients.len() == 0 && self.exit_code.is_none() && self.end_reason.is_none();
        let idle = may_idle.then(|| self.view.borrow().last_used + self.idle_timeout);
        let wakes = [held_until, idle, self.deadline]
            .into_iter()
            .flatten()
            .min();
        let device = self.device.as_ref();
        let show = async {
            match device {
                Some(device) if held_until.is_none() => device.read().await,
                _ => pending().await,
            }
        };
        let first = self.pending_input.front();
        let write = async {
            match (device, first) {
                (Some(device), Some(bytes)) => device.write(bytes).await,
                _ => pending().await,
            }
        };
        let end = async {
            match self.exit_code {
                Some(_) => pending().await,
                None => self.shell.wait_exit().await,
            }
        };
        let wake = async {
            match wakes {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            message = mailbox.recv() => message.map_or(PtyEvent::HandlesDropped, PtyEvent::Message),
            // A device that can't be read counts as closed.
            output = show => PtyEvent::OutputRead(output.unwrap_or_default()),
            // Input that can't be written has no reader any more.
            written = write => PtyEvent::InputWritten(written.unwrap_or(usize::MAX)),
            exit = end => PtyEvent::ShellExited(exit),
            () = wake => PtyEvent::DeadlinePassed,
        }
    }

    fn handle_message(&mut self, message: PtyMessage) {
        let now = Instant::now();
        match message {
            PtyMessage::Attach { request, reply } => {
                let PtyAttachRequest {
                    client,
                    role,
                    take_writer,
                    from_offset,
                    size,
                } = request;
                let admission = self.clients.add_client(client, role, take_writer, now);
                let attached = self.register_client(admission, from_offset, size);
                let connection_id = attached.connection_id;
                if reply.send(attached).is_err() {
                    self.remove_client(connection_id, true);
                }
            }
            PtyMessage::Client(id, input) => self.handle_input(id, input),
            PtyMessage::GetForegroundProgram { reply } => {
                let device = self.device.as_ref();
                // The caller may have disconnected.
                let _ = reply.send(device.and_then(PtyDevice::foreground_program));
            }
            PtyMessage::End { reason } => self.begin_shutdown(reason),
        }
        self.publish_view();
    }

    fn handle_input(&mut self, connection_id: PtyConnectionId, input: PtyInput) {
        let is_writer = self.clients.is_writer(connection_id);
        match input {
            PtyInput::Keys(bytes) if is_writer => {
                if self.pending_input_bytes() + bytes.len() > MAX_PENDING_INPUT_BYTES {
                    self.disconnect_client(connection_id, PtyDisconnectReason::TooFast);
                } else {
                    self.clients
                        .add_typed_bytes(connection_id, bytes.len() as u64);
                    self.pending_input.push_back(bytes);
                }
            }
            PtyInput::Keys(bytes) => self.update_status(connection_id, |status| {
                status.ignored_bytes += bytes.len() as u64;
            }),
            // A client cannot have seen output that does not exist.
            PtyInput::Acknowledge(offset) if is_writer => self
                .flow_control
                .acknowledge(offset.min(self.output.end_offset())),
            PtyInput::Resize(size) if is_writer => self.resize(size),
            PtyInput::Acknowledge(_) | PtyInput::Resize(_) => {}
            PtyInput::TakeWriter => {
                self.clients.take_writer(connection_id);
                self.flow_control.set_writer(self.output.end_offset());
                self.publish_status();
            }
            PtyInput::Repaint => self.device.iter().for_each(PtyDevice::repaint),
            PtyInput::Detach { is_lost } => self.remove_client(connection_id, is_lost),
        }
    }

    fn register_client(
        &mut self,
        admission: PtyAdmission,
        from_offset: Option<u64>,
        size: TerminalSize,
    ) -> PtyAttachReply {
        let PtyAdmission {
            connection_id,
            replaced_id,
            typed_bytes,
        } = admission;
        if let Some(old) = replaced_id {
            self.disconnect_client(old, PtyDisconnectReason::Replaced);
        }
        let is_writer = self.clients.is_writer(connection_id);
        if is_writer {
            self.resize(size);
            if from_offset.is_none() {
                // The rendered screen does not hold everything that programs draw with.
                self.device.iter().for_each(PtyDevice::repaint);
            }
        }
        let screen = from_offset.is_none().then(|| self.screen.render());
        let begin =
            from_offset.unwrap_or_else(|| self.output.end_offset() - self.screen.unparsed_length());
        let follower = self.output.follow(begin);
        if is_writer {
            self.flow_control.set_writer(follower.offset());
        }
        let status = PtyConnectionStatus {
            is_writer,
            size: self.size,
            typed_bytes: typed_bytes.unwrap_or(0),
            ignored_bytes: 0,
            disconnect_reason: None,
        };
        let (sender, status) = watch::channel(status);
        self.statuses.insert(connection_id, sender);
        self.publish_status();
        PtyAttachReply {
            connection_id,
            follower,
            screen,
            status,
            typed_bytes,
        }
    }

    fn remove_client(&mut self, connection_id: PtyConnectionId, is_lost: bool) {
        self.statuses.remove(&connection_id);
        self.clients
            .remove_client(connection_id, is_lost, Instant::now());
        if !self.clients.has_writer() {
            self.flow_control.clear_writer();
        }
        // A client that leaves counts as activity.
        self.mark_used();
    }

    fn disconnect_client(&mut self, connection_id: PtyConnectionId, reason: PtyDisconnectReason) {
        self.update_status(connection_id, |status| {
            status.disconnect_reason = Some(reason)
        });
        self.statuses.remove(&connection_id);
        if reason != PtyDisconnectReason::Replaced {
            self.clients
                .remove_client(connection_id, false, Instant::now());
        }
    }

    fn resize(&mut self, size: TerminalSize) {
        // Programs divide by the size, so a size of zero is ignored.
        if size.cols == 0 || size.rows == 0 || size == self.size {
            return;
        }
        if let Some(Err(error)) = self.device.as_ref().map(|device| device.resize(size)) {
            tracing::warn!(%error, "the terminal can't be resized");
            return;
        }
        self.size = size;
        self.screen.resize(size);
        self.publish_status();
    }

    fn pending_input_bytes(&self) -> usize {
        self.pending_input.iter().map(Bytes::len).sum()
    }

    /// Removes `length` written bytes from the first waiting chunk.
    fn record_written_input(&mut self, length: usize) {
        if let Some(bytes) = self.pending_input.front_mut() {
            bytes.advance(length.min(bytes.len()));
            if bytes.is_empty() {
                self.pending_input.pop_front();
            }
        }
        if let Some(writer) = self.clients.connected_writer() {
            let taken = self.clients.add_typed_bytes(writer, 0);
            let typed_bytes = taken.saturating_sub(self.pending_input_bytes() as u64);
            self.update_status(writer, |status| {
                status.typed_bytes = status.typed_bytes.max(typed_bytes)
            });
        }
        self.mark_used();
    }

    /// Handles all passed deadlines.
    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|at| at <= now) {
            self.deadline = None;
            match self.exit_code {
                Some(_) => self.device = None,
                None => self.shell.kill_supervisor(),
            }
        }
        let last_used = self.view.borrow().last_used;
        if self.clients.len() == 0 && now >= last_used + self.idle_timeout {
            self.begin_shutdown(TerminalEndReason::Idle);
        }
    }

    fn begin_shutdown(&mut self, reason: TerminalEndReason) {
        if self.exit_code.is_some() || self.end_reason.is_some() {
            return;
        }
        self.end_reason = Some(reason);
        // Closing the device hangs up the shell and its processes, as closing a window does.
        self.device = None;
        self.pending_input.clear();
        self.shell.shut_down(PTY_SHELL_TEARDOWN_TIMEOUT);
        self.deadline = Some(Instant::now() + PTY_SHELL_EXIT_TIMEOUT);
    }

    /// Publishes to all connections who writes, and the size of the window.
    fn publish_status(&mut self) {
        for (connection_id, status) in &self.statuses {
            let (is_writer, size) = (self.clients.is_writer(*connection_id), self.size);
            status.send_if_modified(|status| {
                let is_new = status.is_writer != is_writer || status.size != size;
                (status.is_writer, status.size) = (is_writer, size);
                is_new
            });
        }
    }

    fn update_status(
        &self,
        connection_id: PtyConnectionId,
        change: impl FnOnce(&mut PtyConnectionStatus),
    ) {
        if let Some(status) = self.statuses.get(&connection_id) {
            status.send_modify(change);
        }
    }

    fn mark_used(&self) {
        self.view
            .send_modify(|view| view.last_used = Instant::now());
    }

    /// Publishes the state of the terminal.
    fn publish_view(&self) {
        self.view.send_modify(|view| {
            view.client_count = self.clients.len();
            view.has_writer = self.clients.connected_writer().is_some();
            view.size = self.size;
        });
    }
}
