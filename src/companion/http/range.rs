//! Which part of a file a request wants: pure, after RFC 9110.

use axum::http::{HeaderMap, header};

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// From the first to the last byte, both included.
    Bytes {
        first: u64,
        last: u64,
    },
    /// It begins behind the end.
    Beyond,
}

/// Of a file of `size` bytes with that tag and date. Several ranges at once, and what is no range,
/// are answered with the whole file, as the RFC allows and asks.
pub(super) fn wanted(headers: &HeaderMap, size: u64, tag: &str, date: &str) -> Part {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_same = text(header::IF_RANGE).is_none_or(|known| known == tag || known == date);
    let range = text(header::RANGE).filter(|_| is_same);
    range
        .and_then(|range| parse(range, size))
        .unwrap_or(Part::Whole)
}

fn parse(range: &str, size: u64) -> Option<Part> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        // Longer than any file is behind its end.
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
        true => Part::Bytes {
            first,
            last: last.min(size - 1),
        },
        false => Part::Beyond,
    })
}

/// Where an upload goes on: `bytes FIRST-LAST/TOTAL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) first: u64,
    pub(super) total: Option<u64>,
}

/// Nothing when the header is none of that form.
pub(super) fn piece(header: &str) -> Option<Piece> {
    let (range, total) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let last: u64 = last.parse().ok()?;
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    let fits = first <= last && total.is_none_or(|total| last < total);
    fits.then_some(Piece { first, total })
}

#[cfg(test)]
mod tests {
    use super::{Part, Piece, parse, piece, wanted};
    use axum::http::{HeaderMap, HeaderValue, header};
    use proptest::prelude::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        let bytes = |first, last| Some(Part::Bytes { first, last });
        assert_eq!(parse("bytes=0-0", 10), bytes(0, 0));
        assert_eq!(parse("bytes=3-", 10), bytes(3, 9));
        assert_eq!(parse("bytes=-3", 10), bytes(7, 9));
        assert_eq!(parse("bytes=-30", 10), bytes(0, 9));
        assert_eq!(parse("bytes=5-99999999999999999999", 10), bytes(5, 9));
        for beyond in ["bytes=10-", "bytes=99999999999999999999-", "bytes=-0"] {
            assert_eq!(parse(beyond, 10), Some(Part::Beyond), "{beyond}");
        }
        assert_eq!(parse("bytes=-3", 0), Some(Part::Beyond));
        for none in [
            "bytes=",
            "bytes=-",
            "bytes=3-1",
            "bytes=0-1,3-4",
            "lines=1-2",
            "bytes=+1-2",
        ] {
            assert_eq!(parse(none, 10), None, "{none}");
        }
    }

    #[test]
    fn a_file_that_changed_is_sent_whole() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static("bytes=1-2"));
        headers.insert(header::IF_RANGE, HeaderValue::from_static("\"old\""));
        assert_eq!(wanted(&headers, 10, "\"new\"", "date"), Part::Whole);
        assert_ne!(wanted(&headers, 10, "\"old\"", "date"), Part::Whole);
    }

    #[test]
    fn a_piece_of_an_upload_lies_within_it() {
        let total = Some(10);
        assert_eq!(piece("bytes 4-9/10"), Some(Piece { first: 4, total }));
        assert_eq!(
            piece("bytes 4-9/*"),
            Some(Piece {
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
            assert_eq!(piece(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn what_is_sent_lies_within_the_file(text in "bytes=[0-9]{0,3}-[0-9]{0,3}", size in 0u64..500) {
            if let Some(Part::Bytes { first, last }) = parse(&text, size) {
                prop_assert!(first <= last && last < size);
            }
        }
    }
}
