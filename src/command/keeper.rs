//! `osctl keeper`: the service that replaces the container, and its client; both are hidden verbs.

use crate::error::{Result, VerbOutcome};
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct KeeperArgs {
    #[command(subcommand)]
    verb: Option<KeeperVerb>,
}

#[derive(Debug, Subcommand)]
enum KeeperVerb {
    /// Send a JSON request to the keeper of this container
    Ask { question: String },
}

impl KeeperArgs {
    /// Whether the verb runs the service.
    pub(crate) fn is_service(&self) -> bool {
        self.verb.is_none()
    }
}

#[cfg(target_os = "linux")]
pub(crate) async fn run(args: KeeperArgs, ui: crate::ui::Ui) -> Result<VerbOutcome> {
    use crate::error::Error;
    use crate::keeper::{self, KeeperSettings};
    use tokio::signal::unix::{SignalKind, signal};

    let KeeperArgs { verb } = args;
    if let Some(KeeperVerb::Ask { question }) = verb {
        keeper::send_host_request(&question, &mut |line| ui.print_data(&format!("{line}\n")))
            .await?;
        return Ok(VerbOutcome::Done);
    }
    let settings = KeeperSettings::default();
    if !settings.state_folder.is_dir() || !settings.socket_folder.is_dir() {
        let hint = "`osctl up` starts the keeper";
        let message = "the keeper runs only in its own container";
        return Err(Error::precondition(message, hint).into());
    }
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let shutdown = async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    keeper::serve_keeper(settings, shutdown).await?;
    Ok(VerbOutcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run(_args: KeeperArgs, _ui: crate::ui::Ui) -> Result<VerbOutcome> {
    Err(super::linux_only_error())
}
