//! A pseudo-terminal: the side that is not the shell's.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::pty::{PtyMaster, Winsize, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::Mode;
use nix::unistd::tcgetpgrp;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tokio::io::unix::AsyncFd;

/// Bytes taken at once, so that no flood starves the rest.
const PTY_READ_BYTES: usize = 64 << 10;

/// Columns and rows; nobody's window has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) cols: u16,
    pub(crate) rows: u16,
}

#[derive(Debug)]
pub(super) struct PtyDevice {
    master: AsyncFd<PtyMaster>,
}

impl PtyDevice {
    /// The device and the shell's side of it.
    pub(super) fn open(size: TerminalSize) -> io::Result<(Self, OwnedFd)> {
        // Never the controlling terminal of the companion itself, and nothing that a child inherits.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let master = posix_openpt(flags | OFlag::O_NONBLOCK)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let shell = open(ptsname_r(&master)?.as_str(), flags, Mode::empty())?;
        // SAFETY: the master owns its descriptor, is the only one to use it, and is closed after
        // it was taken from the runtime, when both are dropped.
        let master = unsafe { AsyncFd::register(master) }?;
        let device = Self { master };
        device.resize(size)?;
        Ok((device, shell))
    }

    /// What was shown; nothing at the end, when nobody holds the other side. Loses nothing when
    /// dropped.
    pub(super) async fn read(&self) -> io::Result<Vec<u8>> {
        loop {
            let mut ready = self.master.readable().await?;
            let read = ready.try_io(|master| {
                let mut bytes = vec![0; PTY_READ_BYTES];
                let length = nix::unistd::read(master.get_ref().as_fd(), &mut bytes)?;
                bytes.truncate(length);
                Ok(bytes)
            });
            match read {
                // That is how a pseudo-terminal says that its other side is closed.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Ok(Vec::new()),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => return read,
                Err(_) => {}
            }
        }
    }

    /// Types as many of the bytes as it takes now. Types nothing when dropped before it returns.
    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.master.writable().await?;
            let written =
                ready.try_io(|master| Ok(nix::unistd::write(master.get_ref().as_fd(), bytes)?));
            match written {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) => return written,
                Err(_) => {}
            }
        }
    }

    pub(super) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let size = Winsize {
            ws_row: size.rows,
            ws_col: size.cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let fd = self.master.get_ref().as_raw_fd();
        // SAFETY: the call reads one `winsize`, which lives until it returns.
        let done = unsafe { libc::ioctl(fd, libc::TIOCSWINSZ, &raw const size) };
        Errno::result(done)?;
        Ok(())
    }

    /// Whatever has the screen draws it again, as after a change of the window.
    pub(super) fn repaint(&self) {
        // Zero is nobody here, and ourselves there.
        if let Ok(group) = tcgetpgrp(self.master.get_ref())
            && group.as_raw() > 1
        {
            // Nobody may be there any more.
            let _ = killpg(group, Signal::SIGWINCH);
        }
    }

    /// The name of the program that has the screen.
    pub(super) fn foreground_program(&self) -> Option<String> {
        let group = tcgetpgrp(self.master.get_ref()).ok()?;
        let name = fs::read_to_string(format!("/proc/{group}/comm")).ok()?;
        Some(name.trim_end().to_owned())
    }
}
