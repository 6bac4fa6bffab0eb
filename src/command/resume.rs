//! `osctl resume`: cancels an `osctl quiesce` in progress, answers requests again after one, or marks a new container
//! as verified. The keeper runs it inside; the reply is one JSON document.

use crate::error::{Result, VerbOutcome};
use crate::ui::Ui;
use clap::Args;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {}

pub(crate) async fn run(args: ResumeArgs, ui: Ui) -> Result<VerbOutcome> {
    let ResumeArgs {} = args;
    super::ask_inside("/evolve/resume", &json!({}), ui).await
}
