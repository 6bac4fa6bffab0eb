//! Ending process trees. A supervisor is a process of this binary, `osctl reaper`, that ends all descendants of one
//! process with it.
//!
//! A child subreaper stays the ancestor of all its descendants, also of those that call `setsid`. The companion has a
//! [`Supervisor`] for each process tree, and communicates with the process ([`run_supervisor`]) over one socket, in
//! frames of the [`protocol`]:
//!
//! ```text
//! companion                                 supervisor
//!    │── Start, five descriptors ──────────────▶│   not for a kernel, which the template forks beneath it
//!    │◀── Started pid | NotStarted errno ───────│
//!    │── Signal n | ShutDown time | Kill ──────▶│
//!    │◀── Ended code, whether processes remain ─│
//!    │◀── closed ───────────────────────────────│   no descendant is left
//! ```
//!
//! The kinds of trees ([`ProcessKind`]) differ only in these points:
//!
//! | | kernel | restored kernel | command | MCP server, service | terminal |
//! |---|---|---|---|---|---|
//! | first process | forked by the template | restored by criu, a child | child | child | child |
//! | leads | a group | a group | a group | a group | a session with the terminal |
//! | at its end | all others are killed | all others are killed | all others run on | all others are killed | all others are killed |
//! | to stop it | SIGTERM, then all are killed | SIGTERM, then all are killed | any signal to all | stdin ends; SIGTERM, then all are killed | hang-up and SIGTERM, then all are killed |
//! | OOM score | kernel 100, supervisor 0 | kernel 100, supervisor 0 | the companion's | the companion's | the companion's |
//!
//! All trees have in common: the supervisor kills them when the companion ends, closes the connection or sends `Kill`;
//! one signal reaches a whole group, and the rest is stopped before it is killed, so that a fork bomb ends; the first
//! process dies with its supervisor, and the companion then kills its group; a supervisor that is stopped continues
//! with the next request. The supervisor has neither a runtime nor threads, so it works when no process can be created.

#![cfg(target_os = "linux")]

mod client;
pub mod descendants;
mod pool;
mod protocol;
mod supervisor;

pub use client::{SupervisedExit, Supervisor};
pub use pool::SupervisorPool;
pub use protocol::{
    ProcessKind, ProcessStart, SupervisorEvent, SupervisorFrame, SupervisorRequest,
};
pub use supervisor::run_supervisor;
