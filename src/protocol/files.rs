//! Files inside: what one is, what a folder holds, what became of an upload.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// Query parameters and headers that both sides name.
pub(crate) const TAR_MIME: &str = "application/x-tar";
/// Header: how many bytes of an upload have arrived; with an archive, where it goes on.
pub(crate) const UPLOAD_OFFSET_HEADER: &str = "upload-offset";
/// Header: the digest of what is no data of files in those bytes of an archive.
pub(crate) const UPLOAD_FORM_HEADER: &str = "upload-form";

/// A file, a folder, or whatever else has a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct FileEntry {
    /// For people: what is no UTF-8 is shown as `\u{fffd}`.
    pub(crate) name: String,
    /// Exact: absolute and percent-encoded, as it stands behind `/files`.
    pub(crate) path: String,
    pub(crate) kind: EntryKind,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes on the disk; fewer than `size` where a file has holes.
    pub(crate) allocated: u64,
    /// Rights in octal, as `?mode=` takes them.
    pub(crate) mode: String,
    /// Seconds since 1970 with nine digits behind the point, as `?mtime=` takes them.
    pub(crate) mtime: String,
    /// Where a symbolic link leads, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Where a symbolic link leads in the end, exact as `path` is; not in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) real: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EntryKind {
    File,
    Folder,
    Symlink,
    /// A named pipe.
    Fifo,
    Socket,
    Device,
}

impl EntryKind {
    /// With its article, for sentences.
    pub(crate) fn with_article(self) -> &'static str {
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
pub(crate) struct FileListing {
    /// The folder's, exact.
    pub(crate) path: String,
    pub(crate) entries: Vec<FileEntry>,
    /// Whether there are further ones: `?after=` with the last one's name, percent-encoded, has them.
    pub(crate) more: bool,
}

/// The reply to `PUT` and `DELETE` of `/files/{path}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Changed {
    /// `completed`, or `partial` for an upload that goes on.
    pub(crate) status: String,
    /// Exact.
    pub(crate) path: String,
    /// Bytes of files; of an upload that goes on, those that have arrived.
    pub(crate) bytes: u64,
    pub(crate) files: u64,
    pub(crate) folders: u64,
    /// Symbolic and hard ones.
    pub(crate) links: u64,
}

/// A time of a file: seconds since 1970, before it negative, and nanoseconds after that second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mtime {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
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

/// What can't be a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidMtime;

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

/// Names inside are bytes: everything that a URL or a person could misread is written `%XX`.
pub(crate) fn percent_encode(path: &[u8]) -> String {
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

/// The bytes of what [`percent_encode`] or any other client wrote; nothing for a `%` without two digits.
pub(crate) fn percent_decode(text: &str) -> Option<Vec<u8>> {
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
