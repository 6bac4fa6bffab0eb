//! The tasks of all services, whole and in process, with services that a test scripts. The clock is stopped until a
//! test moves it.
//!
//! The tests in real containers prove that the programs of the desktop behave as the scripted ones. These tests prove
//! when a service starts, ends and restarts: each need, each dependency, each exit and each timeout.

mod dependencies;
mod harness;
mod needs;
mod restarts;
mod shutdowns;
mod timeouts;
