//! Background processes of commands: listed, read and ended with their supervisors.

use super::command::sleep_until_deadline;
use super::command_run::CommandRun;
use crate::companion::pipes::OutputPipes;
use crate::protocol::shell::{JobInfo, JobProcess};
use crate::supervise::{Supervisor, SupervisorEvent, descendants};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

/// Bytes of a job's output that are kept.
const MAX_JOB_TAIL_BYTES: usize = 16 << 10;

/// Time between two checks whether processes remain.
const JOB_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time from the signal until processes that did not stop are killed.
const JOB_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The remaining processes of one command.
#[derive(Debug)]
pub(super) struct BackgroundJob {
    supervisor: Supervisor,
    pipes: OutputPipes,
    entry: JobEntry,
}

/// The description of a job.
#[derive(Debug, Clone)]
struct JobEntry {
    session: String,
    run_id: String,
    command: String,
    tail: Arc<Mutex<VecDeque<u8>>>,
}

/// The ended job, as it was before its end.
pub(crate) type EndedJob = JobInfo;

#[derive(Debug, Clone)]
struct JobHandle {
    entry: JobEntry,
    end_requests: mpsc::Sender<oneshot::Sender<()>>,
}

/// All jobs, by the process ids of their supervisors.
#[derive(Debug, Clone, Default)]
pub(super) struct ShellJobs(Arc<Mutex<BTreeMap<i32, JobHandle>>>);

impl BackgroundJob {
    pub(super) fn new(run: &CommandRun, supervisor: Supervisor, pipes: OutputPipes) -> Self {
        Self {
            supervisor,
            pipes,
            entry: JobEntry {
                session: run.request.session.clone(),
                run_id: run.id.clone(),
                command: run.summary_line(),
                tail: Arc::default(),
            },
        }
    }

    /// Waits until no process remains. Reads their output, because full pipes would block them.
    #[tracing::instrument(name = "job", skip_all, fields(session = %self.entry.session, run = %self.entry.run_id))]
    async fn wait_for_end(mut self, mut ends: mpsc::Receiver<oneshot::Sender<()>>) {
        let mut waiters: Vec<oneshot::Sender<()>> = Vec::new();
        let mut deadline = None;
        loop {
            let (_, bytes) = tokio::select! {
                biased;
                end = ends.recv() => {
                    self.supervisor.send_signal(Signal::SIGTERM);
                    deadline.get_or_insert(Instant::now() + JOB_STOP_TIMEOUT);
                    match end {
                        Some(end) => waiters.push(end),
                        // All handles are dropped: the companion ends.
                        None => return self.supervisor.kill_tree(),
                    }
                    continue;
                }
                () = sleep_until_deadline(deadline) => {
                    deadline = None;
                    self.supervisor.kill_tree();
                    continue;
                }
                event = self.supervisor.next_event() => match event {
                    SupervisorEvent::AllExited => break,
                    _ => continue,
                },
                piece = self.pipes.next_piece() => piece,
            };
            let mut tail = self.entry.tail.lock();
            tail.extend(bytes);
            let excess = tail.len().saturating_sub(MAX_JOB_TAIL_BYTES);
            tail.drain(..excess);
        }
        for end in waiters {
            // The caller may have disconnected.
            let _ = end.send(());
        }
    }
}

impl ShellJobs {
    pub(super) fn add_job(&self, background: BackgroundJob) {
        let (end, ends) = mpsc::channel(4);
        let pid = background.supervisor.pid();
        let handle = JobHandle {
            entry: background.entry.clone(),
            end_requests: end,
        };
        self.0.lock().insert(pid, handle);
        let jobs = self.0.clone();
        tokio::spawn(async move {
            background.wait_for_end(ends).await;
            jobs.lock().remove(&pid);
        });
    }

    pub(super) async fn list_jobs(&self) -> Vec<JobInfo> {
        let entries: Vec<(i32, JobEntry)> = self
            .0
            .lock()
            .iter()
            .map(|(pid, handle)| (*pid, handle.entry.clone()))
            .collect();
        // Reading /proc takes a while.
        let described = spawn_blocking(move || {
            let jobs = entries
                .into_iter()
                .map(|(pid, entry)| describe_job(pid, &entry));
            jobs.filter(|job| !job.processes.is_empty()).collect()
        });
        described.await.unwrap_or_default()
    }

    pub(super) fn job_sessions(&self) -> Vec<String> {
        let jobs = self.0.lock();
        jobs.values().map(|job| job.entry.session.clone()).collect()
    }

    /// Ends a job and returns it as it was before; `None` when it does not exist.
    pub(super) async fn end_job(&self, pid: i32) -> Option<JobInfo> {
        let handle = self.0.lock().get(&pid).cloned()?;
        let entry = handle.entry.clone();
        let job = spawn_blocking(move || describe_job(pid, &entry))
            .await
            .ok()?;
        let (ended, end) = oneshot::channel();
        handle.end_requests.send(ended).await.ok()?;
        // A dropped sender also means that the job has ended.
        let _ = end.await;
        Some(job)
    }

    /// Waits until no job remains, at most the time after which jobs are killed.
    pub(super) async fn wait_until_empty(&self) {
        let begin = Instant::now();
        while !self.0.lock().is_empty() && begin.elapsed() < JOB_STOP_TIMEOUT + JOB_POLL_INTERVAL {
            sleep(JOB_POLL_INTERVAL).await;
        }
    }

    /// Ends the jobs of a session, or all jobs, without waiting.
    pub(super) fn end_all(&self, session: Option<&str>) {
        for handle in self.0.lock().values() {
            if session.is_none_or(|session| handle.entry.session == session) {
                // A full mailbox holds an end request already.
                let _ = handle.end_requests.try_send(oneshot::channel().0);
            }
        }
    }
}

fn describe_job(pid: i32, entry: &JobEntry) -> JobInfo {
    let below = descendants::list_descendants(Pid::from_raw(pid));
    let tail = entry.tail.lock().iter().copied().collect::<Vec<u8>>();
    JobInfo {
        pid,
        session: entry.session.clone(),
        run: entry.run_id.clone(),
        command: entry.command.clone(),
        processes: below.into_iter().map(|d| describe_process(d.pid)).collect(),
        output: String::from_utf8_lossy(&tail).into_owned(),
    }
}

fn describe_process(pid: Pid) -> JobProcess {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments = String::from_utf8_lossy(&arguments);
    JobProcess {
        pid: pid.as_raw(),
        command: arguments.trim_end_matches('\0').replace('\0', " "),
    }
}
