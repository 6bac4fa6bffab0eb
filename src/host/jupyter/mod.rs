//! A Jupyter kernel without its own namespace: notebooks use a session of the instance.
//!
//! ```text
//! JupyterLab, VS Code ──ZMQ──▶ sockets ─▶ bridge ─┬─ shell_requests   queries, answered immediately
//!                                  ▲              ├─ cells            code, one cell after the other
//!                                  └──── iopub ◀──┘      │            its events, as they happen
//!                                   notebook_session ◀───┘ ──HTTP──▶ the companion
//! ```
//!
//! Jupyter starts one such process per notebook, from the [`Kernelspec`] that `osctl jupyter install` writes. The
//! session does not belong to the notebook, so it survives the shutdown of the notebook's kernel; a restart of that
//! kernel restarts the session's kernel. While the instance does not answer, cells fail with a hint, and the bridge
//! keeps running.
//!
//! Output of the code reaches the front end without scripts ([`outputs`]): the page of JupyterLab can start programs on
//! the person's machine.
//!
//! Not supported by design: comms (widgets), the debugger, and answers to `input()`, which raises in the kernel.

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
