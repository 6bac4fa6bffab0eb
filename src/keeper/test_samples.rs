//! Sample entries and records for the keeper's tests.

use super::journal::{RunJournalEntry, RunJournalStep};
use crate::protocol::evolve::container_reports::ExpectedState;
use crate::protocol::evolve::{EvolveRecord, EvolveStage};

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
    let text = format!(
        r#"{{"run":"20261121-100000","task":"evolve","reason":null,"by":"agent","force":false,
        "dry_run":false,"began":1,"status":"{status}","stages":[],"failed_stage":null,"why":null,
        "log_tail":[],"image":"{image}","previous":"{previous}","body":null,"refused_ms":null}}"#
    );
    serde_json::from_str(&text).unwrap()
}
