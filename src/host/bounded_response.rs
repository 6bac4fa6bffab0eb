//! Bounded reads of the companion's responses. The agent can replace the companion, and an endless response must not
//! exhaust the memory of the host.
//!
//! No other module of `host/` reads a whole body: data streamed to a file or a terminal passes chunk by chunk.

use crate::protocol::line_buffer::LineBuffer;
use crate::protocol::sse::{SseEvent, SseParser};
use bytes::{Bytes, BytesMut};
use reqwest::Response;
use std::time::Duration;

/// Limit of one JSON document, one line of a stream, and one event.
pub(super) const MAX_JSON_BYTES: usize = 64 << 20;
/// Limit of the memory that the values of one document take besides its text.
const MAX_VALUES_BYTES: usize = 96 << 20;
/// A document of this size stays below [`MAX_VALUES_BYTES`] with any values: they take at most 166 times its text.
const UNCHECKED_JSON_BYTES: usize = 256 << 10;
pub(super) const MAX_SCREENSHOT_BYTES: usize = 256 << 20;

/// Why a response is incomplete.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadFailure {
    #[error("the response is longer than {0} bytes")]
    TooLong(usize),
    #[error("the values of the response take more than {0} bytes of memory")]
    TooManyValues(usize),
    #[error(transparent)]
    Interrupted(#[from] reqwest::Error),
}

/// The whole body, unless it is longer than `limit` bytes.
pub(super) async fn read_body(mut response: Response, limit: usize) -> Result<Bytes, ReadFailure> {
    let mut body = BytesMut::new();
    while let Some(piece) = response.chunk().await? {
        if piece.len() > limit - body.len() {
            return Err(ReadFailure::TooLong(limit));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}

/// Checks that the values of a document fit in memory: `{"":0}` takes a hundred times the size of its text.
///
/// # Errors
/// When the values may take more than [`MAX_VALUES_BYTES`].
pub(super) fn check_values(document: &[u8]) -> Result<(), ReadFailure> {
    if document.len() <= UNCHECKED_JSON_BYTES {
        return Ok(());
    }
    match estimate_value_bytes(document) > MAX_VALUES_BYTES {
        true => Err(ReadFailure::TooManyValues(MAX_VALUES_BYTES)),
        false => Ok(()),
    }
}

/// Estimate of the memory for a document's values, in bytes.
fn estimate_value_bytes(document: &[u8]) -> usize {
    let (mut held, mut is_text, mut is_escaped) = (0, false, false);
    for (at, byte) in document.iter().enumerate() {
        if is_text {
            is_text = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
            continue;
        }
        held += match byte {
            // The cost of a map node, the capacity of a list, or a value with its key. An empty map has no node.
            b'{' if document.get(at + 1) != Some(&b'}') => 640,
            b'{' | b'[' => 160,
            b',' => 64,
            b'"' => {
                is_text = true;
                24
            }
            _ => 0,
        };
    }
    held
}

/// Lines of a body, each at most [`MAX_JSON_BYTES`] long.
#[derive(Debug, Default)]
pub(super) struct ResponseLines(LineBuffer);

impl ResponseLines {
    pub(super) fn next(&mut self) -> Option<BytesMut> {
        self.0.next_line()
    }

    /// Appends a chunk.
    ///
    /// # Errors
    /// When a line is longer than [`MAX_JSON_BYTES`].
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), ReadFailure> {
        if self.0.unread_bytes() > MAX_JSON_BYTES {
            return Err(ReadFailure::TooLong(MAX_JSON_BYTES));
        }
        self.0.push(piece);
        Ok(())
    }

    /// Discards an incomplete line.
    pub(super) fn clear(&mut self) {
        self.0 = LineBuffer::default();
    }
}

/// Opens a lost stream again: the first try, then `attempts` more, with `delay` between them. An error that `is_final`
/// accepts ends the attempts.
pub(super) async fn reopen_stream<F: Future<Output = Result<Response, anyhow::Error>>>(
    attempts: u32,
    delay: Duration,
    is_final: fn(&anyhow::Error) -> bool,
    open: impl Fn() -> F,
) -> Result<Response, anyhow::Error> {
    for _ in 0..attempts {
        match open().await {
            Err(error) if !is_final(&error) => tokio::time::sleep(delay).await,
            opened => return opened,
        }
    }
    open().await
}

/// Server-sent events of a body.
#[derive(Debug)]
pub(super) struct EventStream {
    response: Response,
    events: SseParser,
    /// Bytes since the last complete event.
    unread: usize,
}

impl EventStream {
    pub(super) fn new(response: Response) -> Self {
        Self {
            response,
            events: SseParser::default(),
            unread: 0,
        }
    }

    /// Events that are now complete, possibly none. `None` at the end of the stream, also if it was cut.
    ///
    /// # Errors
    /// When an event is longer than [`MAX_JSON_BYTES`].
    pub(super) async fn next(&mut self) -> Result<Option<Vec<SseEvent>>, ReadFailure> {
        let Ok(Some(piece)) = self.response.chunk().await else {
            return Ok(None);
        };
        let whole = self.events.parse_chunk(&piece);
        self.unread = match whole.is_empty() {
            true => self.unread + piece.len(),
            false => 0,
        };
        match self.unread <= MAX_JSON_BYTES {
            true => Ok(Some(whole)),
            false => Err(ReadFailure::TooLong(MAX_JSON_BYTES)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        EventStream, MAX_JSON_BYTES, MAX_VALUES_BYTES, ReadFailure, ResponseLines,
        UNCHECKED_JSON_BYTES, check_values, estimate_value_bytes, read_body,
    };
    use bytes::Bytes;
    use futures_util::{StreamExt, stream};
    use reqwest::{Body, Response};
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An endless response, and the number of bytes that were read from it.
    fn endless() -> (Response, Arc<AtomicUsize>) {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        let pieces = stream::repeat_with(move || {
            count.fetch_add(piece.len(), Ordering::Relaxed);
            Ok::<_, Infallible>(piece.clone())
        });
        let body = Body::wrap_stream(pieces.boxed());
        (Response::from(hyper::Response::new(body)), taken)
    }

    #[tokio::test]
    async fn a_body_without_an_end_is_refused_at_its_limit() {
        let (response, taken) = endless();
        let read = read_body(response, 10 << 20).await;
        assert!(matches!(read, Err(ReadFailure::TooLong(_))), "{read:?}");
        assert!(taken.load(Ordering::Relaxed) <= 12 << 20);
        let whole = Response::from(hyper::Response::new(Body::from("1234")));
        assert_eq!(read_body(whole, 4).await.unwrap(), "1234");
    }

    #[tokio::test]
    async fn an_event_without_an_end_ends_its_stream() {
        let (response, taken) = endless();
        let mut stream = EventStream::new(response);
        let failure = loop {
            match stream.next().await {
                Ok(events) => assert_eq!(events, Some(Vec::new())),
                Err(failure) => break failure,
            }
        };
        assert!(matches!(failure, ReadFailure::TooLong(_)), "{failure:?}");
        assert!(taken.load(Ordering::Relaxed) <= MAX_JSON_BYTES + (2 << 20));
    }

    #[test]
    fn small_values_are_counted_and_texts_are_not() {
        let repeated = |text: &str, times| format!("[{}0]", text.repeat(times)).into_bytes();
        for (text, times) in [
            ("{\"\":0},", 300_000),
            ("[],", 600_000),
            ("{},", 600_000),
            ("0,", 2_000_000),
        ] {
            assert!(check_values(&repeated(text, times)).is_err(), "{text}");
            assert!(check_values(&repeated(text, times / 4)).is_ok(), "{text}");
        }
        let text = "{[,".repeat(1 << 20) + "\\\\\\\"" + &"{[,".repeat(1 << 20);
        assert!(check_values(format!("[\"{text}\"]").as_bytes()).is_ok());
    }

    #[test]
    fn any_small_document_is_below_the_limit_of_values() {
        for value in ["{\"\":0},", "{},", "[],", "0,", "[", "{\"\":"] {
            let small = value.repeat(UNCHECKED_JSON_BYTES / value.len());
            assert!(
                estimate_value_bytes(small.as_bytes()) < MAX_VALUES_BYTES,
                "{value}"
            );
        }
    }

    #[test]
    fn a_line_above_the_limit_is_refused() {
        let mut lines = ResponseLines::default();
        let piece = vec![b'x'; 1 << 20];
        let mut held = 0;
        while lines.push(&piece).is_ok() {
            assert_eq!(lines.next(), None);
            held += piece.len();
            assert!(held <= MAX_JSON_BYTES + piece.len());
        }
        lines.clear();
        lines.push(b"a\n").unwrap();
        assert_eq!(lines.next().unwrap(), b"a"[..]);
    }
}
