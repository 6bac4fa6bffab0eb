//! Registry of the runs that can still be found, until newer runs displace them.

use super::RunKind;
use super::request_digest::build_stored_begin;
use super::run::TrackedRun;
use super::store::RunStore;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// Limits of the registry: number of runs, bytes in memory and bytes on disk.
const MAX_RETAINED_RUNS: usize = 256;
const MAX_RETAINED_RUN_BYTES: u64 = 32 << 20;
const MAX_RETAINED_RUN_DISK_BYTES: u64 = 1 << 30;

/// Runs that can be found by id.
#[derive(Debug)]
pub(crate) struct RunRegistry<W: RunKind> {
    /// Prefix of generated ids.
    prefix: &'static str,
    store: RunStore,
    runs: Arc<Mutex<VecDeque<Arc<TrackedRun<W>>>>>,
}

/// Why a request can't start a run with its ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunIdConflict {
    /// A run with that id exists and has a different request.
    OtherRequest(String),
    /// A run with that id was removed, so that its request can no longer be compared.
    Removed(String),
}

impl<W: RunKind> Clone for RunRegistry<W> {
    fn clone(&self) -> Self {
        Self {
            prefix: self.prefix,
            store: self.store.clone(),
            runs: self.runs.clone(),
        }
    }
}

impl<W: RunKind> RunRegistry<W> {
    /// Opens the registry with the recovered runs of earlier companions.
    pub(crate) fn open(prefix: &'static str, store: RunStore) -> Self {
        let runs = Self {
            prefix,
            store,
            runs: Arc::default(),
        };
        runs.adopt_recovered();
        runs
    }

    /// Adds runs that the store has recovered.
    pub(crate) fn adopt_recovered(&self) {
        for recovered in self.store.take_recovered(W::RUN_API_PATH) {
            let mut runs = self.runs.lock();
            match runs.iter().any(|run| run.id == recovered.run.begin.id) {
                // The run is from this companion; another companion has recorded it, too.
                true => recovered.recorder.mark_forgotten(None),
                false => runs.push_back(Arc::new(TrackedRun::replay(recovered, &self.store))),
            }
        }
    }

    /// Waits until all records are synced, or can't be.
    pub(crate) async fn wait_synced(&self) {
        self.store.wait_synced().await;
    }

    /// Leaves the output files to the next companion.
    pub(crate) fn retain_files(&self) {
        self.runs.lock().iter().for_each(|run| run.retain_files());
    }

    /// Finds the run with the request's id, unless the run was refused.
    pub(crate) async fn find_same_request(
        &self,
        request: &W,
    ) -> Result<Option<Arc<TrackedRun<W>>>, RunIdConflict> {
        match request.id().and_then(|id| self.find_run(id)) {
            Some(run) if run.is_same_request(request) => {
                Ok(run.wait_admitted().await.then_some(run))
            }
            Some(run) => Err(RunIdConflict::OtherRequest(run.id.clone())),
            None => Ok(None),
        }
    }

    /// Creates a run, or finds the run with the same id; `true` for a new run. No old run is removed before
    /// [`RunRegistry::prune_excess`].
    pub(crate) fn begin_run(
        &self,
        request: W,
    ) -> Result<(Arc<TrackedRun<W>>, bool), RunIdConflict> {
        let mut runs = self.runs.lock();
        let id = match request.id() {
            Some(id) => {
                if let Some(run) = runs.iter().find(|r| r.id == *id) {
                    return if run.is_same_request(&request) {
                        Ok((run.clone(), false))
                    } else {
                        Err(RunIdConflict::OtherRequest(id.into()))
                    };
                }
                if self.store.is_removed_id(W::RUN_API_PATH, id) {
                    return Err(RunIdConflict::Removed(id.into()));
                }
                id.to_owned()
            }
            None => generate_run_id(self.prefix),
        };
        let recorder = match request.durable() {
            Some(false) => None,
            Some(true) | None => {
                let begin = build_stored_begin(&id, &request, self.store.boot_id());
                self.store.record_begin(begin, request.is_private())
            }
        };
        let run = Arc::new(TrackedRun::new(id, request, recorder));
        runs.push_back(run.clone());
        Ok((run, true))
    }

    /// Removes the oldest runs beyond the limits.
    pub(crate) fn prune_excess(&self) {
        prune_runs(&mut self.runs.lock(), &self.store);
    }

    pub(crate) fn find_run(&self, id: &str) -> Option<Arc<TrackedRun<W>>> {
        self.runs.lock().iter().find(|r| r.id == id).cloned()
    }

    /// Lists the runs, oldest first.
    pub(crate) fn list_runs(&self) -> Vec<Arc<TrackedRun<W>>> {
        self.runs.lock().iter().cloned().collect()
    }

    /// Removes a run that was refused.
    pub(crate) fn forget_run(&self, run: &Arc<TrackedRun<W>>) {
        run.mark_forgotten(None);
        self.runs.lock().retain(|r| !Arc::ptr_eq(r, run));
    }
}

fn prune_runs<W: RunKind>(runs: &mut VecDeque<Arc<TrackedRun<W>>>, store: &RunStore) {
    let mut bytes: u64 = runs.iter().map(|r| r.memory_bytes()).sum();
    let mut on_disk: u64 = runs.iter().map(|r| r.disk_bytes()).sum();
    let mut count = runs.len();
    // The newest run stays regardless of its size: a client is about to read it.
    let newest = runs.back().cloned();
    runs.retain(|run| {
        let is_newest = newest.as_ref().is_some_and(|n| Arc::ptr_eq(n, run));
        let too_much = count > MAX_RETAINED_RUNS
            || bytes > MAX_RETAINED_RUN_BYTES
            || on_disk > MAX_RETAINED_RUN_DISK_BYTES;
        if is_newest || !too_much || !run.is_finished() {
            return true;
        }
        // A client repeats only an id that it chose.
        let id = run.request.id();
        run.mark_forgotten(id.and_then(|id| store.remove_id(W::RUN_API_PATH, id)));
        count -= 1;
        bytes -= run.memory_bytes();
        let files = run.disk_bytes();
        on_disk -= files;
        if files > 0 {
            // Removing large files takes long.
            let run = run.clone();
            drop(spawn_blocking(move || drop(run)));
        }
        false
    });
}

fn generate_run_id(prefix: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT_RUN_NUMBER: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0u8; 4];
    // Without random numbers, the count alone still makes ids unique in this companion.
    let _ = getrandom::fill(&mut bytes);
    let salt = u32::from_le_bytes(bytes);
    format!(
        "{prefix}-{}-{salt:08x}",
        NEXT_RUN_NUMBER.fetch_add(1, Ordering::Relaxed)
    )
}

#[cfg(test)]
mod tests {
    use super::{MAX_RETAINED_RUNS, RunIdConflict, RunStore};
    use crate::protocol::kernel::{
        DisplayData, Execute, KernelReport, KernelState, OutputStream, RunEventKind, RunStatus,
    };

    type Runs = super::RunRegistry<Execute>;

    const RUN_REGISTRY_TEST_REPORT: KernelReport = KernelReport {
        restored: false,
        restored_from: None,
        origin: None,
        generation: 1,
        state: KernelState::Kept,
    };

    fn named(id: &str, code: &str) -> Execute {
        Execute {
            id: Some(id.into()),
            ..Execute::new(code)
        }
    }

    #[test]
    fn the_same_request_finds_its_run_and_another_is_refused() {
        let runs = Runs::open("run", RunStore::disabled());
        let (first, is_new) = runs.begin_run(named("a", "1")).unwrap();
        assert!(is_new);
        let (again, is_new) = runs
            .begin_run(Execute {
                wait: Some(1.0),
                ..named("a", "1")
            })
            .unwrap();
        assert!(!is_new && std::sync::Arc::ptr_eq(&first, &again));
        assert_eq!(
            runs.begin_run(named("a", "2")).unwrap_err(),
            RunIdConflict::OtherRequest("a".into())
        );
    }

    #[test]
    fn old_runs_are_removed_and_running_ones_stay() {
        let runs = Runs::open("run", RunStore::disabled());
        let (running, _) = runs.begin_run(named("first", "1")).unwrap();
        for number in 0..2 * MAX_RETAINED_RUNS {
            let (run, _) = runs.begin_run(named(&format!("r{number}"), "1")).unwrap();
            runs.prune_excess();
            run.finish(RunStatus::Completed, RUN_REGISTRY_TEST_REPORT);
        }
        assert_eq!(runs.runs.lock().len(), MAX_RETAINED_RUNS);
        assert!(runs.find_run("first").is_some() && runs.find_run("r0").is_none());
        drop(running);
    }

    #[test]
    fn refused_runs_displace_no_others() {
        let runs = Runs::open("run", RunStore::disabled());
        for number in 0..2 * MAX_RETAINED_RUNS {
            let (run, _) = runs.begin_run(named(&format!("r{number}"), "1")).unwrap();
            match number < MAX_RETAINED_RUNS {
                true => runs.prune_excess(),
                false => runs.forget_run(&run),
            }
            run.finish(RunStatus::Completed, RUN_REGISTRY_TEST_REPORT);
        }
        assert_eq!(runs.runs.lock().len(), MAX_RETAINED_RUNS);
        assert!(runs.find_run("r0").is_some());
    }

    #[test]
    fn large_runs_are_removed_first() {
        let runs = Runs::open("run", RunStore::disabled());
        for number in 0..100 {
            let (run, _) = runs.begin_run(named(&format!("r{number}"), "1")).unwrap();
            runs.prune_excess();
            run.write_output(OutputStream::Stdout, &vec![b'x'; 1 << 20]);
            run.finish(RunStatus::Completed, RUN_REGISTRY_TEST_REPORT);
        }
        assert!(runs.runs.lock().len() < 40, "{}", runs.runs.lock().len());
    }

    #[test]
    fn a_reply_contains_all_events() {
        let runs = Runs::open("run", RunStore::disabled());
        let (run, _) = runs.begin_run(named("a", "1")).unwrap();
        run.mark_started(1);
        run.write_output(OutputStream::Stdout, b"hi\n");
        let data = [("text/plain".to_owned(), "2".into())];
        run.add_event(RunEventKind::Result(DisplayData {
            data: std::sync::Arc::new(data.into_iter().collect()),
            ..DisplayData::default()
        }));
        assert_eq!(
            run.build_reply(RUN_REGISTRY_TEST_REPORT).status,
            RunStatus::Running
        );
        run.finish(RunStatus::Completed, RUN_REGISTRY_TEST_REPORT);
        let reply = run.build_reply(KernelReport {
            restored: false,
            generation: 9,
            ..RUN_REGISTRY_TEST_REPORT
        });
        assert_eq!(
            (
                reply.stdout.as_str(),
                reply.result.as_deref(),
                reply.data.len()
            ),
            ("hi\n", Some("2"), 1)
        );
        assert_eq!(
            (reply.status, reply.kernel),
            (RunStatus::Completed, RUN_REGISTRY_TEST_REPORT)
        );
    }

    #[tokio::test]
    async fn followers_read_all_events_from_any_start() {
        let runs = Runs::open("run", RunStore::disabled());
        let (run, _) = runs.begin_run(named("a", "1")).unwrap();
        let mut first = run.follow(0);
        run.write_output(OutputStream::Stdout, b"one");
        assert_eq!(
            first.next_events(|| RUN_REGISTRY_TEST_REPORT).await[0].seq,
            0
        );
        run.write_output(OutputStream::Stdout, b"two");
        run.write_output(OutputStream::Stderr, b"three");
        run.finish(RunStatus::Completed, RUN_REGISTRY_TEST_REPORT);
        let kinds = |events: Vec<crate::protocol::kernel::RunEvent>| {
            events
                .into_iter()
                .map(|e| (e.seq, e.happened))
                .collect::<Vec<_>>()
        };
        let text = |text: &str| text.to_owned();
        let rest = kinds(first.read_available(|| RUN_REGISTRY_TEST_REPORT).await);
        assert_eq!(
            rest[0],
            (
                1,
                RunEventKind::Stdout {
                    text: text("two"),
                    base64: None
                }
            )
        );
        assert_eq!(
            rest[1],
            (
                2,
                RunEventKind::Stderr {
                    text: text("three"),
                    base64: None,
                }
            )
        );
        assert!(matches!(&rest[2], (3, RunEventKind::Done { reply }) if reply.stdout == "onetwo"));
        assert!(
            first
                .next_events(|| RUN_REGISTRY_TEST_REPORT)
                .await
                .is_empty()
        );
        let mut follower = run.follow(2);
        assert_eq!(
            kinds(follower.read_available(|| RUN_REGISTRY_TEST_REPORT).await),
            rest[1..]
        );
    }

    #[tokio::test]
    async fn a_follower_that_returns_for_dropped_events_reads_a_notice() {
        const GAP_TEST_LINES: usize = 20_000;
        let runs = Runs::open("run", RunStore::disabled());
        let (run, _) = runs.begin_run(named("a", "1")).unwrap();
        let mut reader = run.follow(0);
        for _ in 0..GAP_TEST_LINES {
            run.write_output(OutputStream::Stdout, b"x\n");
            reader.read_available(|| RUN_REGISTRY_TEST_REPORT).await;
        }
        run.finish(RunStatus::Completed, RUN_REGISTRY_TEST_REPORT);
        let mut follower = run.follow(3);
        let gap = follower.next_events(|| RUN_REGISTRY_TEST_REPORT).await;
        let [
            crate::protocol::kernel::RunEvent {
                seq,
                happened: RunEventKind::Stderr { text, .. },
            },
        ] = &gap[..]
        else {
            panic!("{gap:?}")
        };
        assert!(text.contains(&format!("events 3 to {seq} were")), "{text}");
        assert!(text.contains("`/exec/a/output`"), "{text}");
        let next = follower.next_events(|| RUN_REGISTRY_TEST_REPORT).await;
        assert_eq!(next[0].seq, seq + 1);
        // A follower that starts at a kept event misses nothing and gets no notice.
        let again = run
            .follow(seq + 1)
            .next_events(|| RUN_REGISTRY_TEST_REPORT)
            .await;
        assert_eq!(again, next);
    }
}
