//! A bounded pipe between a blocking thread, which accesses files, and an async task, which accesses sockets.
//!
//! Each end waits for the other; the pipe holds a few chunks at most. A dropped task means a cut connection, never the
//! end of the stream: the end is sent explicitly.

use super::ARCHIVE_CHUNK_BYTES;
use bytes::{Buf, Bytes};
use std::io::{self, Read, Write};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The chunks that leave the pipe; an error means that the stream was cut.
pub type ChunkReceiver = Receiver<io::Result<Bytes>>;

/// Chunks in the pipe.
const MAX_QUEUED_CHUNKS: usize = 8;

/// The blocking end that writes; the chunks arrive at the receiver.
#[derive(Debug)]
pub struct ChunkWriter {
    sender: Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

pub fn chunk_writer() -> (ChunkWriter, ChunkReceiver) {
    let (sender, receiver) = channel(MAX_QUEUED_CHUNKS);
    let buffer = Vec::new();
    (ChunkWriter { sender, buffer }, receiver)
}

impl ChunkWriter {
    /// Sends the buffered bytes, then the end of the stream or the error.
    ///
    /// # Errors
    /// When the receiver was dropped.
    pub fn finish(mut self, error: Option<io::Error>) -> io::Result<()> {
        self.flush()?;
        match error {
            Some(error) => self.send_chunk(Err(error)),
            None => Ok(()),
        }
    }

    /// Sends a chunk unchanged, after the buffered bytes.
    pub fn write_chunk(&mut self, piece: Bytes) -> io::Result<()> {
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
        let length = bytes.len().min(ARCHIVE_CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::take(&mut self.buffer);
        self.send_chunk(Ok(full.into()))
    }
}

/// The blocking end that reads; the task feeds it.
#[derive(Debug)]
pub struct ChunkReader {
    receiver: Receiver<io::Result<Bytes>>,
    current: Bytes,
    is_over: bool,
}

/// The async end that writes.
#[derive(Debug)]
pub struct ChunkSender(Sender<io::Result<Bytes>>);

pub fn chunk_reader() -> (ChunkSender, ChunkReader) {
    let (sender, receiver) = channel(MAX_QUEUED_CHUNKS);
    let reader = ChunkReader {
        receiver,
        current: Bytes::new(),
        is_over: false,
    };
    (ChunkSender(sender), reader)
}

impl ChunkSender {
    /// Sends a chunk; `false` when the reader was dropped.
    pub async fn send_chunk(&self, piece: Bytes) -> bool {
        // An empty chunk marks the end, so empty input is not sent.
        piece.is_empty() || self.0.send(Ok(piece)).await.is_ok()
    }

    /// Marks the regular end of the stream. Dropping the sender without this call means a cut stream.
    pub async fn finish(&self) {
        let _ = self.0.send(Ok(Bytes::new())).await;
    }

    /// Ends the stream with an error.
    pub async fn fail(self, error: io::Error) {
        let _ = self.0.send(Err(error)).await;
    }
}

impl ChunkReader {
    /// The next chunk; empty at the end.
    ///
    /// # Errors
    /// When the stream was cut.
    pub fn next_chunk(&mut self) -> io::Result<Bytes> {
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
        let length = piece.len().min(buffer.len());
        piece.copy_to_slice(&mut buffer[..length]);
        self.current = piece;
        Ok(length)
    }
}
