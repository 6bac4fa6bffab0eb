//! Reader of tar streams: POSIX pax and the extensions of GNU and BSD tar.
//!
//! The stream is untrusted. Everything that is read into memory has a limit. Input that can't be interpreted ends the
//! stream with an error; nothing is guessed.

use super::error::ArchiveError;
use super::member::{ArchiveMember, DataSegment, MAX_SPARSE_SEGMENTS, MemberKind};
use super::pax_records::PaxRecordIter as Records;
use super::resume_point::VerifiedReader;
use super::sparse_map::{check_segments, read_gnu_segments};
use super::writer::ERROR_RECORD_KEY;
use osctl_protocol::files::Mtime;
use std::io::{ErrorKind, Read};
use tar::{EntryType, GnuExtSparseHeader, Header};

const READ_BLOCK_BYTES: u64 = 512;
/// Maximum length of names and of members that hold records.
const MAX_TAR_RECORD_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct TarReader<R> {
    source: VerifiedReader<R>,
    /// Unread data bytes of the current member.
    remaining_bytes: u64,
    /// Padding bytes after the data, up to the next block.
    padding: u64,
}

/// Values from the members that precede and describe another member.
#[derive(Debug, Default)]
struct PaxOverrides {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    mtime: Option<Mtime>,
    /// The size of a sparse file whose map precedes its data.
    real_size: Option<u64>,
    has_map: bool,
}

impl<R: Read> TarReader<R> {
    pub(super) fn new(from: VerifiedReader<R>) -> Self {
        Self {
            source: from,
            remaining_bytes: 0,
            padding: 0,
        }
    }

    /// The next member. Skips the unread data of the current member.
    pub(super) fn next_member(&mut self) -> Result<Option<ArchiveMember>, ArchiveError> {
        let mut extra = PaxOverrides::default();
        loop {
            self.skip_to_next_member()?;
            let mut block = [0; READ_BLOCK_BYTES as usize];
            self.source.read_exact(&mut block)?;
            if block == [0; READ_BLOCK_BYTES as usize] {
                // After the end marker there may be padding up to a tape record.
                let mut rest = [0; 16 << 10];
                while self.source.read(&mut rest)? > 0 {}
                return Ok(None);
            }
            let header = Header::from_byte_slice(&block);
            verify_checksum(header)?;
            let size = header.entry_size().map_err(damaged_error("a size"))?;
            self.set_size(size);
            match header.entry_type() {
                EntryType::GNULongName => extra.path = Some(self.read_name()?),
                EntryType::GNULongLink => extra.link = Some(self.read_name()?),
                EntryType::XHeader => extra.apply_records(&self.read_whole()?)?,
                EntryType::XGlobalHeader => check_sender_error(&self.read_whole()?)?,
                _ => return self.parse_member(header, extra).map(Some),
            }
        }
    }

    /// Reads data of the current member; 0 at its end.
    pub(super) fn read_data(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let most = usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.source.read_data(&mut buffer[..most])?;
        self.count_read(read)
    }

    fn parse_member(
        &mut self,
        header: &Header,
        extra: PaxOverrides,
    ) -> Result<ArchiveMember, ArchiveError> {
        if let Some(size) = extra.size {
            self.set_size(size);
        }
        let path = extra.path;
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = || {
            let pax_link = extra.link.clone();
            pax_link
                .or_else(|| header.link_name_bytes().map(|l| l.into_owned()))
                .filter(|link| !link.is_empty() && !link.contains(&0))
                .ok_or(ArchiveError::Damaged("a link has no target"))
        };
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => {
                MemberKind::Folder
            }
            EntryType::Regular | EntryType::Continuous => MemberKind::File {
                segments: match extra.has_map {
                    true => Some(self.read_sparse_map()?),
                    false => None,
                },
                size: extra.real_size.unwrap_or(self.remaining_bytes),
            },
            EntryType::GNUSparse => self.old_sparse(header)?,
            EntryType::Directory => MemberKind::Folder,
            EntryType::Symlink => MemberKind::Symlink(link()?),
            EntryType::Link => MemberKind::HardLink(link()?),
            EntryType::Char => MemberKind::Special("a character device"),
            EntryType::Block => MemberKind::Special("a block device"),
            EntryType::Fifo => MemberKind::Special("a named pipe"),
            _ => MemberKind::Special("an entry of an unknown type"),
        };
        if path.is_empty() || path.contains(&0) {
            return Err(ArchiveError::Damaged(
                "a name is empty or contains a zero byte",
            ));
        }
        if let MemberKind::File {
            size,
            segments: Some(segments),
        } = &kind
        {
            check_segments(segments, *size, self.remaining_bytes)?;
        }
        let seconds = || header.mtime().ok().and_then(|s| s.try_into().ok());
        Ok(ArchiveMember {
            path,
            kind,
            mode: header.mode().map_err(damaged_error("rights"))? & 0o7777,
            mtime: extra.mtime.unwrap_or_else(|| Mtime {
                seconds: seconds().unwrap_or_default(),
                nanos: 0,
            }),
        })
    }

    fn set_size(&mut self, size: u64) {
        self.remaining_bytes = size;
        self.padding = size.wrapping_neg() % READ_BLOCK_BYTES;
    }

    fn skip_to_next_member(&mut self) -> Result<(), ArchiveError> {
        let mut unread = [0; 16 << 10];
        while self.read_data(&mut unread)? > 0 {}
        self.remaining_bytes = std::mem::take(&mut self.padding);
        while self.remaining_bytes > 0 {
            // Always less than a block.
            let most = self.remaining_bytes as usize;
            let read = self.source.read(&mut unread[..most])?;
            self.count_read(read)?;
        }
        Ok(())
    }

    fn count_read(&mut self, read: usize) -> Result<usize, ArchiveError> {
        if read == 0 {
            return Err(ArchiveError::Stream(ErrorKind::UnexpectedEof.into()));
        }
        self.remaining_bytes -= read as u64;
        Ok(read)
    }

    /// Reads the data of a member that describes another member.
    fn read_whole(&mut self) -> Result<Vec<u8>, ArchiveError> {
        if self.remaining_bytes > MAX_TAR_RECORD_BYTES {
            return Err(ArchiveError::Damaged("a name or a record is too long"));
        }
        let mut data = vec![0; self.remaining_bytes as usize];
        self.source.read_exact(&mut data)?;
        self.remaining_bytes = 0;
        Ok(data)
    }

    fn read_name(&mut self) -> Result<Vec<u8>, ArchiveError> {
        let mut name = self.read_whole()?;
        while name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    /// GNU's old sparse format: the map is in the header and in the blocks after it.
    fn old_sparse(&mut self, header: &Header) -> Result<MemberKind, ArchiveError> {
        let gnu = header
            .as_gnu()
            .ok_or(ArchiveError::Damaged("the map of a sparse file is missing"))?;
        let size = gnu.real_size().map_err(damaged_error("a size"))?;
        let mut segments = Vec::new();
        read_gnu_segments(&gnu.sparse, &mut segments)?;
        let mut has_more = gnu.is_extended();
        while has_more {
            let mut more = GnuExtSparseHeader::new();
            self.source.read_exact(more.as_mut_bytes())?;
            read_gnu_segments(more.sparse(), &mut segments)?;
            has_more = more.is_extended();
        }
        let segments = Some(segments);
        Ok(MemberKind::File { size, segments })
    }

    /// Reads the sparse map before the data: decimal lines, padded to a block.
    fn read_sparse_map(&mut self) -> Result<Vec<DataSegment>, ArchiveError> {
        let mut block = [0; READ_BLOCK_BYTES as usize];
        let mut at = block.len();
        let mut number = |reader: &mut Self| -> Result<u64, ArchiveError> {
            let mut value: Option<u64> = None;
            loop {
                if at == block.len() {
                    if reader.remaining_bytes < READ_BLOCK_BYTES {
                        return Err(ArchiveError::Damaged(
                            "the map of a sparse file is incomplete",
                        ));
                    }
                    reader.source.read_exact(&mut block)?;
                    reader.remaining_bytes -= READ_BLOCK_BYTES;
                    at = 0;
                }
                let byte = block[at];
                at += 1;
                value = match (byte, value) {
                    (b'\n', Some(value)) => return Ok(value),
                    (b'0'..=b'9', _) => {
                        let shifted = value.unwrap_or(0).checked_mul(10);
                        shifted.and_then(|v| v.checked_add(u64::from(byte - b'0')))
                    }
                    _ => None,
                };
                if value.is_none() {
                    return Err(ArchiveError::Damaged(
                        "the map of a sparse file is malformed",
                    ));
                }
            }
        };
        let count = number(self)?;
        // One additional entry marks a hole at the end.
        if count > MAX_SPARSE_SEGMENTS as u64 + 1 {
            return Err(ArchiveError::Damaged(
                "the map of a sparse file is too long",
            ));
        }
        let segment = |_| {
            Ok(DataSegment {
                offset: number(self)?,
                length: number(self)?,
            })
        };
        let segments = (0..count).map(segment);
        let is_some = |segment: &Result<DataSegment, ArchiveError>| !matches!(segment, Ok(s) if s.length == 0);
        segments.filter(is_some).collect()
    }
}

impl PaxOverrides {
    fn apply_records(&mut self, records: &[u8]) -> Result<(), ArchiveError> {
        let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        for record in Records(records) {
            let (key, value) = record?;
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => {
                    self.size = Some(number(value).ok_or(ArchiveError::Damaged("a size"))?);
                }
                b"mtime" => {
                    let text = std::str::from_utf8(value).unwrap_or_default();
                    self.mtime = Some(text.parse().map_err(|_| ArchiveError::Damaged("a time"))?);
                }
                b"GNU.sparse.major" => self.has_map = value == b"1",
                b"GNU.sparse.name" => self.path = Some(value.to_vec()),
                b"GNU.sparse.realsize" => {
                    self.real_size = Some(number(value).ok_or(ArchiveError::Damaged("a size"))?);
                }
                b"GNU.sparse.map" | b"GNU.sparse.numblocks" => {
                    return Err(ArchiveError::Damaged(
                        "the map of a sparse file has another format than 1.0",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Fails if the records contain an error of the sender.
fn check_sender_error(records: &[u8]) -> Result<(), ArchiveError> {
    let mut found = Records(records).flatten();
    match found.find(|(key, _)| *key == ERROR_RECORD_KEY.as_bytes()) {
        Some((_, why)) => {
            let why = String::from_utf8_lossy(why);
            // The text may come from inside the container, so control characters for the terminal are removed.
            let why = why.chars().filter(|c| !c.is_control()).take(8192);
            Err(ArchiveError::SenderFailed(why.collect()))
        }
        None => Ok(()),
    }
}

fn verify_checksum(header: &Header) -> Result<(), ArchiveError> {
    let expected = header.cksum().map_err(damaged_error("a checksum"))?;
    let bytes = header.as_bytes().iter().enumerate();
    let sum: u32 = bytes
        .map(|(at, byte)| match at {
            148..156 => u32::from(b' '),
            _ => u32::from(*byte),
        })
        .sum();
    match sum == expected {
        true => Ok(()),
        false => Err(ArchiveError::Damaged("a checksum does not match")),
    }
}

fn damaged_error(what: &'static str) -> impl Fn(std::io::Error) -> ArchiveError {
    move |_| ArchiveError::Damaged(what)
}

#[cfg(test)]
mod tests {
    use super::TarReader;
    use crate::member::{ArchiveMember, DataSegment, MemberKind};
    use crate::resume_point::{ResumePoint, VerifiedReader};
    use crate::writer::TarWriter;
    use osctl_protocol::files::Mtime;
    use proptest::prelude::*;

    fn kind() -> impl Strategy<Value = MemberKind> {
        let name = proptest::collection::vec(1u8.., 1..300);
        prop_oneof![
            (0u64..3000).prop_map(|size| MemberKind::File {
                size,
                segments: None
            }),
            proptest::collection::vec((1u64..50_000, 1u64..2000), 0..60).prop_map(|gaps| {
                let mut end = 0;
                let segments = gaps.into_iter().map(|(gap, length)| {
                    let offset = end + gap;
                    end = offset + length;
                    DataSegment { offset, length }
                });
                let segments = Some(segments.collect());
                MemberKind::File {
                    size: end + 7,
                    segments,
                }
            }),
            Just(MemberKind::Folder),
            name.clone().prop_map(MemberKind::Symlink),
            name.prop_map(MemberKind::HardLink),
        ]
    }

    fn member() -> impl Strategy<Value = ArchiveMember> {
        let path = proptest::collection::vec(1u8.., 1..300);
        let time = (-1i64 << 36..1 << 36, 0u32..1_000_000_000);
        (path, kind(), 0u32..0o10000, time).prop_map(|(mut path, kind, mode, time)| {
            // Old archives mark folders by a slash at the end of the name.
            path.push(b'x');
            let (seconds, nanos) = time;
            let mtime = Mtime { seconds, nanos };
            ArchiveMember {
                path,
                kind,
                mode,
                mtime,
            }
        })
    }

    fn amount(kind: &MemberKind) -> usize {
        let amount = match kind {
            MemberKind::File {
                segments: Some(s), ..
            } => s.iter().map(|s| s.length).sum(),
            MemberKind::File { size, .. } => *size,
            _ => 0,
        };
        amount as usize
    }

    proptest! {
        #[test]
        fn written_archives_are_read(members in proptest::collection::vec(member(), 0..12)) {
            let mut archive = Vec::new();
            let mut writer = TarWriter::new(&mut archive, &ResumePoint::default());
            for member in &members {
                writer.begin_member(member).unwrap();
                writer.write_data(&vec![b'd'; amount(&member.kind)]).unwrap();
            }
            writer.finish().unwrap();
            prop_assert_eq!(archive.len() % 512, 0);
            let mut reader = TarReader::new(VerifiedReader::new(archive.as_slice()).0);
            for mut expected in members {
                let mut data = vec![0; amount(&expected.kind) + 1];
                let mut read = 0;
                let member = reader.next_member().unwrap().unwrap();
                loop {
                    match reader.read_data(&mut data[read..]).unwrap() {
                        0 => break,
                        more => read += more,
                    }
                }
                prop_assert_eq!(read, amount(&expected.kind));
                if expected.kind == MemberKind::Folder {
                    expected.path.push(b'/');
                }
                prop_assert_eq!(member, expected);
            }
            prop_assert!(reader.next_member().unwrap().is_none());
        }

        #[test]
        fn no_bytes_make_the_reader_panic(noise: Vec<u8>, size in 0u64..4096, kind in "[0-9xgLKS]") {
            // The header is valid, so the reader interprets the data after it as the header says.
            let mut header = tar::Header::new_gnu();
            header.set_size(size);
            header.set_mode(0);
            header.set_entry_type(tar::EntryType::new(kind.as_bytes()[0]));
            header.set_cksum();
            let mut archive = [header.as_bytes(), noise.as_slice()].concat();
            archive.resize(512 * 10, 0);
            let mut reader = TarReader::new(VerifiedReader::new(archive.as_slice()).0);
            while let Ok(Some(_)) = reader.next_member() {}
        }
    }
}
