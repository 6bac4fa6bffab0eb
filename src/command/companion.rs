//! `osctl companion`: the service inside; refuses where no engine started it.

use crate::error::{Outcome, Result};

#[cfg(target_os = "linux")]
pub(crate) async fn run() -> Result<Outcome> {
    use crate::companion::{self, Settings};
    companion::run(Settings::from_environment()?).await?;
    Ok(Outcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run() -> Result<Outcome> {
    Err(super::linux_only())
}
