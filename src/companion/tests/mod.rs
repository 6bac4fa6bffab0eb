//! Shared parts of the tests of owners: a clock that a test moves, and a supervisor that a test scripts.
//!
//! An owner runs whole and in process. The tests in real containers prove that its partners behave as the scripted
//! ones; these tests prove what the owner makes of each answer.

pub(crate) mod clock;
pub(crate) mod fake_supervisor;
