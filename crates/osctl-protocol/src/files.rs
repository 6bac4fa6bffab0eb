//! File metadata, folder listings and upload results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// MIME type, query parameters and headers that both sides use.
pub const TAR_MIME: &str = "application/x-tar";
/// Header: how many bytes of an upload have arrived; for an archive, where the upload continues.
pub const UPLOAD_OFFSET_HEADER: &str = "upload-offset";
/// Header: the digest of those bytes of an archive without file data.
pub const UPLOAD_DIGEST_HEADER: &str = "upload-form";

/// A file, folder or other directory entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// The name for display: bytes that are not UTF-8 are shown as `\u{fffd}`.
    pub name: String,
    /// The exact path: absolute and percent-encoded, as used after `/files`.
    pub path: String,
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Bytes allocated on the disk; fewer than `size` where a file has holes.
    pub allocated: u64,
    /// Permissions in octal, as `?mode=` accepts them.
    pub mode: String,
    /// Seconds since 1970 with nine decimals, as `?mtime=` accepts them.
    pub mtime: String,
    /// The target of a symbolic link, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The resolved target of a symbolic link, in the form of `path`; not in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Folder,
    Symlink,
    /// A named pipe.
    Fifo,
    Socket,
    Device,
}

impl EntryKind {
    /// The type with its article, for sentences.
    pub fn with_article(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Folder => "a folder",
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a named pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
        }
    }
}

/// `GET /files/{path}` of a folder, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileListing {
    /// The exact path of the folder.
    pub path: String,
    pub entries: Vec<FileEntry>,
    /// Whether there are more entries: `?after=` with the last entry's name, percent-encoded, returns them.
    pub more: bool,
}

/// The reply to `PUT` and `DELETE` of `/files/{path}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChangeReply {
    /// `completed`, or `partial` for an upload that is not complete.
    pub status: String,
    /// The exact path.
    pub path: String,
    /// Bytes of file data; for an incomplete upload, the bytes that have arrived.
    pub bytes: u64,
    pub files: u64,
    pub folders: u64,
    /// Symbolic and hard links.
    pub links: u64,
}

/// A file time: seconds since 1970, negative before that, and nanoseconds after that second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mtime {
    pub seconds: i64,
    pub nanos: u32,
}

impl fmt::Display for Mtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, nanos } = *self;
        if seconds >= 0 || nanos == 0 {
            return write!(f, "{seconds}.{nanos:09}");
        }
        write!(f, "-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos)
    }
}

/// The text is not a valid time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidMtime;

impl FromStr for Mtime {
    type Err = InvalidMtime;

    fn from_str(text: &str) -> Result<Self, InvalidMtime> {
        let (is_before, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let is_number = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) {
            return Err(InvalidMtime);
        }
        let seconds: i64 = whole.parse().map_err(|_| InvalidMtime)?;
        let nanos = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
        let nanos = nanos.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
        Ok(match (is_before, nanos) {
            (false, _) => Self { seconds, nanos },
            (true, 0) => Self {
                seconds: -seconds,
                nanos,
            },
            (true, _) => Self {
                seconds: -seconds - 1,
                nanos: 1_000_000_000 - nanos,
            },
        })
    }
}

/// Percent-encodes a name. Names in the container are bytes, so every byte that a URL or a reader could misread becomes
/// `%XX`.
pub fn percent_encode(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for &byte in path {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Decodes percent-encoded text from any client; `None` for a `%` without two digits.
pub fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = after else {
            return None;
        };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push(u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Mtime, percent_decode, percent_encode};
    use proptest::prelude::*;

    #[test]
    fn a_half_written_escape_is_refused() {
        for text in ["%", "%4", "a%zz", "%+1"] {
            assert_eq!(percent_decode(text), None, "{text}");
        }
        assert_eq!(percent_encode("/a b/ü".as_bytes()), "/a%20b/%C3%BC");
    }

    #[test]
    fn times_before_1970_and_with_few_digits_are_read() {
        let read = |text: &str| text.parse::<Mtime>().map(|t| (t.seconds, t.nanos));
        assert_eq!(read("12.5"), Ok((12, 500_000_000)));
        assert_eq!(read("-0.25"), Ok((-1, 750_000_000)));
        assert_eq!(read("-3"), Ok((-3, 0)));
        for text in ["", "-", "1.", ".5", "1e9", "99999999999999999999", "1.2.3"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_name_survives_its_encoding(name: Vec<u8>) {
            let text = percent_encode(&name);
            prop_assert!(text.is_ascii());
            prop_assert_eq!(percent_decode(&text), Some(name));
        }

        #[test]
        fn every_time_survives_its_writing(seconds in -1i64 << 40..1 << 40, nanos in 0u32..1_000_000_000) {
            let time = Mtime { seconds, nanos };
            prop_assert_eq!(time.to_string().parse(), Ok(time));
        }
    }
}
