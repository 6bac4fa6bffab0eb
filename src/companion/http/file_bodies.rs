//! Bodies of requests and answers with files: fed to an archive or a file, sent from one, read on when refused.

use crate::archive::{ChunkReceiver, ChunkSender, UnpackTotals};
use crate::companion::files::{FilesRefusal, Unpacking};
use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use std::time::Duration;

/// A refused body is read on for so long, so that its sender comes to read why.
const REFUSED_BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn stream_body(mut pieces: ChunkReceiver) -> Body {
    Body::from_stream(poll_fn(move |cx| pieces.poll_recv(cx)))
}

/// Feeds an archive. Whoever is refused it gets to read why.
pub(super) async fn unpack_body(
    body: Body,
    mut unpacking: Unpacking,
) -> Result<UnpackTotals, FilesRefusal> {
    let mut pieces = body.into_data_stream();
    loop {
        match pieces.next().await {
            Some(Ok(piece)) => {
                if !unpacking.feed_piece(piece).await {
                    let _ = tokio::time::timeout(REFUSED_BODY_TIMEOUT, drain_body(pieces)).await;
                    return unpacking.finish_input().await;
                }
            }
            Some(Err(_)) => return Err(unpacking.cut_input().await),
            None => return unpacking.finish_input().await,
        }
    }
}

/// Reads what is refused for a while.
pub(super) async fn drain_refused(body: Body, refusal: FilesRefusal) -> FilesRefusal {
    let _ = tokio::time::timeout(REFUSED_BODY_TIMEOUT, drain_body(body.into_data_stream())).await;
    refusal
}

/// Hands the body over, piece by piece; when it is refused, reads on for a while.
pub(super) async fn pump_body(body: Body, feed: ChunkSender) {
    let mut pieces = body.into_data_stream();
    loop {
        match pieces.next().await {
            Some(Ok(piece)) => {
                if !feed.send_chunk(piece).await {
                    let _ = tokio::time::timeout(REFUSED_BODY_TIMEOUT, drain_body(pieces)).await;
                    return;
                }
            }
            Some(Err(error)) => return feed.fail(std::io::Error::other(error)).await,
            None => return feed.finish().await,
        }
    }
}

async fn drain_body(mut pieces: BodyDataStream) {
    while let Some(Ok(_)) = pieces.next().await {}
}
