//! A quiesce of the whole companion, in process. Its kernels have no process, so all code waits in the queue, which
//! counts as running code. The clock is stopped until a test moves it.
//!
//! The tests in real containers prove what is stored. These tests prove when a quiesce waits, fails, interrupts code
//! and ends again.

pub(super) mod fake_keeper;
mod harness;
mod leases;
mod quiesces;
