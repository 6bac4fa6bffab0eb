//! One running server (a child) and the task that owns it.
//!
//! [`ServerHandle`] is the handle. The owner task ([`server_task`]) starts the server when a client needs it
//! ([`restart_policy`]), performs the handshake in the revision that the server supports ([`protocol_revision`]),
//! routes each answer to the client that waits for it ([`pending_requests`]), and ends the server after its idle
//! time. Failures of the server stay in this module: waiting clients receive an error, other servers are not
//! affected.
//!
//! The task reaches a server through a [`pipe`]: a child process ([`process`]), a URL ([`remote`]), or channels to
//! the built-in server ([`in_process`]).

mod event;
mod in_process;
mod line_buffer;
mod pending_requests;
mod pipe;
mod process;
pub(super) mod protocol_revision;
mod remote;
mod restart_policy;
mod server_handle;
mod server_requests;
mod server_spec;
mod server_task;
mod subscriptions;

pub use in_process::InProcessServer;
pub(super) use restart_policy::ServerPhase;
pub(super) use server_handle::ServerHandle;
pub(super) use server_spec::{HandshakeError, ServerSpec};
