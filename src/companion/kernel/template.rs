//! The template process that kernels are forked from: Python with all modules imported that each kernel needs, so that
//! a new kernel starts in milliseconds and shares most of its memory with the others.
//!
//! One task owns the template and a few pre-started kernels without a name. A template that dies takes no kernel with
//! it; the next request starts another template.
//!
//! ```text
//! companion ── template                 (ends with the companion)
//!     ├─────── supervisor ── kernel     (forked twice, so that only the supervisor is their parent)
//!     └─────── supervisor ── kernel
//! ```

use super::KernelSettings;
use super::connection::{encode_frame, frame_codec};
use crate::companion::settings;
use crate::error::Result;
use crate::protocol::BODY_PROTOCOL_VERSION;
use crate::protocol::hex::hex;
use crate::protocol::kernel::RunError;
use crate::supervise::Supervisor;
use anyhow::{Context, bail};
use futures_util::StreamExt;
use nix::fcntl::OFlag;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

/// Number of kernels that are forked in advance.
const MAX_IDLE_KERNELS: usize = 2;
/// Delay between the last request and the next fork in advance.
const FORK_POOL_REFILL_DELAY: Duration = Duration::from_millis(30);
/// Time limit of the start, sufficient for a slow machine.
const TEMPLATE_START_TIMEOUT: Duration = Duration::from_secs(45);
const TEMPLATE_FORK_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of stderr lines that are kept of a process outside of cells: they contain the reason why it did not start.
const MAX_STDERR_TAIL_LINES: usize = 20;

/// Source of new kernels, for all sessions.
#[derive(Debug, Clone)]
pub(super) struct KernelTemplate(mpsc::Sender<ForkPoolRequest>);

#[derive(Debug)]
pub(super) struct ForkPoolRequest {
    /// Without the packages that were installed at run time.
    pub(super) is_plain: bool,
    pub(super) spawned: oneshot::Sender<Result<SpawnedKernel>>,
}

/// A kernel that was just forked or restored, before its first frame.
#[derive(Debug)]
pub(super) struct SpawnedKernel {
    pub(super) supervisor: Supervisor,
    pub(super) stream: UnixStream,
    pub(super) socket: KernelSocket,
    pub(super) stderr_tail: StderrTail,
}

/// Path of a kernel's socket. Dropping this value removes the socket.
#[derive(Debug)]
pub(super) struct KernelSocket(PathBuf);

impl KernelSocket {
    pub(super) fn from_path(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for KernelSocket {
    fn drop(&mut self) {
        // A missing file is fine: the run folder may be empty.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl KernelTemplate {
    /// Starts the owner task, which ends with the last handle.
    pub(super) fn start(settings: KernelSettings) -> Self {
        let (asks, mailbox) = mpsc::channel(64);
        tokio::spawn(ForkPool::new(settings).run(mailbox));
        Self(asks)
    }

    /// A template without a process, and the requests that it gets.
    #[cfg(test)]
    pub(super) fn without_process() -> (Self, mpsc::Receiver<ForkPoolRequest>) {
        let (asks, requests) = mpsc::channel(64);
        (Self(asks), requests)
    }

    /// Requests a kernel, forked in advance or now. `is_plain`: without the packages that were installed at run
    /// time.
    pub(super) fn request_kernel(
        &self,
        is_plain: bool,
    ) -> oneshot::Receiver<Result<SpawnedKernel>> {
        let (reply, answer) = oneshot::channel();
        // If the mailbox is full, the request is dropped; the caller sees a closed channel.
        let _ = self.0.try_send(ForkPoolRequest {
            is_plain,
            spawned: reply,
        });
        answer
    }
}

/// The owner of the template and of the kernels forked in advance.
#[derive(Debug)]
struct ForkPool {
    settings: KernelSettings,
    template: Option<TemplateProcess>,
    idle_kernels: VecDeque<SpawnedKernel>,
    /// Distinguishes the sockets of this companion from those of restored checkpoints.
    socket_prefix: String,
    fork_count: u64,
}

impl ForkPool {
    fn new(settings: KernelSettings) -> Self {
        Self {
            settings,
            template: None,
            idle_kernels: VecDeque::new(),
            socket_prefix: random_socket_prefix(),
            fork_count: 0,
        }
    }

    async fn run(mut self, mut mailbox: mpsc::Receiver<ForkPoolRequest>) {
        loop {
            let is_short = self.idle_kernels.len() < MAX_IDLE_KERNELS && self.template.is_some();
            let request = tokio::select! {
                request = mailbox.recv() => match request {
                    Some(request) => Some(request),
                    None => return,
                },
                // The kernel that was just handed out gets the processors for a while.
                () = sleep(FORK_POOL_REFILL_DELAY), if is_short => None,
            };
            match request {
                Some(ForkPoolRequest {
                    is_plain,
                    spawned: reply,
                }) => {
                    let result = match is_plain {
                        true => self.fork_kernel(true).await,
                        false => self.take_kernel().await,
                    };
                    // The caller may have ended in between; the kernel then ends with its supervisor's connection.
                    let _ = reply.send(result);
                }
                None => match self.fork_kernel(false).await {
                    Ok(kernel) => self.idle_kernels.push_back(kernel),
                    Err(error) => {
                        tracing::warn!(error = %format_args!("{error:#}"), "the template can't fork a kernel in advance")
                    }
                },
            }
        }
    }

    async fn take_kernel(&mut self) -> Result<SpawnedKernel> {
        while let Some(mut kernel) = self.idle_kernels.pop_front() {
            if kernel.supervisor.is_alive() {
                return Ok(kernel);
            }
        }
        if self.template.is_some()
            && let Ok(kernel) = self.fork_kernel(false).await
        {
            return Ok(kernel);
        }
        // The second attempt uses a new template.
        self.fork_kernel(false).await
    }

    /// Forks a kernel; a template that fails is dropped.
    async fn fork_kernel(&mut self, is_plain: bool) -> Result<SpawnedKernel> {
        let template = match &mut self.template {
            Some(template) => template,
            none => none.insert(TemplateProcess::start(&self.settings).await?),
        };
        self.fork_count += 1;
        let name = format!("{}-{}.sock", self.socket_prefix, self.fork_count);
        let result = template.fork_child(&self.settings, &name, is_plain).await;
        if result.is_err() {
            self.template = None;
        }
        result
    }
}

/// The template process and its connection.
#[derive(Debug)]
struct TemplateProcess {
    /// Killed when this value is dropped.
    _process: Child,
    frames: FramedRead<OwnedReadHalf, LengthDelimitedCodec>,
    writer: OwnedWriteHalf,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TemplateRequest<'a> {
    Fork {
        session: &'a str,
        plain: bool,
        supervisor_command: &'a [String],
        /// The name of `supervisor_command` in bodies before 0.1.0, which also have protocol 1.
        guard: &'a [String],
    },
}

impl<'a> TemplateRequest<'a> {
    fn fork(is_plain: bool, supervisor_command: &'a [String]) -> Self {
        Self::Fork {
            session: "",
            plain: is_plain,
            supervisor_command,
            guard: supervisor_command,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TemplateFrame {
    Ready {
        protocol: u32,
    },
    Forked {
        #[serde(alias = "guard")]
        supervisor_pid: i32,
        pid: i32,
    },
    Failed {
        error: RunError,
    },
}

impl TemplateProcess {
    async fn start(settings: &KernelSettings) -> Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(&settings.python);
        command
            .arg(&settings.program)
            .args(["--template", "--fd", "0"])
            // Only kernels enter it: the modules of the project must not replace those that the template imports.
            .env("OSCTL_START_FOLDER", &settings.start_folder)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for secret in settings::COMPANION_ONLY_VARIABLES {
            command.env_remove(secret);
        }
        let mut process = command.spawn().context("Python can't be started")?;
        // It holds the other end of the socket, without which the end of the process is not noticed.
        drop(command);
        let last_words = StderrTail::default();
        if let Some(stderr) = process.stderr.take() {
            tokio::spawn(read_stderr_lines(stderr, last_words.clone()));
        }
        let (reader, writer) = UnixStream::from_std(ours)?.into_split();
        let mut parent = Self {
            _process: process,
            frames: FramedRead::new(reader, frame_codec()),
            writer,
        };
        match parent.next_frame(TEMPLATE_START_TIMEOUT).await {
            Ok(TemplateFrame::Ready { protocol }) if protocol == BODY_PROTOCOL_VERSION => {
                Ok(parent)
            }
            Ok(TemplateFrame::Ready { protocol }) => {
                bail!(
                    "the kernel speaks protocol {protocol}, this companion speaks {BODY_PROTOCOL_VERSION}"
                )
            }
            Ok(frame) => bail!("the template started with the unexpected frame {frame:?}"),
            Err(error) => {
                // The lines with the reason may not have been read yet.
                tokio::time::sleep(Duration::from_millis(50)).await;
                bail!("{error:#}\n{}", last_words.to_text())
            }
        }
    }

    async fn fork_child(
        &mut self,
        settings: &KernelSettings,
        name: &str,
        is_plain: bool,
    ) -> Result<SpawnedKernel> {
        std::fs::create_dir_all(&settings.socket_folder)?;
        let path = settings.socket_folder.join(name);
        // An earlier companion may have left a socket at this path.
        let _ = std::fs::remove_file(&path);
        let listener = StdListener::bind(&path).with_context(|| {
            format!("the kernel's socket `{}` can't be created", path.display())
        })?;
        let socket = KernelSocket::from_path(path);
        let stream = StdStream::connect(&socket.0)?;
        stream.set_nonblocking(true)?;
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        // This binary, also when its file was replaced since the start.
        let binary = format!("/proc/{}/exe", std::process::id());
        let supervisor_command = [binary, "reaper".into(), "--adopt".into()];
        let request = TemplateRequest::fork(is_plain, &supervisor_command);
        let fds = [listener.as_raw_fd(), theirs.as_raw_fd(), write.as_raw_fd()];
        self.send_with_fds(&encode_frame(&request)?, &fds).await?;
        let (supervisor_pid, kernel) = match self.next_frame(TEMPLATE_FORK_TIMEOUT).await? {
            TemplateFrame::Forked {
                supervisor_pid,
                pid,
            } => (supervisor_pid, pid),
            TemplateFrame::Failed { error } => bail!("{}: {}", error.kind, error.message),
            frame @ TemplateFrame::Ready { .. } => {
                bail!("the template answered with the unexpected frame {frame:?}")
            }
        };
        Ok(SpawnedKernel {
            supervisor: Supervisor::adopt_supervisor(
                UnixStream::from_std(ours)?,
                supervisor_pid,
                Some(kernel),
            ),
            stream: UnixStream::from_std(stream)?,
            socket,
            stderr_tail: StderrTail::from_stream(Receiver::from_owned_fd(read)?),
        })
    }

    async fn send_with_fds(&self, bytes: &[u8], fds: &[i32]) -> io::Result<()> {
        let stream: &UnixStream = self.writer.as_ref();
        loop {
            stream.writable().await?;
            let sent = stream.try_io(Interest::WRITABLE, || {
                let rights = [ControlMessage::ScmRights(fds)];
                let parts = [IoSlice::new(bytes)];
                let flags = MsgFlags::MSG_NOSIGNAL;
                Ok(sendmsg::<()>(
                    stream.as_raw_fd(),
                    &parts,
                    &rights,
                    flags,
                    None,
                )?)
            });
            match sent {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The socket accepts a few hundred bytes in one piece; otherwise the connection is unusable.
                Ok(sent) if sent == bytes.len() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(e) => return Err(e),
            }
        }
    }

    async fn next_frame(&mut self, time_limit: Duration) -> Result<TemplateFrame> {
        match timeout(time_limit, read_template_frame(&mut self.frames)).await {
            Ok(frame) => frame,
            Err(_) => bail!(
                "the template did not answer within {} s",
                time_limit.as_secs()
            ),
        }
    }
}

async fn read_template_frame(
    frames: &mut FramedRead<impl AsyncRead + Unpin, LengthDelimitedCodec>,
) -> Result<TemplateFrame> {
    match frames.next().await {
        Some(bytes) => Ok(serde_json::from_slice(&bytes?)?),
        None => bail!("the template ended"),
    }
}

/// Last lines that a process wrote to stderr outside of cells.
#[derive(Debug, Clone, Default)]
pub(super) struct StderrTail(Arc<Mutex<VecDeque<String>>>);

impl StderrTail {
    /// Reads until the other end is closed.
    pub(super) fn from_stream(stderr: Receiver) -> Self {
        let last_words = Self::default();
        tokio::spawn(read_stderr_lines(stderr, last_words.clone()));
        last_words
    }

    pub(super) fn to_text(&self) -> String {
        let lines = self.0.lock();
        lines.iter().cloned().collect::<Vec<_>>().join("\n")
    }

    pub(super) fn push_line(&self, line: String) {
        let mut lines = self.0.lock();
        if lines.len() == MAX_STDERR_TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

fn random_socket_prefix() -> String {
    // Without random numbers, the clock also distinguishes companions.
    let mut bytes = std::time::UNIX_EPOCH
        .elapsed()
        .map_or([0; 16], |since| since.as_nanos().to_le_bytes());
    let _ = getrandom::fill(&mut bytes[..8]);
    hex(&bytes[..8])
}

async fn read_stderr_lines(stderr: impl AsyncRead + Unpin, last_words: StderrTail) {
    // Read bytes: text in another encoding must not end the reading.
    let mut lines = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        tracing::info!(line, "a kernel process wrote to stderr");
        last_words.push_line(line);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        StderrTail, TemplateFrame, TemplateRequest, frame_codec, read_stderr_lines,
        read_template_frame,
    };
    use proptest::prelude::*;
    use tokio_util::codec::FramedRead;

    const TEMPLATE_TEST_FRAMES: [&str; 3] = [
        r#"{"type":"ready","protocol":1}"#,
        r#"{"type":"forked","supervisor_pid":77,"pid":78}"#,
        r#"{"type":"failed","error":{"type":"E","message":"m","traceback":["t"]}}"#,
    ];

    fn framed(body: &[u8]) -> Vec<u8> {
        [&u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    #[tokio::test]
    async fn a_line_that_is_not_utf8_does_not_end_the_reading_of_stderr() {
        let tail = StderrTail::default();
        read_stderr_lines(&b"caf\xe9\r\nlast"[..], tail.clone()).await;
        assert_eq!(tail.to_text(), "caf\u{fffd}\nlast");
    }

    #[test]
    fn a_former_template_reads_the_request_and_its_reply_is_read() {
        let command = ["osctl".to_owned(), "reaper".to_owned()];
        let request = serde_json::to_value(TemplateRequest::fork(true, &command)).unwrap();
        assert_eq!(request["supervisor_command"], request["guard"]);
        assert_eq!(
            (&request["type"], &request["session"], &request["plain"]),
            (&"fork".into(), &"".into(), &true.into())
        );
        assert_eq!(request["guard"], serde_json::json!(command));
        let former = r#"{"type":"forked","guard":77,"pid":78}"#;
        assert!(matches!(
            serde_json::from_str(former),
            Ok(TemplateFrame::Forked {
                supervisor_pid: 77,
                pid: 78
            })
        ));
    }

    #[tokio::test]
    async fn a_length_beyond_the_limit_is_an_error_and_no_allocation() {
        let bytes = u32::MAX.to_be_bytes();
        let mut frames = FramedRead::new(&bytes[..], frame_codec());
        assert!(read_template_frame(&mut frames).await.is_err());
        let capacity = frames.read_buffer().capacity();
        assert!(capacity <= 64 << 10, "{capacity}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_frame_that_is_cut_is_an_error_and_the_next_one_arrives(
            text in prop::sample::select(&TEMPLATE_TEST_FRAMES[..]), at in any::<prop::sample::Index>(),
        ) {
            let cut = &text.as_bytes()[..at.index(text.len())];
            let whole = framed(text.as_bytes());
            let end = &whole[..1 + at.index(whole.len() - 1)];
            let bytes = [&whole[..], &framed(cut), &framed(TEMPLATE_TEST_FRAMES[1].as_bytes()), end].concat();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut frames = FramedRead::new(&bytes[..], frame_codec());
                assert!(read_template_frame(&mut frames).await.is_ok());
                assert!(read_template_frame(&mut frames).await.is_err());
                let third = read_template_frame(&mut frames).await;
                assert!(matches!(third, Ok(TemplateFrame::Forked { supervisor_pid: 77, .. })), "{third:?}");
                assert!(read_template_frame(&mut frames).await.is_err(), "{end:?}");
            });
        }
    }
}
