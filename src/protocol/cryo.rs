//! Storing a session's objects and bringing them back: what is asked, and the receipt.

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
pub(crate) struct CryoStore {
    /// What it is called; the session's name when missing. Only what bears the session's name is
    /// reloaded by itself when the companion starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Whose variables.
    #[serde(default = "default_session")]
    pub(crate) session: String,
    /// Store nothing when a variable would be lost, altered or unverified.
    #[serde(default)]
    pub(crate) strict: bool,
    /// Write and check as a store does, keep nothing, and return the receipt.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Store open files by path and position.
    #[serde(default)]
    pub(crate) files: bool,
    /// The kernel generation whose variables are meant; nothing is stored when the kernel is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<u64>,
}

/// `POST /cryo/reload`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reload {
    /// The session's name when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The newest when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u64>,
    /// Whose variables.
    #[serde(default = "default_session")]
    pub(crate) session: String,
}

/// What became of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CryoVerdict {
    /// It was loaded back from the disk, and equals what was stored.
    Saved,
    /// It is made again, as `why` tells.
    Recipe,
    /// It comes back, and differs from what was stored as `why` tells.
    Altered,
    /// It is stored, and was not loaded back to be compared, as `why` tells.
    Unverified,
    /// It is not there, as `why` tells.
    Lost,
}

impl CryoVerdict {
    pub(crate) fn word(self) -> &'static str {
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
pub(crate) struct ReceiptRow {
    pub(crate) name: String,
    pub(crate) verdict: CryoVerdict,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Before compression; what variables share is counted once.
    pub(crate) bytes: u64,
    pub(crate) why: Option<String>,
}

/// The reply to `POST /cryo/store`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct CryoStored {
    /// Always `completed`.
    pub(crate) status: String,
    /// The same in a sentence.
    pub(crate) message: String,
    pub(crate) name: String,
    /// `null` for a dry run.
    pub(crate) generation: Option<u64>,
    pub(crate) path: Option<String>,
    /// When, in seconds since 1970: with the number it tells a generation from one of another copy of the data folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<f64>,
    pub(crate) size_bytes: u64,
    pub(crate) timing_ms: f64,
    pub(crate) receipt: Vec<ReceiptRow>,
    /// Whose variables were stored: the kernel may have lost its state, or have been restored, since the last reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kernel: Option<KernelReport>,
}

/// The reply to `POST /cryo/reload`; the receipt comes from a look at what is there afterwards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct Reloaded {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) message: String,
    pub(crate) name: String,
    pub(crate) generation: u64,
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    pub(crate) timing_ms: f64,
    pub(crate) receipt: Vec<ReceiptRow>,
    /// What has changed around it since it was stored.
    pub(crate) warnings: Vec<String>,
    pub(crate) kernel: KernelReport,
}

/// Why a generation was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreReason {
    Asked,
    Schedule,
    Down,
    Restart,
    Evolve,
    /// Another kernel is about to take its place.
    Restore,
    /// The companion was stopped.
    Stop,
}

impl StoreReason {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Schedule => "schedule",
            Self::Down => "down",
            Self::Restart => "restart",
            Self::Evolve => "evolve",
            Self::Restore => "restore",
            Self::Stop => "stop",
        }
    }
}

/// One stored state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct StoredGeneration {
    pub(crate) generation: u64,
    /// Why it can't be reloaded; the other fields are then as far as they can be told.
    pub(crate) damage: Option<String>,
    /// In seconds since 1970.
    pub(crate) created: f64,
    pub(crate) reason: String,
    pub(crate) session: String,
    pub(crate) size_bytes: u64,
    pub(crate) python: String,
    pub(crate) variables: u64,
    pub(crate) altered: u64,
    pub(crate) unverified: u64,
    /// Variables that it can't bring back: those that the store lost, and those that the last reload lost as well.
    pub(crate) lost: u64,
    /// What the last reload lost; missing where it was not reloaded yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reload: Option<LastReload>,
}

/// All that is stored under a name, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct GenerationList {
    pub(crate) name: String,
    pub(crate) generations: Vec<StoredGeneration>,
}

/// `GET /cryo`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CryoListing {
    pub(crate) cryo: Vec<GenerationList>,
}

/// `GET /cryo/{name}`: one generation with its receipt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct GenerationDetails {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) generation: StoredGeneration,
    pub(crate) path: String,
    pub(crate) receipt: Vec<ReceiptRow>,
    /// Versions of the libraries that it needs.
    pub(crate) libraries: std::collections::BTreeMap<String, String>,
    /// What was installed at run time when it was stored.
    pub(crate) packages: std::collections::BTreeMap<String, String>,
}

/// The reply to `DELETE /cryo/{name}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CryoRemoved {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) name: String,
    pub(crate) generations: Vec<u64>,
}

/// `POST /cryo/snapshot`: store every session under its own name.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    pub(crate) reason: StoreReason,
    /// Else nothing is stored, nor by the stop that follows a `down` or `restart`.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub(crate) store: bool,
}

fn yes() -> bool {
    true
}

fn is_yes(said: &bool) -> bool {
    *said
}

/// The reply: what became of each session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Snapshots {
    pub(crate) snapshots: Vec<CryoOfSession>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = CryoOfSession)]
pub(crate) struct CryoOfSession {
    pub(crate) session: String,
    /// `null` when there was nothing to store, or it could not be.
    pub(crate) stored: Option<CryoStored>,
    pub(crate) error: Option<ApiError>,
}
