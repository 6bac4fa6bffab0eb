//! `osctl quiesce`: refuses new requests, waits for running code, and stores everything. The keeper runs it inside; the
//! reply is one JSON document.

use crate::error::{Result, VerbOutcome};
use crate::ui::Ui;
use clap::Args;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct QuiesceArgs {
    /// Seconds that running code has to end
    #[arg(long, value_name = "SECONDS")]
    grace: f64,
    /// Interrupt code that runs longer, instead of giving up
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(args: QuiesceArgs, ui: Ui) -> Result<VerbOutcome> {
    let QuiesceArgs { grace, force } = args;
    let request = json!({"grace": grace, "force": force});
    super::ask_inside("/evolve/quiesce", &request, ui).await
}
