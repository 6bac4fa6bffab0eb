//! A context for the tests of the hub, which keeps the records.

use crate::settings::HubContext;
use osctl_protocol::activity::{ActivityKind, ActivityRecord, ActivityVerdict};
use osctl_protocol::activity_draft::ActivityDraft;
use osctl_protocol::environment::UserEnvironment;
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct TestContext(Mutex<Vec<ActivityRecord>>);

impl TestContext {
    pub(crate) fn records(&self) -> Vec<ActivityRecord> {
        self.0.lock().clone()
    }
}

impl HubContext for TestContext {
    fn user_environment(&self) -> Arc<UserEnvironment> {
        Arc::default()
    }

    fn record_activity(&self, record: ActivityRecord) {
        self.0.lock().push(record);
    }

    fn record_end_of_run(&self, run: &str, client: Arc<str>) {
        let draft = ActivityDraft {
            text: run.into(),
            ..ActivityDraft::begin(ActivityKind::Exec, client)
        };
        self.record_activity(draft.finish(ActivityVerdict::Completed, 0));
    }
}
