//! `osctl attach`: follow a run that was begun elsewhere, from its beginning or further on.

use super::Context;
use super::candidates::run_ids;
use super::follow::{self, View};
use crate::error::{Outcome, Result};
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The run's id
    #[arg(add = ArgValueCandidates::new(run_ids))]
    id: String,
    /// Begin with this event instead of the first
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    offset: u64,
    /// Save figures into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) async fn run(args: AttachArgs, cx: &Context) -> Result<Outcome> {
    let AttachArgs { id, offset, out } = args;
    let client = cx.client()?;
    let mut view = View::new(cx, out)?;
    let begin = async { client.follow(&id, offset).await };
    follow::run(&client, &id, begin, &mut view, cx).await
}
