//! Between a blocking thread, which works on files, and a task, which works on sockets.
//!
//! Both ends wait for the other one and hold a few pieces at most. A task that is dropped is a cut
//! connection, never the end of the stream: the end is said.

use super::ARCHIVE_CHUNK_BYTES;
use bytes::{Buf, Bytes};
use std::io::{self, Read, Write};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// What comes out, piece by piece; an error is a stream that is cut.
pub(crate) type ChunkReceiver = Receiver<io::Result<Bytes>>;

/// Pieces on their way.
const MAX_QUEUED_CHUNKS: usize = 8;

/// The thread's end, written to; the pieces come out of the receiver.
#[derive(Debug)]
pub(crate) struct ChunkWriter {
    sender: Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

pub(crate) fn chunk_writer() -> (ChunkWriter, ChunkReceiver) {
    let (sender, receiver) = channel(MAX_QUEUED_CHUNKS);
    let buffer = Vec::new();
    (ChunkWriter { sender, buffer }, receiver)
}

impl ChunkWriter {
    /// Hands over what was gathered, and the end.
    ///
    /// # Errors
    /// When nobody reads any more.
    pub(crate) fn finish(mut self, error: Option<io::Error>) -> io::Result<()> {
        self.flush()?;
        match error {
            Some(error) => self.send_chunk(Err(error)),
            None => Ok(()),
        }
    }

    /// A piece as it is, behind what was gathered.
    pub(crate) fn write_chunk(&mut self, piece: Bytes) -> io::Result<()> {
        self.flush()?;
        self.send_chunk(Ok(piece))
    }

    fn send_chunk(&self, piece: io::Result<Bytes>) -> io::Result<()> {
        let sent = self.sender.blocking_send(piece);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() >= ARCHIVE_CHUNK_BYTES {
            self.flush()?;
        }
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(ARCHIVE_CHUNK_BYTES);
        }
        let taken = bytes.len().min(ARCHIVE_CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::take(&mut self.buffer);
        self.send_chunk(Ok(full.into()))
    }
}

/// The thread's end, read from; the task feeds it.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    receiver: Receiver<io::Result<Bytes>>,
    current: Bytes,
    is_over: bool,
}

/// The task's end.
#[derive(Debug)]
pub(crate) struct ChunkSender(Sender<io::Result<Bytes>>);

pub(crate) fn chunk_reader() -> (ChunkSender, ChunkReader) {
    let (sender, receiver) = channel(MAX_QUEUED_CHUNKS);
    let inlet = ChunkReader {
        receiver,
        current: Bytes::new(),
        is_over: false,
    };
    (ChunkSender(sender), inlet)
}

impl ChunkSender {
    /// `false` when nobody reads any more.
    pub(crate) async fn send_chunk(&self, piece: Bytes) -> bool {
        // An empty piece is the end, and not all that is empty means it.
        piece.is_empty() || self.0.send(Ok(piece)).await.is_ok()
    }

    /// Nothing more comes, as it should be. Who drops this before it is done has not said so.
    pub(crate) async fn finish(&self) {
        let _ = self.0.send(Ok(Bytes::new())).await;
    }

    /// Nothing more comes, because of that.
    pub(crate) async fn fail(self, error: io::Error) {
        let _ = self.0.send(Err(error)).await;
    }
}

impl ChunkReader {
    /// The next piece; empty at the end.
    ///
    /// # Errors
    /// When the stream was cut.
    pub(crate) fn next_chunk(&mut self) -> io::Result<Bytes> {
        if self.current.is_empty() && !self.is_over {
            let next = self.receiver.blocking_recv().unwrap_or_else(|| {
                let why = "the connection was cut";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, why))
            });
            self.current = next?;
            self.is_over = self.current.is_empty();
        }
        Ok(std::mem::take(&mut self.current))
    }
}

impl Read for ChunkReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut piece = self.next_chunk()?;
        let taken = piece.len().min(buffer.len());
        piece.copy_to_slice(&mut buffer[..taken]);
        self.current = piece;
        Ok(taken)
    }
}
