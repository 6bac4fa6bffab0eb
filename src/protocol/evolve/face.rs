//! What is said of evolving over HTTP, beside [`Record`] and [`Status`](super::Status).

use super::{Record, Run};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The reply to `POST /evolve` and `POST /evolve/rollback`: it goes on by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[schema(as = EvolveStarted)]
pub(crate) struct Started {
    /// Always `started`.
    pub(crate) status: String,
    pub(crate) run: Run,
}

/// `GET /evolve/runs`, the newest first, each without its checks and its receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = EvolveRuns)]
pub(crate) struct Runs {
    pub(crate) runs: Vec<Record>,
}

/// `GET /evolve/runs/{run}`: how it stands, and a piece of its log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = EvolveRun)]
pub(crate) struct Found {
    #[serde(flatten)]
    pub(crate) record: Record,
    pub(crate) log: Piece,
}

/// A piece of a run's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = EvolveLog)]
pub(crate) struct Piece {
    /// Where it begins, in bytes.
    pub(crate) offset: u64,
    pub(crate) text: String,
    /// Where the next one begins.
    pub(crate) next: u64,
}

/// What happens in a run that is followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = EvolveEvent)]
pub(crate) enum Event {
    Log(Piece),
    /// How it stands now; the last one is of a run that has ended.
    Record(Box<Record>),
}
