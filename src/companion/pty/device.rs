//! A pseudo-terminal: the master side, opposite to the shell.

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

/// Maximum bytes of one read, so that a flood of output does not starve other tasks.
const PTY_READ_BYTES: usize = 64 << 10;

/// Columns and rows; neither is zero.
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
    /// Opens a pseudo-terminal; returns the device and the shell's side.
    pub(super) fn open(size: TerminalSize) -> io::Result<(Self, OwnedFd)> {
        // Must not become the controlling terminal of the companion, and is not inherited by children.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let master = posix_openpt(flags | OFlag::O_NONBLOCK)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let shell = open(ptsname_r(&master)?.as_str(), flags, Mode::empty())?;
        // SAFETY: the master owns its descriptor, is its only user, and is closed after it was deregistered from the
        // runtime, when both are dropped.
        let master = unsafe { AsyncFd::register(master) }?;
        let device = Self { master };
        device.resize(size)?;
        Ok((device, shell))
    }

    /// Reads output; empty at the end, when no process holds the other side open. Cancel-safe.
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
                // A pseudo-terminal reports EIO when its other side is closed.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Ok(Vec::new()),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => return read,
                Err(_) => {}
            }
        }
    }

    /// Writes as many bytes as the terminal accepts now. Writes nothing when dropped before it returns.
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

    /// Makes the foreground program redraw, as after a change of the window.
    pub(super) fn repaint(&self) {
        // A group of zero means no foreground group to `tcgetpgrp`, and the caller's group to `killpg`.
        if let Ok(group) = tcgetpgrp(self.master.get_ref())
            && group.as_raw() > 1
        {
            // The group may have ended.
            let _ = killpg(group, Signal::SIGWINCH);
        }
    }

    /// The name of the foreground program.
    pub(super) fn foreground_program(&self) -> Option<String> {
        let group = tcgetpgrp(self.master.get_ref()).ok()?;
        let name = fs::read_to_string(format!("/proc/{group}/comm")).ok()?;
        Some(name.trim_end().to_owned())
    }
}
