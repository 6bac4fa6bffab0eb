//! `osctl companion`: the service inside; refuses where no engine started it.

use crate::error::{Outcome, Result};

#[cfg(target_os = "linux")]
pub(crate) async fn run() -> Result<Outcome> {
    use crate::companion::{self, Settings};
    go_home();
    companion::run(Settings::from_environment()?).await?;
    Ok(Outcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run() -> Result<Outcome> {
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
