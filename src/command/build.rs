//! `osctl build`: builds the image.

use super::CommandContext;
use super::answers::BuildAnswer;
use crate::config::EngineChoice;
use crate::engine::{Engine, EngineProgress};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::build::{self, ImageBuildOptions};
use crate::host::mount_safety::check_sources;
use crate::host::passed_env::{EnvArgs, PassedEnv};
use crate::host::project::{self, ProjectChoice};
use crate::host::remote::RemoteVolumes;
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Answer yes to all questions: install or start the engine, install the tools that build the base image
    #[arg(short, long)]
    yes: bool,
    /// Build even if nothing has changed
    #[arg(long, alias = "force")]
    rebuild: bool,
    /// Folder that contains body/ [default: the current folder]
    #[arg(long, value_name = "PATH")]
    project: Option<PathBuf>,
    /// Linux build of osctl for the container (macOS, Windows)
    #[arg(long, value_name = "PATH")]
    companion: Option<PathBuf>,
}

impl BuildArgs {
    /// The folder of `--project`.
    pub(crate) fn project(&self) -> Option<&Path> {
        self.project.as_deref()
    }
}

#[derive(Debug)]
struct BuildPlan {
    yes: bool,
    rebuild: bool,
    project: Option<PathBuf>,
    companion: Option<PathBuf>,
}

impl From<BuildArgs> for BuildPlan {
    fn from(args: BuildArgs) -> Self {
        let BuildArgs {
            yes,
            rebuild,
            project,
            companion,
        } = args;
        Self {
            yes,
            rebuild,
            project,
            companion,
        }
    }
}

pub(crate) async fn run(args: BuildArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = BuildPlan::from(args);
    let _lock = cx.instance.lock()?;
    let companion = plan.companion.map(|path| ("companion", json!(path)));
    let flags: Vec<_> = companion.into_iter().collect();
    // Report an unusable configuration before the engine is contacted.
    cx.complete_config(None, flags.clone())?;
    let work = cx.ui.start_work("looking for the container engine");
    let may_install = |question: &str| cx.may_install(question, plan.yes, &work);
    let engine = cx
        .provided_engine(EngineChoice::Docker, &may_install, &work)
        .await?;
    let Engine::Docker(docker) = engine else {
        return Err(Error::usage(
            "the embedded engine builds no images",
            "`osctl up --engine embedded` starts it without an image",
        )
        .into());
    };
    let socket = docker.address().socket_path().map(Path::to_owned);
    let recorded = cx.instance.read_record()?;
    let choice = ProjectChoice {
        named: plan.project.as_deref(),
        may_move: false,
    };
    let project = project::find_project(
        choice,
        recorded.as_ref(),
        &cx.instance,
        &cx.folders,
        socket.as_deref(),
    )?;
    let config = cx.complete_config(Some(&project), flags)?.config;
    check_sources(
        &config,
        &cx.config_file,
        &project,
        &cx.instance,
        &cx.folders,
    )?;
    let applied = recorded.as_ref().map(|record| &record.applied);
    let kept_names = applied.map(|applied| applied.env_names.clone());
    let passed = PassedEnv::new(
        &config,
        &kept_names.unwrap_or_default(),
        EnvArgs::default(),
        &BTreeMap::new(),
    )?;
    for note in passed.proxy_notes() {
        cx.ui.print_message(note);
    }
    work.report_step("comparing the image with its sources");
    let volumes = RemoteVolumes::for_instance(&docker, &cx.instance, &work);
    let copy = match (volumes, recorded.and_then(|record| record.remote)) {
        (Some(volumes), Some(remote)) if remote.copied => Some(volumes.fetch_body(&config).await?),
        _ => None,
    };
    let project = copy.as_ref().map_or(project.as_path(), TempDir::path);
    let recipe = build::load_recipe(&docker, &config, project)?;
    let options = ImageBuildOptions {
        folders: &cx.folders,
        install_consent: &may_install,
        force: plan.rebuild,
        proxies: passed.proxies(),
    };
    let built =
        build::ensure_image(&docker, &config, &cx.instance, &recipe, options, &work).await?;
    drop(work);
    if let Some(note) = &built.note {
        cx.ui.print_warning(note);
    }
    if cx.ui.json {
        cx.ui.print_json(&BuildAnswer {
            image: cx.instance.image_name(),
            id: built.image.id,
            size_bytes: built.image.size,
            built: built.is_new,
        })?;
    } else {
        let how = if built.is_new { "built" } else { "up to date" };
        cx.ui.print_line(format!(
            "{} is {how} ({})",
            cx.instance.image_name(),
            crate::ui::format_bytes(built.image.size)
        ));
    }
    Ok(VerbOutcome::Done)
}
