//! Reasons why a store or reload was refused. A refused request has changed nothing.

use crate::companion::kernel;
use crate::protocol::kernel::RunError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CryoRefusal {
    Kernel(kernel::KernelRefusal),
    /// A name that can't be one.
    Invalid(String),
    NoName(String),
    NoGeneration {
        name: String,
        generation: u64,
        newest: u64,
    },
    /// It is not what was written, or can't be read by this version.
    Damaged {
        name: String,
        generation: u64,
        why: String,
        /// The one before that can be reloaded.
        previous: Option<u64>,
    },
    /// Something would be lost, and was not to be.
    Losses(String),
    /// The disk.
    Full,
    /// It was stopped, or user code that it ran for it raised.
    Raised(RunError),
    Failed(String),
}

impl From<kernel::KernelRefusal> for CryoRefusal {
    fn from(refusal: kernel::KernelRefusal) -> Self {
        Self::Kernel(refusal)
    }
}

impl CryoRefusal {
    /// What the kernel raised when it was to store.
    pub(super) fn of_store(raised: RunError) -> Self {
        match raised.kind.as_str() {
            "Losses" => Self::Losses(raised.message),
            "DiskFull" => Self::Full,
            "NotWritten" => Self::Failed(raised.message),
            _ => Self::Raised(raised),
        }
    }
}
