//! HTTP requests and replies of evolve, beside [`EvolveRecord`] and [`EvolveStatus`](super::EvolveStatus).

use super::{EvolveRecord, EvolveRunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The reply to `POST /evolve` and `POST /evolve/rollback`; the run continues in the background.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[schema(as = EvolveStarted)]
pub struct EvolveStarted {
    /// Always `started`.
    pub status: String,
    pub run: EvolveRunId,
}

/// `GET /evolve/runs`: the runs, newest first, each without its checks and its receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = EvolveRuns)]
pub struct EvolveRuns {
    pub runs: Vec<EvolveRecord>,
}

/// `GET /evolve/runs/{run}`: the record and a part of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = EvolveRun)]
pub struct EvolveRun {
    #[serde(flatten)]
    pub record: EvolveRecord,
    pub log: EvolveLog,
}

/// A part of a run's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = EvolveLog)]
pub struct EvolveLog {
    /// Offset of this part, in bytes.
    pub offset: u64,
    pub text: String,
    /// Offset of the next part.
    pub next: u64,
}

/// An event of a run that is followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = EvolveEvent)]
pub enum EvolveEvent {
    Log(EvolveLog),
    /// The current record; the last record is of a run that has ended.
    Record(Box<EvolveRecord>),
}
