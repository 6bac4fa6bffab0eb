//! Handling of process events: output, frames, and the exit.

use super::KernelOwner;
use super::job::{CurrentJob, KernelJob, KernelJobOutcome};
use crate::companion::kernel::KernelAnswer;
use crate::companion::kernel::KernelRefusal;
use crate::companion::kernel::connection::{KernelCounts, KernelFrame, KernelHello};
use crate::companion::kernel::policy::{
    KernelPolicyEvent, KernelPolicyState, ProbeCause, StartNamespace,
};
use crate::companion::kernel::process::ProcessEvent;
use crate::companion::kernel::run_end::KernelEnd;
use crate::protocol::BODY_PROTOCOL_VERSION;
use crate::protocol::kernel::{KernelReport, OutputStream, RunEventKind};
use crate::supervise::SupervisedExit;
use tokio::time::Instant;

/// Maximum bytes of output between two runs that are logged.
const MAX_STRAY_OUTPUT_BYTES: usize = 4 << 10;

impl KernelOwner {
    pub(super) async fn handle_event(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Output(stream, bytes) => self.handle_output(stream, bytes).await,
            ProcessEvent::Frame(frame) => self.handle_frame(frame).await,
            ProcessEvent::ConnectionLost(why) => {
                tracing::warn!(%why, "the companion ends the kernel");
                self.break_kernel(why);
            }
            ProcessEvent::Exited(ended) => self.handle_exit(&ended).await,
        }
    }

    async fn handle_output(&mut self, stream: OutputStream, mut bytes: Vec<u8>) {
        match &mut self.current_job {
            Some(CurrentJob {
                job: KernelJob::Run(run),
                spill_files,
                ..
            }) => {
                let spilled_bytes = run.write_output(stream, &bytes);
                if spilled_bytes > 0 {
                    bytes.drain(..bytes.len() - spilled_bytes);
                    let folder = &self.settings.output_folder;
                    spill_files.write_output(folder, run, stream, bytes).await;
                }
            }
            _ => self.log_stray_output(&bytes),
        }
    }

    /// Logs output of threads and processes that a run left behind. No run can receive the output, so the log gets the
    /// first bytes.
    fn log_stray_output(&mut self, bytes: &[u8]) {
        let free_bytes = MAX_STRAY_OUTPUT_BYTES.saturating_sub(self.usage.stray_output_bytes);
        self.usage.stray_output_bytes += bytes.len();
        if free_bytes > 0 && !bytes.is_empty() {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(free_bytes)]).into_owned();
            let dropped_bytes = bytes.len().saturating_sub(free_bytes);
            tracing::info!(
                text = text.trim_end(),
                dropped_bytes = (dropped_bytes > 0).then_some(dropped_bytes),
                "the kernel wrote output between runs"
            );
        }
    }

    async fn handle_frame(&mut self, frame: KernelFrame) {
        let Some(current) = &mut self.current_job else {
            return self.handle_frame_without_job(frame);
        };
        let is_running = current.outcome.is_none();
        match (frame, &current.job) {
            (KernelFrame::Display(bundle), KernelJob::Run(run)) => {
                run.add_event(RunEventKind::Display(bundle));
            }
            (KernelFrame::Result(bundle), KernelJob::Run(run)) => {
                run.add_event(RunEventKind::Result(bundle));
            }
            (KernelFrame::Clear { wait }, KernelJob::Run(run)) => {
                run.add_event(RunEventKind::Clear { wait });
            }
            // The error of interrupted code is reported once, with the reason of the interrupt.
            (KernelFrame::Error { error }, KernelJob::Run(_)) if current.stop_reason.is_some() => {
                current.interrupted_error = Some(error);
            }
            (KernelFrame::Error { error }, KernelJob::Run(run)) => {
                run.add_event(RunEventKind::Error { error });
            }
            (KernelFrame::Done { status, counts }, KernelJob::Run(_)) if is_running => {
                self.usage.counts = counts;
                self.drain_output().await;
                self.finish_job(KernelJobOutcome::Run(status));
            }
            (
                KernelFrame::Reply {
                    error: None,
                    counts,
                    ..
                },
                KernelJob::Detach { .. },
            ) if is_running => {
                self.usage.counts = counts;
                self.detach_kernel().await;
            }
            (KernelFrame::Reply { counts, .. }, _)
                if self.state == KernelPolicyState::Probing(ProbeCause::StoppedCode) =>
            {
                self.usage.counts = counts;
                self.drain_output().await;
                self.report_job_outcome();
            }
            (
                KernelFrame::Reply {
                    value,
                    error,
                    counts,
                },
                KernelJob::Query { .. } | KernelJob::Detach { .. },
            ) => {
                self.usage.counts = counts;
                self.finish_job(KernelJobOutcome::Query(error.map_or(Ok(value), Err)));
            }
            // The body is older than this query: the kernel works.
            (KernelFrame::Refused { error }, KernelJob::Query { query, .. })
                if query.is_long() && is_running =>
            {
                self.finish_job(KernelJobOutcome::Query(Err(error)));
            }
            (frame, _) => self.handle_frame_without_job(frame),
        }
    }

    /// Handles a frame that concerns no job.
    fn handle_frame_without_job(&mut self, frame: KernelFrame) {
        match frame {
            KernelFrame::Hello(hello) => self.handle_hello(hello),
            KernelFrame::Reply { counts, .. }
                if matches!(self.state, KernelPolicyState::Starting { .. }) =>
            {
                self.usage.counts = counts;
                self.handle_ready();
            }
            KernelFrame::Reply { .. }
                if self.state == KernelPolicyState::Probing(ProbeCause::Idle) =>
            {
                self.apply_event(KernelPolicyEvent::Done);
            }
            KernelFrame::Progress { bytes } => self.usage.transferred_bytes = bytes,
            KernelFrame::Refused { error } => {
                tracing::error!(why = error.message, "the kernel refused a request");
                self.break_kernel(format!("the kernel refused a request: {}", error.message));
            }
            late => tracing::debug!(frame = ?late, "the companion drops a late frame"),
        }
    }

    fn handle_hello(&mut self, hello: KernelHello) {
        if hello.protocol != BODY_PROTOCOL_VERSION {
            let why = format!(
                "the kernel speaks protocol {}, and this companion speaks {BODY_PROTOCOL_VERSION}",
                hello.protocol
            );
            tracing::error!(
                protocol = hello.protocol,
                expected = BODY_PROTOCOL_VERSION,
                "the kernel speaks another protocol than the companion"
            );
            return self.break_kernel(why);
        }
        // The process is new, or was restored from a checkpoint.
        self.kernel.sent_environment = None;
        // The kernel is ready only after it has loaded its packages, and a package may prevent that.
        self.kernel.hello = Some(hello);
    }

    fn handle_ready(&mut self) {
        let KernelPolicyState::Starting { namespace, .. } = self.state else {
            return;
        };
        let Some(hello) = &self.kernel.hello else {
            return;
        };
        match namespace {
            StartNamespace::Empty => self.generation_store.begin_empty_generation(),
            StartNamespace::Same => {}
            StartNamespace::Restored => self.generation_store.begin_restored_generation(),
        }
        let (body, generation) = (&hello.body_version, self.generation_store.generation());
        tracing::info!(
            generation,
            python = hello.python,
            body,
            "the kernel is ready"
        );
        self.apply_event(KernelPolicyEvent::Ready);
        self.remove_checkpoint_marker();
        let report = self.generation_store.peek_report(generation, None);
        self.waiters.answer_attach(Ok(report));
        if namespace == StartNamespace::Empty {
            self.restore_next();
        }
        for waiting in std::mem::take(&mut self.waiters.restarts) {
            let report = self.generation_store.record_report(generation, None);
            // The caller may have disconnected.
            let _ = waiting.send(Ok(KernelAnswer::without_value(report)));
        }
    }

    pub(super) async fn drain_output(&mut self) {
        let Some(process) = &self.kernel.process else {
            return;
        };
        for (stream, bytes) in process.drain_output() {
            self.handle_output(stream, bytes).await;
        }
    }

    async fn handle_exit(&mut self, ended: &SupervisedExit) {
        self.drain_output().await;
        let kernel = &mut self.kernel;
        let process = kernel.process.take();
        let last_words = process.map(|p| p.stderr_tail()).unwrap_or_default();
        let exit = kernel.exit_history.describe_exit(ended);
        let broken_reason = std::mem::take(&mut kernel.broken_reason);
        let end = KernelEnd::new(self.state.kill_reason(), broken_reason, exit);
        tracing::warn!(why = end.how, "the kernel ended");
        if self.state.has_failed_to_start() || kernel.last_failure.is_empty() {
            let failure = [end.how.clone(), last_words].join("\n");
            kernel.last_failure = failure.trim_end().to_owned();
        }
        kernel.hello = None;
        let lost = KernelReport::lost(self.generation_store.generation());
        self.waiters.answer_interrupts(&lost);
        if let Some(current) = self.current_job.take() {
            self.end_job_with_kernel(current, &end);
        }
        let failure = KernelRefusal::NoKernel(self.kernel.last_failure.clone());
        self.waiters.answer_attach(Err(failure));
        self.usage.counts = KernelCounts::default();
        self.usage.reset_execution_count = 0;
        self.usage.last_used = Instant::now();
        self.usage.last_changed = self.usage.last_used;
        self.apply_event(KernelPolicyEvent::Exited);
    }
}
