//! A Jupyter kernel that has no namespace of its own: notebooks see a session of the instance.
//!
//! ```text
//! JupyterLab, VS Code ──ZMQ──▶ sockets ─▶ bridge ─┬─ answers   questions, at once
//!                                  ▲              ├─ cells     code, one cell after the other
//!                                  └──── story ◀──┘      │      as it is told on iopub
//!                                              attached ◀┘ ──HTTP──▶ the companion
//! ```
//!
//! Jupyter starts one such process per notebook, from the [`Kernelspec`] that `osctl jupyter
//! install` writes. The session belongs to whoever works in the container, so the end of a
//! notebook's kernel is not the session's end; a restart is the restart of the session's kernel.
//! While the instance does not answer, cells fail with the cure, and the bridge goes on.
//!
//! What code inside shows reaches the front end without scripts ([`outputs`]): the page of JupyterLab can start
//! programs on the person's machine.
//!
//! Deliberately not here: comms (widgets), the debugger, and answers to `input()`, which raises in
//! the kernel.

mod bridge;
mod cells;
mod connection;
mod content;
mod iopub;
mod kernelspec;
mod notebook_session;
mod outputs;
mod shell_requests;
mod sockets;
mod wire;

pub(crate) use bridge::serve_kernel;
pub(crate) use connection::ConnectionFile;
pub(crate) use kernelspec::{Kernelspec, KernelspecTarget, data_folder};
pub(crate) use notebook_session::NotebookSession;
pub(crate) use outputs::OutputPolicy;
