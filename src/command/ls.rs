//! `osctl ls`: the instances that were ever up.

use super::Context;
use crate::config::EngineChoice;
use crate::engine::Phase;
use crate::error::{Outcome, Result};
use crate::host::instance::Instance;
use clap::Args;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct LsArgs {}

#[derive(Debug, Serialize)]
struct Row {
    instance: String,
    state: &'static str,
    engine: EngineChoice,
    kernel: String,
    project: String,
}

pub(crate) async fn run(args: LsArgs, cx: &Context) -> Result<Outcome> {
    let LsArgs {} = args;
    let mut rows = Vec::new();
    for instance in Instance::all(&cx.folders)? {
        let Some(record) = instance.record()? else {
            continue;
        };
        let state = match cx.engine(record.engine).await {
            Ok(engine) => match engine
                .inspect(&instance.container())
                .await?
                .map(|c| c.phase)
            {
                None => "absent",
                Some(Phase::Running) => "running",
                Some(Phase::Restarting) => "restarting",
                Some(Phase::Paused) => "paused",
                Some(Phase::Created | Phase::Stopped) => "stopped",
            },
            Err(_) => "unknown: its engine does not answer",
        };
        rows.push(Row {
            instance: instance.name,
            state,
            engine: record.engine,
            kernel: format!("127.0.0.1:{}", record.ports.kernel),
            project: record.project.display().to_string(),
        });
    }
    if cx.ui.json {
        cx.ui.document(&rows)?;
        return Ok(Outcome::Done);
    }
    let header = ["INSTANCE", "STATE", "ENGINE", "KERNEL", "PROJECT"]
        .map(str::to_owned)
        .to_vec();
    let lines = rows.into_iter().map(|r| {
        let engine = if r.engine == EngineChoice::Docker {
            "docker"
        } else {
            "embedded"
        };
        vec![
            r.instance,
            r.state.into(),
            engine.into(),
            r.kernel,
            r.project,
        ]
    });
    cx.ui
        .table(&std::iter::once(header).chain(lines).collect::<Vec<_>>());
    Ok(Outcome::Done)
}
