//! Supervision of a process tree: a child subreaper starts a command, reports its end, and ends its descendants with it.
//!
//! [`supervisor`] runs in the supervisor process, [`client`] in the companion. This crate depends on no other crate of
//! osctl.

#![cfg(target_os = "linux")]

pub mod client;
pub mod descendants;
pub mod supervisor;

pub use client::{CommandSupervisor, CommandSupervisorEvent};
pub use supervisor::{encode_command, supervise_command};
