//! Writer of tar streams in the format POSIX pax. Values that a ustar header can't hold are written as records before
//! it.

use super::member::{ArchiveMember, MemberKind};
use super::pax_records::PaxRecords;
use super::resume_point::{RemainingWriter, ResumePoint};
use super::sparse_map::encode_sparse_map;
use osctl_protocol::files::Mtime;
use std::io::{self, Write};
use tar::{EntryType, Header};

const WRITE_BLOCK_BYTES: u64 = 512;
/// The maximum of an octal field in a ustar header.
const MAX_OCTAL_VALUE: u64 = 0o777_7777_7777;

/// An osctl record at the end of a cut stream: why the sender stopped.
pub(super) const ERROR_RECORD_KEY: &str = "OSCTL.fault";

#[derive(Debug)]
pub(super) struct TarWriter<W> {
    output: RemainingWriter<W>,
    /// Padding bytes to the next block.
    padding: u64,
}

impl<W: Write> TarWriter<W> {
    /// Leaves out everything before the resume point.
    pub(super) fn new(to: W, from: &ResumePoint) -> Self {
        let to = RemainingWriter::new(to, from);
        Self {
            output: to,
            padding: 0,
        }
    }

    /// Whether the resume point belongs to another stream.
    pub(super) fn has_diverged(&self) -> bool {
        self.output.has_diverged()
    }

    /// Whether the resume point is not reached yet.
    pub(super) fn is_before_resume_point(&self) -> bool {
        self.output.is_before_resume_point()
    }

    /// Skips up to `length` bytes of data before the resume point, and returns how many were skipped.
    pub(super) fn skip_data(&mut self, length: u64) -> io::Result<u64> {
        self.output.skip_data(length)
    }

    /// Begins a member. The caller then writes the data of the file, without the holes.
    pub(super) fn begin_member(&mut self, member: &ArchiveMember) -> io::Result<()> {
        self.write_padding()?;
        let mut records = PaxRecords::default();
        let mut header = Header::new_ustar();
        header.set_mode(member.mode & 0o7777);
        header.set_uid(0);
        header.set_gid(0);
        set_mtime(&mut header, &mut records, member.mtime);
        let mut map = Vec::new();
        let mut name = member.path.as_slice();
        let mut length = 0;
        let kind = match &member.kind {
            MemberKind::File {
                size,
                segments: None,
            } => {
                length = *size;
                EntryType::Regular
            }
            MemberKind::File {
                size,
                segments: Some(segments),
            } => {
                map = encode_sparse_map(segments, *size);
                length = map.len() as u64 + segments.iter().map(|s| s.length).sum::<u64>();
                records.add("GNU.sparse.major", b"1");
                records.add("GNU.sparse.minor", b"0");
                records.add("GNU.sparse.name", &member.path);
                records.add("GNU.sparse.realsize", size.to_string().as_bytes());
                // The name that readers without support for sparse files see.
                name = b"GNUSparseFile.0";
                EntryType::Regular
            }
            MemberKind::Folder => EntryType::Directory,
            MemberKind::Symlink(target) => {
                set_link(&mut header, &mut records, target);
                EntryType::Symlink
            }
            MemberKind::HardLink(target) => {
                set_link(&mut header, &mut records, target);
                EntryType::Link
            }
            MemberKind::Special("a named pipe") => EntryType::Fifo,
            MemberKind::Special("a character device") => EntryType::Char,
            MemberKind::Special(_) => EntryType::Block,
        };
        header.set_entry_type(kind);
        let mut full = name.to_vec();
        if member.kind == MemberKind::Folder {
            full.push(b'/');
        }
        set_field(&mut header.as_old_mut().name, &full, || {
            records.add("path", &full);
        });
        match length {
            0..=MAX_OCTAL_VALUE => header.set_size(length),
            _ => {
                header.set_size(0);
                records.add("size", length.to_string().as_bytes());
            }
        }
        header.set_cksum();
        records.write_to(b'x', &mut self.output)?;
        self.output.write_all(header.as_bytes())?;
        self.output.write_all(&map)?;
        self.padding = length.wrapping_neg() % WRITE_BLOCK_BYTES;
        Ok(())
    }

    pub(super) fn write_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_data(bytes)
    }

    /// Writes the end of the archive.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.write_padding()?;
        self.output
            .write_all(&[0; 2 * WRITE_BLOCK_BYTES as usize])?;
        self.output.finish()
    }

    /// Writes an error record instead of a member: why the archive ends here.
    pub(super) fn write_error(&mut self, why: &str) -> io::Result<()> {
        self.write_padding()?;
        let mut records = PaxRecords::default();
        records.add(ERROR_RECORD_KEY, why.as_bytes());
        records.write_to(b'g', &mut self.output)?;
        // Readers that do not know the record must not take this for a regular end.
        self.output.write_all(&[0xff; WRITE_BLOCK_BYTES as usize])?;
        self.output.flush()
    }

    fn write_padding(&mut self) -> io::Result<()> {
        let padding = std::mem::take(&mut self.padding) as usize;
        self.output
            .write_all(&[0; WRITE_BLOCK_BYTES as usize][..padding])
    }
}

fn set_mtime(header: &mut Header, records: &mut PaxRecords, mtime: Mtime) {
    let whole = u64::try_from(mtime.seconds)
        .ok()
        .filter(|s| *s <= MAX_OCTAL_VALUE);
    header.set_mtime(whole.unwrap_or_default());
    if whole.is_none() || mtime.nanos != 0 {
        records.add("mtime", mtime.to_string().as_bytes());
    }
}

fn set_link(header: &mut Header, records: &mut PaxRecords, target: &[u8]) {
    set_field(&mut header.as_old_mut().linkname, target, || {
        records.add("linkpath", target);
    });
}

/// Sets a header field. A value that does not fit or is not ASCII goes to a record, and the field holds as much of it
/// as fits.
fn set_field(field: &mut [u8; 100], value: &[u8], mut record: impl FnMut()) {
    let length = value.len().min(field.len());
    field[..length].copy_from_slice(&value[..length]);
    if value.len() > field.len() || !value.is_ascii() {
        record();
    }
}
