//! Resume points: how far a stream has been transferred, so that another connection can continue it.
//!
//! A tree is packed in the same order each time. The packer may therefore leave out the part that has arrived, if the
//! tree is unchanged. To check this, both sides compute a digest over the *form* of the stream: everything except file
//! data (names, permissions, times, sizes, maps). The reader computes the digest in [`VerifiedReader`]; the writer
//! compares it in [`RemainingWriter`].
//!
//! Data are not compared: a changed file with the same size and time is not detected.

use osctl_protocol::hex::hex;
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};
use tokio::sync::watch;

/// A position in a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResumePoint {
    /// Bytes before the position.
    pub bytes: u64,
    /// Digest of those bytes without file data.
    pub metadata_digest: String,
}

/// How much of a stream was read.
#[derive(Debug, Clone, Default)]
pub struct ReadProgress {
    bytes: u64,
    hasher: Sha256,
}

impl ReadProgress {
    /// The resume point, if exactly `bytes` bytes were read.
    pub fn resume_point(&self, bytes: u64) -> Option<ResumePoint> {
        (self.bytes == bytes).then(|| ResumePoint {
            bytes,
            metadata_digest: hex(self.hasher.clone().finalize()),
        })
    }
}

/// A reader that records its progress and the digest of the form.
#[derive(Debug)]
pub struct VerifiedReader<R> {
    source: R,
    progress: watch::Sender<ReadProgress>,
}

impl<R: Read> VerifiedReader<R> {
    pub fn new(from: R) -> (Self, watch::Receiver<ReadProgress>) {
        let (seen, seeing) = watch::channel(ReadProgress::default());
        (
            Self {
                source: from,
                progress: seen,
            },
            seeing,
        )
    }

    /// Reads file data; bytes read in any other way count as form.
    pub(super) fn read_data(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.progress.send_modify(|seen| seen.bytes += read as u64);
        Ok(read)
    }
}

impl<R: Read> Read for VerifiedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.progress.send_modify(|seen| {
            seen.bytes += read as u64;
            seen.hasher.update(&buffer[..read]);
        });
        Ok(read)
    }
}

/// A writer that starts to write at a resume point.
#[derive(Debug)]
pub(super) struct RemainingWriter<W> {
    output: W,
    /// The digest expected at the resume point.
    expected_digest: String,
    /// Bytes left to the resume point.
    skip_bytes: u64,
    hasher: Sha256,
    has_diverged: bool,
}

impl<W: Write> RemainingWriter<W> {
    pub(super) fn new(to: W, from: &ResumePoint) -> Self {
        Self {
            output: to,
            expected_digest: from.metadata_digest.clone(),
            skip_bytes: from.bytes,
            hasher: Sha256::new(),
            has_diverged: false,
        }
    }

    /// Whether the stream differs from the one of the resume point.
    pub(super) fn has_diverged(&self) -> bool {
        self.has_diverged
    }

    /// Whether the resume point is not reached yet.
    pub(super) fn is_before_resume_point(&self) -> bool {
        self.skip_bytes > 0
    }

    /// Skips up to `length` bytes of data before the resume point, and returns how many were skipped.
    pub(super) fn skip_data(&mut self, length: u64) -> io::Result<u64> {
        let passed = self.skip_bytes.min(length);
        self.advance(passed)?;
        Ok(passed)
    }

    /// Writes file data; bytes written in any other way count as form.
    pub(super) fn write_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let passed = self.skip_data(bytes.len() as u64)?;
        // `passed` never exceeds the length of `bytes`.
        self.output.write_all(&bytes[passed as usize..])
    }

    /// Ends the stream. A stream that ends before the resume point is a different one.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        match self.skip_bytes {
            0 => self.output.flush(),
            _ => self.reject_diverged_stream(),
        }
    }

    fn advance(&mut self, by: u64) -> io::Result<()> {
        if by == 0 {
            return Ok(());
        }
        self.skip_bytes -= by;
        let form = |form: &Sha256| hex(form.clone().finalize());
        match self.skip_bytes == 0 && form(&self.hasher) != self.expected_digest {
            true => self.reject_diverged_stream(),
            false => Ok(()),
        }
    }

    fn reject_diverged_stream(&mut self) -> io::Result<()> {
        self.has_diverged = true;
        Err(io::ErrorKind::InvalidData.into())
    }
}

impl<W: Write> Write for RemainingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.skip_bytes == 0 {
            return self.output.write(bytes);
        }
        let most = usize::try_from(self.skip_bytes).unwrap_or(usize::MAX);
        let passed = most.min(bytes.len());
        self.hasher.update(&bytes[..passed]);
        self.advance(passed as u64)?;
        Ok(passed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
