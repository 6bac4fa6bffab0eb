//! The answers of `--json`: one struct for each shape that a verb prints.
//!
//! The rules for all of them, which a test checks:
//!
//! - A verb prints one object; `osctl logs` prints one object per line. A list is in a key with a plural name.
//! - Keys are in snake case. Every key is always present; a value that is unknown or does not apply is `null`.
//! - A time is RFC 3339 in UTC, and its key ends in `_at`. A duration is a number of seconds, and its key ends in
//!   `_seconds`. A size is a number of bytes, and its key ends in `_bytes`.
//! - A value from a fixed set is a word in lower case.
//!
//! Answers of the companion and the keeper have the wire form of `protocol`; the `From` implementations convert them.
//! `docs/schema/osctl.schema.json` and `docs/guide/json.md` are generated from these types by `tests.rs`.

mod activity;
mod criu;
mod cryo;
mod environment;
mod evolve;
mod host;
mod instance;
mod mcp;
mod runs;
mod sessions;
#[cfg(test)]
mod tests;

pub(super) use activity::{ActivitiesAnswer, ActivityEntry};
pub(super) use criu::{
    CheckpointAnswer, CheckpointRemovedAnswer, CheckpointsAnswer, CriuStatusAnswer, RestoreAnswer,
};
pub(super) use cryo::{
    GenerationAnswer, GenerationsRemovedAnswer, ReloadAnswer, StoreAnswer, StoredStatesAnswer,
};
pub(super) use environment::EnvironmentAnswer;
pub(super) use evolve::{
    EvolveDiffAnswer, EvolveHistoryAnswer, EvolveRunAnswer, EvolveStartedAnswer, EvolveStatusAnswer,
};
pub(super) use host::{
    ConfigAnswer, ConfigEntry, CopyAnswer, DesktopAnswer, InitAnswer, InitFile, KernelspecAnswer,
    KernelspecEntry, KernelspecRemovedAnswer, KernelspecsAnswer, PackagesAnswer,
    PackagesChangedAnswer, PathAnswer, ScreenshotAnswer,
};
pub(super) use instance::{
    BuildAnswer, CheckVerdict, DoctorAnswer, DoctorEntry, DownAnswer, InstanceEntry,
    InstanceEntryState, InstancesAnswer, LogLine, StatusAnswer,
};
pub(super) use mcp::{ClientAnswer, ServersAnswer, ToolResultAnswer, ToolsAnswer};
pub(super) use runs::{
    ExecAnswer, InterruptAnswer, ListedRunStatus, ResetAnswer, RunsAnswer, ShellAnswer,
    StartedAnswer, TerminalEndedAnswer, TerminalsAnswer,
};
pub(super) use sessions::{SessionEntry, SessionRemovedAnswer, SessionsAnswer};

use chrono::{DateTime, SecondsFormat, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use std::borrow::Cow;

/// The last second that RFC 3339 can express: the end of the year 9999.
const MAX_UTC_SECONDS: f64 = 253_402_300_799.0;

/// A time as RFC 3339 in UTC, with milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct UtcTime(String);

impl UtcTime {
    /// From seconds since 1970. A time that RFC 3339 can't express becomes the nearest one.
    fn from_seconds(seconds: f64) -> Self {
        let millis = (seconds.clamp(0.0, MAX_UTC_SECONDS) * 1e3).round();
        Self::from_date(DateTime::from_timestamp_millis(millis as i64).unwrap_or_default())
    }

    fn from_date(time: DateTime<Utc>) -> Self {
        Self(time.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl JsonSchema for UtcTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "UtcTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "date-time",
            "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
        })
    }
}

/// Converts milliseconds into seconds with six decimals.
fn seconds_from_ms(milliseconds: f64) -> f64 {
    (milliseconds * 1e3).round() / 1e6
}
