//! `osctl companion`: the service inside; refuses where no engine started it.

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
    Err(super::linux_only())
}

/// The engine starts the companion in `/`, where no code is to begin.
#[cfg(target_os = "linux")]
fn go_home() {
    use std::{env, path::Path};
    if env::current_dir().is_ok_and(|folder| folder == Path::new("/")) {
        let home = env::var_os("HOME").unwrap_or_else(|| "/root".into());
        // A home that is missing is no reason not to serve.
        let _ = env::set_current_dir(home);
    }
}
