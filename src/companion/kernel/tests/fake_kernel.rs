//! A kernel in memory that speaks the frames of a real one, beneath a fake supervisor. A test scripts every answer.

use crate::companion::kernel::connection::{encode_frame, frame_codec};
use crate::companion::kernel::detached::RestoredKernel;
use crate::companion::kernel::template::{
    ForkPoolRequest, KernelSocket, SpawnedKernel, StderrTail,
};
use crate::companion::tests::clock::settle;
use crate::companion::tests::fake_supervisor::FakeSupervisor;
use crate::protocol::BODY_PROTOCOL_VERSION;
use crate::supervise::SupervisorRequest;
use futures_util::{FutureExt, StreamExt};
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::{Value, json};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

#[must_use = "a kernel that is dropped ends"]
pub(super) struct FakeKernel {
    supervisor: FakeSupervisor,
    stderr_tail: StderrTail,
    connection: Option<FakeConnection>,
    listener: UnixListener,
    socket: PathBuf,
    pub(super) execution_count: u64,
}

struct FakeConnection {
    frames: FramedRead<OwnedReadHalf, LengthDelimitedCodec>,
    writer: OwnedWriteHalf,
    /// The write ends of stdout and stderr.
    output: Option<[OwnedFd; 2]>,
}

impl FakeKernel {
    /// Answers a request for a kernel. The kernel has not sent its hello frame then.
    pub(super) fn spawn(request: ForkPoolRequest, socket: PathBuf) -> Self {
        let (kernel, spawned) = Self::create(socket);
        // The owner may have ended.
        let _ = request.spawned.send(Ok(spawned));
        kernel
    }

    /// A kernel that was restored from a checkpoint.
    pub(super) fn restored(socket: PathBuf) -> (Self, RestoredKernel) {
        let (kernel, spawned) = Self::create(socket);
        (kernel, RestoredKernel { spawned })
    }

    fn create(socket: PathBuf) -> (Self, SpawnedKernel) {
        let (supervisor, theirs) = FakeSupervisor::start();
        let (stream, connection) = UnixStream::pair().unwrap();
        let stderr_tail = StderrTail::default();
        let kernel = Self {
            supervisor,
            stderr_tail: stderr_tail.clone(),
            connection: Some(FakeConnection::new(connection)),
            listener: listen(&socket),
            socket: socket.clone(),
            execution_count: 0,
        };
        let spawned = SpawnedKernel {
            supervisor: theirs,
            stream,
            socket: KernelSocket::from_path(socket),
            stderr_tail,
        };
        (kernel, spawned)
    }

    pub(super) fn write_stderr_tail(&self, line: &str) {
        self.stderr_tail.push_line(line.into());
    }

    pub(super) async fn send_hello(&mut self) {
        self.send_hello_of_protocol(BODY_PROTOCOL_VERSION).await;
    }

    pub(super) async fn send_hello_of_protocol(&mut self, protocol: u32) {
        let hello = json!({
            "type": "hello", "protocol": protocol, "pid": self.supervisor.pid(), "body_version": "1", "python": "3.13",
            "execution_count": self.execution_count, "globals_count": 0,
        });
        self.connection.as_mut().unwrap().send_first(&hello).await;
        settle().await;
    }

    /// The next request of the owner.
    pub(super) async fn next_request(&mut self) -> Value {
        settle().await;
        let connection = self.connection.as_mut().unwrap();
        let bytes = connection.frames.next().now_or_never();
        let bytes = bytes.expect("the owner sent no request").unwrap().unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Checks the type of the next request.
    pub(super) async fn expect(&mut self, kind: &str) -> Value {
        let request = self.next_request().await;
        assert_eq!(request["type"], kind, "{request}");
        request
    }

    pub(super) async fn expect_no_request(&mut self) {
        settle().await;
        let connection = self.connection.as_mut().unwrap();
        assert!(connection.frames.next().now_or_never().is_none());
    }

    pub(super) async fn send(&mut self, frame: Value) {
        let bytes = encode_frame(&frame).unwrap();
        self.send_bytes(&bytes).await;
    }

    pub(super) async fn send_bytes(&mut self, bytes: &[u8]) {
        let connection = self.connection.as_mut().unwrap();
        connection.writer.write_all(bytes).await.unwrap();
        settle().await;
    }

    /// Ends the current cell.
    pub(super) async fn send_done(&mut self, status: &str) {
        self.execution_count += 1;
        let count = self.execution_count;
        let done = json!({"type": "done", "status": status, "execution_count": count, "globals_count": count});
        self.send(done).await;
    }

    /// Answers a query.
    pub(super) async fn send_reply(&mut self, value: Value) {
        let count = self.execution_count;
        let reply = json!({
            "type": "reply", "value": value, "error": null, "execution_count": count, "globals_count": count,
        });
        self.send(reply).await;
    }

    /// Answers a query with an exception.
    pub(super) async fn send_error_reply(&mut self, kind: &str, message: &str) {
        let error = json!({"type": kind, "message": message, "traceback": []});
        let reply =
            json!({"type": "reply", "error": error, "execution_count": 0, "globals_count": 0});
        self.send(reply).await;
    }

    /// Writes output of user code.
    pub(super) fn write_output(&self, stderr: bool, text: &str) {
        let connection = self.connection.as_ref().unwrap();
        let pipe = &connection.output.as_ref().unwrap()[usize::from(stderr)];
        nix::unistd::write(pipe, text.as_bytes()).unwrap();
    }

    /// Waits until the kernel has been interrupted for the first time.
    pub(super) async fn wait_interrupted(&self) {
        self.supervisor.wait_signal(Signal::SIGINT).await;
    }

    /// Waits until the supervisor has been killed.
    pub(super) async fn wait_killed(&self) {
        self.supervisor.wait_killed().await;
    }

    /// The next request of the owner to the supervisor.
    pub(super) async fn next_command(&mut self) -> Option<SupervisorRequest> {
        self.supervisor.next_request().await
    }

    /// Ends kernel and supervisor with an exit code, or 128+n for signal n.
    pub(super) async fn exit(&mut self, code: u8) {
        self.supervisor.exit(code).await;
        self.end().await;
    }

    /// Ends as the owner has requested.
    pub(super) async fn exit_when_ended(&mut self) {
        self.supervisor.expect_kill().await;
        self.exit(137).await;
    }

    /// Checks that the owner asks the kernel to end.
    pub(super) async fn expect_shut_down(&mut self) {
        self.supervisor.expect_shut_down().await;
    }

    /// Ends an idle kernel as the owner has requested.
    pub(super) async fn exit_when_shut_down(&mut self) {
        self.expect_shut_down().await;
        self.exit(0).await;
    }

    /// Ends the supervisor without a report, and the kernel with it.
    pub(super) async fn kill_supervisor(&mut self) {
        self.supervisor.end().await;
        self.end().await;
    }

    async fn end(&mut self) {
        // A connection that the kernel has not accepted ends with its listener.
        if let Some(Ok((mut pending, _))) = self.listener.accept().now_or_never() {
            pending.shutdown().await.unwrap();
        }
        self.close_connection().await;
    }

    /// Closes the connection; the process stays.
    pub(super) async fn close_connection(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            // A process that another test forks at this moment holds a copy of the socket: closing it is not enough.
            connection.writer.shutdown().await.unwrap();
        }
        settle().await;
    }

    /// Accepts the next connection to the kernel's socket, and sends the hello frame.
    pub(super) async fn accept(&mut self) {
        settle().await;
        let accepted = self.listener.accept().now_or_never();
        let (stream, _) = accepted.expect("the owner did not connect").unwrap();
        self.connection = Some(FakeConnection::new(stream));
        self.send_hello().await;
    }

    /// The socket of a kernel in a checkpoint does not exist.
    pub(super) fn remove_socket(&self) {
        std::fs::remove_file(&self.socket).unwrap();
    }
}

impl FakeConnection {
    fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            frames: FramedRead::new(reader, frame_codec()),
            writer,
            output: None,
        }
    }

    /// Sends the first frame, with the read ends of the pipes.
    async fn send_first(&mut self, frame: &Value) {
        let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let (stdout, stderr) = (pipe(), pipe());
        let stream: &UnixStream = self.writer.as_ref();
        stream.writable().await.unwrap();
        let bytes = encode_frame(frame).unwrap();
        let fds = [stdout.0.as_raw_fd(), stderr.0.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let parts = [IoSlice::new(&bytes)];
        let flags = MsgFlags::empty();
        let sent = sendmsg::<()>(stream.as_raw_fd(), &parts, &rights, flags, None);
        assert_eq!(sent, Ok(bytes.len()));
        self.output = Some([stdout.1, stderr.1]);
    }
}

fn listen(socket: &Path) -> UnixListener {
    let listener = StdListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    UnixListener::from_std(listener).unwrap()
}
