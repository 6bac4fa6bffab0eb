//! Commands whose memory and time are bounded by the test.

use crate::commands::Ran;
use crate::harness::TEST_TIMEOUT;
use nix::libc::{WNOHANG, rusage, wait4};
use std::fs;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The most memory that a command may hold, whatever answer it gets.
pub(crate) const MAX_HELD_BYTES: u64 = 200 << 20;

/// The precision of the system's memory counters.
const SLACK_BYTES: u64 = 4 << 20;

/// The length of the output that is kept.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// A running command whose memory is watched.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) child: Child,
    outputs: [JoinHandle<String>; 2],
    /// The most bytes of memory that the command or one of its processes held.
    peak: u64,
}

impl Watched {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = drain(child.stdout.take().unwrap());
        let stderr = drain(child.stderr.take().unwrap());
        Self {
            child,
            outputs: [stdout, stderr],
            peak: 0,
        }
    }

    /// Starts a command whose stdout is not read.
    pub(crate) fn start_unread(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = drain(child.stderr.take().unwrap());
        Self {
            child,
            outputs: [drain(std::io::empty()), stderr],
            peak: 0,
        }
    }

    /// Waits for the end, which must come. Returns how the command ended and the most bytes that it held.
    #[track_caller]
    pub(crate) fn end(mut self) -> (Ran, u64) {
        let begin = Instant::now();
        let status = loop {
            self.peak = self.peak.max(held(self.child.id()));
            if let Some((status, peak)) = ended(&self.child) {
                // The system counts the memory of this process for a child, too.
                let own = held_alone(std::process::id()) + SLACK_BYTES;
                self.peak = self.peak.max(if peak > own { peak } else { 0 });
                break status;
            }
            if begin.elapsed() > TEST_TIMEOUT {
                self.child.kill().unwrap();
                let said = self.outputs.map(|output| output.join().unwrap());
                panic!("the command does not end: {said:?}");
            }
            thread::sleep(Duration::from_millis(2));
        };
        let [stdout, stderr] = self.outputs.map(|output| output.join().unwrap());
        let ran = Ran {
            code: status.code().unwrap_or(-1),
            stdout,
            stderr,
        };
        (ran, self.peak)
    }
}

/// Runs the command, which must end and hold no more than [`MAX_HELD_BYTES`].
#[track_caller]
pub(crate) fn run_within_bounds(command: Command) -> Ran {
    run_within(command, MAX_HELD_BYTES)
}

/// Runs the command, which must end and hold less than `bytes`.
#[track_caller]
pub(crate) fn run_within(command: Command, bytes: u64) -> Ran {
    let (ran, peak) = Watched::start(command).end();
    let held = peak >> 20;
    assert!(
        peak < bytes,
        "the command held {held} MiB: {:.2000}",
        ran.stderr
    );
    ran
}

/// Reads to the end, and keeps the beginning.
fn drain(mut output: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut piece = vec![0; 1 << 16];
        while let Ok(length @ 1..) = output.read(&mut piece) {
            let rest = MAX_KEPT_BYTES.saturating_sub(kept.len());
            kept.extend_from_slice(&piece[..length.min(rest)]);
        }
        String::from_utf8_lossy(&kept).into_owned()
    })
}

/// How a child ended, if it did, and the most bytes that it or a descendant that it waited for has held.
fn ended(child: &Child) -> Option<(ExitStatus, u64)> {
    let (mut status, mut usage) = (0, MaybeUninit::<rusage>::zeroed());
    // SAFETY: both places are valid for writes, and only this function waits for the child.
    let pid = unsafe {
        wait4(
            child.id().cast_signed(),
            &raw mut status,
            WNOHANG,
            usage.as_mut_ptr(),
        )
    };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: zeros are a valid value of `rusage`.
    let usage = unsafe { usage.assume_init() };
    let kilobytes = u64::try_from(usage.ru_maxrss).unwrap();
    (pid > 0).then(|| (ExitStatus::from_raw(status), kilobytes << 10))
}

/// The most bytes that a process has held until now. A child has the memory of this process until it executes its
/// program.
fn held_alone(pid: u32) -> u64 {
    let program = |process: &str| fs::read_link(format!("/proc/{process}/exe")).ok();
    if pid != std::process::id() && program(&pid.to_string()) == program("self") {
        return 0;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() << 10
}

/// The most bytes that a process or one of its descendants has held until now.
fn held(pid: u32) -> u64 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    let most = children.map(held).max().unwrap_or_default();
    most.max(held_alone(pid))
}
