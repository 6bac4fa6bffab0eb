//! The owner of a terminal, whole and in process, with a real device and a shell that a test scripts. The clock is
//! stopped until a test moves it.
//!
//! The tests in real containers prove that a shell behaves as the scripted one. These tests prove what clients read:
//! which of them writes, what a slow one loses, and how a terminal ends.

mod clients;
mod ends;
mod fake_shell;
mod flow;
mod harness;
mod terminals;
