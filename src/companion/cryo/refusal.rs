//! Reasons why a store or reload was refused. A refused request has changed nothing.

use crate::companion::kernel;
use crate::protocol::kernel::RunError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CryoRefusal {
    Kernel(kernel::KernelRefusal),
    /// An invalid name.
    Invalid(String),
    NoName(String),
    NoGeneration {
        name: String,
        generation: u64,
        newest: u64,
    },
    /// The generation was changed, cut, or written by a later version.
    Damaged {
        name: String,
        generation: u64,
        why: String,
        /// The newest earlier generation that can be reloaded.
        previous: Option<u64>,
    },
    /// Variables would be lost, and the request forbids losses.
    StrictLosses(String),
    /// The disk is full.
    DiskFull,
    /// The store or reload was stopped, or user code raised an exception during it.
    UserError(RunError),
    Failed(String),
}

impl From<kernel::KernelRefusal> for CryoRefusal {
    fn from(refusal: kernel::KernelRefusal) -> Self {
        Self::Kernel(refusal)
    }
}

impl CryoRefusal {
    /// Converts the exception that the kernel raised during a store.
    pub(super) fn from_store_error(raised: RunError) -> Self {
        match raised.kind.as_str() {
            "Losses" => Self::StrictLosses(raised.message),
            "DiskFull" => Self::DiskFull,
            "NotWritten" => Self::Failed(raised.message),
            _ => Self::UserError(raised),
        }
    }
}
