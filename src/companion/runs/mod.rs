//! Runs with an id and a log: executions of code and commands of the shell.
//!
//! A [`TrackedRun`] holds the request ([`RunKind`]), its events, and its outcome. The [`RunRegistry`] finds runs by id.
//! The owner of the process writes into the run. Any number of followers read the run, each from any event on and at
//! its own pace. The [`RunStore`] holds the records on disk.

mod event_buffer;
mod follower;
mod growing_file;
mod identity;
mod output;
mod registry;
mod replay;
mod retained_runs;
mod run;
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
use std::fmt::Debug;

/// What a run was asked to do, and how it is told of.
pub(crate) trait RunKind: Debug + Send + Sync + 'static {
    /// All that is told at the end.
    type Reply: Debug + Clone + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What only the one knows who did it.
    type Report: Debug + Clone + Serialize + DeserializeOwned + Send + Sync + 'static;

    /// Where its runs are found over HTTP.
    const RUN_API_PATH: &'static str;

    /// The id that was asked for.
    fn id(&self) -> Option<&str>;

    /// The code or the command.
    fn text(&self) -> &str;

    /// Whose kernel or shell does it.
    fn session(&self) -> &str;

    /// Bytes that are kept with the run.
    fn bytes(&self) -> usize {
        self.text().len()
    }

    /// Whether it is to be recorded on disk; nothing, where that is as the disk allows.
    fn durable(&self) -> Option<bool>;

    /// Whether the disk may hold neither the code nor what it writes.
    fn is_private(&self) -> bool;

    /// Tells what must be the same in a request that repeats the id. Secrets that are no part of the code
    /// are left out.
    fn hash_request(&self, hash: &mut Sha256);

    /// Work of an earlier life, of which the first line is known.
    fn from_recovered(id: String, session: String, line: String) -> Self;

    /// Whether it is the same work; how to wait for it is no part of that.
    fn is_same(&self, other: &Self) -> bool;

    /// `ended` is the report of a run that has ended, `running` what to say of one that has not.
    fn reply(
        &self,
        so_far: RunSnapshot,
        ended: Option<Self::Report>,
        running: Self::Report,
    ) -> Self::Reply;
}
