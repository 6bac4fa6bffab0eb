//! Ended evolves in the activity log, also those that the host started.

use crate::companion::activity::ActivityLog;
use crate::protocol::activity::{ActivityKind, ActivityQuery, ActivityVerdict};
use crate::protocol::activity_draft::ActivityDraft;
use crate::protocol::evolve::{EvolveStage, EvolveStatus};

/// The client of the records: the keeper reports the runs.
const KEEPER_CLIENT: &str = "keeper";

#[derive(Debug)]
pub(super) struct RunActivity {
    log: ActivityLog,
    /// The ID of the run that was recorded last, by this companion or an earlier one.
    last_run: Option<String>,
}

impl RunActivity {
    pub(super) async fn open(log: ActivityLog) -> Self {
        let query = ActivityQuery {
            client: Some(KEEPER_CLIENT.into()),
            limit: Some(1),
            ..ActivityQuery::default()
        };
        let last = log.read(query).await.pop();
        let id = |text: &str| text.split(' ').next().map(str::to_owned);
        let last_run = last.and_then(|record| id(&record.text));
        Self { log, last_run }
    }

    /// Records the latest run if it has ended and is not recorded yet.
    pub(super) fn record_ended_run(&mut self, status: &EvolveStatus) {
        let Some(run) = status
            .latest_run
            .as_ref()
            .filter(|_| !status.evolve_in_progress)
        else {
            return;
        };
        let run = run.to_string();
        if self.last_run.as_ref() == Some(&run) {
            return;
        }
        let verdict = match status.latest_status {
            Some(EvolveStage::Succeeded) => ActivityVerdict::Completed,
            _ => ActivityVerdict::Failed,
        };
        let reason = status.reason.as_deref().unwrap_or_default();
        let draft = ActivityDraft {
            text: format!("{run} {reason}"),
            ..ActivityDraft::begin(ActivityKind::Evolve, KEEPER_CLIENT.into())
        };
        self.log.record(draft, verdict, 0);
        self.last_run = Some(run);
    }
}

#[cfg(test)]
mod tests {
    use super::RunActivity;
    use crate::companion::activity::ActivityLog;
    use crate::companion::environment::EnvironmentHandle;
    use crate::protocol::activity::{ActivityQuery, ActivityVerdict};
    use crate::protocol::evolve::{EvolveStage, EvolveStatus};

    #[tokio::test]
    async fn each_run_is_recorded_once_over_several_companions() {
        let data = tempfile::tempdir().unwrap();
        let log = ActivityLog::start(data.path().into(), EnvironmentHandle::open(data.path()));
        let status = |run: &str, stage| EvolveStatus {
            latest_run: Some(run.parse().unwrap()),
            latest_status: Some(stage),
            reason: Some("add graphviz".into()),
            ..EvolveStatus::default()
        };
        let first = status("20261120-193600", EvolveStage::Succeeded);
        let running = EvolveStatus {
            evolve_in_progress: true,
            ..status("20261120-193700", EvolveStage::Building)
        };
        for _ in 0..2 {
            let mut runs = RunActivity::open(log.clone()).await;
            for status in [&EvolveStatus::default(), &first, &first, &running] {
                runs.record_ended_run(status);
            }
        }
        let second = status("20261120-193700", EvolveStage::RolledBack);
        RunActivity::open(log.clone())
            .await
            .record_ended_run(&second);
        let records = log.read(ActivityQuery::default()).await;
        let found: Vec<_> = records.iter().map(|r| (&*r.text, r.verdict)).collect();
        assert_eq!(
            found,
            [
                ("20261120-193600 add graphviz", ActivityVerdict::Completed),
                ("20261120-193700 add graphviz", ActivityVerdict::Failed),
            ]
        );
    }
}
