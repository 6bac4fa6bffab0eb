//! `osctl companion`: the service inside the container; fails outside of a container.

use crate::error::{Result, VerbOutcome};

#[cfg(target_os = "linux")]
pub(crate) async fn run() -> Result<VerbOutcome> {
    use crate::companion::{self, CompanionSettings};
    go_home();
    companion::run_companion(CompanionSettings::from_environment()?).await?;
    Ok(VerbOutcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run() -> Result<VerbOutcome> {
    Err(super::linux_only_error())
}

/// Changes from `/`, where the engine starts the companion, to the home directory, where code should start.
#[cfg(target_os = "linux")]
fn go_home() {
    use std::{env, path::Path};
    if env::current_dir().is_ok_and(|folder| folder == Path::new("/")) {
        let home = env::var_os("HOME").unwrap_or_else(|| "/root".into());
        // The companion also runs without a home directory.
        let _ = env::set_current_dir(home);
    }
}
