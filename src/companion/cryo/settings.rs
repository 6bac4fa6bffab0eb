//! Settings of cryo: what is stored, when, and for how long.

use super::retention::CryoLimits;
use crate::companion::CompanionSettings;
use crate::companion::settings::{read_seconds, read_value, read_variable};
use crate::error::Result;
use std::path::PathBuf;
use std::time::Duration;

const DEFAULT_MAX_CRYO_GENERATIONS: usize = 5;
const DEFAULT_MAX_CRYO_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
const DEFAULT_MAX_CRYO_BYTES: u64 = 20 << 30;

#[derive(Debug, Clone)]
pub(crate) struct CryoSettings {
    pub(super) folder: PathBuf,
    pub(super) limits: CryoLimits,
    /// Interval of snapshots; `None` for no snapshots.
    pub(super) snapshot_interval: Option<Duration>,
    /// Whether the companion stores variables before it ends, when no verb was announced.
    pub(super) snapshot_on_stop: bool,
    pub(super) compress: bool,
}

impl CryoSettings {
    /// # Errors
    /// When a variable is invalid.
    pub(crate) fn from_environment(settings: &CompanionSettings) -> Result<Self> {
        Ok(Self {
            folder: settings.cryo_folder(),
            limits: CryoLimits {
                max_generations: read_value("OSCTL_CRYO_KEEP")?
                    .unwrap_or(DEFAULT_MAX_CRYO_GENERATIONS),
                max_age: read_seconds("OSCTL_CRYO_AGE")?.unwrap_or(DEFAULT_MAX_CRYO_AGE),
                max_total_bytes: read_value("OSCTL_CRYO_BUDGET")?.unwrap_or(DEFAULT_MAX_CRYO_BYTES),
            },
            snapshot_interval: read_seconds("OSCTL_CRYO_EVERY")?,
            snapshot_on_stop: read_variable("OSCTL_CRYO_AT_STOP").as_deref() != Some("off"),
            compress: read_variable("OSCTL_CRYO_COMPRESSION").as_deref() == Some("zstd"),
        })
    }
}
