//! Runs with an id and a log: executions of code and commands of the shell.
//!
//! A [`TrackedRun`] holds the request ([`RunKind`]), its events, and its outcome. The [`RunRegistry`] finds runs by id.
//! The owner of the process writes into the run. Any number of followers read the run, each from any event on and at
//! its own pace. The [`RunStore`] holds the records on disk.

mod event_buffer;
mod follower;
mod growing_file;
mod output;
mod registry;
mod request_digest;
mod retained_runs;
mod run;
mod run_replay;
mod spill_file;
mod store;

pub(crate) use follower::RunFollower;
pub(crate) use registry::{RunIdConflict, RunRegistry};
pub(crate) use retained_runs::RetainedRuns;
pub(crate) use run::{RunNotRecorded, RunSnapshot, TrackedRun};
pub(super) use spill_file::SpillFiles;
pub(crate) use store::RunStore;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;
use std::borrow::Cow;
use std::fmt::Debug;

/// A kind of run: its request, its reply and its identity.
pub(crate) trait RunKind: Debug + Send + Sync + 'static {
    /// Reply to the client.
    type Reply: Debug + Clone + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Report of the owner of the process.
    type Report: Debug + Clone + Serialize + DeserializeOwned + Send + Sync + 'static;

    /// Path of this kind of runs in the HTTP API.
    const RUN_API_PATH: &'static str;

    /// The id in the request.
    fn id(&self) -> Option<&str>;

    /// The code or the command.
    fn text(&self) -> &str;

    /// What represents the run in lists by its first line: the code, the command, or the file of a program.
    fn label(&self) -> Cow<'_, str> {
        self.text().into()
    }

    /// The session that executes the run.
    fn session(&self) -> &str;

    /// Bytes of memory that the request takes.
    fn bytes(&self) -> usize {
        self.text().len()
    }

    /// Whether the run must be recorded on disk; `None`: if the disk allows it.
    fn durable(&self) -> Option<bool>;

    /// Whether neither the code nor its output may be recorded on disk.
    fn is_private(&self) -> bool;

    /// Whether a run that has completed did not succeed.
    fn is_failure(_report: &Self::Report) -> bool {
        false
    }

    /// Hashes all fields that must be equal in a request that repeats the id. Secrets outside of the code are left out.
    fn hash_request(&self, hash: &mut Sha256);

    /// The work of an earlier companion, with only the first line of its code.
    fn from_recovered(id: String, session: String, line: String) -> Self;

    /// Whether `other` is the same work. Settings of waiting do not count.
    fn is_same_request(&self, other: &Self) -> bool;

    /// Builds the reply. `ended` is the report of a run that has ended; `running` is the report for a run that has not.
    fn reply(
        &self,
        so_far: RunSnapshot,
        ended: Option<Self::Report>,
        running: Self::Report,
    ) -> Self::Reply;
}
