//! A window on a screen: a real pseudo-terminal, whose other side the test holds. A test can
//! resize it, look at its mode, and read every byte of output.

use crate::harness::TEST_TIMEOUT;
use nix::libc;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::{Pid, setsid};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Window {
    child: Child,
    keys: File,
    /// Kept open, so that the terminal and its mode outlive the program in it.
    terminal: Option<OwnedFd>,
    /// The terminal's mode before a program ran in it.
    pub(crate) before: Termios,
    shows: Receiver<Vec<u8>>,
    /// Output that no wait has consumed yet.
    unread: Vec<u8>,
}

fn winsize(cols: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Window {
    /// Runs the command in a window of 100 columns and 30 rows, as in an xterm.
    pub(crate) fn open(mut command: Command) -> Self {
        let pty = openpty(Some(&winsize(100, 30)), None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let terminal = || pty.slave.try_clone().unwrap();
        command
            .env("TERM", "xterm-256color")
            .env("NO_COLOR", "1")
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal());
        // SAFETY: two system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                if libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let mut screen = File::from(pty.master.try_clone().unwrap());
        let (show, shows) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 65536];
            while let Ok(length @ 1..) = screen.read(&mut bytes) {
                if show.send(bytes[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            keys: pty.master.into(),
            terminal: Some(pty.slave),
            before,
            shows,
            unread: Vec::new(),
        }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, cols: u16, rows: u16) {
        let size = winsize(cols, rows);
        // SAFETY: the call reads one `winsize`, which is valid until the call returns.
        let done = unsafe { libc::ioctl(self.keys.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(done, 0);
    }

    /// Waits until `text` is shown; the output up to its end.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let begin = Instant::now();
        let mut looked = 0;
        loop {
            let found = self.unread[looked..]
                .windows(text.len())
                .position(|at| at == text.as_bytes());
            if let Some(at) = found {
                let rest = self.unread.split_off(looked + at + text.len());
                let before = std::mem::replace(&mut self.unread, rest);
                return String::from_utf8_lossy(&before).into_owned();
            }
            looked = (self.unread.len() + 1).saturating_sub(text.len());
            let left = TEST_TIMEOUT.saturating_sub(begin.elapsed());
            match self.shows.recv_timeout(left) {
                Ok(bytes) => self.unread.extend(bytes),
                Err(why) => {
                    let _ = self.child.kill();
                    let end = self.unread.len().saturating_sub(4000);
                    let shown = String::from_utf8_lossy(&self.unread[end..]);
                    panic!("`{text}` was not shown ({why}), but {shown:?}");
                }
            }
        }
    }

    pub(crate) fn mode(&self) -> Termios {
        tcgetattr(self.terminal.as_ref().unwrap()).unwrap()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Waits for the program's end, but keeps the window; the exit code.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> i32 {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            if let Ok(bytes) = self.shows.recv_timeout(Duration::from_millis(20)) {
                self.unread.extend(bytes);
            }
            if begin.elapsed() > TEST_TIMEOUT {
                let _ = self.child.kill();
                let shown = String::from_utf8_lossy(&self.unread);
                panic!("the program did not end, but showed {shown:?}");
            }
        }
    }

    /// Waits for the end; the exit code, and the rest of the output.
    #[track_caller]
    pub(crate) fn end(mut self) -> (i32, String) {
        let code = self.wait();
        // The output ends when no descriptor of the terminal is open.
        self.terminal = None;
        loop {
            match self.shows.recv_timeout(TEST_TIMEOUT) {
                Ok(bytes) => self.unread.extend(bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the window does not close"),
            }
        }
        let shown = String::from_utf8_lossy(&self.unread).into_owned();
        (code, shown)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A program does not outlive its test.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
