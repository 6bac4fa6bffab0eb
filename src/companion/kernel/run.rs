//! Runs: code that was accepted for execution, found again by id until newer ones push it out.

use super::Refusal;
use super::output::Output;
use crate::protocol::kernel::{
    Bundle, Event, Execute, KernelReport, Raised, Reply, RunStatus, Truncated,
};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Runs that can be found again, by count and by bytes.
const KEPT_RUNS: usize = 256;
const KEPT_BYTES: usize = 32 << 20;

/// Bytes of MIME bundles kept of one run.
const DATA_LIMIT: usize = 64 << 20;

/// One execution, from its acceptance to its end and beyond.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: String,
    pub(super) request: Execute,
    record: Mutex<Record>,
    status: watch::Sender<RunStatus>,
}

#[derive(Debug, Default)]
struct Record {
    stdout: Output,
    stderr: Output,
    data: Vec<Bundle>,
    data_total: u64,
    data_kept: u64,
    result: Option<String>,
    error: Option<Raised>,
    execution_count: Option<u64>,
    started: Option<Instant>,
    took: Option<Duration>,
    report: Option<KernelReport>,
}

impl Run {
    fn new(id: String, request: Execute) -> Self {
        let status = watch::Sender::new(RunStatus::Running);
        Self {
            id,
            request,
            record: Mutex::default(),
            status,
        }
    }

    pub(super) fn started(&self, execution_count: u64) {
        let mut record = self.record();
        record.started = Some(Instant::now());
        record.execution_count = Some(execution_count);
    }

    pub(super) fn fold(&self, event: Event) {
        let mut record = self.record();
        match event {
            Event::Stdout { bytes } => record.stdout.push(&bytes),
            Event::Stderr { bytes } => record.stderr.push(&bytes),
            Event::Display { data } => record.add(data),
            Event::Result { data } => {
                record.result = data
                    .get("text/plain")
                    .and_then(Value::as_str)
                    .map(str::to_owned);
                record.add(data);
            }
            Event::Error { error } => record.error = Some(error),
        }
    }

    /// The error that the code raised, when it did.
    pub(super) fn raised(&self) -> Option<Raised> {
        self.record().error.clone()
    }

    pub(super) fn finish(&self, status: RunStatus, report: KernelReport) {
        {
            let mut record = self.record();
            record.took = record.started.map(|s| s.elapsed());
            record.report = Some(report);
        }
        self.status.send_replace(status);
    }

    pub(crate) async fn finished(&self) {
        let mut status = self.status.subscribe();
        // It can't close while `self` holds the sender.
        let _ = status.wait_for(|s| *s != RunStatus::Running).await;
    }

    /// How it stands; `running` is what to say of the kernel while it runs.
    pub(crate) fn reply(&self, running: KernelReport) -> Reply {
        let status = *self.status.borrow();
        let record = self.record();
        let took = record
            .took
            .or_else(|| record.started.map(|s| s.elapsed()))
            .unwrap_or_default();
        let mut truncated: BTreeMap<String, Truncated> = BTreeMap::new();
        for (name, output) in [("stdout", &record.stdout), ("stderr", &record.stderr)] {
            truncated.extend(output.truncated().map(|t| (name.to_owned(), t)));
        }
        if record.data_kept < record.data_total {
            truncated.insert(
                "data".into(),
                Truncated {
                    total: record.data_total,
                    kept: record.data_kept,
                },
            );
        }
        Reply {
            id: self.id.clone(),
            status,
            stdout: record.stdout.text(),
            stderr: record.stderr.text(),
            result: record.result.clone(),
            data: record.data.clone(),
            error: record.error.clone(),
            execution_count: record.execution_count,
            timing_ms: (took.as_secs_f64() * 1e6).round() / 1e3,
            kernel: record
                .report
                .unwrap_or_else(|| running.to(self.request.seen)),
            truncated: (!truncated.is_empty()).then_some(truncated),
        }
    }

    fn is_finished(&self) -> bool {
        *self.status.borrow() != RunStatus::Running
    }

    fn bytes(&self) -> usize {
        let record = self.record();
        let kept = usize::try_from(record.data_kept).unwrap_or(usize::MAX);
        record.stdout.kept() + record.stderr.kept() + self.request.code.len() + kept
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn add(&mut self, data: Bundle) {
        let size: usize = data.iter().map(|(k, v)| k.len() + size(v)).sum();
        self.data_total += size as u64;
        if self.data_kept + size as u64 <= DATA_LIMIT as u64 {
            self.data_kept += size as u64;
            self.data.push(data);
        }
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum::<usize>() + items.len(),
        Value::Object(map) => map.iter().map(|(k, v)| k.len() + size(v)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

/// The runs that can be found again.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs(Arc<Mutex<VecDeque<Arc<Run>>>>);

impl Runs {
    /// A new run, or the one of that id; `true` when it is new.
    pub(super) fn begin(&self, request: Execute) -> Result<(Arc<Run>, bool), Refusal> {
        let mut runs = self.lock();
        let id = match &request.id {
            Some(id) => {
                if let Some(run) = runs.iter().find(|r| r.id == *id) {
                    let same = is_same(&run.request, &request);
                    return if same {
                        Ok((run.clone(), false))
                    } else {
                        Err(Refusal::OtherRun(id.clone()))
                    };
                }
                id.clone()
            }
            None => fresh_id(),
        };
        let run = Arc::new(Run::new(id, request));
        runs.push_back(run.clone());
        prune(&mut runs);
        Ok((run, true))
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Run>> {
        self.lock().iter().find(|r| r.id == id).cloned()
    }

    /// A run that was refused never was.
    pub(super) fn forget(&self, run: &Arc<Run>) {
        self.lock().retain(|r| !Arc::ptr_eq(r, run));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Run>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How to wait for a run is not part of what it does.
fn is_same(first: &Execute, second: &Execute) -> bool {
    first.code == second.code && first.session == second.session && first.timeout == second.timeout
}

fn prune(runs: &mut VecDeque<Arc<Run>>) {
    let mut bytes: usize = runs.iter().map(|r| r.bytes()).sum();
    let mut count = runs.len();
    // The newest stays whatever it weighs: somebody is about to read it.
    let newest = runs.back().cloned();
    runs.retain(|run| {
        let is_newest = newest.as_ref().is_some_and(|n| Arc::ptr_eq(n, run));
        let too_much = count > KEPT_RUNS || bytes > KEPT_BYTES;
        if is_newest || !too_much || !run.is_finished() {
            return true;
        }
        count -= 1;
        bytes -= run.bytes();
        false
    });
}

fn fresh_id() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0u8; 4];
    // Without randomness the count alone still tells the runs of this life apart.
    let _ = getrandom::fill(&mut bytes);
    let salt = u32::from_le_bytes(bytes);
    format!("run-{}-{salt:08x}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::{KEPT_RUNS, Refusal, Runs};
    use crate::protocol::kernel::{Event, Execute, KernelReport, KernelState, RunStatus};

    const REPORT: KernelReport = KernelReport {
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
        let runs = Runs::default();
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
            Refusal::OtherRun("a".into())
        );
    }

    #[test]
    fn old_runs_go_and_running_ones_stay() {
        let runs = Runs::default();
        let (running, _) = runs.begin(named("first", "1")).unwrap();
        for number in 0..2 * KEPT_RUNS {
            let (run, _) = runs.begin(named(&format!("r{number}"), "1")).unwrap();
            run.finish(RunStatus::Completed, REPORT);
        }
        assert_eq!(runs.lock().len(), KEPT_RUNS);
        assert!(runs.find("first").is_some() && runs.find("r0").is_none());
        drop(running);
    }

    #[test]
    fn heavy_runs_go_sooner() {
        let runs = Runs::default();
        for number in 0..100 {
            let (run, _) = runs.begin(named(&format!("r{number}"), "1")).unwrap();
            run.fold(Event::Stdout {
                bytes: vec![b'x'; 1 << 20],
            });
            run.finish(RunStatus::Completed, REPORT);
        }
        assert!(runs.lock().len() < 40, "{}", runs.lock().len());
    }

    #[test]
    fn a_reply_has_what_happened() {
        let runs = Runs::default();
        let (run, _) = runs.begin(named("a", "1")).unwrap();
        run.started(1);
        run.fold(Event::Stdout {
            bytes: b"hi\n".to_vec(),
        });
        let data = serde_json::json!({"text/plain": "2"})
            .as_object()
            .unwrap()
            .clone();
        run.fold(Event::Result { data });
        assert_eq!(run.reply(REPORT).status, RunStatus::Running);
        run.finish(RunStatus::Completed, REPORT);
        let reply = run.reply(KernelReport {
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
}
