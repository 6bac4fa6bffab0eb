//! What the hub gets from the process that contains it: paths, variables and the activity log.

use osctl_protocol::activity::ActivityRecord;
use osctl_protocol::environment::UserEnvironment;
use std::ffi::OsString;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

/// The paths and services that the hub uses.
#[derive(Debug, Clone)]
pub struct HubSettings {
    /// The configuration files; later ones win.
    pub config_files: Vec<PathBuf>,
    pub data_folder: PathBuf,
    /// The lists of the packaged servers, which come with the image.
    pub packaged_lists_folder: PathBuf,
    /// The variables that a server inherits.
    pub inherited_environment: Vec<(OsString, OsString)>,
    pub context: Arc<dyn HubContext>,
}

/// The process that contains the hub.
pub trait HubContext: Debug + Send + Sync {
    /// The user's variables now. A server gets those of its start.
    fn user_environment(&self) -> Arc<UserEnvironment>;

    /// Records what a client did.
    fn record_activity(&self, record: ActivityRecord);

    /// Records the end of a run that continues after the client's call.
    fn record_end_of_run(&self, run: &str, client: Arc<str>);
}
