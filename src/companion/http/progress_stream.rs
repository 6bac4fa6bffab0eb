//! Replies of long operations: a stream of progress events, then the result.

use super::stream::StreamFormat;
use crate::protocol::progress::ProgressEvent;
use axum::body::{Body as Streamed, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use osctl_support::api::ApiRefusal;
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval of progress events.
const PROGRESS_EVENT_INTERVAL: Duration = Duration::from_millis(200);

/// The progress of an operation: bytes moved, and the total if it is known.
pub(super) trait ByteProgress: Send + 'static {
    fn moved_bytes(&self) -> (u64, Option<u64>);
}

impl<F: Fn() -> (u64, Option<u64>) + Send + 'static> ByteProgress for F {
    fn moved_bytes(&self) -> (u64, Option<u64>) {
        self()
    }
}

/// Streams the progress in `format`. When the client disconnects, the operation continues without reports.
pub(super) fn stream_progress<R: Serialize + Send + 'static>(
    format: StreamFormat,
    measure: impl ByteProgress,
    work: impl Future<Output = Result<R, ApiRefusal>> + Send + 'static,
) -> Response {
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(8);
    tokio::spawn(async move {
        let mut work = std::pin::pin!(work);
        let mut last = 0;
        let end = loop {
            tokio::select! {
                done = &mut work => break match done {
                    Ok(reply) => ProgressEvent::Done { reply: Box::new(reply) },
                    Err(refusal) => {
                        let (status, error) = refusal.into_parts();
                        ProgressEvent::Failed { status: status.as_u16(), error }
                    }
                },
                () = tokio::time::sleep(PROGRESS_EVENT_INTERVAL) => {
                    let (bytes, total) = measure.moved_bytes();
                    if bytes != last {
                        last = bytes;
                        let event = ProgressEvent::<R>::Progress { bytes, total };
                        // A disconnected client gets no event; the operation continues.
                        let _ = sender.try_send(Ok(format.encode_message(&event)));
                    }
                }
            }
        };
        let _ = sender.send(Ok(format.encode_message(&end))).await;
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    (
        [(header::CONTENT_TYPE, format.content_type())],
        Streamed::from_stream(stream),
    )
        .into_response()
}
