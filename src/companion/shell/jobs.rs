//! What commands left running: found, read and ended by their guards.

use super::command::at;
use super::guard::{Guard, Said};
use super::work::Run;
use crate::companion::descendants;
use crate::companion::pipes::Pipes;
use crate::protocol::shell::{Job, JobProcess};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

/// Bytes kept of what a job writes.
const TAIL: usize = 16 << 10;

/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(20);

/// From the signal to the end of what did not stop.
const GRACE: Duration = Duration::from_secs(2);

/// What is left of one command.
#[derive(Debug)]
pub(super) struct Background {
    guard: Guard,
    pipes: Pipes,
    entry: Entry,
}

/// What is known of a job.
#[derive(Debug, Clone)]
struct Entry {
    session: String,
    run: String,
    command: String,
    tail: Arc<Mutex<VecDeque<u8>>>,
}

/// The job that was ended, as it was before.
pub(crate) type Ended = Job;

#[derive(Debug, Clone)]
struct Kept {
    entry: Entry,
    end: mpsc::Sender<oneshot::Sender<()>>,
}

/// All jobs, by the ids of their guards.
#[derive(Debug, Clone, Default)]
pub(super) struct Jobs(Arc<Mutex<BTreeMap<i32, Kept>>>);

impl Background {
    pub(super) fn new(run: &Run, guard: Guard, pipes: Pipes) -> Self {
        Self {
            guard,
            pipes,
            entry: Entry {
                session: run.work.session.clone(),
                run: run.id.clone(),
                command: run.line(),
                tail: Arc::default(),
            },
        }
    }

    /// Until nobody is left. What they write must be read, or they would wait for ever.
    async fn attend(mut self, mut ends: mpsc::Receiver<oneshot::Sender<()>>) {
        let mut asked: Vec<oneshot::Sender<()>> = Vec::new();
        let mut deadline = None;
        loop {
            let (_, bytes) = tokio::select! {
                biased;
                end = ends.recv() => {
                    self.guard.signal(Signal::SIGTERM);
                    deadline.get_or_insert(Instant::now() + GRACE);
                    match end {
                        Some(end) => asked.push(end),
                        // Nobody can ask any more: the companion ends.
                        None => return self.guard.end(),
                    }
                    continue;
                }
                () = at(deadline) => {
                    deadline = None;
                    self.guard.end();
                    continue;
                }
                said = self.guard.next() => match said {
                    Said::Gone => break,
                    _ => continue,
                },
                piece = self.pipes.next() => piece,
            };
            let mut tail = locked(&self.entry.tail);
            tail.extend(bytes);
            let excess = tail.len().saturating_sub(TAIL);
            tail.drain(..excess);
        }
        for end in asked {
            // Whoever asked may have left.
            let _ = end.send(());
        }
    }
}

impl Jobs {
    pub(super) fn keep(&self, background: Background) {
        let (end, ends) = mpsc::channel(4);
        let pid = background.guard.pid;
        let kept = Kept {
            entry: background.entry.clone(),
            end,
        };
        locked(&self.0).insert(pid, kept);
        let jobs = self.0.clone();
        tokio::spawn(async move {
            background.attend(ends).await;
            locked(&jobs).remove(&pid);
        });
    }

    pub(super) async fn all(&self) -> Vec<Job> {
        let kept: Vec<(i32, Entry)> = locked(&self.0)
            .iter()
            .map(|(pid, kept)| (*pid, kept.entry.clone()))
            .collect();
        // Looking through /proc takes a while.
        let described = spawn_blocking(move || {
            let jobs = kept.into_iter().map(|(pid, entry)| describe(pid, &entry));
            jobs.filter(|job| !job.processes.is_empty()).collect()
        });
        described.await.unwrap_or_default()
    }

    pub(super) fn sessions(&self) -> Vec<String> {
        let kept = locked(&self.0);
        kept.values()
            .map(|kept| kept.entry.session.clone())
            .collect()
    }

    /// The job as it was; nothing when there is none.
    pub(super) async fn end(&self, pid: i32) -> Option<Job> {
        let kept = locked(&self.0).get(&pid).cloned()?;
        let entry = kept.entry.clone();
        let job = spawn_blocking(move || describe(pid, &entry)).await.ok()?;
        let (ended, end) = oneshot::channel();
        kept.end.send(ended).await.ok()?;
        // It is over when nobody can say so any more, too.
        let _ = end.await;
        Some(job)
    }

    /// Waits until none is left, as long as they may take.
    pub(super) async fn ended(&self) {
        let begin = Instant::now();
        while !locked(&self.0).is_empty() && begin.elapsed() < GRACE + LOOK {
            sleep(LOOK).await;
        }
    }

    /// Those of a session, or all; waits for nothing.
    pub(super) fn end_all(&self, session: Option<&str>) {
        for kept in locked(&self.0).values() {
            if session.is_none_or(|session| kept.entry.session == session) {
                // A full mailbox has been told already.
                let _ = kept.end.try_send(oneshot::channel().0);
            }
        }
    }
}

fn describe(pid: i32, entry: &Entry) -> Job {
    let below = descendants::of(Pid::from_raw(pid));
    let tail = locked(&entry.tail).iter().copied().collect::<Vec<u8>>();
    Job {
        pid,
        session: entry.session.clone(),
        run: entry.run.clone(),
        command: entry.command.clone(),
        processes: below.into_iter().map(|d| process(d.pid)).collect(),
        output: String::from_utf8_lossy(&tail).into_owned(),
    }
}

fn process(pid: Pid) -> JobProcess {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    JobProcess {
        pid: pid.as_raw(),
        command: words.trim_end_matches('\0').replace('\0', " "),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
