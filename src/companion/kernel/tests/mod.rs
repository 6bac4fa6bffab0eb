//! The owner task of a kernel, whole and in process, with a fake kernel that a test scripts. The clock is stopped
//! until a test moves it.
//!
//! The tests in real containers prove that Python behaves as the fake. These tests prove what callers read at every end
//! of a kernel: the replies, the state and the generation.

mod checkpoints;
mod exits;
mod fake_kernel;
mod harness;
mod restarts;
mod restores;
mod runs;
mod shutdowns;
