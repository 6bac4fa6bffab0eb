//! The record of a run, during the run and in the history.

use super::container_reports::{EvolveCheck, NonVariableState, SessionReceipt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// The name of a run: its start time as `YYYYMMDD-HHMMSS` in UTC.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "20261120-193600")]
#[schemars(with = "String")]
pub struct EvolveRunId(String);

impl EvolveRunId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EvolveRunId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = text.len() == 15
            && text.bytes().enumerate().all(|(at, byte)| match at {
                8 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        match fits {
            true => Ok(Self(text.into())),
            false => Err(format!(
                "`{}` is not the ID of an evolve (example: `20261120-193600`)",
                text.escape_debug()
            )),
        }
    }
}

impl TryFrom<String> for EvolveRunId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<EvolveRunId> for String {
    fn from(run: EvolveRunId) -> Self {
        run.0
    }
}

impl fmt::Display for EvolveRunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The current stage of a run, or how it ended.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EvolveStage {
    /// The keeper builds the image from `/repo/body`.
    Building,
    /// The new image is tested in a trial container while the old container keeps running.
    Testing,
    /// The old container is quiesced, and its state is stored.
    #[serde(alias = "freezing")]
    Quiescing,
    /// The new container replaces the old one, which is set aside.
    Swapping,
    /// The new container is verified in place.
    Verifying,
    /// The keeper has verified the new container. For a dry run: the new image has passed its tests.
    Succeeded,
    /// The old image runs again: the paused old container with its processes, or a new start with the stored state.
    RolledBack,
    /// The run ended without a new container; `why` says what was not restored.
    Failed,
}

impl EvolveStage {
    /// The word in JSON and in texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Testing => "testing",
            Self::Quiescing => "quiescing",
            Self::Swapping => "swapping",
            Self::Verifying => "verifying",
            Self::Succeeded => "succeeded",
            Self::RolledBack => "rolled_back",
            Self::Failed => "failed",
        }
    }

    /// Whether the stage is final.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::RolledBack | Self::Failed)
    }
}

impl fmt::Display for EvolveStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunTask {
    Evolve,
    /// A requested return to an earlier image.
    Rollback,
    /// A rollback by the keeper: the new container succeeded at first but failed later.
    Rescue,
}

/// Who requested the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvolveCaller {
    /// The user, from the host.
    Host,
    /// Code in `os-host`.
    Agent,
    /// The keeper.
    Keeper,
}

/// A stage that the run has entered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageRecord {
    pub stage: EvolveStage,
    /// Start time in seconds since 1970.
    #[serde(alias = "began")]
    pub started: f64,
    /// Duration; `null` while the stage is active.
    pub seconds: Option<f64>,
}

/// Everything about a run. Values that are not known yet are missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EvolveRecord {
    pub run: EvolveRunId,
    pub task: RunTask,
    pub reason: Option<String>,
    #[serde(alias = "by")]
    pub requested_by: EvolveCaller,
    pub force: bool,
    pub dry_run: bool,
    /// Whether the container was not replaced because nothing has changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// Start time in seconds since 1970.
    #[serde(alias = "began")]
    pub started: f64,
    /// The current stage, or how the run ended.
    pub status: EvolveStage,
    pub stages: Vec<StageRecord>,
    /// The stage that failed.
    #[serde(alias = "gate")]
    pub failed_stage: Option<EvolveStage>,
    /// Why the stage failed, in a sentence.
    pub why: Option<String>,
    /// The last log lines about the failure.
    pub log_tail: Vec<String>,
    /// The checks of the last self-test or verification.
    #[serde(default)]
    pub checks: Vec<EvolveCheck>,
    /// The id of the image that the run built or rolled back to.
    pub image: Option<String>,
    /// The id of the previous image.
    #[serde(alias = "previous")]
    pub previous_image: Option<String>,
    /// The digest of the body from which the image was built.
    #[serde(alias = "body")]
    pub body_digest: Option<String>,
    /// How long requests were refused, in milliseconds.
    pub refused_ms: Option<f64>,
    /// The result for each session's variables.
    #[serde(default)]
    pub receipt: Vec<SessionReceipt>,
    /// The result for other state: shells, jobs, terminals, MCP sessions.
    #[serde(default, alias = "besides", skip_serializing_if = "Vec::is_empty")]
    pub other_state: Vec<NonVariableState>,
    /// The path of the body beneath the project.
    #[serde(default, alias = "folder", skip_serializing_if = "Option::is_none")]
    pub body_folder: Option<String>,
    /// Why the run is not committed to the project's git repository, if there is a repository.
    #[serde(default, alias = "untold", skip_serializing_if = "Option::is_none")]
    pub not_committed_because: Option<String>,
}

impl EvolveRecord {
    /// The record of an evolve that the keeper requested, without details.
    pub fn empty(run: EvolveRunId, status: EvolveStage, started: f64) -> Self {
        Self {
            run,
            task: RunTask::Evolve,
            reason: None,
            requested_by: EvolveCaller::Keeper,
            force: false,
            dry_run: false,
            unchanged: false,
            started,
            status,
            stages: Vec::new(),
            failed_stage: None,
            why: None,
            log_tail: Vec::new(),
            checks: Vec::new(),
            image: None,
            previous_image: None,
            body_digest: None,
            refused_ms: None,
            receipt: Vec::new(),
            other_state: Vec::new(),
            body_folder: None,
            not_committed_because: None,
        }
    }

    /// The total duration of the stages up to now.
    pub fn total_seconds(&self) -> f64 {
        let stages = self.stages.iter().filter_map(|stage| stage.seconds);
        stages.fold(0.0, |all, seconds| all + seconds)
    }

    /// Whether the run has put a container with its image in the place of the old one.
    pub fn has_replaced_container(&self) -> bool {
        self.status == EvolveStage::Succeeded && !self.dry_run && !self.unchanged
    }

    /// The record in lists: without fields that may be long.
    pub fn without_details(self) -> Self {
        Self {
            checks: Vec::new(),
            receipt: Vec::new(),
            other_state: Vec::new(),
            ..self
        }
    }
}

/// The current or last evolve.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct EvolveStatus {
    pub evolve_in_progress: bool,
    /// Whether the run is in the stage `swapping` or `verifying`: the keeper has not verified the new container yet.
    pub restart_pending: bool,
    pub latest_run: Option<EvolveRunId>,
    /// `succeeded` only after the keeper has verified the new container.
    pub latest_status: Option<EvolveStage>,
    /// The stage of the active run.
    pub stage: Option<EvolveStage>,
    /// The reason given for the latest run.
    pub reason: Option<String>,
    /// Why the latest run failed.
    #[serde(default)]
    pub why: Option<String>,
}

/// A file of `body/` that differs from the previous body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct BodyChange {
    /// The path beneath `body/`.
    pub path: String,
    pub edit: FileEdit,
    /// The unified diff; missing for files that are not text.
    pub diff: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileEdit {
    Added,
    Removed,
    Changed,
}
