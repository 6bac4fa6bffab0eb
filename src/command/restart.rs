//! `osctl restart`: stop the container and start it again; everything on disk stays.

use super::{Context, snapshot, up};
use crate::engine::Progress;
use crate::error::{Error, Outcome, Result};
use crate::host::client::not_running;
use crate::host::instance::LABEL;
use crate::protocol::cryo::Reason;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct RestartArgs {}

pub(crate) async fn run(args: RestartArgs, cx: &Context) -> Result<Outcome> {
    let RestartArgs {} = args;
    let record = cx.record()?;
    let engine = cx.engine(record.engine).await?;
    super::evolve::check_idle(&engine, cx).await?;
    snapshot::before(Reason::Restart, cx).await?;
    {
        let _lock = cx.instance.lock()?;
        let name = cx.instance.container();
        let work = cx.ui.work(&format!("stopping `{name}`"));
        match engine.inspect(&name).await? {
            None => return Err(not_running(&cx.instance)),
            Some(container) if container.labels.get(LABEL) != Some(&cx.instance.name) => {
                return Err(Error::Foreign {
                    what: "container",
                    name,
                }
                .into());
            }
            Some(_) => {}
        }
        engine.stop(&name).await?;
        work.step(&format!("starting `{name}`"));
        engine.start(&name).await?;
    }
    up::wait(&record, cx).await
}
