//! `osctl keeper`: the service that replaces the container, and the way to ask it; both hidden.

use crate::error::{Outcome, Result};
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct KeeperArgs {
    #[command(subcommand)]
    verb: Option<KeeperVerb>,
}

#[derive(Debug, Subcommand)]
enum KeeperVerb {
    /// Ask the keeper of this container, in JSON
    Ask { question: String },
}

impl KeeperArgs {
    /// Whether it is the service itself.
    pub(crate) fn serves(&self) -> bool {
        self.verb.is_none()
    }
}

#[cfg(target_os = "linux")]
pub(crate) async fn run(args: KeeperArgs, ui: crate::ui::Ui) -> Result<Outcome> {
    use crate::error::Error;
    use crate::keeper::{self, Settings};
    use tokio::signal::unix::{SignalKind, signal};

    let KeeperArgs { verb } = args;
    if let Some(KeeperVerb::Ask { question }) = verb {
        keeper::ask(&question, &mut |line| ui.data(&format!("{line}\n"))).await?;
        return Ok(Outcome::Done);
    }
    let settings = Settings::default();
    if !settings.state.is_dir() || !settings.door.is_dir() {
        let hint = "`osctl up` starts it where it belongs";
        let message = "the keeper runs in a container of its own";
        return Err(Error::precondition(message, hint).into());
    }
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let shutdown = async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    keeper::serve(settings, shutdown).await?;
    Ok(Outcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run(_args: KeeperArgs, _ui: crate::ui::Ui) -> Result<Outcome> {
    Err(super::linux_only())
}
