//! A job of the kernel, its outcome, and the refusal of a message that does not become a job.

use crate::companion::kernel::connection::{KernelCellOutcome, KernelQuery};
use crate::companion::kernel::detached::DetachedKernel;
use crate::companion::kernel::{KernelAnswer, KernelMessage, KernelRefusal, KernelRun};
use crate::protocol::kernel::RunError;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A request that the process executes or that is queued.
#[derive(Debug)]
pub(super) enum KernelJob {
    Run(Arc<KernelRun>),
    Query {
        query: KernelQuery,
        quiet: bool,
        done: oneshot::Sender<Result<KernelAnswer, KernelRefusal>>,
    },
    /// Release all resources and connections. `done` is taken when the detached kernel is handed to the caller.
    Detach {
        done: Option<oneshot::Sender<Result<DetachedKernel, KernelRefusal>>>,
    },
}

impl KernelJob {
    pub(super) fn code_bytes(&self) -> usize {
        match self {
            Self::Run(run) => run.request.code.len(),
            Self::Query { .. } | Self::Detach { .. } => 0,
        }
    }

    /// Whether the job may change the namespace.
    pub(super) fn changes_namespace(&self) -> bool {
        match self {
            Self::Run(_) => true,
            Self::Query { query, .. } => query.changes_namespace(),
            Self::Detach { .. } => false,
        }
    }
}

/// Outcome of a job as the kernel reports it.
#[derive(Debug)]
pub(super) enum KernelJobOutcome {
    Run(KernelCellOutcome),
    Query(Result<Value, RunError>),
}

pub(super) fn refuse_message(message: KernelMessage, refusal: &KernelRefusal) {
    match message {
        KernelMessage::Execute { admitted, .. } => drop(admitted.send(Err(refusal.clone()))),
        KernelMessage::Query { done, .. }
        | KernelMessage::Restart { done, .. }
        | KernelMessage::RestoreProcess { done, .. } => {
            drop(done.send(Err(refusal.clone())));
        }
        KernelMessage::Detach { done } => drop(done.send(Err(refusal.clone()))),
        KernelMessage::Interrupt { .. }
        | KernelMessage::ReleaseIfIdle { .. }
        | KernelMessage::CheckHealth
        | KernelMessage::MarkUsed
        | KernelMessage::AdoptNewerState { .. }
        | KernelMessage::DrainRuns { .. }
        | KernelMessage::Shutdown { .. } => {}
    }
}
