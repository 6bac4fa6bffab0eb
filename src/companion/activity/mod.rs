//! The activity log: a record of each action of a client, on disk across containers.
//!
//! ```text
//! request, tool call ── draft ──▶ bounded queue ──▶ owner task ── lines ──▶ segment files ([`segments`])
//!                                                       └── broadcast ──▶ clients that follow
//! ```
//!
//! A full queue drops records: the log never delays a request, and never syncs the disk. Records contain neither output
//! nor file content; `protocol::activity_text` shortens the text of a record and hides the user's variables in it.
//!
//! The log shows what happened; it is no evidence. Code in the container is root there and can change the files.

mod caller;
mod segments;

pub(super) use caller::Caller;

use super::environment::EnvironmentHandle;
use super::runs::{RunKind, TrackedRun};
use crate::protocol::activity::{
    ActivityKind, ActivityQuery, ActivityRecord, ActivityVerdict, DEFAULT_ACTIVITY_RECORDS,
    MAX_ACTIVITY_RECORDS,
};
use crate::protocol::activity_draft::ActivityDraft;
use crate::protocol::activity_text::{bounded_line, record_text};
use crate::protocol::packages::PackageChange;
use segments::SegmentStore;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::spawn_blocking;

/// Records that wait for the owner task, and records that a follower has not read yet.
const MAX_QUEUED_RECORDS: usize = 4096;
const MAX_UNREAD_RECORDS: usize = 1024;

/// Records that are written together.
const MAX_RECORD_BATCH: usize = 256;

/// A handle to the log.
#[derive(Debug, Clone)]
pub(crate) struct ActivityLog(Arc<ActivityLogInner>);

#[derive(Debug)]
struct ActivityLogInner {
    folder: PathBuf,
    environment: EnvironmentHandle,
    queue: mpsc::Sender<ActivityMessage>,
    published: broadcast::Sender<Arc<ActivityRecord>>,
}

#[derive(Debug)]
enum ActivityMessage {
    Record(ActivityRecord),
    /// `done` is dropped when all earlier records are written.
    Flush {
        done: oneshot::Sender<()>,
    },
}

impl ActivityLog {
    /// Starts the owner task. It ends with the last handle.
    pub(super) fn start(folder: PathBuf, environment: EnvironmentHandle) -> Self {
        let (queue, mailbox) = mpsc::channel(MAX_QUEUED_RECORDS);
        let published = broadcast::Sender::new(MAX_UNREAD_RECORDS);
        tokio::spawn(write_records(
            mailbox,
            SegmentStore::new(folder.clone()),
            published.clone(),
        ));
        Self(Arc::new(ActivityLogInner {
            folder,
            environment,
            queue,
            published,
        }))
    }

    /// Records the end of an action.
    pub(super) fn record(&self, draft: ActivityDraft, verdict: ActivityVerdict, bytes: u64) {
        self.push(draft.finish(verdict, bytes));
    }

    /// Records a run at its end. A request that finds an earlier run adds no record, nor does a list of packages.
    pub(super) fn record_run<W: RunKind>(
        &self,
        kind: ActivityKind,
        caller: &Caller,
        run: &Arc<TrackedRun<W>>,
    ) {
        let change = PackageChange::from_inside_command(run.request.text());
        if change == Some(PackageChange::List) || !run.claim_activity() {
            return;
        }
        let (log, run, client) = (self.clone(), run.clone(), caller.0.clone());
        tokio::spawn(async move {
            run.wait_finished().await;
            let text = match change {
                _ if run.request.is_private() => String::new(),
                Some(change) => bounded_line(&change.osctl_command()),
                None => bounded_line(&run.request.label()),
            };
            let summary = run.summary();
            log.push(ActivityRecord {
                seq: 0,
                started: summary.created,
                duration_ms: summary.timing_ms,
                client: client.as_ref().into(),
                kind,
                session: Some(summary.session),
                tool: None,
                text,
                verdict: run.activity_verdict(),
                bytes: summary.stdout_bytes + summary.stderr_bytes,
            });
        });
    }

    /// Shortens the text of the record, hides the user's variables in it, and queues the record.
    pub(super) fn push(&self, record: ActivityRecord) {
        let text = record_text(&record.text, &self.0.environment.current());
        // A full queue means that the disk is slower than the requests.
        let _ = self
            .0
            .queue
            .try_send(ActivityMessage::Record(ActivityRecord { text, ..record }));
    }

    /// Waits until all earlier records are written.
    pub(super) async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self
            .0
            .queue
            .send(ActivityMessage::Flush { done })
            .await
            .is_ok()
        {
            let _ = written.await;
        }
    }

    /// The newest matching records, the oldest first.
    pub(super) async fn read(&self, query: ActivityQuery) -> Vec<ActivityRecord> {
        self.flush().await;
        let limit = query.limit.unwrap_or(DEFAULT_ACTIVITY_RECORDS);
        let limit = limit.min(MAX_ACTIVITY_RECORDS);
        let store = SegmentStore::new(self.0.folder.clone());
        let read = spawn_blocking(move || store.read_newest(limit, |record| query.matches(record)));
        read.await.unwrap_or_default()
    }

    /// Subscribes to records from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<ActivityRecord>> {
        self.0.published.subscribe()
    }
}

/// Numbers, writes and publishes records until every handle is dropped.
async fn write_records(
    mut mailbox: mpsc::Receiver<ActivityMessage>,
    mut store: SegmentStore,
    published: broadcast::Sender<Arc<ActivityRecord>>,
) {
    let opened = spawn_blocking(move || {
        let next = store.open();
        (store, next)
    });
    let Ok((opened, mut next)) = opened.await else {
        return;
    };
    store = opened;
    let mut batch = Vec::new();
    while mailbox.recv_many(&mut batch, MAX_RECORD_BATCH).await > 0 {
        let (mut records, mut flushes) = (Vec::new(), Vec::new());
        for message in batch.drain(..) {
            match message {
                ActivityMessage::Record(mut record) => {
                    record.seq = next;
                    next = next.saturating_add(1);
                    records.push(Arc::new(record));
                }
                ActivityMessage::Flush { done } => flushes.push(done),
            }
        }
        let lines = records.clone();
        let written = spawn_blocking(move || {
            store.append(&lines);
            store
        });
        match written.await {
            Ok(back) => store = back,
            Err(_) => return,
        }
        for record in records {
            // There may be no follower.
            let _ = published.send(record);
        }
        drop(flushes);
    }
}

#[cfg(test)]
mod tests {
    use super::ActivityLog;
    use crate::companion::environment::EnvironmentHandle;
    use crate::protocol::activity::{ActivityKind, ActivityQuery, ActivityVerdict};
    use crate::protocol::activity_draft::ActivityDraft;
    use crate::protocol::environment::UserEnvironment;

    #[tokio::test]
    async fn records_are_read_by_the_next_companion_and_numbered_on() {
        let data = tempfile::tempdir().unwrap();
        let environment = EnvironmentHandle::open(data.path());
        let secret = UserEnvironment([("KEY".into(), "hunter2-secret".into())].into());
        environment.replace(secret).await.unwrap();
        let start = || ActivityLog::start(data.path().join("activity"), environment.clone());
        let record = |log: &ActivityLog, text: &str| {
            let draft = ActivityDraft {
                text: text.into(),
                ..ActivityDraft::begin(ActivityKind::Shell, "osctl".into())
            };
            log.record(draft, ActivityVerdict::Completed, 3);
        };
        let log = start();
        let mut follower = log.subscribe();
        record(&log, "curl -H hunter2-secret\nnever shown");
        assert_eq!(follower.recv().await.unwrap().text, "curl -H ***");
        drop(log);
        let log = start();
        record(&log, "second");
        let read = log.read(ActivityQuery::default()).await;
        let found: Vec<(u64, &str)> = read.iter().map(|r| (r.seq, r.text.as_str())).collect();
        assert_eq!(found, [(1, "curl -H ***"), (2, "second")]);
        let after = ActivityQuery {
            after: Some(1),
            ..ActivityQuery::default()
        };
        assert_eq!(log.read(after).await.len(), 1);
    }
}
