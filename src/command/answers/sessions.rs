//! Answers about sessions.

use super::runs::{KernelEntry, RestoredEntry};
use crate::protocol::session::{SessionDeleted, SessionInfo, SessionList};
use schemars::JsonSchema;
use serde::Serialize;

/// The sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionsAnswer {
    sessions: Vec<SessionEntry>,
}

impl From<SessionList> for SessionsAnswer {
    fn from(list: SessionList) -> Self {
        let sessions = list.sessions.into_iter();
        Self {
            sessions: sessions.map(SessionEntry::from).collect(),
        }
    }
}

/// One kernel with its namespace.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionEntry {
    name: String,
    ready: bool,
    busy: bool,
    /// The status in words.
    detail: String,
    /// Queued runs.
    queued_count: u64,
    execution_count: u64,
    variable_count: u64,
    resource_count: u64,
    kernel: KernelEntry,
    /// The stored generation from which the session was restored, until the kernel's generation changes.
    restored_from: Option<RestoredEntry>,
    /// The version of Python.
    python: Option<String>,
    /// Time since the last request.
    idle_seconds: f64,
    /// Memory of the kernel with its child processes. Memory shared with other kernels is counted in part.
    memory_bytes: Option<u64>,
}

impl From<SessionInfo> for SessionEntry {
    fn from(session: SessionInfo) -> Self {
        let SessionInfo {
            name,
            ready,
            busy,
            detail,
            queued,
            exec_count: execution_count,
            globals_count,
            resources_count,
            kernel,
            restored_from,
            python,
            idle,
            memory,
        } = session;
        Self {
            name,
            ready,
            busy,
            detail,
            queued_count: queued,
            execution_count,
            variable_count: globals_count,
            resource_count: resources_count,
            kernel: kernel.into(),
            restored_from: restored_from.map(RestoredEntry::from),
            python,
            idle_seconds: idle,
            memory_bytes: memory,
        }
    }
}

/// The session that was ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionRemovedAnswer {
    /// Always `completed`.
    status: String,
    name: String,
}

impl From<SessionDeleted> for SessionRemovedAnswer {
    fn from(deleted: SessionDeleted) -> Self {
        let SessionDeleted { status, name } = deleted;
        Self { status, name }
    }
}
