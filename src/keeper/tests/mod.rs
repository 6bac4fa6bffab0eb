//! Whole runs of the keeper, in process, on the fake engine of [`crate::engine::fake_engine`]. The clock is stopped:
//! every wait of the keeper takes no time.
//!
//! The tests against a real engine prove that the engine behaves as the fake. These tests prove what the keeper makes
//! of every failure: each cause has its end ([`failures`], [`failed_scripts`]), and a keeper that dies, a connection that
//! is lost and an engine that refuses at any call leave one container that answers requests ([`interruptions`]).

mod body_checks;
mod failed_scripts;
mod failures;
mod harness;
mod interruptions;
mod recovery;
mod same_image;
mod watch_period;
