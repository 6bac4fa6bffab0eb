//! The wire protocol between host, companion and keeper: serde types only.
//!
//! The host's command line, the companion in the container and the engines share these types, so this crate depends on
//! no other crate of osctl and on no async runtime. A change that an older peer would misread increments
//! [`PROTOCOL_VERSION`].

pub mod activity;
pub mod activity_draft;
pub mod activity_text;
pub mod criu;
pub mod cryo;
pub mod desktop;
pub mod display;
pub mod environment;
pub mod error;
pub mod evolve;
pub mod files;
pub mod hex;
pub mod kernel;
pub mod line_buffer;
pub mod mcp;
pub mod mcp_header;
pub mod nearest_name;
pub mod packages;
pub mod progress;
pub mod proof;
pub mod pty;
pub mod quote;
pub mod relay_handshake;
pub mod restored;
pub mod service;
pub mod session;
pub mod shell;
pub mod spec;
pub mod sse;
pub mod text_sanitizer;
pub mod words;
pub mod yaml;

/// Version of the protocol between host and companion.
pub const PROTOCOL_VERSION: u32 = 1;

/// Header with which the companion states [`PROTOCOL_VERSION`] in each response, and osctl's own MCP clients in each
/// request.
pub const PROTOCOL_VERSION_HEADER: &str = "osctl-protocol";

/// Version of the frames between companion and kernel, and therefore of a body.
pub const BODY_PROTOCOL_VERSION: u32 = 1;
