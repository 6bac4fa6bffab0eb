//! What callers read at the end of a job, as pure functions of how it ended and why it was stopped.

use super::KernelRefusal;
use super::connection::KernelCellOutcome;
use super::exit_reason::{StopReason, new_run_error};
use super::policy::{KERNEL_HELLO_TIMEOUT, KillReason, ProbeCause};
use crate::protocol::kernel::{RunError, RunStatus};

/// How a job ended.
#[derive(Debug)]
pub(super) enum JobEnd<'a> {
    /// The kernel reported this outcome.
    Outcome(KernelCellOutcome),
    KernelEnded(&'a KernelEnd),
    /// An interrupt removed the job from the queue.
    Removed,
    /// The owner abandoned the queued job.
    Abandoned(&'a KernelRefusal),
}

/// How a kernel ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KernelEnd {
    /// A clause with the kernel or the companion as its subject.
    pub(super) how: String,
    pub(super) has_ignored_interrupt: bool,
}

impl KernelEnd {
    /// `exit` describes the exit of the process, `broken` the reason of [`KillReason::Broken`].
    pub(super) fn new(kill: Option<KillReason>, broken: String, exit: String) -> Self {
        let why = match kill {
            None | Some(KillReason::IgnoredInterrupt) => None,
            Some(KillReason::NoProbeAnswer(ProbeCause::Idle)) => {
                Some("the idle kernel did not answer a probe".into())
            }
            Some(KillReason::NoProbeAnswer(ProbeCause::StoppedCode)) => {
                Some("the kernel did not answer a probe after its code had stopped".into())
            }
            Some(KillReason::NotStarted) => {
                let seconds = KERNEL_HELLO_TIMEOUT.as_secs();
                Some(format!("the kernel did not start within {seconds} s"))
            }
            Some(KillReason::Requested) => Some("a restart or a shutdown was requested".into()),
            Some(KillReason::Broken) => Some(broken),
        };
        Self {
            how: why.map_or(exit, |why| {
                format!("the companion ended the kernel because {why}")
            }),
            has_ignored_interrupt: kill == Some(KillReason::IgnoredInterrupt),
        }
    }

    fn stop_error(&self, stop: StopReason) -> RunError {
        stop.kernel_lost_error((!self.has_ignored_interrupt).then_some(&self.how))
    }

    /// The refusal of a request that waited for the kernel's answer.
    pub(super) fn refusal(&self, stop: Option<StopReason>) -> KernelRefusal {
        KernelRefusal::KernelLost(match stop {
            Some(stop) => self.stop_error(stop).message,
            None => format!("{} during the request; variables are lost", self.how),
        })
    }
}

/// The end of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RunEnd {
    pub(super) status: RunStatus,
    /// The error that the owner adds to those of the code.
    pub(super) error: Option<RunError>,
    /// Whether the run's namespace is lost.
    pub(super) is_lost: bool,
}

pub(super) fn decide_run_end(end: &JobEnd<'_>, stop: Option<StopReason>) -> RunEnd {
    let is_lost = matches!(end, JobEnd::KernelEnded(_));
    let (status, error) = match (end, stop) {
        (JobEnd::Outcome(KernelCellOutcome::Completed), _) => (RunStatus::Completed, None),
        // Interrupted code may end with a different exception.
        (JobEnd::Outcome(_), Some(stop)) => {
            (RunStatus::Interrupted, Some(stop.interrupted_error()))
        }
        (JobEnd::Outcome(KernelCellOutcome::Interrupted), None) => (RunStatus::Interrupted, None),
        (JobEnd::Outcome(KernelCellOutcome::Failed), None) => (RunStatus::Failed, None),
        (JobEnd::KernelEnded(end), Some(stop)) => {
            (RunStatus::Interrupted, Some(end.stop_error(stop)))
        }
        (JobEnd::KernelEnded(end), None) => {
            let message = format!("{} while this code ran; variables are lost", end.how);
            (
                RunStatus::Failed,
                Some(new_run_error("KernelDied", message)),
            )
        }
        (JobEnd::Removed, _) => {
            let message = "the run was removed from the queue before it started".into();
            (
                RunStatus::Interrupted,
                Some(new_run_error("Interrupted", message)),
            )
        }
        (JobEnd::Abandoned(refusal), _) => {
            let error = new_run_error("NotStarted", describe_abandonment(refusal));
            (RunStatus::Failed, Some(error))
        }
    };
    RunEnd {
        status,
        error,
        is_lost,
    }
}

fn describe_abandonment(refusal: &KernelRefusal) -> String {
    match refusal {
        KernelRefusal::NoKernel(why) => format!("the kernel can't be started: {why}"),
        KernelRefusal::NoSession(_) => "the session was deleted before the code started".into(),
        KernelRefusal::Checkpointed { checkpoint, .. } => {
            format!("the kernel was checkpointed to `{checkpoint}` before the code started")
        }
        _ => "the companion was stopped before the code started".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{JobEnd, KernelEnd, RunEnd, decide_run_end};
    use crate::companion::kernel::connection::KernelCellOutcome::{
        self, Completed, Failed, Interrupted,
    };
    use crate::companion::kernel::exit_reason::StopReason;
    use crate::companion::kernel::policy::{KillReason, ProbeCause};
    use crate::protocol::kernel::RunStatus;

    #[test]
    fn the_reason_of_a_kill_replaces_the_exit_code() {
        let end = |kill| KernelEnd::new(kill, "BROKEN".into(), "EXIT".into());
        let because = |why: &str| format!("the companion ended the kernel because {why}");
        let cases = [
            (None, "EXIT".to_owned()),
            (Some(KillReason::IgnoredInterrupt), "EXIT".into()),
            (
                Some(KillReason::NoProbeAnswer(ProbeCause::Idle)),
                because("the idle kernel did not answer a probe"),
            ),
            (
                Some(KillReason::NoProbeAnswer(ProbeCause::StoppedCode)),
                because("the kernel did not answer a probe after its code had stopped"),
            ),
            (
                Some(KillReason::NotStarted),
                because("the kernel did not start within 60 s"),
            ),
            (
                Some(KillReason::Requested),
                because("a restart or a shutdown was requested"),
            ),
            (Some(KillReason::Broken), because("BROKEN")),
        ];
        for (kill, how) in cases {
            let has_ignored_interrupt = kill == Some(KillReason::IgnoredInterrupt);
            let expected = KernelEnd {
                how,
                has_ignored_interrupt,
            };
            assert_eq!(end(kill), expected);
        }
    }

    #[test]
    fn each_end_of_a_run_has_one_status() {
        let stops = [
            StopReason::Requested,
            StopReason::Timeout(1.0),
            StopReason::Restart,
            StopReason::Deleted,
            StopReason::MemoryLimit(1),
            StopReason::Shutdown,
        ];
        let decide = |outcome: KernelCellOutcome, stop| {
            let end = decide_run_end(&JobEnd::Outcome(outcome), stop);
            assert!(!end.is_lost);
            (end.status, end.error.map(|error| error.kind))
        };
        let plain = |status| (status, None);
        assert_eq!(decide(Completed, None), plain(RunStatus::Completed));
        assert_eq!(decide(Failed, None), plain(RunStatus::Failed));
        assert_eq!(decide(Interrupted, None), plain(RunStatus::Interrupted));
        let exit = KernelEnd::new(None, String::new(), "EXIT".into());
        let died = decide_run_end(&JobEnd::KernelEnded(&exit), None);
        assert_eq!((died.status, died.is_lost), (RunStatus::Failed, true));
        for stop in stops {
            assert_eq!(decide(Completed, Some(stop)), plain(RunStatus::Completed));
            let kind = stop.interrupted_error().kind;
            for outcome in [Failed, Interrupted] {
                let expected = (RunStatus::Interrupted, Some(kind.clone()));
                assert_eq!(decide(outcome, Some(stop)), expected);
            }
            let lost = decide_run_end(&JobEnd::KernelEnded(&exit), Some(stop));
            let expected = RunEnd {
                status: RunStatus::Interrupted,
                error: Some(stop.kernel_lost_error(Some("EXIT"))),
                is_lost: true,
            };
            assert_eq!(lost, expected);
        }
    }
}
