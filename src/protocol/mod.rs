//! The wire protocol between host, companion and keeper: serde types only.
//!
//! The host's command line, the companion in the container and the engines share these types, so this module imports
//! nothing of the crate and no async runtime. A change that an older peer would misread increments
//! [`PROTOCOL_VERSION`].

pub(crate) mod activity;
pub(crate) mod criu;
pub(crate) mod cryo;
pub(crate) mod desktop;
pub(crate) mod display;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod evolve;
pub(crate) mod files;
pub(crate) mod hex;
pub(crate) mod kernel;
pub(crate) mod line_buffer;
pub(crate) mod mcp;
pub(crate) mod mcp_header;
pub(crate) mod packages;
pub(crate) mod progress;
pub(crate) mod proof;
pub(crate) mod pty;
pub(crate) mod quote;
pub(crate) mod relay_handshake;
pub(crate) mod restored;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod shell;
pub(crate) mod spec;
pub(crate) mod sse;
pub(crate) mod text_sanitizer;
pub(crate) mod words;
pub(crate) mod yaml;

/// Version of the protocol between host and companion.
pub(crate) const PROTOCOL_VERSION: u32 = 1;

/// Header with which the companion states [`PROTOCOL_VERSION`] in each response, and osctl's own MCP clients in each
/// request.
pub(crate) const PROTOCOL_VERSION_HEADER: &str = "osctl-protocol";

/// Version of the frames between companion and kernel, and therefore of a body.
pub(crate) const BODY_PROTOCOL_VERSION: u32 = 1;
