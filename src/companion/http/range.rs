//! The byte range that a request selects: pure, after RFC 9110.

use axum::http::{HeaderMap, header};

/// The part of the file to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByteRange {
    Whole,
    /// From the first to the last byte, both included.
    Bytes {
        first: u64,
        last: u64,
    },
    /// The range starts after the end of the file.
    Unsatisfiable,
}

/// The range of a file of `size` bytes with this tag and date. Several ranges, and a header that is not a range, select
/// the whole file, as the RFC allows and demands.
pub(super) fn requested_range(headers: &HeaderMap, size: u64, tag: &str, date: &str) -> ByteRange {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_same = text(header::IF_RANGE).is_none_or(|known| known == tag || known == date);
    let range = text(header::RANGE).filter(|_| is_same);
    range
        .and_then(|range| parse_range(range, size))
        .unwrap_or(ByteRange::Whole)
}

fn parse_range(range: &str, size: u64) -> Option<ByteRange> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        // A number longer than any file size is after the end of the file.
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let (first, last) = match (first, last) {
        ("", length) => (size.saturating_sub(number(length)?), u64::MAX),
        (first, "") => (number(first)?, u64::MAX),
        (first, last) => (number(first)?, number(last)?),
    };
    if last < first {
        return None;
    }
    Some(match first < size {
        true => ByteRange::Bytes {
            first,
            last: last.min(size - 1),
        },
        false => ByteRange::Unsatisfiable,
    })
}

/// The part of an upload that a request carries: `bytes FIRST-LAST/TOTAL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub(super) first: u64,
    pub(super) total: Option<u64>,
}

/// Returns `None` when the header has another form.
pub(super) fn parse_content_range(header: &str) -> Option<ContentRange> {
    let (range, total) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let last: u64 = last.parse().ok()?;
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    let fits = first <= last && total.is_none_or(|total| last < total);
    fits.then_some(ContentRange { first, total })
}

#[cfg(test)]
mod tests {
    use super::{ByteRange, ContentRange, parse_content_range, parse_range, requested_range};
    use axum::http::{HeaderMap, HeaderValue, header};
    use proptest::prelude::*;

    #[test]
    fn ranges_follow_the_rfc() {
        let bytes = |first, last| Some(ByteRange::Bytes { first, last });
        assert_eq!(parse_range("bytes=0-0", 10), bytes(0, 0));
        assert_eq!(parse_range("bytes=3-", 10), bytes(3, 9));
        assert_eq!(parse_range("bytes=-3", 10), bytes(7, 9));
        assert_eq!(parse_range("bytes=-30", 10), bytes(0, 9));
        assert_eq!(parse_range("bytes=5-99999999999999999999", 10), bytes(5, 9));
        for beyond in ["bytes=10-", "bytes=99999999999999999999-", "bytes=-0"] {
            assert_eq!(
                parse_range(beyond, 10),
                Some(ByteRange::Unsatisfiable),
                "{beyond}"
            );
        }
        assert_eq!(parse_range("bytes=-3", 0), Some(ByteRange::Unsatisfiable));
        for none in [
            "bytes=",
            "bytes=-",
            "bytes=3-1",
            "bytes=0-1,3-4",
            "lines=1-2",
            "bytes=+1-2",
        ] {
            assert_eq!(parse_range(none, 10), None, "{none}");
        }
    }

    #[test]
    fn a_file_that_changed_is_sent_whole() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static("bytes=1-2"));
        headers.insert(header::IF_RANGE, HeaderValue::from_static("\"old\""));
        assert_eq!(
            requested_range(&headers, 10, "\"new\"", "date"),
            ByteRange::Whole
        );
        assert_ne!(
            requested_range(&headers, 10, "\"old\"", "date"),
            ByteRange::Whole
        );
    }

    #[test]
    fn a_piece_of_an_upload_is_within_it() {
        let total = Some(10);
        assert_eq!(
            parse_content_range("bytes 4-9/10"),
            Some(ContentRange { first: 4, total })
        );
        assert_eq!(
            parse_content_range("bytes 4-9/*"),
            Some(ContentRange {
                first: 4,
                total: None
            })
        );
        for none in [
            "bytes 4-10/10",
            "bytes 5-4/10",
            "bytes */10",
            "4-9/10",
            "bytes a-b/c",
        ] {
            assert_eq!(parse_content_range(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn a_range_is_within_the_file(text in "bytes=[0-9]{0,3}-[0-9]{0,3}", size in 0u64..500) {
            if let Some(ByteRange::Bytes { first, last }) = parse_range(&text, size) {
                prop_assert!(first <= last && last < size);
            }
        }
    }
}
