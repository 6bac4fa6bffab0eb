//! A server as a child process: messages are lines of its stdin and stdout, and a supervisor ends all its descendants
//! with it.

use super::event::ServerPipeEvent;
use crate::server_log::McpServerLog;
use anyhow::{Context, Result};
use bytes::{Buf, Bytes};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use osctl_protocol::environment::UserEnvironment;
use osctl_protocol::line_buffer::LineBuffer;
use osctl_supervise::{ProcessKind, ProcessStart, Supervisor, SupervisorEvent};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::timeout;

/// Bytes of one read.
const STDIO_READ_BYTES: usize = 64 << 10;
/// The most bytes of one message; a server that exceeds them is ended as faulty.
const MAX_STDIO_MESSAGE_BYTES: usize = 256 << 20;
/// The size of a pipe, so that a large message takes few writes.
const STDIO_PIPE_BYTES: i32 = 1 << 20;
/// From the end of its stdin to the forced end of a server that does not exit.
const MCP_SERVER_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// From the command to end all processes to the forced end of the supervisor.
const MCP_SUPERVISOR_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct ServerProcess {
    supervisor: Supervisor,
    pub(super) pid: i32,
    stdin: Option<Sender>,
    stdout: Option<Receiver>,
    lines: LineBuffer,
    write_queue: VecDeque<Bytes>,
    /// How the process ended; reported after the messages that came before.
    exit_reason: Option<String>,
}

impl ServerProcess {
    /// Starts the process and copies its stderr to the log.
    ///
    /// # Errors
    /// Fails when the process can't be started.
    pub(super) async fn start(
        command: &str,
        args: &[String],
        environment: Vec<(OsString, OsString)>,
        cwd: Option<&Path>,
        log: Arc<McpServerLog>,
    ) -> Result<Self> {
        let home = std::env::var_os("HOME").unwrap_or_else(|| "/".into());
        let cwd = cwd.unwrap_or(Path::new(&home));
        let folder = File::open(cwd)
            .with_context(|| format!("can't open the working directory `{}`", cwd.display()))?;
        let (stdin_end, stdin) = pipe2(OFlag::O_CLOEXEC)?;
        let (stdout, stdout_end) = pipe2(OFlag::O_CLOEXEC)?;
        let (stderr, stderr_end) = pipe2(OFlag::O_CLOEXEC)?;
        for pipe in [&stdin, &stdout] {
            // A smaller pipe works, too.
            let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(STDIO_PIPE_BYTES));
        }
        let args = args.iter().map(String::as_str);
        let start = ProcessStart {
            kind: ProcessKind::Service,
            program: command.into(),
            args: [command]
                .into_iter()
                .chain(args)
                .map(OsString::from)
                .collect(),
            environment,
            max_open_files: None,
        };
        let ends = [&stdin_end, &stdout_end, &stderr_end].map(AsFd::as_fd);
        let descriptors = [ends[0], ends[1], ends[2], folder.as_fd()];
        let mut supervisor = Supervisor::spawn_process(&start, descriptors)
            .context("its supervisor can't be started")?;
        let pid = match supervisor.next_event().await {
            SupervisorEvent::Started(pid) => pid,
            SupervisorEvent::NotStarted(number) => {
                let why = io::Error::from_raw_os_error(number);
                anyhow::bail!("`{command}` can't be started: {why}");
            }
            SupervisorEvent::Ended { .. } | SupervisorEvent::AllExited => {
                anyhow::bail!("its supervisor ended")
            }
        };
        drop((stdin_end, stdout_end, stderr_end));
        tokio::spawn(copy_stderr_to_log(Receiver::from_owned_fd(stderr)?, log));
        Ok(Self {
            supervisor,
            pid,
            stdin: Some(Sender::from_owned_fd(stdin)?),
            stdout: Some(Receiver::from_owned_fd(stdout)?),
            lines: LineBuffer::default(),
            write_queue: VecDeque::new(),
            exit_reason: None,
        })
    }

    /// Queues a line, and writes as much as the pipe accepts now.
    pub(super) fn send(&mut self, line: Bytes) {
        self.write_queue.push_back(line);
        self.write_queue.push_back(Bytes::from_static(b"\n"));
        self.flush_write_queue();
    }

    /// The bytes that the server has not read yet.
    pub(super) fn backlog(&self) -> usize {
        self.write_queue.iter().map(Bytes::len).sum()
    }

    fn flush_write_queue(&mut self) {
        let Some(stdin) = &self.stdin else {
            return self.write_queue.clear();
        };
        while !self.write_queue.is_empty() {
            let parts: Vec<_> = self
                .write_queue
                .iter()
                .take(64)
                .map(|b| io::IoSlice::new(b))
                .collect();
            match stdin.try_write_vectored(&parts) {
                Ok(mut count) => {
                    while let Some(first) = self.write_queue.front_mut() {
                        let taken = first.len().min(count);
                        first.advance(taken);
                        count -= taken;
                        if !first.is_empty() {
                            break;
                        }
                        self.write_queue.pop_front();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // The server reads no more. Its remaining output and its exit are still reported.
                    self.stdin = None;
                    return self.write_queue.clear();
                }
            }
        }
    }

    /// Waits for the next event. Cancel-safe: a dropped call loses no event.
    pub(super) async fn next_event(&mut self) -> ServerPipeEvent {
        loop {
            if let Some(line) = self.next_line() {
                return ServerPipeEvent::Line(line);
            }
            if let Some(why) = self.exit_reason.take() {
                return ServerPipeEvent::Ended(why);
            }
            if self.lines.unread_bytes() > MAX_STDIO_MESSAGE_BYTES {
                return ServerPipeEvent::Ended("it wrote a line of more than 256 MiB".into());
            }
            tokio::select! {
                () = wait_readable(self.stdout.as_ref()) => drop(self.read_stdout()),
                () = wait_writable(self.stdin.as_ref(), !self.write_queue.is_empty()) => self.flush_write_queue(),
                event = self.supervisor.next_event() => match event {
                    SupervisorEvent::Ended { code, .. } => {
                        while self.read_stdout() {}
                        self.exit_reason = Some(exit_text(code));
                    }
                    SupervisorEvent::AllExited => return ServerPipeEvent::Ended("its supervisor ended".into()),
                    SupervisorEvent::Started(_) | SupervisorEvent::NotStarted(_) => {}
                },
            }
        }
    }

    /// Reads once; `false` when no more can be read now.
    fn read_stdout(&mut self) -> bool {
        let Some(stdout) = &self.stdout else {
            return false;
        };
        let buffer = self.lines.read_target();
        buffer.reserve(STDIO_READ_BYTES);
        match stdout.try_read_buf(buffer) {
            Ok(1..) => buffer.len() <= MAX_STDIO_MESSAGE_BYTES,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => false,
            Ok(0) | Err(_) => {
                self.stdout = None;
                false
            }
        }
    }

    fn next_line(&mut self) -> Option<Bytes> {
        loop {
            let line = self.lines.next_line()?;
            if !line.trim_ascii().is_empty() {
                return Some(line.freeze());
            }
        }
    }

    /// Ends the process and all its descendants: first by closing its stdin, then by force.
    pub(super) async fn shutdown(mut self) {
        self.stdin = None;
        let exited = async {
            loop {
                tokio::select! {
                    () = wait_readable(self.stdout.as_ref()) => { self.read_stdout(); self.lines = LineBuffer::default(); }
                    event = self.supervisor.next_event() => match event {
                        SupervisorEvent::Ended { .. } | SupervisorEvent::AllExited => return,
                        SupervisorEvent::Started(_) | SupervisorEvent::NotStarted(_) => {}
                    },
                }
            }
        };
        // In both cases the supervisor now ends the processes that are left.
        let _ = timeout(MCP_SERVER_EXIT_TIMEOUT, exited).await;
        self.supervisor.kill_tree();
        let exited =
            async { while self.supervisor.next_event().await != SupervisorEvent::AllExited {} };
        if timeout(MCP_SUPERVISOR_EXIT_TIMEOUT, exited).await.is_err() {
            self.supervisor.kill_supervisor();
        }
    }
}

async fn wait_readable(pipe: Option<&Receiver>) {
    match pipe {
        // The next read reports an error.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

async fn wait_writable(pipe: Option<&Sender>, is_wanted: bool) {
    match pipe.filter(|_| is_wanted) {
        Some(pipe) => drop(pipe.writable().await),
        None => std::future::pending().await,
    }
}

/// The inherited variables, the user's variables, and those of the server's configuration; the last one of equal names
/// counts.
pub(super) fn server_environment(
    inherited: &[(OsString, OsString)],
    own: &BTreeMap<String, String>,
    user: &UserEnvironment,
) -> Vec<(OsString, OsString)> {
    let set = user.0.iter().chain(own);
    let set = set.map(|(name, value)| (name.into(), value.into()));
    inherited.iter().cloned().chain(set).collect()
}

fn exit_text(code: u8) -> String {
    match code {
        ..=128 => format!("it exited with code {code}"),
        signal => format!("it was killed by signal {}", signal - 128),
    }
}

/// Copies the lines of stderr to the log until the pipe ends.
async fn copy_stderr_to_log(mut pipe: Receiver, log: Arc<McpServerLog>) {
    let append = |line: &[u8]| log.append_line(&String::from_utf8_lossy(line));
    let mut lines = LineBuffer::default();
    while let Ok(1..) = pipe.read_buf(lines.read_target()).await {
        while let Some(line) = lines.next_line() {
            append(&line);
        }
        if lines.unread_bytes() > STDIO_READ_BYTES {
            append(&lines.take_unread());
        }
    }
    if lines.unread_bytes() > 0 {
        append(&lines.take_unread());
    }
}
