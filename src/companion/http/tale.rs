//! Work that takes long, told as it goes on: how far it is, and in the end what came of it.

use super::stream::Form;
use crate::protocol::fault::Fault;
use crate::protocol::tale::Told;
use axum::body::{Body as Streamed, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;

/// How often progress is told.
const PACE: Duration = Duration::from_millis(200);

/// How far it is: bytes that were moved, and of how many where that can be told.
pub(super) trait Measure: Send + 'static {
    fn moved(&self) -> (u64, Option<u64>);
}

impl<F: Fn() -> (u64, Option<u64>) + Send + 'static> Measure for F {
    fn moved(&self) -> (u64, Option<u64>) {
        self()
    }
}

/// Tells of it in that form; a client that leaves is not told, and the work goes on.
pub(super) fn follow<R: Serialize + Send + 'static>(
    form: Form,
    measure: impl Measure,
    work: impl Future<Output = Result<R, (StatusCode, Fault)>> + Send + 'static,
) -> Response {
    let (pieces, told) = mpsc::channel::<Result<Bytes, Infallible>>(8);
    tokio::spawn(async move {
        let mut work = std::pin::pin!(work);
        let mut last = 0;
        let end = loop {
            tokio::select! {
                done = &mut work => break match done {
                    Ok(reply) => Told::Done { reply: Box::new(reply) },
                    Err((status, error)) => Told::Failed { status: status.as_u16(), error },
                },
                () = tokio::time::sleep(PACE) => {
                    let (bytes, total) = measure.moved();
                    if bytes != last {
                        last = bytes;
                        let words = Told::<R>::Progress { bytes, total };
                        // A client that has left is not told; the work goes on.
                        let _ = pieces.try_send(Ok(form.line(&words)));
                    }
                }
            }
        };
        let _ = pieces.send(Ok(form.line(&end))).await;
    });
    let stream = futures_util::stream::unfold(told, |mut told| async move {
        told.recv().await.map(|piece| (piece, told))
    });
    (
        [(header::CONTENT_TYPE, form.mime())],
        Streamed::from_stream(stream),
    )
        .into_response()
}
