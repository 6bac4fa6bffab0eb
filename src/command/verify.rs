//! `osctl verify`: checks that this container has everything that the previous one had. The keeper runs it inside; the
//! reply is one JSON document.

use crate::error::{Error, Result, VerbOutcome};
use crate::ui::Ui;
use clap::Args;
use serde_json::Value;

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The expected state, as `osctl quiesce` reported it
    #[arg(long, value_name = "DOCUMENT")]
    expected: String,
}

pub(crate) async fn run(args: VerifyArgs, ui: Ui) -> Result<VerbOutcome> {
    let VerifyArgs { expected } = args;
    let expected: Value = serde_json::from_str(&expected).map_err(|error| {
        let hint = "`osctl quiesce` prints the value as `expected`";
        Error::usage(format!("cannot parse the expected state: {error}"), hint)
    })?;
    super::ask_inside("/evolve/verify", &expected, ui).await
}
