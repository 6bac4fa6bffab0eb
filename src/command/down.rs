//! `osctl down`: stops and removes the container; saved state stays.

use super::answers::DownAnswer;
use super::{CommandContext, snapshot};
use crate::config::EngineChoice;
use crate::engine::{Engine, EngineProgress};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::build;
use crate::host::folders::Folders;
use crate::host::instance::{INSTANCE_LABEL, Instance, InstanceRecord};
use crate::host::keeper::KeeperContainer;
use crate::host::remote::RemoteVolumes;
use crate::protocol::cryo::StoreReason;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Also delete saved state: variables, checkpoints, packages, token, image and history. The project and files under /root/host stay
    #[arg(long)]
    purge: bool,
    /// Cancel an evolve in progress
    #[arg(long)]
    force: bool,
    /// Answer yes to all questions
    #[arg(short, long)]
    yes: bool,
}

impl DownArgs {
    pub(crate) fn purges(&self) -> bool {
        self.purge
    }
}

#[derive(Debug)]
struct DownPlan {
    purge: bool,
    force: bool,
    yes: bool,
}

impl From<DownArgs> for DownPlan {
    fn from(args: DownArgs) -> Self {
        let DownArgs { purge, force, yes } = args;
        Self { purge, force, yes }
    }
}

/// # Errors
/// When a run is active. The error names the way to force `down`, because code inside can start runs repeatedly.
async fn check_idle(engine: &Engine, cx: &CommandContext) -> Result<()> {
    let checked = super::evolve::check_idle(engine, cx).await;
    checked.map_err(|error| match error.downcast::<Error>() {
        Ok(Error::Precondition { message, hint }) => {
            let down = cx.instance.osctl_command("down --force");
            Error::precondition(
                message,
                format!("{hint}; `{down}` cancels the evolve first"),
            )
            .into()
        }
        Ok(other) => other.into(),
        Err(error) => error,
    })
}

/// Whether an instance exists that may use the embedded engine.
fn is_used(folders: &Folders) -> Result<bool> {
    let is_docker = |instance: Instance| {
        let record = instance.read_record();
        record.is_ok_and(|r| r.is_some_and(|r| r.engine == EngineChoice::Docker))
    };
    Ok(!Instance::list_all(folders)?.into_iter().all(is_docker))
}

/// Finds the engine with remains of an instance that was never up, as `osctl build` leaves them.
///
/// # Errors
/// When there are none.
async fn find_remains(cx: &CommandContext) -> Result<Engine> {
    let instance = &cx.instance;
    let engine = match cx.connect_engine(EngineChoice::Docker).await {
        Ok(engine) => engine,
        Err(error) => match error.downcast_ref() {
            Some(Error::NoEngine { .. }) => return Err(never_up_error(instance)),
            _ => return Err(error),
        },
    };
    if let Engine::Docker(docker) = &engine {
        let label = format!("{INSTANCE_LABEL}={}", instance.name);
        let mut is_there = !docker.list_labelled_containers(&label).await?.is_empty();
        is_there = is_there || build::has_images(docker, instance).await?;
        for volume in instance.keeper_volumes() {
            is_there = is_there || docker.has_volume(&volume).await?;
        }
        if is_there {
            return Ok(engine);
        }
    }
    Err(never_up_error(instance))
}

fn never_up_error(instance: &Instance) -> anyhow::Error {
    let container = instance.container_name();
    let hint = "there is nothing to stop; `osctl ls` lists the instances".into();
    Error::NeverUp { container, hint }.into()
}

/// What a purge keeps: the project, and the files under `/root/host` if there are any.
fn kept_places(instance: &Instance, record: Option<&InstanceRecord>) -> Vec<String> {
    let project = record.map(|record| format!("the project `{}`", record.project.display()));
    let [files, ..] = instance.volume_names();
    let folder = instance.files_folder();
    let files = match record.and_then(|record| record.remote.as_ref()) {
        Some(_) => Some(format!("the files of `/root/host` in the volume `{files}`")),
        None => folder
            .exists()
            .then(|| format!("the files of `/root/host` in `{}`", folder.display())),
    };
    project.into_iter().chain(files).collect()
}

/// The question before a purge, which names what is removed and what is kept.
fn purge_question(instance: &Instance, record: Option<&InstanceRecord>, kept: &[String]) -> String {
    let [_, data, project] = instance.volume_names();
    let state = match record.and_then(|record| record.remote.as_ref()) {
        None => format!("in `{}`", instance.data_folder().display()),
        Some(_) => format!("in the volume `{data}`, the copy of the project in `{project}`"),
    };
    let mut question = format!(
        "Delete the saved state of `{}`: variables, checkpoints and packages {state}, the token, the images and the history of evolves",
        instance.name
    );
    if !kept.is_empty() {
        question += &format!(" (osctl keeps {})", kept.join(" and "));
    }
    question + "?"
}

pub(crate) async fn run(args: DownArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = DownPlan::from(args);
    let instance = &cx.instance;
    let (record, engine) = match instance.read_record()? {
        None if plan.purge => (None, find_remains(cx).await?),
        None => return Err(never_up_error(instance)),
        Some(record) => {
            let engine = cx.connect_engine(record.engine).await?;
            (Some(record), engine)
        }
    };
    let kept = kept_places(instance, record.as_ref());
    if plan.purge && !plan.yes {
        let consent_question = purge_question(instance, record.as_ref(), &kept);
        if !cx.ui.confirm(&consent_question, "--yes")? {
            let message = format!("the saved state of `{}` was not deleted", instance.name);
            let down = instance.osctl_command("down");
            let hint = format!("`{down}` stops the container and keeps the state");
            return Err(Error::precondition(message, hint).into());
        }
    }
    match plan.force {
        true => super::evolve::end_current_run(&engine, cx).await?,
        false => check_idle(&engine, cx).await?,
    }
    let lock = instance.lock()?;
    let found = match plan.purge {
        true => instance.find_container(&engine).await?,
        false => snapshot::prepare_stop(StoreReason::Down, &engine, &lock, cx).await?,
    };
    let name = instance.container_name();
    let work = match found {
        Some(_) => cx.ui.start_work(&format!("stopping `{name}`")),
        None => cx.ui.start_request(&format!("looking for `{name}`")),
    };
    if let Engine::Docker(docker) = &engine {
        // The keeper is removed first, so that no run starts during the removal. Its data stay.
        KeeperContainer { docker, instance }
            .remove_container()
            .await?;
    }
    let found = instance.find_container(&engine).await?;
    if found.is_some() {
        engine.stop(&name).await?;
        work.report_step(&format!("removing `{name}`"));
        engine.remove(&name).await?;
    }
    // Also remove containers of an interrupted `up`; an old one may still run.
    let owner = (INSTANCE_LABEL, instance.name.as_str());
    for left in engine.list_labelled_containers(owner).await? {
        engine.stop(&left).await?;
        engine.remove(&left).await?;
    }
    if let Engine::Docker(docker) = &engine {
        for network in [instance.network_name(), instance.portless_network()] {
            docker.remove_network(&network, owner).await?;
        }
        if plan.purge {
            build::remove_instance_images(docker, instance, &cx.folders).await?;
            KeeperContainer { docker, instance }
                .remove_state(&cx.folders)
                .await?;
            if let Some(volumes) = RemoteVolumes::for_instance(docker, instance, &work) {
                volumes.remove_volumes().await?;
            }
        }
    }
    if plan.purge {
        work.report_step("deleting the saved state");
        instance.remove_host_state()?;
        if let Engine::Embedded(embedded) = &engine
            && !is_used(&cx.folders)?
        {
            embedded.remove_bodies(&work).await?;
        }
    }
    drop((work, lock));
    if cx.ui.json {
        cx.ui.print_json(&DownAnswer {
            instance: instance.name.clone(),
            removed: found.is_some(),
            purged: plan.purge,
        })?;
        return Ok(VerbOutcome::Done);
    }
    let state = match found {
        Some(_) => "is down",
        None => "was already down",
    };
    if plan.purge {
        cx.ui
            .print_message(format!("`{name}` {state}; its saved state is deleted"));
        if !kept.is_empty() {
            cx.ui.print_message(format!("kept: {}", kept.join(", ")));
        }
        for client in super::mcp::connected_clients(cx) {
            let name = &instance.name;
            cx.ui.print_message(format!(
                "next: `osctl --instance {name} mcp disconnect {client}`; the client's configuration still starts this instance"
            ));
        }
    } else {
        let of = match (instance.hint_name(), &record) {
            (Some(instance), Some(record)) => format!(
                " (instance `{instance}`, project `{}`)",
                record.project.display()
            ),
            _ => String::new(),
        };
        cx.ui.print_message(format!("`{name}`{of} {state}"));
    }
    Ok(VerbOutcome::Done)
}
