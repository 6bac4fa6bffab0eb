//! Replies of long operations: a stream of progress events, then the result.

use super::stream::StreamFormat;
use crate::protocol::progress::ProgressEvent;
use axum::Json;
use axum::body::{Body as Streamed, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use osctl_support::api::{ApiRefusal, ApiResult};
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval of progress events.
const PROGRESS_EVENT_INTERVAL: Duration = Duration::from_millis(200);

/// The reply of a long operation: a stream of progress if the client accepts one. The refusal in a stream may have
/// another text.
pub(super) async fn answer_long<R: Serialize + Send + 'static, E: 'static>(
    headers: &HeaderMap,
    measure: impl Fn() -> (u64, Option<u64>) + Send + 'static,
    work: impl Future<Output = Result<R, E>> + Send + 'static,
    streamed_refusal: fn(E) -> ApiRefusal,
) -> ApiResult
where
    ApiRefusal: From<E>,
{
    Ok(match StreamFormat::from_accept_header(headers) {
        Some(format) => stream_progress(format, measure, async move {
            work.await.map_err(streamed_refusal)
        }),
        None => Json(work.await?).into_response(),
    })
}

/// Streams the progress in `format`: bytes moved, and the total if it is known. When the client disconnects, the
/// operation continues without reports.
pub(super) fn stream_progress<R: Serialize + Send + 'static>(
    format: StreamFormat,
    measure: impl Fn() -> (u64, Option<u64>) + Send + 'static,
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
                    let (bytes, total) = measure();
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
