//! `osctl companion`: the service inside; refuses where no engine started it.

use crate::companion::{self, Settings};
use crate::error::{Outcome, Result};

pub(crate) async fn run() -> Result<Outcome> {
    companion::run(Settings::from_environment()?).await?;
    Ok(Outcome::Done)
}
