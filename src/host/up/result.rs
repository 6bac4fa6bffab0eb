//! The result of `up`.

use crate::host::instance::InstanceRecord;

/// The action that `up` took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpOutcome {
    Unchanged,
    /// None; the variables that the calling shell passes differ from those of the container.
    UnchangedWithOtherEnv,
    /// A paused container continued, with its memory.
    Continued,
    Started,
    Created,
    Replaced,
    /// Replaced through the stages of an evolve, with the state of the kernel.
    ReplacedViaKeeper,
}

/// The container that runs now.
#[derive(Debug)]
pub(crate) struct UpResult {
    pub(crate) record: InstanceRecord,
    /// The action that `up` took.
    pub(crate) outcome: UpOutcome,
    /// Why the keeper does not run, if the instance should have one.
    pub(crate) keeper_error: Option<anyhow::Error>,
    /// Notes for the user about variables and the image.
    pub(crate) notes: Vec<String>,
    /// Warnings about lost values of variables.
    pub(crate) warnings: Vec<String>,
}
