//! The runs that can be found again, until newer ones push them out.

use super::Work;
use super::identity::begin_of;
use super::run::Run;
use super::store::RunStore;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::spawn_blocking;

/// Runs that can be found again, by count, by bytes in memory and by bytes on disk.
const KEPT_RUNS: usize = 256;
const KEPT_BYTES: u64 = 32 << 20;
const KEPT_ON_DISK: u64 = 1 << 30;

/// The runs that can be found again.
#[derive(Debug)]
pub(crate) struct Runs<W: Work> {
    /// What made-up ids begin with.
    prefix: &'static str,
    store: RunStore,
    kept: Arc<Mutex<VecDeque<Arc<Run<W>>>>>,
}

/// A run of that id exists and was asked to do something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherRun(pub(crate) String);

impl<W: Work> Clone for Runs<W> {
    fn clone(&self) -> Self {
        Self {
            prefix: self.prefix,
            store: self.store.clone(),
            kept: self.kept.clone(),
        }
    }
}

impl<W: Work> Runs<W> {
    /// With those of earlier lives that the store has found.
    pub(crate) fn open(prefix: &'static str, store: RunStore) -> Self {
        let runs = Self {
            prefix,
            store,
            kept: Arc::default(),
        };
        runs.adopt();
        runs
    }

    /// Takes over runs that the store has found.
    pub(crate) fn adopt(&self) {
        for recovered in self.store.take(W::PLACE) {
            let mut runs = self.lock();
            match runs.iter().any(|run| run.id == recovered.found.begin.id) {
                // It was ours before another life knew it.
                true => recovered.kept.forget(),
                false => runs.push_back(Arc::new(Run::replay(recovered, &self.store))),
            }
        }
    }

    /// Waits until the disk knows of all of them, or can't.
    pub(crate) async fn settle(&self) {
        self.store.settle().await;
    }

    /// The companion ends: what runs have written is left to the next life.
    pub(crate) fn leave(&self) {
        self.lock().iter().for_each(|run| run.leave());
    }

    /// The run of that id, when there is one that is not refused.
    pub(crate) async fn known(&self, work: &W) -> Result<Option<Arc<Run<W>>>, OtherRun> {
        match work.id().and_then(|id| self.find(id)) {
            Some(run) if run.is_same(work) => Ok(run.taken().await.then_some(run)),
            Some(run) => Err(OtherRun(run.id.clone())),
            None => Ok(None),
        }
    }

    /// A new run, or the one of that id; `true` when it is new. It pushes none out before it is
    /// [`Runs::admitted`].
    pub(crate) fn begin(&self, work: W) -> Result<(Arc<Run<W>>, bool), OtherRun> {
        let mut runs = self.lock();
        let id = match work.id() {
            Some(id) => {
                if let Some(run) = runs.iter().find(|r| r.id == *id) {
                    return if run.is_same(&work) {
                        Ok((run.clone(), false))
                    } else {
                        Err(OtherRun(id.into()))
                    };
                }
                id.to_owned()
            }
            None => fresh_id(self.prefix),
        };
        let kept = match work.durable() {
            Some(false) => None,
            Some(true) | None => {
                let begin = begin_of(&id, &work, self.store.boot());
                self.store.begin(begin, work.is_private())
            }
        };
        let run = Arc::new(Run::new(id, work, kept));
        runs.push_back(run.clone());
        Ok((run, true))
    }

    /// A new run goes on: older ones make room.
    pub(crate) fn admitted(&self) {
        prune(&mut self.lock());
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Run<W>>> {
        self.lock().iter().find(|r| r.id == id).cloned()
    }

    /// The oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Run<W>>> {
        self.lock().iter().cloned().collect()
    }

    /// A run that was refused never was.
    pub(crate) fn forget(&self, run: &Arc<Run<W>>) {
        run.forget();
        self.lock().retain(|r| !Arc::ptr_eq(r, run));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Run<W>>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn prune<W: Work>(runs: &mut VecDeque<Arc<Run<W>>>) {
    let mut bytes: u64 = runs.iter().map(|r| r.bytes()).sum();
    let mut on_disk: u64 = runs.iter().map(|r| r.on_disk()).sum();
    let mut count = runs.len();
    // The newest stays whatever it weighs: somebody is about to read it.
    let newest = runs.back().cloned();
    runs.retain(|run| {
        let is_newest = newest.as_ref().is_some_and(|n| Arc::ptr_eq(n, run));
        let too_much = count > KEPT_RUNS || bytes > KEPT_BYTES || on_disk > KEPT_ON_DISK;
        if is_newest || !too_much || !run.is_finished() {
            return true;
        }
        run.forget();
        count -= 1;
        bytes -= run.bytes();
        let files = run.on_disk();
        on_disk -= files;
        if files > 0 {
            // Removing large files takes a while.
            let run = run.clone();
            drop(spawn_blocking(move || drop(run)));
        }
        false
    });
}

fn fresh_id(prefix: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0u8; 4];
    // Without randomness the count alone still tells the runs of this life apart.
    let _ = getrandom::fill(&mut bytes);
    let salt = u32::from_le_bytes(bytes);
    format!(
        "{prefix}-{}-{salt:08x}",
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

#[cfg(test)]
mod tests {
    use super::{KEPT_RUNS, OtherRun, RunStore};
    use crate::protocol::kernel::{
        Execute, Happened, KernelReport, KernelState, RunStatus, Shown, Stream,
    };

    type Runs = super::Runs<Execute>;

    const REPORT: KernelReport = KernelReport {
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
        let runs = Runs::open("run", RunStore::none());
        let (first, is_new) = runs.begin(named("a", "1")).unwrap();
        assert!(is_new);
        let (again, is_new) = runs
            .begin(Execute {
                wait: Some(1.0),
                ..named("a", "1")
            })
            .unwrap();
        assert!(!is_new && std::sync::Arc::ptr_eq(&first, &again));
        assert_eq!(
            runs.begin(named("a", "2")).unwrap_err(),
            OtherRun("a".into())
        );
    }

    #[test]
    fn old_runs_go_and_running_ones_stay() {
        let runs = Runs::open("run", RunStore::none());
        let (running, _) = runs.begin(named("first", "1")).unwrap();
        for number in 0..2 * KEPT_RUNS {
            let (run, _) = runs.begin(named(&format!("r{number}"), "1")).unwrap();
            runs.admitted();
            run.finish(RunStatus::Completed, REPORT);
        }
        assert_eq!(runs.lock().len(), KEPT_RUNS);
        assert!(runs.find("first").is_some() && runs.find("r0").is_none());
        drop(running);
    }

    #[test]
    fn runs_that_are_refused_push_none_out() {
        let runs = Runs::open("run", RunStore::none());
        for number in 0..2 * KEPT_RUNS {
            let (run, _) = runs.begin(named(&format!("r{number}"), "1")).unwrap();
            match number < KEPT_RUNS {
                true => runs.admitted(),
                false => runs.forget(&run),
            }
            run.finish(RunStatus::Completed, REPORT);
        }
        assert_eq!(runs.lock().len(), KEPT_RUNS);
        assert!(runs.find("r0").is_some());
    }

    #[test]
    fn heavy_runs_go_sooner() {
        let runs = Runs::open("run", RunStore::none());
        for number in 0..100 {
            let (run, _) = runs.begin(named(&format!("r{number}"), "1")).unwrap();
            runs.admitted();
            run.write(Stream::Stdout, &vec![b'x'; 1 << 20]);
            run.finish(RunStatus::Completed, REPORT);
        }
        assert!(runs.lock().len() < 40, "{}", runs.lock().len());
    }

    #[test]
    fn a_reply_has_what_happened() {
        let runs = Runs::open("run", RunStore::none());
        let (run, _) = runs.begin(named("a", "1")).unwrap();
        run.started(1);
        run.write(Stream::Stdout, b"hi\n");
        let data = [("text/plain".to_owned(), "2".into())];
        run.add(Happened::Result(Shown {
            data: std::sync::Arc::new(data.into_iter().collect()),
            ..Shown::default()
        }));
        assert_eq!(run.reply(REPORT).status, RunStatus::Running);
        run.finish(RunStatus::Completed, REPORT);
        let reply = run.reply(KernelReport {
            restored: false,
            generation: 9,
            ..REPORT
        });
        assert_eq!(
            (
                reply.stdout.as_str(),
                reply.result.as_deref(),
                reply.data.len()
            ),
            ("hi\n", Some("2"), 1)
        );
        assert_eq!((reply.status, reply.kernel), (RunStatus::Completed, REPORT));
    }

    #[tokio::test]
    async fn followers_see_what_happens_from_where_they_want_to_the_end() {
        let runs = Runs::open("run", RunStore::none());
        let (run, _) = runs.begin(named("a", "1")).unwrap();
        let mut first = run.follow(0);
        run.write(Stream::Stdout, b"one");
        assert_eq!(first.next(|| REPORT).await[0].seq, 0);
        run.write(Stream::Stdout, b"two");
        run.write(Stream::Stderr, b"three");
        run.finish(RunStatus::Completed, REPORT);
        let kinds = |events: Vec<crate::protocol::kernel::Event>| {
            events
                .into_iter()
                .map(|e| (e.seq, e.happened))
                .collect::<Vec<_>>()
        };
        let text = |text: &str| text.to_owned();
        let rest = kinds(first.rest(|| REPORT).await);
        assert_eq!(
            rest[0],
            (
                1,
                Happened::Stdout {
                    text: text("two"),
                    base64: None
                }
            )
        );
        assert_eq!(
            rest[1],
            (
                2,
                Happened::Stderr {
                    text: text("three"),
                    base64: None,
                }
            )
        );
        assert!(matches!(&rest[2], (3, Happened::Done { reply }) if reply.stdout == "onetwo"));
        assert!(first.next(|| REPORT).await.is_empty());
        let mut late = run.follow(2);
        assert_eq!(kinds(late.rest(|| REPORT).await), rest[1..]);
    }

    #[tokio::test]
    async fn who_comes_back_for_events_that_are_gone_is_told_of_the_gap() {
        const LINES: usize = 20_000;
        let runs = Runs::open("run", RunStore::none());
        let (run, _) = runs.begin(named("a", "1")).unwrap();
        let mut reader = run.follow(0);
        for _ in 0..LINES {
            run.write(Stream::Stdout, b"x\n");
            reader.rest(|| REPORT).await;
        }
        run.finish(RunStatus::Completed, REPORT);
        let mut late = run.follow(3);
        let gap = late.next(|| REPORT).await;
        let [
            crate::protocol::kernel::Event {
                seq,
                happened: Happened::Stderr { text, .. },
            },
        ] = &gap[..]
        else {
            panic!("{gap:?}")
        };
        assert!(text.contains(&format!("events 3 to {seq} are")), "{text}");
        assert!(text.contains("`/exec/a/output`"), "{text}");
        let next = late.next(|| REPORT).await;
        assert_eq!(next[0].seq, seq + 1);
        // Who begins with what is kept misses nothing, and is told of nothing.
        let again = run.follow(seq + 1).next(|| REPORT).await;
        assert_eq!(again, next);
    }
}
