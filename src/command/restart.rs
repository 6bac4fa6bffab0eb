//! `osctl restart`: stops the container and starts it again; everything on disk stays.

use super::{CommandContext, snapshot, up};
use crate::engine::{ContainerPhase, EngineProgress};
use crate::error::{Result, VerbOutcome};
use crate::host::client::not_running_error;
use crate::protocol::cryo::StoreReason;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct RestartArgs {}

pub(crate) async fn run(args: RestartArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let RestartArgs {} = args;
    let record = cx.require_record()?;
    let engine = cx.connect_engine(record.engine).await?;
    super::evolve::check_idle(&engine, cx).await?;
    {
        let lock = cx.instance.lock()?;
        snapshot::prepare_stop(StoreReason::Restart, &engine, &lock, cx).await?;
        let name = cx.instance.container_name();
        let Some(container) = cx.instance.find_container(&engine).await? else {
            return Err(not_running_error(&cx.instance));
        };
        let starting = format!("starting `{name}`");
        let work = match container.phase {
            ContainerPhase::Created | ContainerPhase::Stopped => cx.ui.start_work(&starting),
            _ => cx.ui.start_work(&format!("stopping `{name}`")),
        };
        engine.stop(&name).await?;
        work.report_step(&starting);
        engine.start(&name).await?;
    }
    up::wait_and_report(&record, cx).await
}
