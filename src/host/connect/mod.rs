//! The configuration of MCP clients: which file each of them reads, what osctl's entry is there, and how
//! it comes in and goes out again without touching anything else.
//!
//! ```text
//! client (whose file, which entry) ──┐
//! json · toml · yaml · own (texts) ──┴── plan ── Change (shown, asked) ── apply: backup, write, rename
//! call ── probe: what the client will start, asked for its tools
//! ```
//!
//! Texts are edited, not written anew, so comments, order and layout stay. Every edit is read again
//! before it is believed: all else must say what it said. What can't be read is not touched.

mod change;
mod client;
mod config_paths;
mod dedicated_file;
mod edit;
mod json;
mod launch_command;
mod plan;
mod probe;
mod toml;
mod yaml;

pub(crate) use change::ClientFileChange;
pub(crate) use client::ConnectClient;
pub(crate) use config_paths::ClientConfigPaths;
pub(crate) use launch_command::LaunchCommand;
pub(crate) use plan::{plan_connect, plan_disconnect};
pub(crate) use probe::probe_command;
