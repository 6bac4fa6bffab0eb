//! `osctl restart`: stops the container and starts it again; everything on disk stays.

use super::{CommandContext, snapshot, up};
use crate::engine::EngineProgress;
use crate::error::{Error, Result, VerbOutcome};
use crate::host::client::not_running_error;
use crate::host::instance::INSTANCE_LABEL;
use crate::protocol::cryo::StoreReason;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct RestartArgs {}

pub(crate) async fn run(args: RestartArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let RestartArgs {} = args;
    let record = cx.require_record()?;
    let engine = cx.connect_engine(record.engine).await?;
    super::evolve::check_idle(&engine, cx).await?;
    snapshot::store_before_stop(StoreReason::Restart, cx).await?;
    {
        let _lock = cx.instance.lock()?;
        let name = cx.instance.container_name();
        let work = cx.ui.start_work(&format!("stopping `{name}`"));
        match engine.inspect(&name).await? {
            None => return Err(not_running_error(&cx.instance)),
            Some(container) if container.labels.get(INSTANCE_LABEL) != Some(&cx.instance.name) => {
                return Err(Error::ForeignObject {
                    what: "container",
                    name,
                }
                .into());
            }
            Some(_) => {}
        }
        engine.stop(&name).await?;
        work.report_step(&format!("starting `{name}`"));
        engine.start(&name).await?;
    }
    up::wait_and_report(&record, cx).await
}
