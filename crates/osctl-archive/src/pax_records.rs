//! Pax records for values that ustar headers can't hold.
//!
//! Records have the form `LENGTH KEY=VALUE\n` and follow each other in a member that precedes the member they describe.
//! A value may hold any byte, including line breaks.

use super::error::ArchiveError;
use std::io::{self, Write};
use tar::{EntryType, Header};

const PAX_BLOCK_BYTES: usize = 512;

/// Records to write.
#[derive(Debug, Default)]
pub(super) struct PaxRecords(Vec<u8>);

impl PaxRecords {
    /// Adds a record. The bytes of a name are written unchanged, as GNU tar does.
    pub(super) fn add(&mut self, key: &str, value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        // The length includes its own digits.
        let mut length = rest + 1;
        while rest + length.to_string().len() > length {
            length += 1;
        }
        self.0.extend(format!("{length} {key}=").as_bytes());
        self.0.extend(value);
        self.0.push(b'\n');
    }

    pub(super) fn write_to(&self, kind: u8, to: &mut impl Write) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..8].copy_from_slice(b"pax.hdrs");
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_entry_type(EntryType::new(kind));
        header.set_size(self.0.len() as u64);
        header.set_cksum();
        to.write_all(header.as_bytes())?;
        to.write_all(&self.0)?;
        let padding = self.0.len().wrapping_neg() % PAX_BLOCK_BYTES;
        to.write_all(&[0; PAX_BLOCK_BYTES][..padding])
    }
}

/// Iterates over the records of a member that describes the next one.
#[derive(Debug)]
pub(super) struct PaxRecordIter<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for PaxRecordIter<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = self.next_record();
        if record.is_none() {
            self.0 = &[];
        }
        Some(record.ok_or(ArchiveError::Damaged("an extended header is malformed")))
    }
}

impl<'a> PaxRecordIter<'a> {
    fn next_record(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let space = self.0.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&self.0[..space]).ok()?.parse().ok()?;
        let (record, rest) = self.0.split_at_checked(length)?;
        let [record @ .., b'\n'] = record.get(space + 1..)? else {
            return None;
        };
        self.0 = rest;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        Some((&record[..equals], &record[equals + 1..]))
    }
}

#[cfg(test)]
mod tests {
    use super::PaxRecordIter;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_records_make_the_parser_panic(records: Vec<u8>) {
            for record in PaxRecordIter(&records) {
                prop_assert!(record.is_err() || records.contains(&b'='));
            }
        }
    }
}
