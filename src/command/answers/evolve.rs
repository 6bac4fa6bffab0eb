//! Answers about runs of the keeper.

use super::cryo::{ReceiptEntry, receipt_entries};
use super::instance::CheckVerdict;
use super::{UtcTime, seconds_from_ms};
use crate::protocol::evolve::container_reports::{
    EvolveCheck, NonVariableState, RestoreMethod, SessionReceipt,
};
use crate::protocol::evolve::{
    BodyChange, EvolveCaller, EvolveRecord, EvolveRunId, EvolveStage, EvolveStatus, RunTask,
    StageRecord,
};
use schemars::JsonSchema;
use serde::Serialize;

/// A run that was started or is being cancelled, and is not followed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EvolveStartedAnswer {
    /// `started` or `stopping`.
    pub(crate) status: &'static str,
    pub(crate) id: EvolveRunId,
}

/// The current or last evolve.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EvolveStatusAnswer {
    evolve_in_progress: bool,
    /// Whether the run is in the stage `swapping` or `verifying`: the keeper has not verified the new container yet.
    restart_pending: bool,
    latest_id: Option<EvolveRunId>,
    /// `succeeded` only after the keeper has verified the new container.
    latest_status: Option<EvolveStage>,
    /// The stage of the active run.
    stage: Option<EvolveStage>,
    /// The reason given for the latest run.
    reason: Option<String>,
    /// Why the latest run failed.
    why: Option<String>,
}

impl From<EvolveStatus> for EvolveStatusAnswer {
    fn from(status: EvolveStatus) -> Self {
        let EvolveStatus {
            evolve_in_progress,
            restart_pending,
            latest_run,
            latest_status,
            stage,
            reason,
            why,
        } = status;
        Self {
            evolve_in_progress,
            restart_pending,
            latest_id: latest_run,
            latest_status,
            stage,
            reason,
            why,
        }
    }
}

/// The runs, newest first, each without its checks, receipts and other state.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EvolveHistoryAnswer {
    runs: Vec<EvolveRunAnswer>,
}

impl From<Vec<EvolveRecord>> for EvolveHistoryAnswer {
    fn from(runs: Vec<EvolveRecord>) -> Self {
        Self {
            runs: runs.into_iter().map(EvolveRunAnswer::from).collect(),
        }
    }
}

/// What a run changed in the body.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EvolveDiffAnswer {
    pub(crate) id: EvolveRunId,
    pub(crate) changes: Vec<BodyChange>,
}

/// Everything about a run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EvolveRunAnswer {
    id: EvolveRunId,
    task: RunTask,
    reason: Option<String>,
    requested_by: EvolveCaller,
    force: bool,
    dry_run: bool,
    /// Whether the container was not replaced because nothing has changed.
    unchanged: bool,
    started_at: UtcTime,
    /// The current stage, or how the run ended.
    status: EvolveStage,
    stages: Vec<StageEntry>,
    /// The stage that failed.
    failed_stage: Option<EvolveStage>,
    /// Why the stage failed, in a sentence.
    why: Option<String>,
    /// The last log lines about the failure.
    log_tail: Vec<String>,
    /// The checks of the last self-test or verification.
    checks: Vec<EvolveCheckEntry>,
    /// The id of the image that the run built or rolled back to.
    image: Option<String>,
    /// The id of the previous image.
    previous_image: Option<String>,
    /// The digest of the body from which the image was built.
    body_digest: Option<String>,
    /// How long requests were refused.
    refused_seconds: Option<f64>,
    /// The result for each session's variables.
    receipt: Vec<SessionReceiptEntry>,
    /// The result for other state: shells, jobs, terminals, MCP sessions.
    other_state: Vec<OtherStateEntry>,
    /// The path of the body beneath the project.
    body_folder: Option<String>,
    /// Why the run is not committed to the project's git repository, if there is a repository.
    not_committed_because: Option<String>,
}

/// A stage that the run has entered.
#[derive(Debug, Serialize, JsonSchema)]
struct StageEntry {
    stage: EvolveStage,
    started_at: UtcTime,
    /// `null` while the stage is active.
    duration_seconds: Option<f64>,
}

/// The result of one check.
#[derive(Debug, Serialize, JsonSchema)]
struct EvolveCheckEntry {
    /// Short and stable: `services`, `exec`, `shell`, `cryo`, `mcp:linux`, `selftest.d/10-mine`.
    name: String,
    verdict: CheckVerdict,
    /// The finding, in a sentence.
    detail: String,
    duration_seconds: f64,
}

/// The result for a part of the state that is not a variable.
#[derive(Debug, Serialize, JsonSchema)]
struct OtherStateEntry {
    /// Short and stable: `shell:default`, `job:default`, `terminals`, `mcp`, `mcp:sse`, `browser`.
    name: String,
    verdict: OtherStateVerdict,
    /// How it is kept, or why it is lost, in a sentence.
    detail: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum OtherStateVerdict {
    Kept,
    Lost,
}

/// The result for one session's variables.
#[derive(Debug, Serialize, JsonSchema)]
struct SessionReceiptEntry {
    session: String,
    /// `process`: the whole kernel was checkpointed and restored. `objects`: its variables were stored and reloaded.
    /// `nothing`: both failed.
    restored_by: RestoreMethod,
    rows: Vec<ReceiptEntry>,
    /// Why something is missing, in addition to the rows.
    why: Option<String>,
}

impl From<StageRecord> for StageEntry {
    fn from(passed: StageRecord) -> Self {
        let StageRecord {
            stage,
            started,
            seconds,
        } = passed;
        Self {
            stage,
            started_at: UtcTime::from_seconds(started),
            duration_seconds: seconds,
        }
    }
}

impl From<EvolveCheck> for EvolveCheckEntry {
    fn from(check: EvolveCheck) -> Self {
        let EvolveCheck {
            name,
            passed,
            detail,
            timing_ms,
        } = check;
        Self {
            name,
            verdict: match passed {
                true => CheckVerdict::Ok,
                false => CheckVerdict::Broken,
            },
            detail,
            duration_seconds: seconds_from_ms(timing_ms),
        }
    }
}

impl From<NonVariableState> for OtherStateEntry {
    fn from(state: NonVariableState) -> Self {
        let NonVariableState { name, kept, detail } = state;
        let verdict = match kept {
            true => OtherStateVerdict::Kept,
            false => OtherStateVerdict::Lost,
        };
        Self {
            name,
            verdict,
            detail,
        }
    }
}

impl From<SessionReceipt> for SessionReceiptEntry {
    fn from(receipt: SessionReceipt) -> Self {
        let SessionReceipt {
            session,
            restored_by,
            rows,
            why,
        } = receipt;
        Self {
            session,
            restored_by,
            rows: receipt_entries(rows),
            why,
        }
    }
}

impl From<EvolveRecord> for EvolveRunAnswer {
    fn from(record: EvolveRecord) -> Self {
        let EvolveRecord {
            run,
            task,
            reason,
            requested_by,
            force,
            dry_run,
            unchanged,
            started,
            status,
            stages,
            failed_stage,
            why,
            log_tail,
            checks,
            image,
            previous_image,
            body_digest,
            refused_ms,
            receipt,
            other_state,
            body_folder,
            not_committed_because,
        } = record;
        Self {
            id: run,
            task,
            reason,
            requested_by,
            force,
            dry_run,
            unchanged,
            started_at: UtcTime::from_seconds(started),
            status,
            stages: stages.into_iter().map(StageEntry::from).collect(),
            failed_stage,
            why,
            log_tail,
            checks: checks.into_iter().map(EvolveCheckEntry::from).collect(),
            image,
            previous_image,
            body_digest,
            refused_seconds: refused_ms.map(seconds_from_ms),
            receipt: receipt.into_iter().map(SessionReceiptEntry::from).collect(),
            other_state: other_state.into_iter().map(OtherStateEntry::from).collect(),
            body_folder,
            not_committed_because,
        }
    }
}
