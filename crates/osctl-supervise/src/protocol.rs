//! The messages between the companion and a supervisor. Both are the same binary, so the protocol has no versions.

use nix::sys::signal::Signal;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a message: its kind, and a number.
pub(crate) const SUPERVISOR_FRAME_BYTES: usize = 5;

pub type SupervisorFrame = [u8; SUPERVISOR_FRAME_BYTES];

/// A message to a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisorRequest {
    /// Starts a process. The frame carries five descriptors: stdin, stdout, stderr, the working directory, and a file
    /// with the [`ProcessStart`].
    Start,
    /// Sends the signal to all processes.
    Signal(Signal),
    /// Sends SIGTERM to the first process, and kills all processes after this time.
    ShutDown(Duration),
    /// Kills all processes.
    Kill,
}

/// A message from a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisorEvent {
    Started(i32),
    /// The process can't be started, with the errno.
    NotStarted(i32),
    /// The first process ended with this code, 128+n for signal n; `has_background` says whether other processes
    /// remain.
    Ended {
        code: u8,
        has_background: bool,
    },
    /// No process is left. The supervisor reports this by its end.
    AllExited,
}

fn build_frame(kind: u8, number: i32) -> SupervisorFrame {
    let mut frame = [kind; SUPERVISOR_FRAME_BYTES];
    frame[1..].copy_from_slice(&number.to_le_bytes());
    frame
}

fn split_frame(frame: SupervisorFrame) -> (u8, i32) {
    let [kind, number @ ..] = frame;
    (kind, i32::from_le_bytes(number))
}

impl SupervisorRequest {
    pub fn to_frame(self) -> SupervisorFrame {
        match self {
            Self::Start => build_frame(b'S', 0),
            Self::Signal(signal) => build_frame(b'G', signal as i32),
            Self::ShutDown(time) => {
                let milliseconds = i32::try_from(time.as_millis());
                build_frame(b'D', milliseconds.unwrap_or(i32::MAX))
            }
            Self::Kill => build_frame(b'K', 0),
        }
    }

    pub fn from_frame(frame: SupervisorFrame) -> Option<Self> {
        match split_frame(frame) {
            (b'S', _) => Some(Self::Start),
            (b'G', number) => Signal::try_from(number).ok().map(Self::Signal),
            (b'D', number) => {
                let milliseconds = u64::try_from(number).ok()?;
                Some(Self::ShutDown(Duration::from_millis(milliseconds)))
            }
            (b'K', _) => Some(Self::Kill),
            _ => None,
        }
    }
}

impl SupervisorEvent {
    /// `None` for the event that has no message.
    pub fn to_frame(self) -> Option<SupervisorFrame> {
        Some(match self {
            Self::Started(pid) => build_frame(b'S', pid),
            Self::NotStarted(errno) => build_frame(b'F', errno),
            Self::Ended {
                code,
                has_background: false,
            } => build_frame(b'E', code.into()),
            Self::Ended { code, .. } => build_frame(b'L', code.into()),
            Self::AllExited => return None,
        })
    }

    pub(super) fn from_frame(frame: SupervisorFrame) -> Option<Self> {
        let (kind, number) = split_frame(frame);
        match kind {
            b'S' => Some(Self::Started(number)),
            b'F' => Some(Self::NotStarted(number)),
            b'E' | b'L' => Some(Self::Ended {
                code: u8::try_from(number).unwrap_or(u8::MAX),
                has_background: kind == b'L',
            }),
            _ => None,
        }
    }
}

/// What a supervisor starts, and what ends its tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessKind {
    /// The leader of a process group. The supervisor runs until the last descendant has ended.
    Command,
    /// The leader of a process group, with which all descendants end.
    Service,
    /// The leader of a session on the terminal that is its stdin; all descendants end with it. The supervisor holds the
    /// terminal open, so the end of file of the terminal comes after the end of the last descendant.
    Terminal,
    /// A program that restores a service as its sibling, and writes the service's process id to this file. The
    /// supervisor reports the service as started, and not the program.
    Restore(PathBuf),
}

/// A process that a supervisor starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStart {
    pub kind: ProcessKind,
    pub program: OsString,
    /// The first one is the name that the program sees.
    pub args: Vec<OsString>,
    /// All variables. The last one of equal names counts.
    pub environment: Vec<(OsString, OsString)>,
    pub max_open_files: Option<u64>,
}

impl ProcessStart {
    /// Encodes each part with its length.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, pid_file) = match &self.kind {
            ProcessKind::Command => ("command", OsStr::new("")),
            ProcessKind::Service => ("service", OsStr::new("")),
            ProcessKind::Terminal => ("terminal", OsStr::new("")),
            ProcessKind::Restore(file) => ("restore", file.as_os_str()),
        };
        let files = self.max_open_files.map(|files| files.to_string());
        let count = self.args.len().to_string();
        let head = [
            kind.as_ref(),
            pid_file,
            files.unwrap_or_default().as_ref(),
            &self.program,
            count.as_ref(),
        ]
        .map(OsStr::to_owned);
        let variables = self.environment.iter();
        let variables = variables.flat_map(|(name, value)| [name, value]);
        let mut bytes = Vec::new();
        for part in head.iter().chain(&self.args).chain(variables) {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }

    /// `None` when the bytes are malformed.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut next = || -> Option<OsString> {
            let (length, rest) = bytes.split_first_chunk::<4>()?;
            let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            bytes = rest;
            Some(OsString::from_vec(part.to_vec()))
        };
        let (kind, pid_file) = (next()?, next()?);
        let kind = match kind.as_bytes() {
            b"command" => ProcessKind::Command,
            b"service" => ProcessKind::Service,
            b"terminal" => ProcessKind::Terminal,
            b"restore" => ProcessKind::Restore(pid_file.into()),
            _ => return None,
        };
        let max_open_files = next()?.to_str()?.parse().ok();
        let program = next()?;
        let count: usize = next()?.to_str()?.parse().ok()?;
        let args = (0..count).map(|_| next()).collect::<Option<_>>()?;
        let mut environment = Vec::new();
        while let Some(name) = next() {
            environment.push((name, next()?));
        }
        Some(Self {
            kind,
            program,
            args,
            environment,
            max_open_files,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{ProcessKind, ProcessStart, SupervisorEvent, SupervisorRequest};
    use nix::sys::signal::Signal;
    use proptest::prelude::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::time::Duration;

    fn any_text() -> impl Strategy<Value = OsString> {
        prop::collection::vec(any::<u8>(), 0..9).prop_map(OsString::from_vec)
    }

    fn any_kind() -> impl Strategy<Value = ProcessKind> {
        prop_oneof![
            Just(ProcessKind::Command),
            Just(ProcessKind::Service),
            Just(ProcessKind::Terminal),
            any_text().prop_map(|file| ProcessKind::Restore(file.into())),
        ]
    }

    proptest! {
        #[test]
        fn a_start_is_read_as_it_was_written(
            kind in any_kind(), program in any_text(), args in prop::collection::vec(any_text(), 0..4),
            environment in prop::collection::vec((any_text(), any_text()), 0..4), max_open_files in any::<Option<u64>>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let start = ProcessStart { kind, program, args, environment, max_open_files };
            let bytes = start.encode();
            prop_assert_eq!(ProcessStart::decode(&bytes), Some(start));
            // What was cut is an error or another start, and never a panic.
            let _ = ProcessStart::decode(&bytes[..cut.index(bytes.len())]);
        }
    }

    #[test]
    fn each_message_is_read_as_it_was_written() {
        for request in [
            SupervisorRequest::Start,
            SupervisorRequest::Signal(Signal::SIGTERM),
            SupervisorRequest::ShutDown(Duration::from_millis(2500)),
            SupervisorRequest::Kill,
        ] {
            let frame = request.to_frame();
            assert_eq!(SupervisorRequest::from_frame(frame), Some(request));
        }
        let (code, pid) = (137, 77);
        for event in [
            SupervisorEvent::Started(pid),
            SupervisorEvent::NotStarted(2),
            SupervisorEvent::Ended {
                code,
                has_background: false,
            },
            SupervisorEvent::Ended {
                code,
                has_background: true,
            },
        ] {
            let frame = event.to_frame().unwrap();
            assert_eq!(SupervisorEvent::from_frame(frame), Some(event));
        }
        assert_eq!(SupervisorRequest::from_frame(*b"?0000"), None);
        assert_eq!(SupervisorEvent::from_frame(*b"?0000"), None);
    }
}
