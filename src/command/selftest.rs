//! `osctl selftest`: tests whether this body works, in a container with throw-away data. The keeper runs it inside; the
//! reply is one JSON document.

use crate::error::{Result, VerbOutcome};
use crate::ui::Ui;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SelfTestArgs {
    /// The state to restore, in the layout of the data folder; read-only
    #[arg(long, value_name = "DIR")]
    snapshot: Option<PathBuf>,
}

pub(crate) async fn run(args: SelfTestArgs, ui: Ui) -> Result<VerbOutcome> {
    let SelfTestArgs { snapshot } = args;
    super::ask_inside("/evolve/selftest", &json!({"snapshot": snapshot}), ui).await
}
