//! Progress events of a long operation, which end with its result.

use super::error::ApiError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A line of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ProgressEvent<R> {
    /// Bytes processed, and the total if it is known.
    Progress { bytes: u64, total: Option<u64> },
    /// The end, with the complete reply.
    Done { reply: Box<R> },
    /// The end after a failure; nothing has changed.
    Failed {
        /// The status that an HTTP response would have.
        status: u16,
        error: ApiError,
    },
}
