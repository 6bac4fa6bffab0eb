//! What is told of a run, while it is on and for ever after.

use super::inside::{EvolveCheck, NonVariableState, SessionReceipt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// The name of a run, which is when it began: `YYYYMMDD-HHMMSS`, in UTC.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "20261120-193600")]
#[schemars(with = "String")]
pub(crate) struct EvolveRunId(String);

impl EvolveRunId {
    pub(crate) fn as_str(&self) -> &str {
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
                "`{}` names no run, which looks like `20261120-193600`",
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

/// Where a run is, and how it ended.
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
pub(crate) enum EvolveStage {
    /// The image is made from `/repo/body`.
    Building,
    /// The image proves itself beside what runs.
    Testing,
    /// What runs comes to rest, and its state is stored.
    Freezing,
    /// The new container takes the place of the old one, which waits.
    Swapping,
    /// The new container proves itself in place.
    Verifying,
    /// The new container has answered. For a dry run: it would be tried.
    Succeeded,
    /// The old container answers again, with all that it had.
    RolledBack,
    /// Nothing was changed.
    Failed,
}

impl EvolveStage {
    /// As it is written.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Testing => "testing",
            Self::Freezing => "freezing",
            Self::Swapping => "swapping",
            Self::Verifying => "verifying",
            Self::Succeeded => "succeeded",
            Self::RolledBack => "rolled_back",
            Self::Failed => "failed",
        }
    }

    /// Whether nothing comes after it.
    pub(crate) fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::RolledBack | Self::Failed)
    }
}

impl fmt::Display for EvolveStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    Evolve,
    /// Back to an image before, which somebody asked for.
    Rollback,
    /// The same by the keeper itself: what had succeeded did not last.
    Rescue,
}

/// Who wanted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EvolveCaller {
    /// A person, from the host.
    Host,
    /// Code inside `os-host`.
    Agent,
    /// The keeper.
    Keeper,
}

/// A stage that was gone through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PassedStage {
    pub(crate) stage: EvolveStage,
    /// In seconds since 1970.
    pub(crate) began: f64,
    /// `null` while it is on.
    pub(crate) seconds: Option<f64>,
}

/// Everything about a run. What is not known yet is missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct EvolveRecord {
    pub(crate) run: EvolveRunId,
    pub(crate) task: Task,
    pub(crate) reason: Option<String>,
    pub(crate) by: EvolveCaller,
    pub(crate) force: bool,
    pub(crate) dry_run: bool,
    /// In seconds since 1970.
    pub(crate) began: f64,
    /// The stage it is in, or how it ended.
    pub(crate) status: EvolveStage,
    pub(crate) stages: Vec<PassedStage>,
    /// The stage that was not passed.
    pub(crate) gate: Option<EvolveStage>,
    /// Why not, in a sentence.
    pub(crate) why: Option<String>,
    /// The last lines that tell more about it.
    pub(crate) log_tail: Vec<String>,
    /// What the last self-test or verification looked at.
    #[serde(default)]
    pub(crate) checks: Vec<EvolveCheck>,
    /// The id of the image that it made or went back to.
    pub(crate) image: Option<String>,
    /// The id of the image that ran before.
    pub(crate) previous: Option<String>,
    /// The digest of the body that it was made of.
    pub(crate) body: Option<String>,
    /// How long requests were not answered, in milliseconds.
    pub(crate) refused_ms: Option<f64>,
    /// What became of each session's variables.
    #[serde(default)]
    pub(crate) receipt: Vec<SessionReceipt>,
    /// What became of all else: shells, jobs, terminals, sessions of MCP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) besides: Vec<NonVariableState>,
    /// Where the body lies beneath the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) folder: Option<String>,
    /// Why it becomes no commit in the project's git repository, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) untold: Option<String>,
}

impl EvolveRecord {
    /// What its stages have taken until now.
    pub(crate) fn total_seconds(&self) -> f64 {
        let stages = self.stages.iter().filter_map(|stage| stage.seconds);
        stages.fold(0.0, |all, seconds| all + seconds)
    }

    /// As a list has it: without what may be long.
    pub(crate) fn without_details(self) -> Self {
        Self {
            checks: Vec::new(),
            receipt: Vec::new(),
            besides: Vec::new(),
            ..self
        }
    }
}

/// `GET /evolve/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct EvolveStatus {
    pub(crate) evolve_in_progress: bool,
    /// Whether what runs is about to be replaced: the new container has not answered yet.
    pub(crate) restart_pending: bool,
    pub(crate) latest_run: Option<EvolveRunId>,
    /// `succeeded` only after the new container has answered.
    pub(crate) latest_status: Option<EvolveStage>,
    /// Where the run is that is on.
    pub(crate) stage: Option<EvolveStage>,
    /// Why the latest run was asked for.
    pub(crate) reason: Option<String>,
    /// Why the latest run did not succeed.
    #[serde(default)]
    pub(crate) why: Option<String>,
}

/// A file of `body/` that is not as it was before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct BodyChange {
    /// Beneath `body/`.
    pub(crate) path: String,
    pub(crate) edit: Edit,
    /// The lines, in the unified form; missing for what is no text.
    pub(crate) diff: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Edit {
    Added,
    Removed,
    Changed,
}
