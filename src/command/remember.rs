//! `osctl remember`: stores idle sessions before a new body is tried with their state. The keeper runs it inside; the
//! reply is one JSON document.

use crate::error::{Result, VerbOutcome};
use crate::ui::Ui;
use clap::Args;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct RememberArgs {}

pub(crate) async fn run(args: RememberArgs, ui: Ui) -> Result<VerbOutcome> {
    let RememberArgs {} = args;
    super::ask_inside("/evolve/remember", &json!({}), ui).await
}
