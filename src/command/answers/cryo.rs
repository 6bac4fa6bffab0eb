//! Answers about stored variables.

use super::runs::KernelEntry;
use super::{UtcTime, seconds_from_ms};
use crate::protocol::cryo::{
    CryoListing, CryoRemoved, CryoStored, CryoVerdict, GenerationDetails, ReceiptRow, ReloadReply,
    StoredGeneration,
};
use crate::protocol::restored::{LastReload, LostVariable};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The result for one variable.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReceiptEntry {
    name: String,
    verdict: CryoVerdict,
    r#type: String,
    /// Size before compression; data that variables share are counted once.
    size_bytes: u64,
    why: Option<String>,
}

impl From<ReceiptRow> for ReceiptEntry {
    fn from(row: ReceiptRow) -> Self {
        let ReceiptRow {
            name,
            verdict,
            kind,
            bytes,
            why,
        } = row;
        Self {
            name,
            verdict,
            r#type: kind,
            size_bytes: bytes,
            why,
        }
    }
}

pub(super) fn receipt_entries(rows: Vec<ReceiptRow>) -> Vec<ReceiptEntry> {
    rows.into_iter().map(ReceiptEntry::from).collect()
}

/// The stored variables.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StoreAnswer {
    /// Always `completed`.
    status: String,
    /// The result as a sentence.
    message: String,
    name: String,
    /// `null` for a dry run.
    generation: Option<u64>,
    /// The folder inside; `null` for a dry run.
    path: Option<String>,
    created_at: Option<UtcTime>,
    size_bytes: u64,
    duration_seconds: f64,
    receipt: Vec<ReceiptEntry>,
    /// The kernel whose variables were stored. It may have lost or restored its state since the last reply.
    kernel: Option<KernelEntry>,
}

impl From<CryoStored> for StoreAnswer {
    fn from(stored: CryoStored) -> Self {
        let CryoStored {
            status,
            message,
            name,
            generation,
            path,
            created,
            size_bytes,
            timing_ms,
            receipt,
            kernel,
        } = stored;
        Self {
            status,
            message,
            name,
            generation,
            path,
            created_at: created.map(UtcTime::from_seconds),
            size_bytes,
            duration_seconds: seconds_from_ms(timing_ms),
            receipt: receipt_entries(receipt),
            kernel: kernel.map(KernelEntry::from),
        }
    }
}

/// The reloaded variables; the receipt describes the namespace after the reload.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReloadAnswer {
    /// Always `completed`.
    status: String,
    message: String,
    name: String,
    generation: u64,
    path: String,
    size_bytes: u64,
    duration_seconds: f64,
    receipt: Vec<ReceiptEntry>,
    /// Changes in the environment since the state was stored.
    warnings: Vec<String>,
    kernel: KernelEntry,
}

impl From<ReloadReply> for ReloadAnswer {
    fn from(reloaded: ReloadReply) -> Self {
        let ReloadReply {
            status,
            message,
            name,
            generation,
            path,
            size_bytes,
            timing_ms,
            receipt,
            warnings,
            kernel,
        } = reloaded;
        Self {
            status,
            message,
            name,
            generation,
            path,
            size_bytes,
            duration_seconds: seconds_from_ms(timing_ms),
            receipt: receipt_entries(receipt),
            warnings,
            kernel: kernel.into(),
        }
    }
}

/// The stored states.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StoredStatesAnswer {
    states: Vec<StoredStateEntry>,
}

/// All generations of a name, newest first.
#[derive(Debug, Serialize, JsonSchema)]
struct StoredStateEntry {
    name: String,
    generations: Vec<GenerationEntry>,
}

impl From<CryoListing> for StoredStatesAnswer {
    fn from(listing: CryoListing) -> Self {
        let states = listing.cryo.into_iter().map(|list| {
            let generations = list.generations.into_iter();
            StoredStateEntry {
                name: list.name,
                generations: generations.map(GenerationEntry::from).collect(),
            }
        });
        Self {
            states: states.collect(),
        }
    }
}

/// A stored generation.
#[derive(Debug, Serialize, JsonSchema)]
struct GenerationEntry {
    generation: u64,
    /// Why the generation can't be reloaded; the other fields are then filled as far as they are known.
    damage: Option<String>,
    created_at: UtcTime,
    /// Why it was stored: `requested`, `schedule`, `down`, `restart`, `evolve`, `restore` or `stop`.
    reason: String,
    session: String,
    size_bytes: u64,
    /// The version of Python.
    python: String,
    variable_count: u64,
    altered_count: u64,
    unverified_count: u64,
    /// Variables that the generation can't restore: those that the store lost, and those that the last reload lost in
    /// addition.
    lost_count: u64,
    /// The losses of the last reload; `null` if the generation was not reloaded yet.
    reload: Option<ReloadEntry>,
}

impl From<StoredGeneration> for GenerationEntry {
    fn from(stored: StoredGeneration) -> Self {
        let StoredGeneration {
            generation,
            damage,
            created,
            reason,
            session,
            size_bytes,
            python,
            variables,
            altered,
            unverified,
            lost,
            reload,
        } = stored;
        Self {
            generation,
            damage,
            created_at: UtcTime::from_seconds(created),
            reason,
            session,
            size_bytes,
            python,
            variable_count: variables,
            altered_count: altered,
            unverified_count: unverified,
            lost_count: lost,
            reload: reload.map(ReloadEntry::from),
        }
    }
}

/// The losses of the last reload of a generation.
#[derive(Debug, Serialize, JsonSchema)]
struct ReloadEntry {
    reloaded_at: UtcTime,
    /// The session that received the variables.
    session: String,
    /// Variables that the receipt of the store called saved or recipe, and that were lost.
    lost_count: u64,
    /// The first 50 of these variables.
    lost: Vec<LostVariable>,
}

impl From<LastReload> for ReloadEntry {
    fn from(reload: LastReload) -> Self {
        let LastReload {
            time,
            session,
            lost_count,
            lost,
        } = reload;
        Self {
            reloaded_at: UtcTime::from_seconds(time),
            session,
            lost_count,
            lost,
        }
    }
}

/// One generation with its receipt.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct GenerationAnswer {
    name: String,
    #[serde(flatten)]
    generation: GenerationEntry,
    path: String,
    receipt: Vec<ReceiptEntry>,
    /// Versions of the libraries that the variables need, by name.
    libraries: BTreeMap<String, String>,
    /// Versions of the packages that were installed at run time when the state was stored, by name.
    packages: BTreeMap<String, String>,
}

impl From<GenerationDetails> for GenerationAnswer {
    fn from(details: GenerationDetails) -> Self {
        let GenerationDetails {
            name,
            generation,
            path,
            receipt,
            libraries,
            packages,
        } = details;
        Self {
            name,
            generation: generation.into(),
            path,
            receipt: receipt_entries(receipt),
            libraries,
            packages,
        }
    }
}

/// The generations that were removed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct GenerationsRemovedAnswer {
    /// Always `completed`.
    status: String,
    name: String,
    generations: Vec<u64>,
}

impl From<CryoRemoved> for GenerationsRemovedAnswer {
    fn from(removed: CryoRemoved) -> Self {
        let CryoRemoved {
            status,
            name,
            generations,
        } = removed;
        Self {
            status,
            name,
            generations,
        }
    }
}
