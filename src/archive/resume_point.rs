//! How far a stream has come, so that it can be taken up there on another connection.
//!
//! A tree is packed in the same order each time. So whoever packs it again may leave out what has
//! arrived, if it is the same tree still: the form of the stream, which is all of it that is no data
//! of files (names, rights, times, sizes, maps), has the same digest to there. Whoever reads takes
//! that digest along ([`VerifiedReader`]), whoever writes again compares it ([`RemainingWriter`]).
//!
//! Data are not compared: a file that changes and keeps its size and its time is not noticed.

use crate::protocol::hex::hex;
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};
use tokio::sync::watch;

/// A place in a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResumePoint {
    /// Before it.
    pub(crate) bytes: u64,
    /// Digest of what is no data among them.
    pub(crate) form: String,
}

/// What was read of a stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadProgress {
    bytes: u64,
    form: Sha256,
}

impl ReadProgress {
    /// Its place, when it is the end of so many bytes.
    pub(crate) fn resume_point(&self, bytes: u64) -> Option<ResumePoint> {
        (self.bytes == bytes).then(|| ResumePoint {
            bytes,
            form: hex(self.form.clone().finalize()),
        })
    }
}

/// A stream that is read, and how far that has come.
#[derive(Debug)]
pub(crate) struct VerifiedReader<R> {
    from: R,
    seen: watch::Sender<ReadProgress>,
}

impl<R: Read> VerifiedReader<R> {
    pub(crate) fn new(from: R) -> (Self, watch::Receiver<ReadProgress>) {
        let (seen, seeing) = watch::channel(ReadProgress::default());
        (Self { from, seen }, seeing)
    }

    /// Data of a file; what is read otherwise is form.
    pub(super) fn read_data(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.seen.send_modify(|seen| seen.bytes += read as u64);
        Ok(read)
    }
}

impl<R: Read> Read for VerifiedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.seen.send_modify(|seen| {
            seen.bytes += read as u64;
            seen.form.update(&buffer[..read]);
        });
        Ok(read)
    }
}

/// A stream that is written from a mark on.
#[derive(Debug)]
pub(super) struct RemainingWriter<W> {
    to: W,
    /// What is compared at the mark.
    expected: String,
    /// Bytes to the mark.
    left: u64,
    form: Sha256,
    is_other: bool,
}

impl<W: Write> RemainingWriter<W> {
    pub(super) fn new(to: W, from: &ResumePoint) -> Self {
        Self {
            to,
            expected: from.form.clone(),
            left: from.bytes,
            form: Sha256::new(),
            is_other: false,
        }
    }

    /// Whether the stream is another one than that of the mark.
    pub(super) fn is_other(&self) -> bool {
        self.is_other
    }

    /// Whether the mark is still to come.
    pub(super) fn is_before(&self) -> bool {
        self.left > 0
    }

    /// Passes over data that need not be written again, as many of so many as lie before the mark.
    pub(super) fn skip_data(&mut self, length: u64) -> io::Result<u64> {
        let passed = self.left.min(length);
        self.advance(passed)?;
        Ok(passed)
    }

    /// Data; what is written otherwise is form.
    pub(super) fn write_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let passed = self.skip_data(bytes.len() as u64)?;
        // No more than the bytes that there are.
        self.to.write_all(&bytes[passed as usize..])
    }

    /// The end; a stream that ends before the mark is another one.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        match self.left {
            0 => self.to.flush(),
            _ => self.reject_other_stream(),
        }
    }

    fn advance(&mut self, by: u64) -> io::Result<()> {
        if by == 0 {
            return Ok(());
        }
        self.left -= by;
        let form = |form: &Sha256| hex(form.clone().finalize());
        match self.left == 0 && form(&self.form) != self.expected {
            true => self.reject_other_stream(),
            false => Ok(()),
        }
    }

    fn reject_other_stream(&mut self) -> io::Result<()> {
        self.is_other = true;
        Err(io::ErrorKind::InvalidData.into())
    }
}

impl<W: Write> Write for RemainingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return self.to.write(bytes);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let passed = most.min(bytes.len());
        self.form.update(&bytes[..passed]);
        self.advance(passed as u64)?;
        Ok(passed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
