//! The result of `up`.

use crate::host::instance::InstanceRecord;

/// What had to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpOutcome {
    Nothing,
    /// And the variables that the calling shell passes are not those of the container.
    NothingWithOtherKeys,
    Started,
    Created,
    Replaced,
    /// By the keeper's gates, with what the kernel knew.
    HandedOver,
}

/// What now runs.
#[derive(Debug)]
pub(crate) struct UpResult {
    pub(crate) record: InstanceRecord,
    /// What had to be done for it.
    pub(crate) done: UpOutcome,
    /// Why the keeper does not run beside it, where there should be one.
    pub(crate) without_keeper: Option<anyhow::Error>,
    /// Notes for the user about variables and the image.
    pub(crate) notes: Vec<String>,
}
