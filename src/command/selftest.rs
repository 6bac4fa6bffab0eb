//! `osctl selftest`: whether this body works, asked of a container with throw-away data.
//! Run inside by the keeper; one JSON document is the answer.

use crate::error::{Result, VerbOutcome};
use crate::ui::Ui;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SelfTestArgs {
    /// A state to bring back, in the form of the data folder; it is only read
    #[arg(long, value_name = "DIR")]
    snapshot: Option<PathBuf>,
}

pub(crate) async fn run(args: SelfTestArgs, ui: Ui) -> Result<VerbOutcome> {
    let SelfTestArgs { snapshot } = args;
    super::ask_inside("/evolve/selftest", &json!({"snapshot": snapshot}), ui).await
}
