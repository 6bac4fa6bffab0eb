//! `osctl down`: stop and remove the container; its state stays.

use super::Context;
use crate::engine::{Engine, Progress};
use crate::error::{Error, Outcome, Result};
use crate::host::build;
use crate::host::instance::LABEL;
use clap::Args;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Forget the state, too: checkpoints, packages, token and image. Files under /root/host stay
    #[arg(long)]
    purge: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug)]
struct Plan {
    purge: bool,
    yes: bool,
}

impl From<DownArgs> for Plan {
    fn from(args: DownArgs) -> Self {
        let DownArgs { purge, yes } = args;
        Self { purge, yes }
    }
}

pub(crate) async fn run(args: DownArgs, cx: &Context) -> Result<Outcome> {
    let plan = Plan::from(args);
    let record = cx.record()?;
    let instance = &cx.instance;
    if plan.purge && !plan.yes {
        let question = format!(
            "Forget the state of `{}` ({})?",
            instance.name,
            instance.data().display()
        );
        if !cx.ui.confirm(&question, "--yes")? {
            return Ok(Outcome::Code(crate::error::NO));
        }
    }
    let lock = instance.lock()?;
    let engine = cx.engine(record.engine).await?;
    let name = instance.container();
    let work = cx.ui.work(&format!("stopping `{name}`"));
    let found = engine.inspect(&name).await?;
    if let Some(container) = &found {
        if container.labels.get(LABEL) != Some(&instance.name) {
            return Err(Error::Foreign {
                what: "container",
                name,
            }
            .into());
        }
        engine.stop(&name).await?;
        work.step(&format!("removing `{name}`"));
        engine.remove(&name).await?;
    }
    if let Engine::Docker(docker) = &engine {
        // Also what an interrupted `up` left.
        for left in docker
            .labelled(&format!("{LABEL}={}", instance.name))
            .await?
        {
            engine.remove(&left).await?;
        }
        docker
            .remove_network(&instance.network(), (LABEL, &instance.name))
            .await?;
        if plan.purge {
            build::remove(docker, instance).await?;
        }
    }
    if plan.purge {
        work.step("forgetting its state");
        instance.forget()?;
    }
    drop((work, lock));
    if cx.ui.json {
        cx.ui.document(
            &json!({"instance": instance.name, "removed": found.is_some(), "purged": plan.purge}),
        )?;
    } else if found.is_some() {
        cx.ui.say(format!("`{name}` is down"));
    } else {
        cx.ui.say(format!("`{name}` was not there"));
    }
    Ok(Outcome::Done)
}
