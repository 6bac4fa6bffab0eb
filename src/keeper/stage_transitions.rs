//! The order of a run's stages.

use crate::protocol::evolve::{EvolveStage, RunTask};

/// The outcome of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StageOutcome {
    Passed,
    /// The container already is what the run would create.
    Unchanged,
    Failed,
}

/// The first stage of a run. The image of a rollback is built already. A container that a rescue replaces crashes and
/// has no state to store.
pub(super) fn first_stage(task: RunTask) -> EvolveStage {
    match task {
        RunTask::Evolve => EvolveStage::Building,
        RunTask::Rollback => EvolveStage::Testing,
        RunTask::Rescue => EvolveStage::Swapping,
    }
}

/// The next stage, or the end, after the outcome of a stage.
pub(super) fn next_stage(stage: EvolveStage, event: StageOutcome, dry_run: bool) -> EvolveStage {
    use StageOutcome::{Failed, Passed, Unchanged};
    match (stage, event) {
        (EvolveStage::Succeeded | EvolveStage::RolledBack | EvolveStage::Failed, _) => stage,
        (_, Unchanged) => EvolveStage::Succeeded,
        (EvolveStage::Building, Passed) => EvolveStage::Testing,
        (EvolveStage::Testing, Passed) if dry_run => EvolveStage::Succeeded,
        (EvolveStage::Testing, Passed) => EvolveStage::Quiescing,
        (EvolveStage::Quiescing, Passed) => EvolveStage::Swapping,
        (EvolveStage::Swapping, Passed) => EvolveStage::Verifying,
        (EvolveStage::Verifying, Passed) => EvolveStage::Succeeded,
        (EvolveStage::Building | EvolveStage::Testing | EvolveStage::Quiescing, Failed) => {
            EvolveStage::Failed
        }
        (EvolveStage::Swapping | EvolveStage::Verifying, Failed) => EvolveStage::RolledBack,
    }
}

#[cfg(test)]
mod tests {
    use super::StageOutcome::{Failed, Passed, Unchanged};
    use super::{first_stage, next_stage};
    use crate::protocol::evolve::{EvolveStage, RunTask};

    fn whole(task: RunTask, dry_run: bool, fails_at: Option<EvolveStage>) -> Vec<EvolveStage> {
        let mut stages = vec![first_stage(task)];
        while let Some(last) = stages.last().filter(|s| !s.has_ended()) {
            let event = match fails_at == Some(*last) {
                true => Failed,
                false => Passed,
            };
            stages.push(next_stage(*last, event, dry_run));
        }
        stages
    }

    #[test]
    fn a_run_passes_every_stage() {
        use EvolveStage::{Building, Quiescing, Succeeded, Swapping, Testing, Verifying};
        let all = [Building, Testing, Quiescing, Swapping, Verifying, Succeeded];
        assert_eq!(whole(RunTask::Evolve, false, None), all);
        assert_eq!(whole(RunTask::Rollback, false, None), all[1..]);
        assert_eq!(whole(RunTask::Rescue, false, None), all[3..]);
        assert_eq!(
            whole(RunTask::Evolve, true, None),
            [Building, Testing, Succeeded]
        );
        assert_eq!(next_stage(Building, Unchanged, false), Succeeded);
    }

    #[test]
    fn a_failure_before_the_swap_ends_the_run_and_a_later_one_rolls_back() {
        for (stage, end) in [
            (EvolveStage::Building, EvolveStage::Failed),
            (EvolveStage::Testing, EvolveStage::Failed),
            (EvolveStage::Quiescing, EvolveStage::Failed),
            (EvolveStage::Swapping, EvolveStage::RolledBack),
            (EvolveStage::Verifying, EvolveStage::RolledBack),
        ] {
            assert_eq!(
                whole(RunTask::Evolve, false, Some(stage)).last(),
                Some(&end)
            );
        }
    }

    #[test]
    fn an_ended_run_changes_its_stage_no_more() {
        for end in [
            EvolveStage::Succeeded,
            EvolveStage::RolledBack,
            EvolveStage::Failed,
        ] {
            for event in [Passed, Unchanged, Failed] {
                assert_eq!(next_stage(end, event, false), end);
            }
        }
    }
}
