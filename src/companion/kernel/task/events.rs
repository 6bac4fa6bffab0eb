//! Handling of process events: output, frames, and the exit.

use super::KernelOwner;
use super::detached::StartAction;
use super::job::{KernelJob, KernelJobOutcome};
use crate::companion::kernel::KernelAnswer;
use crate::companion::kernel::KernelRefusal;
use crate::companion::kernel::connection::{KernelCounts, KernelFrame, KernelHello};
use crate::companion::kernel::exit_reason::new_run_error;
use crate::companion::kernel::policy::{KernelPolicyEvent, KernelPolicyState};
use crate::companion::kernel::process::ProcessEvent;
use crate::companion::kernel::supervisor_client::KernelExit;
use crate::companion::runs::SpillFiles;
use crate::protocol::BODY_PROTOCOL_VERSION;
use crate::protocol::kernel::{KernelReport, OutputStream, RunEventKind, RunStatus};
use tokio::time::Instant;

/// Maximum bytes of output between two runs that are logged.
const MAX_STRAY_OUTPUT_BYTES: usize = 4 << 10;

impl KernelOwner {
    pub(super) async fn handle_event(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Output(stream, bytes) => self.handle_output(stream, bytes).await,
            ProcessEvent::Frame(frame) => self.handle_frame(frame).await,
            ProcessEvent::ConnectionLost(why) => {
                tracing::warn!("the companion ends the kernel: {why}");
                self.last_failure.clone_from(&why);
                // A kernel that is being killed has its reason already.
                if !matches!(self.state, KernelPolicyState::Killed { .. }) {
                    self.end_reason = Some(why);
                }
                self.apply_event(KernelPolicyEvent::Broken);
            }
            ProcessEvent::Exited(ended) => self.handle_exit(&ended).await,
        }
    }

    async fn handle_output(&mut self, stream: OutputStream, mut bytes: Vec<u8>) {
        match &self.current_job {
            Some(KernelJob::Run(run)) => {
                let run = run.clone();
                let spilled_bytes = run.write_output(stream, &bytes);
                if spilled_bytes > 0 {
                    bytes.drain(..bytes.len() - spilled_bytes);
                    let folder = &self.settings.output_folder;
                    self.spill_files
                        .write_output(folder, &run, stream, bytes)
                        .await;
                }
            }
            _ => self.log_stray_output(&bytes),
        }
    }

    /// Logs output of threads and processes that a run left behind. No run can receive the output, so the log gets the
    /// first bytes.
    fn log_stray_output(&mut self, bytes: &[u8]) {
        let free_bytes = MAX_STRAY_OUTPUT_BYTES.saturating_sub(self.stray_output_bytes);
        self.stray_output_bytes += bytes.len();
        if free_bytes > 0 && !bytes.is_empty() {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(free_bytes)]).into_owned();
            let rest = if bytes.len() > free_bytes {
                " … (the rest is dropped)"
            } else {
                ""
            };
            tracing::info!("output between runs: {}{rest}", text.trim_end());
        }
    }

    async fn handle_frame(&mut self, frame: KernelFrame) {
        match (frame, &self.current_job) {
            (KernelFrame::Hello(hello), _) => self.handle_hello(hello),
            (KernelFrame::Display(bundle), Some(KernelJob::Run(run))) => {
                run.add_event(RunEventKind::Display(bundle))
            }
            (KernelFrame::Result(bundle), Some(KernelJob::Run(run))) => {
                run.add_event(RunEventKind::Result(bundle))
            }
            (KernelFrame::Clear { wait }, Some(KernelJob::Run(run))) => {
                run.add_event(RunEventKind::Clear { wait })
            }
            // The error of interrupted code is reported once, with the reason of the interrupt.
            (KernelFrame::Error { error }, Some(KernelJob::Run(_)))
                if self.stop_reason.is_some() =>
            {
                self.interrupted_error = Some(error);
            }
            (KernelFrame::Error { error }, Some(KernelJob::Run(run))) => {
                run.add_event(RunEventKind::Error { error })
            }
            (KernelFrame::Done { status, counts }, Some(KernelJob::Run(_)))
                if self.job_outcome.is_none() =>
            {
                self.counts = counts;
                self.drain_output().await;
                self.finish_job(KernelJobOutcome::Run(status));
            }
            (KernelFrame::Reply { counts, .. }, _)
                if matches!(self.state, KernelPolicyState::Starting { .. }) =>
            {
                self.counts = counts;
                self.handle_ready();
            }
            (KernelFrame::Reply { .. }, None) if self.state == KernelPolicyState::Probing => {
                self.apply_event(KernelPolicyEvent::Done)
            }
            (
                KernelFrame::Reply {
                    error: None,
                    counts,
                    ..
                },
                Some(KernelJob::Detach { .. }),
            ) if self.job_outcome.is_none() => {
                self.counts = counts;
                self.detach_kernel().await;
            }
            (KernelFrame::Reply { counts, .. }, Some(_))
                if self.state == KernelPolicyState::Probing =>
            {
                self.counts = counts;
                self.drain_output().await;
                self.report_job_outcome();
            }
            (
                KernelFrame::Reply {
                    value,
                    error,
                    counts,
                },
                Some(KernelJob::Query { .. } | KernelJob::Detach { .. }),
            ) => {
                self.counts = counts;
                self.finish_job(KernelJobOutcome::Query(error.map_or(Ok(value), Err)));
            }
            (KernelFrame::Progress { bytes }, _) => self.transferred_bytes = bytes,
            // The body is older than this query: the kernel works.
            (KernelFrame::Refused { error }, Some(KernelJob::Query { query, .. }))
                if query.is_long() && self.job_outcome.is_none() =>
            {
                self.finish_job(KernelJobOutcome::Query(Err(error)));
            }
            (KernelFrame::Refused { error }, _) => {
                tracing::error!("the kernel refused a request: {}", error.message);
                self.apply_event(KernelPolicyEvent::Broken);
            }
            (late, _) => tracing::debug!("dropped a late frame: {late:?}"),
        }
    }

    fn handle_hello(&mut self, hello: KernelHello) {
        if hello.protocol != BODY_PROTOCOL_VERSION {
            self.last_failure = format!(
                "the kernel speaks protocol {}, this companion speaks {BODY_PROTOCOL_VERSION}",
                hello.protocol
            );
            tracing::error!("{}", self.last_failure);
            return self.apply_event(KernelPolicyEvent::Broken);
        }
        // The process is new, or was restored from a checkpoint.
        self.sent_environment = None;
        // The kernel is ready only after it has loaded its packages, and a package may prevent that.
        self.hello = Some(hello);
    }

    fn handle_ready(&mut self) {
        let Some(hello) = &self.hello else { return };
        let start_action = std::mem::replace(&mut self.start_action, StartAction::New);
        let is_new = start_action == StartAction::New;
        match start_action {
            StartAction::New => self.generation_store.begin_empty_generation(),
            StartAction::Same => {}
            StartAction::Restored => self.generation_store.begin_restored_generation(),
        }
        let (body, generation) = (&hello.body_version, self.generation_store.generation());
        let session = &self.session;
        tracing::info!(
            session,
            python = hello.python,
            body,
            generation,
            "kernel is ready"
        );
        self.apply_event(KernelPolicyEvent::Ready);
        self.remove_checkpoint_marker();
        self.answer_attach_waiter(Ok(self.generation_store.peek_report(generation, None)));
        if is_new {
            self.restore_next();
        }
        for waiting in std::mem::take(&mut self.restart_waiters) {
            let report = self.generation_store.record_report(generation, None);
            // The caller may have disconnected.
            let _ = waiting.send(Ok(KernelAnswer::without_value(report)));
        }
    }

    pub(super) async fn drain_output(&mut self) {
        let Some(process) = &self.process else { return };
        for (stream, bytes) in process.drain_output() {
            self.handle_output(stream, bytes).await;
        }
    }

    async fn handle_exit(&mut self, ended: &KernelExit) {
        self.drain_output().await;
        let last_words = self
            .process
            .take()
            .map(|p| p.stderr_tail())
            .unwrap_or_default();
        self.run_deadline = None;
        (self.job_outcome, self.interrupted_error) = (None, None);
        self.answer_interrupts(&KernelReport::lost(self.generation_store.generation()));
        let stop = self.stop_reason.take();
        // Without an `end_reason`, the policy kills only kernels that do not stop.
        let did_not_stop =
            matches!(self.state, KernelPolicyState::Killed { .. }) && self.end_reason.is_none();
        let how = match std::mem::take(&mut self.end_reason) {
            Some(why) => format!("the companion ended the kernel because {why}"),
            None => self.exit_history.describe_exit(ended),
        };
        tracing::warn!("{how}");
        if matches!(self.state, KernelPolicyState::Starting { .. }) || self.last_failure.is_empty()
        {
            self.last_failure = [how.clone(), last_words].join("\n").trim_end().to_owned();
        }
        match self.current_job.take() {
            Some(KernelJob::Run(run)) => {
                let (status, error) = match stop {
                    Some(stop) => {
                        let how = (!did_not_stop).then_some(how.as_str());
                        (RunStatus::Interrupted, stop.kernel_lost_error(how))
                    }
                    None => {
                        let message = format!("{how} while this code ran; variables are lost");
                        (RunStatus::Failed, new_run_error("KernelDied", message))
                    }
                };
                run.add_event(RunEventKind::Error { error });
                let generation = self.generation_store.generation();
                self.generation_store.record_report(generation, None);
                run.finish(status, KernelReport::lost(generation));
            }
            Some(job) => self.abandon_job(job, &KernelRefusal::NoKernel(how)),
            None => {}
        }
        self.answer_attach_waiter(Err(KernelRefusal::NoKernel(self.last_failure.clone())));
        self.start_action = StartAction::New;
        self.spill_files = SpillFiles::default();
        self.hello = None;
        self.counts = KernelCounts::default();
        self.reset_execution_count = 0;
        self.last_used = Instant::now();
        self.last_changed = self.last_used;
        self.apply_event(KernelPolicyEvent::Exited);
    }
}
