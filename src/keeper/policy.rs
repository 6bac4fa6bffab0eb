//! Which stage comes after which.

use crate::protocol::evolve::{Stage, Task};

/// What became of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Passed,
    Failed,
}

/// The stage that a run begins with: what is gone back to is built already, and what crashes has
/// nothing left that could be frozen.
pub(super) fn first(task: Task) -> Stage {
    match task {
        Task::Evolve => Stage::Building,
        Task::Rollback => Stage::Testing,
        Task::Rescue => Stage::Swapping,
    }
}

/// The stage, or the end, after what became of one.
pub(super) fn after(stage: Stage, event: Event, dry_run: bool) -> Stage {
    use Event::{Failed, Passed};
    match (stage, event) {
        (Stage::Building, Passed) => Stage::Testing,
        (Stage::Testing, Passed) if dry_run => Stage::Succeeded,
        (Stage::Testing, Passed) => Stage::Freezing,
        (Stage::Freezing, Passed) => Stage::Swapping,
        (Stage::Swapping, Passed) => Stage::Verifying,
        (Stage::Verifying, Passed) => Stage::Succeeded,
        (Stage::Building | Stage::Testing | Stage::Freezing, Failed) => Stage::Failed,
        (Stage::Swapping | Stage::Verifying, Failed) => Stage::RolledBack,
        (Stage::Succeeded | Stage::RolledBack | Stage::Failed, _) => stage,
    }
}

#[cfg(test)]
mod tests {
    use super::Event::{Failed, Passed};
    use super::{after, first};
    use crate::protocol::evolve::{Stage, Task};

    fn whole(task: Task, dry_run: bool, fails_at: Option<Stage>) -> Vec<Stage> {
        let mut stages = vec![first(task)];
        while let Some(last) = stages.last().filter(|s| !s.has_ended()) {
            let event = match fails_at == Some(*last) {
                true => Failed,
                false => Passed,
            };
            stages.push(after(*last, event, dry_run));
        }
        stages
    }

    #[test]
    fn a_run_goes_through_every_gate() {
        use Stage::{Building, Freezing, Succeeded, Swapping, Testing, Verifying};
        let all = [Building, Testing, Freezing, Swapping, Verifying, Succeeded];
        assert_eq!(whole(Task::Evolve, false, None), all);
        assert_eq!(whole(Task::Rollback, false, None), all[1..]);
        assert_eq!(whole(Task::Rescue, false, None), all[3..]);
        assert_eq!(
            whole(Task::Evolve, true, None),
            [Building, Testing, Succeeded]
        );
    }

    #[test]
    fn before_the_swap_a_failure_changes_nothing_and_after_it_is_taken_back() {
        for (stage, end) in [
            (Stage::Building, Stage::Failed),
            (Stage::Testing, Stage::Failed),
            (Stage::Freezing, Stage::Failed),
            (Stage::Swapping, Stage::RolledBack),
            (Stage::Verifying, Stage::RolledBack),
        ] {
            assert_eq!(whole(Task::Evolve, false, Some(stage)).last(), Some(&end));
        }
    }

    #[test]
    fn an_end_stays() {
        for end in [Stage::Succeeded, Stage::RolledBack, Stage::Failed] {
            for event in [Passed, Failed] {
                assert_eq!(after(end, event, false), end);
            }
        }
    }
}
