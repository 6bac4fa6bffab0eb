//! Work that takes long, as it is told: how far it is, then what came of it.

use super::error::ApiError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A line of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ProgressEvent<R> {
    /// Bytes that have been moved, and how many there are, where that is known.
    Progress { bytes: u64, total: Option<u64> },
    /// The end, with the whole reply.
    Done { reply: Box<R> },
    /// The end: nothing has changed.
    Failed {
        /// As it would be in HTTP.
        status: u16,
        error: ApiError,
    },
}
