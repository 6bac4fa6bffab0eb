//! Ended evolves in the activity log, also those that the host started.

use crate::companion::activity::ActivityLog;
use crate::protocol::activity::{
    ActivityKind, ActivityQuery, ActivityRecord, ActivityVerdict, CLI_AGENT, MAX_ACTIVITY_RECORDS,
};
use crate::protocol::evolve::{
    CANCELLED_BY_USER, EvolveCaller, EvolveRecord, EvolveRunId, EvolveStage, EvolveStatus,
};

#[derive(Debug)]
pub(super) struct RunActivity {
    log: ActivityLog,
    /// The run that was recorded last, by this companion or an earlier one.
    last_run: Option<EvolveRunId>,
}

impl RunActivity {
    pub(super) async fn open(log: ActivityLog) -> Self {
        let query = ActivityQuery {
            limit: Some(MAX_ACTIVITY_RECORDS),
            ..ActivityQuery::default()
        };
        let records = log.read(query).await;
        let last_run = records.iter().rev().find_map(recorded_run);
        Self { log, last_run }
    }

    /// The latest run, if it has ended and is not recorded yet.
    pub(super) fn unrecorded_run(&self, status: &EvolveStatus) -> Option<EvolveRunId> {
        let run = status.latest_run.as_ref();
        let run =
            run.filter(|run| !status.evolve_in_progress && self.last_run.as_ref() != Some(run));
        run.cloned()
    }

    /// Records a run that has ended.
    pub(super) fn record_run(&mut self, run: &EvolveRecord) {
        let was_cancelled = |why: &String| why.starts_with(CANCELLED_BY_USER);
        let verdict = match run.status {
            EvolveStage::Succeeded => ActivityVerdict::Completed,
            _ if run.why.as_ref().is_some_and(was_cancelled) => ActivityVerdict::Cancelled,
            _ => ActivityVerdict::Failed,
        };
        let client = match run.requested_by {
            EvolveCaller::Host => CLI_AGENT,
            EvolveCaller::Agent => "agent",
            EvolveCaller::Keeper => "keeper",
        };
        let reason = run.reason.as_deref().unwrap_or_default();
        self.log.push(ActivityRecord {
            seq: 0,
            started: run.started,
            duration_ms: run.total_seconds() * 1e3,
            client: client.into(),
            kind: ActivityKind::Evolve,
            session: None,
            tool: None,
            text: format!("{} {reason}", run.run),
            verdict,
            bytes: 0,
        });
        self.last_run = Some(run.run.clone());
    }
}

/// The run that a record is about. A request over the API has a record without an ID.
fn recorded_run(record: &ActivityRecord) -> Option<EvolveRunId> {
    let id = record.text.split(' ').next()?;
    let is_evolve = record.kind == ActivityKind::Evolve;
    is_evolve.then(|| id.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::RunActivity;
    use crate::companion::activity::ActivityLog;
    use crate::companion::environment::EnvironmentHandle;
    use crate::protocol::activity::{ActivityQuery, ActivityVerdict as V};
    use crate::protocol::evolve::{CANCELLED_BY_USER, EvolveRecord, EvolveStatus};
    use serde_json::{Value, json};

    fn run_record(run: &str, by: &str, status: &str, why: Value) -> EvolveRecord {
        let stage = json!({"stage": "building", "started": 1_763_719_200.5, "seconds": 12.5});
        let record = json!({
            "run": run, "task": "evolve", "reason": "add graphviz", "requested_by": by, "force": false,
            "dry_run": false, "started": 1_763_719_200.5, "status": status, "stages": [stage],
            "failed_stage": null, "why": why, "log_tail": [], "image": null, "previous_image": null,
            "body_digest": null, "refused_ms": null,
        });
        serde_json::from_value(record).unwrap()
    }

    #[tokio::test]
    async fn each_run_is_recorded_once_over_several_companions() {
        let data = tempfile::tempdir().unwrap();
        let log = ActivityLog::start(data.path().into(), EnvironmentHandle::open(data.path()));
        let status = |run: &str| EvolveStatus {
            latest_run: Some(run.parse().unwrap()),
            ..EvolveStatus::default()
        };
        let running = EvolveStatus {
            evolve_in_progress: true,
            ..status("20261120-193700")
        };
        let runs = [
            run_record("20261120-193600", "host", "succeeded", Value::Null),
            run_record("20261120-193700", "agent", "rolled_back", json!("no")),
            run_record(
                "20261120-193800",
                "host",
                "failed",
                json!(CANCELLED_BY_USER),
            ),
        ];
        let first = status("20261120-193600");
        for _ in 0..2 {
            let mut activity = RunActivity::open(log.clone()).await;
            for status in [&EvolveStatus::default(), &first, &first, &running] {
                if activity.unrecorded_run(status).is_some() {
                    activity.record_run(&runs[0]);
                }
            }
        }
        for run in &runs[1..] {
            let mut activity = RunActivity::open(log.clone()).await;
            let ended = status(run.run.as_str());
            assert_eq!(activity.unrecorded_run(&ended), Some(run.run.clone()));
            activity.record_run(run);
        }
        let records = log.read(ActivityQuery::default()).await;
        let found: Vec<_> = records
            .iter()
            .map(|r| (&*r.text, &*r.client, r.verdict))
            .collect();
        assert_eq!(
            found,
            [
                ("20261120-193600 add graphviz", "osctl", V::Completed),
                ("20261120-193700 add graphviz", "agent", V::Failed),
                ("20261120-193800 add graphviz", "osctl", V::Cancelled),
            ]
        );
        let times = (records[0].started, records[0].duration_ms);
        assert_eq!(times, (1_763_719_200.5, 12_500.0));
    }
}
