//! Sample entries and records for the keeper's tests.

use super::journal::{RunJournalEntry, RunJournalStep};
use crate::protocol::evolve::container_reports::ExpectedState;
use crate::protocol::evolve::{EvolveCaller, EvolveRecord, EvolveStage};

/// An active run without details.
pub(super) fn sample_entry(step: RunJournalStep) -> RunJournalEntry {
    RunJournalEntry {
        run: "20261120-193600".parse().unwrap(),
        step,
        old: None,
        running: true,
        previous: None,
        image: None,
        expected: ExpectedState::default(),
        proven: None,
        after: None,
        rescues: 0,
    }
}

/// An agent's run that replaced `previous` with `image`.
pub(super) fn sample_record(status: EvolveStage, image: &str, previous: &str) -> EvolveRecord {
    let run = "20261121-100000".parse().unwrap();
    EvolveRecord {
        requested_by: EvolveCaller::Agent,
        image: Some(image.into()),
        previous_image: Some(previous.into()),
        ..EvolveRecord::empty(run, status, 1.0)
    }
}
