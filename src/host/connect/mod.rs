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

mod call;
mod change;
mod client;
mod edit;
mod json;
mod own;
mod places;
mod plan;
mod probe;
mod toml;
mod yaml;

pub(crate) use call::Call;
pub(crate) use change::Change;
pub(crate) use client::Client;
pub(crate) use places::Places;
pub(crate) use plan::{connect, disconnect};
pub(crate) use probe::probe;
