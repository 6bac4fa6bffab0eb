//! A shell on a real pseudo-terminal that a test scripts, beneath a fake supervisor.

use crate::companion::pty::device::{PtyDevice, TerminalSize};
use crate::companion::pty::{PtyRefusal, PtyStart, PtyTerminal};
use crate::companion::tests::clock::wait_until;
use crate::companion::tests::fake_supervisor::FakeSupervisor;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

thread_local! {
    /// The shells of the test in this thread that it has not taken.
    static STARTED_SHELLS: RefCell<VecDeque<FakeShell>> = RefCell::default();
}

#[derive(Debug)]
pub(super) struct FakeShell {
    /// The shell's side of the terminal, while a process has it open.
    terminal: Option<OwnedFd>,
    pub(super) supervisor: FakeSupervisor,
}

/// Starts a terminal with a scripted shell.
pub(super) fn start_fake_terminal(
    id: String,
    start: &PtyStart,
    idle: Duration,
) -> Result<PtyTerminal, PtyRefusal> {
    let (device, terminal) = PtyDevice::open(start.size).unwrap();
    let (supervisor, theirs) = FakeSupervisor::start();
    // The device changes no byte.
    let mut modes = tcgetattr(&terminal).unwrap();
    cfmakeraw(&mut modes);
    tcsetattr(&terminal, SetArg::TCSANOW, &modes).unwrap();
    fcntl(&terminal, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let shell = FakeShell {
        terminal: Some(terminal),
        supervisor,
    };
    STARTED_SHELLS.with_borrow_mut(|shells| shells.push_back(shell));
    let parts = (device, theirs);
    Ok(PtyTerminal::start_owner(id, start, parts, idle))
}

/// Removes the shells of an earlier test in this thread.
pub(super) fn forget_shells() {
    STARTED_SHELLS.take();
}

/// The next shell that was started.
pub(super) fn next_shell() -> FakeShell {
    let shell = STARTED_SHELLS.with_borrow_mut(VecDeque::pop_front);
    shell.expect("no shell was started")
}

impl FakeShell {
    fn terminal(&self) -> &OwnedFd {
        self.terminal.as_ref().unwrap()
    }

    /// Writes output that fits into the device.
    pub(super) fn print(&self, text: &str) {
        let written = nix::unistd::write(self.terminal(), text.as_bytes());
        assert_eq!(written, Ok(text.len()));
    }

    /// Writes output as soon as the device has space for it.
    pub(super) async fn print_when_free(&self, text: &str) {
        let mut rest = text.as_bytes();
        wait_until(|| {
            match nix::unistd::write(self.terminal(), rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::EAGAIN) => {}
                Err(error) => panic!("{error}"),
            }
            rest.is_empty()
        })
        .await;
    }

    /// Writes as much as the device accepts now.
    pub(super) fn flood(&self) -> usize {
        let mut count = 0;
        loop {
            match nix::unistd::write(self.terminal(), &[b'x'; 4096]) {
                Ok(written) => count += written,
                Err(Errno::EAGAIN) => return count,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads as much input as was typed; it is at least this long.
    pub(super) async fn read_input(&self, length: usize) -> String {
        let mut input = Vec::new();
        wait_until(|| {
            let mut bytes = [0; 4096];
            match nix::unistd::read(self.terminal(), &mut bytes) {
                Ok(count) => input.extend_from_slice(&bytes[..count]),
                Err(Errno::EAGAIN) => {}
                Err(error) => panic!("{error}"),
            }
            input.len() >= length
        })
        .await;
        String::from_utf8(input).unwrap()
    }

    /// The size that programs read.
    pub(super) fn size(&self) -> TerminalSize {
        let mut size = libc::winsize {
            ws_row: 0,
            ws_col: 0,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let fd = self.terminal().as_raw_fd();
        // SAFETY: the call writes one `winsize`, which lives until it returns.
        let done = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) };
        Errno::result(done).unwrap();
        TerminalSize {
            cols: size.ws_col,
            rows: size.ws_row,
        }
    }

    /// Whether the companion has closed its side.
    pub(super) fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(self.terminal().as_fd(), PollFlags::empty())];
        poll(&mut polled, PollTimeout::ZERO).unwrap();
        let events = polled[0].revents().unwrap();
        events.contains(PollFlags::POLLHUP)
    }

    /// Waits until the companion has closed its side. A process that another test forks at this moment holds a copy.
    pub(super) async fn wait_hung_up(&self) {
        wait_until(|| self.is_hung_up()).await;
    }

    /// The last process closes the terminal.
    pub(super) fn close_terminal(&mut self) {
        self.terminal = None;
    }

    /// The shell and all its processes end, with this code of the shell.
    pub(super) async fn exit(&mut self, code: u8) {
        self.close_terminal();
        self.supervisor.exit(code).await;
    }
}
