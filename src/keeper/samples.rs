//! What the keeper's tests begin with.

use super::journal::{Entry, Step};
use crate::protocol::evolve::inside::Expected;
use crate::protocol::evolve::{Record, Stage};

/// A run that is on, of which nothing is known yet.
pub(super) fn entry(step: Step) -> Entry {
    Entry {
        run: "20261120-193600".parse().unwrap(),
        step,
        old: None,
        running: true,
        previous: None,
        image: None,
        expected: Expected::default(),
        proven: None,
        after: None,
        rescues: 0,
    }
}

/// A run of an agent's that brought `image` in the place of `previous`.
pub(super) fn record(status: Stage, image: &str, previous: &str) -> Record {
    let text = format!(
        r#"{{"run":"20261121-100000","task":"evolve","reason":null,"by":"agent","force":false,
        "dry_run":false,"began":1,"status":"{status}","stages":[],"gate":null,"why":null,
        "log_tail":[],"image":"{image}","previous":"{previous}","body":null,"refused_ms":null}}"#
    );
    serde_json::from_str(&text).unwrap()
}
