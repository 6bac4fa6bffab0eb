//! Requests, replies and receipts of cryo, which stores a session's variables and reloads them.

use super::error::ApiError;
use super::kernel::{DEFAULT_SESSION, KernelReport};
use super::restored::LastReload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// `POST /cryo/store`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CryoStore {
    /// The name of the stored state; the session's name when missing. When the companion starts, it reloads only states
    /// stored under the session's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The session whose variables are stored.
    #[serde(default = "default_session")]
    pub session: String,
    /// Store nothing when a variable would be lost, altered or unverified.
    #[serde(default)]
    pub strict: bool,
    /// Write and check as a store does, keep nothing, and return the receipt.
    #[serde(default)]
    pub dry_run: bool,
    /// Store open files by path and position.
    #[serde(default)]
    pub files: bool,
    /// The kernel generation to store; if the kernel has another generation, nothing is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
}

/// `POST /cryo/reload`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// The name of the stored state; the session's name when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The generation; the newest when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The session that receives the variables.
    #[serde(default = "default_session")]
    pub session: String,
}

/// The result for one variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CryoVerdict {
    /// Stored, loaded back from the disk, and equal to the original.
    Saved,
    /// Recreated on reload as `why` describes.
    Recipe,
    /// Stored, but the reloaded value differs from the original as `why` describes.
    Altered,
    /// Stored, but not loaded back for comparison, as `why` explains.
    Unverified,
    /// Not stored or not reloaded, as `why` explains.
    Lost,
}

impl CryoVerdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Saved => "saved",
            Self::Recipe => "recipe",
            Self::Altered => "altered",
            Self::Unverified => "unverified",
            Self::Lost => "lost",
        }
    }
}

/// A variable in a receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct ReceiptRow {
    pub name: String,
    pub verdict: CryoVerdict,
    #[serde(rename = "type")]
    pub kind: String,
    /// Size before compression; data that variables share are counted once.
    pub bytes: u64,
    pub why: Option<String>,
}

/// The reply to `POST /cryo/store`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct CryoStored {
    /// Always `completed`.
    pub status: String,
    /// The result as a sentence.
    pub message: String,
    pub name: String,
    /// `null` for a dry run.
    pub generation: Option<u64>,
    pub path: Option<String>,
    /// Creation time in seconds since 1970. With the generation number, it distinguishes this generation from one in
    /// another copy of the data folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<f64>,
    pub size_bytes: u64,
    pub timing_ms: f64,
    pub receipt: Vec<ReceiptRow>,
    /// The kernel whose variables were stored. It may have lost or restored its state since the last reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelReport>,
}

/// The reply to `POST /cryo/reload`; the receipt describes the namespace after the reload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct ReloadReply {
    /// Always `completed`.
    pub status: String,
    pub message: String,
    pub name: String,
    pub generation: u64,
    pub path: String,
    pub size_bytes: u64,
    pub timing_ms: f64,
    pub receipt: Vec<ReceiptRow>,
    /// Changes in the environment since the state was stored.
    pub warnings: Vec<String>,
    pub kernel: KernelReport,
}

/// Why a generation was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoreReason {
    /// By a request of a caller.
    #[serde(alias = "asked")]
    Requested,
    Schedule,
    Down,
    Restart,
    Evolve,
    /// Before a restore replaces the kernel.
    Restore,
    /// When the companion was stopped.
    Stop,
}

impl StoreReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Schedule => "schedule",
            Self::Down => "down",
            Self::Restart => "restart",
            Self::Evolve => "evolve",
            Self::Restore => "restore",
            Self::Stop => "stop",
        }
    }
}

/// A stored generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredGeneration {
    pub generation: u64,
    /// Why the generation can't be reloaded; the other fields are then filled as far as they are known.
    pub damage: Option<String>,
    /// Creation time in seconds since 1970.
    pub created: f64,
    pub reason: String,
    pub session: String,
    pub size_bytes: u64,
    pub python: String,
    pub variables: u64,
    pub altered: u64,
    pub unverified: u64,
    /// Variables that the generation can't restore: those that the store lost, and those that the last reload lost in
    /// addition.
    pub lost: u64,
    /// The losses of the last reload; missing if the generation was not reloaded yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload: Option<LastReload>,
}

/// All generations of a name, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GenerationList {
    pub name: String,
    pub generations: Vec<StoredGeneration>,
}

/// `GET /cryo`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CryoListing {
    pub cryo: Vec<GenerationList>,
}

/// `GET /cryo/{name}`: one generation with its receipt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GenerationDetails {
    pub name: String,
    #[serde(flatten)]
    pub generation: StoredGeneration,
    pub path: String,
    pub receipt: Vec<ReceiptRow>,
    /// Versions of the libraries that the variables need.
    pub libraries: std::collections::BTreeMap<String, String>,
    /// Packages that were installed at run time when the state was stored.
    pub packages: std::collections::BTreeMap<String, String>,
}

/// The reply to `DELETE /cryo/{name}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CryoRemoved {
    /// Always `completed`.
    pub status: String,
    pub name: String,
    pub generations: Vec<u64>,
}

/// `POST /cryo/snapshot`: store every session under its own name.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    pub reason: StoreReason,
    /// Whether to store. When false, nothing is stored, nor at the stop that follows a `down` or `restart`.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub store: bool,
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

/// The reply to `POST /cryo/snapshot`: the result for each session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SnapshotReply {
    pub snapshots: Vec<SessionSnapshot>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = CryoOfSession)]
pub struct SessionSnapshot {
    pub session: String,
    /// `null` when there was nothing to store or the store failed.
    pub stored: Option<CryoStored>,
    pub error: Option<ApiError>,
}
