//! A job of the kernel, its outcome, and the refusal of a message that does not become a job.

use crate::companion::kernel::connection::{KernelCellOutcome, KernelQuery};
use crate::companion::kernel::detached::DetachedKernel;
use crate::companion::kernel::exit_reason::StopReason;
use crate::companion::kernel::{KernelAnswer, KernelMessage, KernelRefusal, KernelRun};
use crate::companion::runs::SpillFiles;
use crate::protocol::kernel::RunError;
use crate::supervise::descendants;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

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

/// The job that the process executes.
#[derive(Debug)]
pub(super) struct CurrentJob {
    pub(super) job: KernelJob,
    /// The outcome, while the kernel is probed.
    pub(super) outcome: Option<KernelJobOutcome>,
    /// Why the job is to end early; the first reason counts.
    pub(super) stop_reason: Option<StopReason>,
    /// The exception that the interrupted code raised.
    pub(super) interrupted_error: Option<RunError>,
    /// When the time of the job ends, and its time limit in seconds.
    pub(super) deadline: Option<(Instant, f64)>,
    /// Output that exceeds the memory limit.
    pub(super) spill_files: SpillFiles,
    /// When the job started, on the clock of process start times.
    pub(super) started_ticks: i64,
    /// When the job was sent.
    pub(super) sent_at: std::time::Instant,
}

impl CurrentJob {
    /// A job that starts now.
    pub(super) fn start(job: KernelJob, time_limit: Option<(Duration, f64)>) -> Self {
        Self {
            job,
            outcome: None,
            stop_reason: None,
            interrupted_error: None,
            deadline: time_limit.map(|(limit, seconds)| (Instant::now() + limit, seconds)),
            spill_files: SpillFiles::default(),
            started_ticks: descendants::read_boot_ticks(),
            sent_at: std::time::Instant::now(),
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
