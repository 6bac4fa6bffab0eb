//! The configuration of MCP clients: the file that each client reads, osctl's entry in that file, and how osctl inserts
//! and removes the entry without touching anything else.
//!
//! ```text
//! client (table: file and entry of each client) ─┐
//! json · toml · yaml · dedicated_file (formats) ─┴── plan ── change (shown, confirmed) ── apply: backup, write, rename
//! launch_command ── probe: starts the client's command and lists its tools
//! ```
//!
//! osctl edits texts instead of rewriting them, so comments, order and layout stay. After every edit osctl parses the
//! result and compares: all other settings must be unchanged. osctl does not touch a file that it cannot read.

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
pub(crate) use client::{CONNECT_CLIENTS, ConnectClient};
pub(crate) use config_paths::ClientConfigPaths;
pub(crate) use launch_command::LaunchCommand;
pub(crate) use plan::{is_connected, plan_connect, plan_disconnect};
pub(crate) use probe::probe_command;
