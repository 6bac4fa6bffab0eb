//! Request and reply bodies that carry files: fed to an archive or a file, sent from a file, drained after a refusal.

use crate::archive::{ChunkReceiver, ChunkSender, UnpackTotals};
use crate::companion::files::{ActiveUnpack, FilesRefusal};
use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use std::time::Duration;

/// Time during which a refused body is still read, so that its sender gets to read the refusal.
const REFUSED_BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn stream_body(mut pieces: ChunkReceiver) -> Body {
    Body::from_stream(poll_fn(move |cx| pieces.poll_recv(cx)))
}

/// Feeds an archive. After a refusal the body is drained, so that its sender reads the reason.
pub(super) async fn unpack_body(
    body: Body,
    mut unpacking: ActiveUnpack,
) -> Result<UnpackTotals, FilesRefusal> {
    let mut pieces = body.into_data_stream();
    loop {
        match pieces.next().await {
            Some(Ok(piece)) => {
                if !unpacking.feed_chunk(piece).await {
                    let _ = tokio::time::timeout(REFUSED_BODY_TIMEOUT, drain_body(pieces)).await;
                    return unpacking.finish_input().await;
                }
            }
            Some(Err(_)) => return Err(unpacking.handle_disconnect().await),
            None => return unpacking.finish_input().await,
        }
    }
}

/// Reads a refused body for [`REFUSED_BODY_TIMEOUT`].
pub(super) async fn drain_refused(body: Body, refusal: FilesRefusal) -> FilesRefusal {
    let _ = tokio::time::timeout(REFUSED_BODY_TIMEOUT, drain_body(body.into_data_stream())).await;
    refusal
}

/// Feeds the body chunk by chunk; drains it for [`REFUSED_BODY_TIMEOUT`] when the receiver refuses it.
pub(super) async fn feed_body(body: Body, writer: ChunkSender) {
    let mut pieces = body.into_data_stream();
    loop {
        match pieces.next().await {
            Some(Ok(piece)) => {
                if !writer.send_chunk(piece).await {
                    let _ = tokio::time::timeout(REFUSED_BODY_TIMEOUT, drain_body(pieces)).await;
                    return;
                }
            }
            Some(Err(error)) => return writer.fail(std::io::Error::other(error)).await,
            None => return writer.finish().await,
        }
    }
}

async fn drain_body(mut pieces: BodyDataStream) {
    while let Some(Ok(_)) = pieces.next().await {}
}
