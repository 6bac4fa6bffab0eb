//! Progress bar for long operations inside.

use super::CommandContext;
use crate::error::Result;
use crate::host::progress_stream::LongCall;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the reply at the end of the progress stream, and shows a bar until then.
pub(super) async fn wait_with_meter<R: DeserializeOwned>(
    mut call: LongCall<R>,
    what: &str,
    cx: &CommandContext,
) -> Result<R> {
    let moved = Arc::new(AtomicU64::new(0));
    let meter = cx.ui.start_meter(what, &moved);
    let end = async {
        loop {
            match call.next().await? {
                Ok(reply) => return Ok(reply),
                Err((bytes, total)) => {
                    moved.store(bytes, Ordering::Relaxed);
                    total.iter().for_each(|total| meter.set_total(*total));
                }
            }
        }
    };
    meter.show_during(end).await
}
