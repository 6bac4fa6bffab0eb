//! Whole calls of `up` in process: the engine is a fake in memory, and its containers publish real ports on an address
//! of their own. The clock runs, because the clock must not pass over connections; a test that waits for a time limit
//! lets the time pass.
//!
//! Each test asserts which container runs at the end, and that exactly one of the instance remains.

mod harness;
mod initial_states;
mod interruptions;
mod replacement;
mod via_keeper;
