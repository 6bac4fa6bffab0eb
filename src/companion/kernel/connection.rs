//! Frames between companion and kernel: a u32 big-endian length, then one JSON object.
//!
//! Output of user code never carries control data. Output comes through separate pipes; the kernel passes their read
//! ends with its first frame.

use crate::protocol::environment::UserEnvironment;
use crate::protocol::kernel::{DisplayData, RunError};
use bytes::{Buf, BufMut, BytesMut};
use futures_util::StreamExt;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, Cursor, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Chain, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

/// A longer frame ends the connection.
const MAX_KERNEL_FRAME_BYTES: usize = 256 << 20;

/// Messages from the companion to the kernel.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum KernelRequest<'a> {
    /// Gives a pre-started kernel its name and, unless `plain`, the packages that users have installed since its start.
    /// Answered like a query.
    Adopt {
        id: &'a str,
        session: &'a str,
        plain: bool,
    },
    Execute {
        id: &'a str,
        code: &'a str,
        #[serde(skip_serializing_if = "is_false")]
        silent: bool,
        store_history: bool,
        /// The user's variables, if the process does not have them yet; they apply before the code runs.
        #[serde(skip_serializing_if = "Option::is_none")]
        environment: Option<&'a UserEnvironment>,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        argv: &'a [String],
    },
}

/// A query as a frame.
#[derive(Debug, Serialize)]
pub(super) struct KernelQueryFrame<'a> {
    pub(super) id: &'a str,
    #[serde(flatten)]
    pub(super) question: &'a KernelQuery,
    /// The user's variables, if the process does not have them yet; they apply before the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) environment: Option<&'a UserEnvironment>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Queries to the kernel, apart from executing code.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum KernelQuery {
    /// Empty the namespace.
    Reset,
    /// Check that the kernel answers.
    Probe,
    /// End live objects and, after the reply, the connection: the process is about to be checkpointed. The kernel of a
    /// former body, also one in a checkpoint, knows only the former word; today's kernel knows `release`, too.
    #[serde(rename = "let_go")]
    Release,
    Variables {
        /// Maximum number of variables. The kernel has its own default.
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<usize>,
    },
    Complete {
        code: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<u64>,
    },
    Inspect {
        code: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<u64>,
        detail: u8,
    },
    IsComplete {
        code: String,
    },
    History {
        n: u64,
    },
    /// Call an extension of the body.
    Call {
        name: String,
        arguments: Value,
    },
    /// Store the namespace as a generation.
    CryoStore {
        folder: PathBuf,
        name: String,
        generation: u64,
        reason: &'static str,
        session: String,
        strict: bool,
        dry_run: bool,
        files: bool,
        compress: bool,
        /// Number of runs that the session has started. The owner task fills the number in.
        runs: u64,
        /// The kernel generation that the caller expects.
        #[serde(skip)]
        seen: Option<u64>,
    },
    /// Reload a generation into the namespace.
    CryoReload {
        folder: PathBuf,
    },
}

impl KernelQuery {
    /// Whether the query takes time proportional to the data it moves.
    pub(super) fn is_long(&self) -> bool {
        matches!(self, Self::CryoStore { .. } | Self::CryoReload { .. })
    }

    /// Whether the query may replace the namespace.
    pub(super) fn changes_namespace(&self) -> bool {
        matches!(
            self,
            Self::Reset | Self::Call { .. } | Self::CryoReload { .. }
        )
    }
}

/// Messages from the kernel to the companion. Unknown kinds are ignored.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum KernelFrame {
    Hello(KernelHello),
    Display(DisplayData),
    Result(DisplayData),
    Clear {
        wait: bool,
    },
    Error {
        error: RunError,
    },
    Done {
        status: KernelCellOutcome,
        #[serde(flatten)]
        counts: KernelCounts,
    },
    Reply {
        #[serde(default)]
        value: Value,
        error: Option<RunError>,
        #[serde(flatten)]
        counts: KernelCounts,
    },
    Refused {
        error: RunError,
    },
    /// Bytes that a long query has moved up to now.
    Progress {
        bytes: u64,
    },
    #[serde(other)]
    Unknown,
}

/// First frame of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct KernelHello {
    pub(super) protocol: u32,
    pub(super) pid: i32,
    pub(super) body_version: String,
    pub(super) python: String,
    #[serde(flatten)]
    pub(super) counts: KernelCounts,
}

/// Counts that the kernel reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct KernelCounts {
    pub(crate) execution_count: u64,
    pub(crate) globals_count: u64,
    #[serde(default)]
    pub(crate) resources_count: u64,
}

/// Outcome of a cell as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KernelCellOutcome {
    Completed,
    Failed,
    Interrupted,
}

/// The connection after its first bytes.
#[derive(Debug)]
pub(super) struct KernelConnection {
    frames: FramedRead<Chain<Cursor<BytesMut>, OwnedReadHalf>, LengthDelimitedCodec>,
    writer: OwnedWriteHalf,
    /// Bytes that the kernel has not read yet.
    outgoing: BytesMut,
}

impl KernelConnection {
    /// Waits for the kernel's first bytes, and takes the pipes that come with them. Cancel-safe: dropping the future
    /// loses no data.
    ///
    /// # Errors
    /// When the kernel ended before its first frame, or passed no pipes.
    pub(super) async fn receive_first(stream: &UnixStream) -> io::Result<KernelFirstBytes> {
        loop {
            stream.readable().await?;
            match stream.try_io(Interest::READABLE, || receive_with_pipes(stream)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    pub(super) fn new(stream: UnixStream, first: BytesMut) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            frames: FramedRead::new(
                AsyncReadExt::chain(Cursor::new(first), reader),
                frame_codec(),
            ),
            writer,
            outgoing: BytesMut::new(),
        }
    }

    /// Returns the next frame, or `None` at the end of the connection. Sends queued bytes at the same time, so that a
    /// kernel that does not read yet blocks only itself. Cancel-safe: dropping the future loses no data.
    ///
    /// # Errors
    /// When the connection breaks, or the data is not a frame.
    pub(super) async fn read_frame(&mut self) -> io::Result<Option<KernelFrame>> {
        loop {
            tokio::select! {
                frame = self.frames.next() => return match frame {
                    None => Ok(None),
                    Some(bytes) => Ok(Some(serde_json::from_slice(&bytes?)?)),
                },
                // A write error needs no handling: the end of the frames reports a closed connection.
                _ = self.writer.write_buf(&mut self.outgoing), if !self.outgoing.is_empty() => {}
            }
        }
    }

    /// Queues a request. Sends the request immediately if the socket has room; otherwise
    /// [`KernelConnection::read_frame`] sends it.
    ///
    /// # Errors
    /// When the request is too long for a frame.
    pub(super) fn queue_frame(&mut self, request: &impl Serialize) -> io::Result<()> {
        self.outgoing.put_slice(&encode_frame(request)?);
        if let Ok(sent) = self.writer.try_write(&self.outgoing) {
            self.outgoing.advance(sent);
        }
        Ok(())
    }
}

/// Encodes a frame.
///
/// # Errors
/// When the message is too long for a frame.
pub(super) fn encode_frame(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, content)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

/// Codec for frames up to the length limit.
pub(super) fn frame_codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .max_frame_length(MAX_KERNEL_FRAME_BYTES)
        .new_codec()
}

/// The first bytes, and the read ends of the kernel's stdout and stderr pipes.
type KernelFirstBytes = (BytesMut, [OwnedFd; 2]);

fn receive_with_pipes(stream: &UnixStream) -> io::Result<KernelFirstBytes> {
    let mut bytes = [0u8; 4096];
    let mut space = nix::cmsg_space!([i32; 4]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(
        stream.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let length = message.bytes;
    let mut passed = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            // SAFETY: the operating system just created these descriptors for this process, and no other code knows
            // their numbers.
            passed.extend(
                fds.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let pipes = passed
        .try_into()
        .map_err(|_| io::Error::other("the kernel passed no output pipes"))?;
    Ok((BytesMut::from(&bytes[..length]), pipes))
}

#[cfg(test)]
mod tests {
    use super::{
        KernelCellOutcome, KernelConnection, KernelCounts, KernelFrame, KernelQuery,
        MAX_KERNEL_FRAME_BYTES,
    };
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use proptest::prelude::*;
    use std::io::IoSlice;
    use std::os::fd::AsRawFd;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    fn framed(body: &[u8]) -> Vec<u8> {
        [&u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    async fn connected(first: &[u8]) -> (KernelConnection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (read, _write) = nix::unistd::pipe().unwrap();
        let fds = [read.as_raw_fd(), read.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        theirs.writable().await.unwrap();
        sendmsg::<()>(
            theirs.as_raw_fd(),
            &[IoSlice::new(first)],
            &rights,
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        let (bytes, _pipes) = KernelConnection::receive_first(&ours).await.unwrap();
        (KernelConnection::new(ours, bytes), theirs)
    }

    #[tokio::test]
    async fn frames_arrive_whole_however_they_are_cut() {
        let text = r#"{"type":"done","id":"a","status":"completed","execution_count":1,"globals_count":0}"#;
        let bytes = [
            framed(text.as_bytes()),
            framed(br#"{"type":"news","id":"a"}"#),
        ]
        .concat();
        let (mut reader, mut theirs) = connected(&bytes[..3]).await;
        for byte in &bytes[3..] {
            theirs.write_all(&[*byte]).await.unwrap();
        }
        let done = KernelFrame::Done {
            status: KernelCellOutcome::Completed,
            counts: KernelCounts {
                execution_count: 1,
                ..KernelCounts::default()
            },
        };
        assert_eq!(reader.read_frame().await.unwrap(), Some(done));
        assert_eq!(
            reader.read_frame().await.unwrap(),
            Some(KernelFrame::Unknown)
        );
        drop(theirs);
        assert_eq!(reader.read_frame().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_length_beyond_the_limit_is_an_error_and_no_allocation() {
        for length in [u32::MAX, u32::try_from(MAX_KERNEL_FRAME_BYTES).unwrap() + 1] {
            let (mut reader, _theirs) = connected(&length.to_be_bytes()).await;
            assert!(reader.read_frame().await.is_err());
            let capacity = reader.frames.read_buffer().capacity();
            assert!(capacity <= 64 << 10, "{capacity} bytes for {length}");
        }
    }

    #[test]
    fn the_release_request_has_the_word_of_former_kernels() {
        let frame = serde_json::to_string(&KernelQuery::Release).unwrap();
        assert_eq!(frame, r#"{"type":"let_go"}"#);
    }

    /// One frame of each kind.
    const WIRE_TEST_FRAMES: [&str; 10] = [
        r#"{"type":"hello","protocol":1,"pid":7,"body_version":"1","python":"3.13","execution_count":0,"globals_count":0}"#,
        r#"{"type":"display","data":{"text/plain":"a"},"metadata":{}}"#,
        r#"{"type":"result","data":{"text/plain":"\u00e4"},"metadata":{}}"#,
        r#"{"type":"clear","wait":true}"#,
        r#"{"type":"error","error":{"type":"E","message":"m","traceback":["t"]}}"#,
        r#"{"type":"done","status":"failed","execution_count":1,"globals_count":2,"resources_count":3}"#,
        r#"{"type":"reply","value":{"x":[1,null]},"error":null,"execution_count":1,"globals_count":0}"#,
        r#"{"type":"refused","error":{"type":"E","message":"m","traceback":[]}}"#,
        r#"{"type":"progress","bytes":5}"#,
        r#"{"type":"news"}"#,
    ];

    #[test]
    fn every_kind_of_frame_is_damaged_by_the_tests() {
        for frame in WIRE_TEST_FRAMES {
            serde_json::from_str::<KernelFrame>(frame).unwrap();
        }
    }

    /// Damage to a frame that keeps its length.
    #[derive(Debug, Clone)]
    enum Damage {
        Cut(prop::sample::Index),
        Byte(prop::sample::Index, u8),
        Doubled,
    }

    fn damage() -> impl Strategy<Value = Damage> {
        let index = any::<prop::sample::Index>;
        prop_oneof![
            index().prop_map(Damage::Cut),
            (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
            Just(Damage::Doubled),
        ]
    }

    impl Damage {
        fn of(self, text: &str) -> Vec<u8> {
            let mut bytes = text.as_bytes().to_vec();
            match self {
                Self::Cut(at) => bytes.truncate(at.index(text.len())),
                Self::Byte(at, byte) => bytes[at.index(text.len())] = byte,
                Self::Doubled => bytes.extend_from_slice(text.as_bytes()),
            }
            bytes
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_damaged_frame_is_an_error_and_the_next_one_arrives(
            text in prop::sample::select(&WIRE_TEST_FRAMES[..]), damage in damage(),
        ) {
            let is_no_frame = matches!(damage, Damage::Cut(_) | Damage::Doubled);
            let body = damage.of(text);
            let (before, after) = (framed(WIRE_TEST_FRAMES[3].as_bytes()), framed(WIRE_TEST_FRAMES[8].as_bytes()));
            let bytes = [before, framed(&body), after].concat();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (mut reader, theirs) = connected(&bytes).await;
                drop(theirs);
                assert_eq!(reader.read_frame().await.unwrap(), Some(KernelFrame::Clear { wait: true }));
                // A changed byte inside a string yields a different valid string.
                if let Ok(frame) = reader.read_frame().await {
                    assert!(frame.is_some() && !is_no_frame, "{frame:?}");
                }
                assert_eq!(reader.read_frame().await.unwrap(), Some(KernelFrame::Progress { bytes: 5 }));
                assert_eq!(reader.read_frame().await.unwrap(), None);
            });
        }

        #[test]
        fn input_uses_bounded_memory(
            length in prop_oneof![any::<u32>(), 0..64u32],
            suffix in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            let bytes = [&length.to_be_bytes()[..], &suffix].concat();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (mut reader, theirs) = connected(&bytes).await;
                drop(theirs);
                while let Ok(Some(_)) = reader.read_frame().await {}
                let capacity = reader.frames.read_buffer().capacity();
                assert!(capacity <= MAX_KERNEL_FRAME_BYTES + (64 << 10), "{capacity} bytes for a frame of {length}");
            });
        }

        #[test]
        fn a_connection_that_ends_within_a_frame_gives_none(
            text in prop::sample::select(&WIRE_TEST_FRAMES[..]), at in any::<prop::sample::Index>(),
        ) {
            let whole = framed(text.as_bytes());
            let cut = 1 + at.index(whole.len() - 1);
            let bytes = [&framed(WIRE_TEST_FRAMES[3].as_bytes())[..], &whole[..cut]].concat();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (mut reader, theirs) = connected(&bytes).await;
                drop(theirs);
                assert_eq!(reader.read_frame().await.unwrap(), Some(KernelFrame::Clear { wait: true }));
                match reader.read_frame().await {
                    // A length without a payload is treated as the end of the connection.
                    Ok(None) => assert_eq!(cut, 4),
                    Ok(Some(frame)) => panic!("{frame:?} of {cut} bytes"),
                    Err(_) => {}
                }
            });
        }
    }
}
