//! The processes of a container as seen on the host, with the role of each.

use crate::evolve_faults::process;
use crate::harness::Home;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Init,
    Companion,
    /// The template process from which kernels are forked.
    Template,
    /// A supervisor, which ends a process tree with its first process.
    Guard,
    Kernel,
    Other,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) part: Part,
    /// The process ID on the host.
    pid: i32,
    /// The process ID in the container.
    pub(crate) inner: i32,
    parent: i32,
}

impl Process {
    pub(crate) fn kill(self) {
        // The process may have ended already.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
    }
}

/// A snapshot of all processes of a container.
#[derive(Debug)]
pub(crate) struct Processes(BTreeMap<i32, Process>);

impl Processes {
    /// `None` while the container does not run.
    pub(crate) fn of(home: &Home) -> Option<Self> {
        let init = process(home, &home.container())?.as_raw();
        let mut parents: BTreeMap<i32, i32> = BTreeMap::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some((pid, parent)) = pid.and_then(|pid| Some((pid, parent_of(pid)?))) {
                parents.insert(pid, parent);
            }
        }
        let is_inside = |mut pid: i32| loop {
            match parents.get(&pid) {
                _ if pid == init => return true,
                None => return false,
                Some(parent) => pid = *parent,
            }
        };
        let mut found = BTreeMap::new();
        for (pid, parent) in parents.iter().filter(|(pid, _)| is_inside(**pid)) {
            let (Some(words), Some(inner)) = (words(*pid), inner_id(*pid)) else {
                continue;
            };
            let part = match words.get(1).map(String::as_str) {
                _ if *pid == init => Part::Init,
                Some("companion") => Part::Companion,
                Some("reaper") => Part::Guard,
                _ if !words.iter().any(|word| word == "--template") => Part::Other,
                // Kernels have the arguments of the template, and a supervisor as parent.
                _ => Part::Kernel,
            };
            let (pid, parent) = (*pid, *parent);
            found.insert(
                pid,
                Process {
                    part,
                    pid,
                    inner,
                    parent,
                },
            );
        }
        let companions: Vec<i32> = found
            .values()
            .filter(|process| process.part == Part::Companion)
            .map(|process| process.pid)
            .collect();
        for process in found.values_mut() {
            if process.part == Part::Kernel && companions.contains(&process.parent) {
                process.part = Part::Template;
            }
        }
        Some(Self(found))
    }

    pub(crate) fn of_part(&self, part: Part) -> Vec<Process> {
        let all = self.0.values().copied();
        all.filter(|process| process.part == part).collect()
    }

    /// The process with that ID in the container.
    pub(crate) fn known_inside_as(&self, inner: i32) -> Option<Process> {
        let mut all = self.0.values();
        all.find(|process| process.inner == inner).copied()
    }

    /// Whether a process is `above` or a descendant of it.
    pub(crate) fn is_beneath(&self, process: Process, above: Process) -> bool {
        let mut pid = process.pid;
        while let Some(found) = self.0.get(&pid) {
            if pid == above.pid {
                return true;
            }
            pid = found.parent;
        }
        false
    }
}

fn parent_of(pid: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn words(pid: i32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.split_terminator('\0').map(str::to_owned).collect())
}

/// The process ID in the innermost PID namespace.
fn inner_id(pid: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}
