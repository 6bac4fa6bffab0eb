//! `osctl up`: creates a healthy `os-host`, and installs, builds and starts what is missing.

use super::answers::StatusAnswer;
use super::mcp::warn_of_failed_servers;
use super::{CommandContext, restored_sessions};
use crate::config::{Config, ConfigSource};
use crate::engine::Engine;
use crate::error::{EXIT_NEGATIVE, Error, Result, VerbOutcome};
use crate::host::applied_settings::SettingChanges;
use crate::host::autorun::{self, AutorunScan};
use crate::host::client::CompanionClient;
use crate::host::follow_evolve::wait_for_interrupt;
use crate::host::health::HealthWatch;
use crate::host::instance::{Instance, InstanceRecord};
use crate::host::instance_lookup::InstanceScope;
use crate::host::mount_safety::check_sources;
use crate::host::passed_env::{EnvArg, EnvArgs};
use crate::host::ports;
use crate::host::project::{self, ProjectChoice};
use crate::host::up::{UpOutcome, UpResult, UpRunner};
use crate::ui::WorkSpinner;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Answer yes to all questions: install or start the engine, replace the container
    #[arg(short, long)]
    yes: bool,
    /// Folder to mount as /repo [default: the current folder]
    #[arg(long, value_name = "PATH")]
    project: Option<PathBuf>,
    /// Bind the instance to this folder instead of its project; all state is kept
    #[arg(long = "move")]
    may_move: bool,
    /// Engine that runs the container
    #[arg(long, value_name = "ENGINE", value_parser = ["docker", "embedded"])]
    engine: Option<String>,
    /// Use the next free port if a port is in use
    #[arg(long)]
    auto_ports: bool,
    /// Allow checkpoints of kernel processes. Code in the container can then become root on this machine. Stays until
    /// `--criu=false`
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    criu: Option<bool>,
    /// Interrupt running code if the container must be replaced
    #[arg(long)]
    force: bool,
    /// Build the image from body/, also after `osctl evolve rollback`
    #[arg(long)]
    build: bool,
    /// Pass a variable into the container; NAME alone takes the value of this shell. Stays until `--no-env NAME`
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<EnvArg>,
    /// Stop passing this variable
    #[arg(long, value_name = "NAME")]
    no_env: Vec<String>,
    /// Linux build of osctl for the container (macOS, Windows)
    #[arg(long, value_name = "PATH")]
    companion: Option<PathBuf>,
}

impl UpArgs {
    /// The instances among which `up` chooses if none is named. A move needs an existing one.
    pub(crate) fn instance_scope(&self) -> InstanceScope<'_> {
        match self.may_move {
            true => InstanceScope::Existing,
            false => InstanceScope::Project(self.project.as_deref()),
        }
    }
}

/// The parsed arguments.
#[derive(Debug)]
struct UpPlan {
    yes: bool,
    project: Option<PathBuf>,
    may_move: bool,
    force: bool,
    build: bool,
    env: Vec<EnvArg>,
    no_env: Vec<String>,
    flags: Vec<(&'static str, Value)>,
}

impl From<UpArgs> for UpPlan {
    fn from(args: UpArgs) -> Self {
        let UpArgs {
            yes,
            project,
            may_move,
            engine,
            auto_ports,
            criu,
            force,
            build,
            env,
            no_env,
            companion,
        } = args;
        let mut flags = Vec::new();
        flags.extend(engine.map(|e| ("engine", json!(e))));
        flags.extend(auto_ports.then_some(("auto_ports", json!(true))));
        flags.extend(criu.map(|c| ("criu", json!(c))));
        flags.extend(companion.map(|c| ("companion", json!(c))));
        Self {
            yes,
            project,
            may_move,
            force,
            build,
            env,
            no_env,
            flags,
        }
    }
}

/// Maximum number of changes that `up` lists individually.
const MAX_NAMED_CHANGES: usize = 10;

pub(crate) async fn run(args: UpArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = UpPlan::from(args);
    let lock = cx.instance.lock()?;
    let done = bring_up(plan, cx).await;
    if done.is_err() {
        cx.instance.remove_unused_folder(&lock);
    }
    done
}

/// Starts or replaces the container, and reports the result. The caller holds the lock of the instance.
///
/// # Errors
/// When `up` is refused, or a step fails.
async fn bring_up(plan: UpPlan, cx: &CommandContext) -> Result<VerbOutcome> {
    let begin = Instant::now();
    let recorded = cx.instance.read_record()?;
    if recorded.is_none() && plan.may_move {
        let hint = "run `osctl up` without `--move`; `osctl ls` lists the instances";
        return Err(Error::usage("there is no instance to move", hint).into());
    }
    let mut flags = plan.flags.clone();
    if let Some(record) = recorded
        .as_ref()
        .filter(|_| !flags.iter().any(|(key, _)| *key == "engine"))
    {
        // An instance stays on its engine; a change of engine must be explicit.
        flags.push(("engine", json!(record.engine)));
    }
    let choice = cx.complete_config(None, flags.clone())?.config.engine;
    if recorded
        .as_ref()
        .is_some_and(|record| record.engine != choice)
    {
        let message = format!("instance `{}` runs on another engine", cx.instance.name);
        let hint = format!(
            "run `{}` first, or choose another `--instance`",
            cx.instance.osctl_command("down --purge")
        );
        return Err(Error::precondition(message, hint).into());
    }
    let work = cx.ui.start_work("looking for the container engine");
    let may_install = |consent_question: &str| cx.may_install(consent_question, plan.yes, &work);
    let engine = cx.provided_engine(choice, &may_install, &work).await?;
    super::evolve::wake_keeper(&engine, cx).await;
    super::evolve::check_idle(&engine, cx).await?;
    let remote = engine.remote_host();
    let socket = engine.socket_path();
    let choice = ProjectChoice {
        named: plan.project.as_deref(),
        may_move: plan.may_move,
    };
    let project =
        project::find_project(choice, recorded.as_ref(), &cx.instance, &cx.folders, socket)?;
    let mut resolved = cx.complete_config(Some(&project), flags.clone())?;
    let others = match recorded {
        Some(_) => Vec::new(),
        None => other_records(cx)?,
    };
    if !others.is_empty() && !ports::are_chosen_for_instance(&resolved) {
        flags.push(("auto_ports", json!(true)));
        resolved = cx.complete_config(Some(&project), flags.clone())?;
    }
    for note in new_instance_notes(cx, &project, &others) {
        cx.ui.print_message(note);
    }
    let is_said = |key| {
        let value = resolved.values.get(key);
        value.is_some_and(|(_, source)| *source != ConfigSource::Default)
    };
    if recorded.as_ref().is_some_and(|record| record.criu) && !is_said("criu") {
        flags.push(("criu", json!(true)));
        resolved = cx.complete_config(Some(&project), flags)?;
    }
    if resolved.config.criu && matches!(engine, Engine::Embedded(_)) {
        let hint = "use `--engine docker` or `--criu=false`";
        let message = "the embedded engine cannot checkpoint processes";
        return Err(Error::usage(message, hint).into());
    }
    if let (Some(machine), Some(mount)) = (remote, resolved.config.mounts.first()) {
        let message = format!("cannot mount `{mount}`: the engine is on `{machine}`");
        let hint =
            "remove `mounts` with `osctl config edit`; `osctl cp` copies files into the container";
        return Err(Error::usage(message, hint).into());
    }
    let mounts = check_sources(
        &resolved.config,
        &cx.config_file,
        &project,
        &cx.instance,
        &cx.folders,
    )?;
    // Until the container is replaced, the old container can write to its mounts.
    let both = [cx.instance.recorded_mounts()?, mounts.clone()].concat();
    cx.instance.save_mounts(&both)?;
    // Scan before the container runs, because the agent then writes in the project.
    let found = match remote {
        Some(_) => None,
        None => warn_of_autorun(cx, &project),
    };
    let scanned = project.clone();
    let runner = UpRunner {
        instance: &cx.instance,
        folders: &cx.folders,
        engine: &engine,
        resolved: &resolved,
        install_consent: &may_install,
        force: plan.force,
        build: plan.build,
        config_file: cx.own_config_file(),
        ports_of_others: &others
            .iter()
            .flat_map(|(_, record)| record.ports.all())
            .collect::<Vec<_>>(),
        env_args: EnvArgs {
            added: &plan.env,
            removed: &plan.no_env,
        },
        replace_consent: &|changes| ask_consent(changes, plan.yes, cx, &work),
        wait_for_interrupt: &|| Box::pin(wait_for_interrupt()),
        progress: &work,
    };
    let result = {
        let there = remote.map(|_| resolved.config.remote_socket.as_path());
        runner.run(project, there.or(socket)).await?
    };
    // Changes that were shown are recorded after `up` has succeeded. A failure to record them does not fail `up`.
    if let Some((scan, unseen)) = found
        && let Err(error) = autorun::record_baseline(&cx.instance, &scanned, scan, &unseen)
    {
        cx.ui.print_warning(format!("{error:#}"));
    }
    cx.instance.save_mounts(&mounts)?;
    drop(work);
    report_up(&engine, &resolved.config, result, begin, cx).await
}

/// Prints the notes of `up`, waits for the restored sessions, and prints the state of the instance.
async fn report_up(
    engine: &Engine,
    config: &Config,
    result: UpResult,
    begin: Instant,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let UpResult {
        record,
        outcome: done,
        keeper_error: without_keeper,
        notes,
        warnings,
    } = result;
    for note in notes {
        cx.ui.print_message(note);
    }
    for warning in warnings {
        cx.ui.print_warning(warning);
    }
    if let Some(error) = without_keeper {
        let keeper = cx.instance.keeper_container_name();
        cx.ui.print_warning(format!(
            "`{keeper}` is not running, so `osctl evolve` is not available: {error:#}"
        ));
    }
    let outcome = match done {
        UpOutcome::Unchanged | UpOutcome::UnchangedWithOtherEnv => "is up to date and healthy",
        UpOutcome::Continued => "was paused, continues with its memory and is healthy",
        UpOutcome::Started => "was started and is healthy",
        UpOutcome::Created => "is healthy",
        UpOutcome::ReplacedViaKeeper => "was replaced and is healthy; its variables were kept",
        UpOutcome::Replaced => "was replaced and is healthy",
    };
    let bind = record.bind_address(config.bind);
    let client = CompanionClient::new(&cx.instance, &record, bind)?;
    let has_loss = match done {
        UpOutcome::Unchanged | UpOutcome::UnchangedWithOtherEnv | UpOutcome::Continued => false,
        _ => restored_sessions::report_when_restored(&client, cx).await,
    };
    warn_of_failed_servers(&client, cx).await;
    let took = super::format_duration(begin.elapsed().as_secs_f64());
    let outcome = format!("{outcome} ({took})");
    report_instance(cx, engine, &record, config, &outcome).await?;
    Ok(outcome_of_start(has_loss))
}

/// The other instances with their records, except those that can't be read.
fn other_records(cx: &CommandContext) -> Result<Vec<(Instance, InstanceRecord)>> {
    let all = Instance::list_all(&cx.folders)?.into_iter();
    let others = all.filter(|instance| instance.name != cx.instance.name);
    Ok(others
        .filter_map(|instance| {
            let record = instance.read_record().ok().flatten()?;
            Some((instance, record))
        })
        .collect())
}

/// What the user learns of a new instance beside other instances.
fn new_instance_notes(
    cx: &CommandContext,
    project: &Path,
    others: &[(Instance, InstanceRecord)],
) -> Vec<String> {
    let mut notes = Vec::new();
    if !others.is_empty() {
        let (name, project) = (&cx.instance.name, project.display());
        notes.push(format!("new instance `{name}` for the project `{project}`"));
    }
    for (other, record) in others {
        if !record.project.exists() {
            notes.push(format!(
                "the project `{}` of instance `{}` no longer exists; `osctl --instance {} up --move` binds that instance to another folder",
                record.project.display(),
                other.name,
                other.name,
            ));
        }
    }
    notes
}

/// Lists changes since the last `up` in project files that programs of this machine run automatically. Returns the
/// scan, and the changes that were not listed because there were too many.
fn warn_of_autorun(cx: &CommandContext, project: &Path) -> Option<(AutorunScan, Vec<String>)> {
    let (mut changes, scan) = match autorun::find_autorun_changes(&cx.instance, project) {
        Ok(found) => found,
        Err(error) => {
            cx.ui.print_warning(format!("{error:#}"));
            return None;
        }
    };
    let doctor = cx.instance.osctl_command("doctor");
    if let Some(why) = &scan.incomplete {
        cx.ui.print_warning(format!(
            "`{}` was not scanned completely: {why}; `{doctor}` shows the findings",
            project.display()
        ));
    }
    let unseen = changes.split_off(changes.len().min(MAX_NAMED_CHANGES));
    if !changes.is_empty() {
        let mut shown = changes.join(", ");
        if !unseen.is_empty() {
            shown += &format!(", and {} more, which `{doctor}` lists", unseen.len());
        }
        cx.ui.print_warning(format!(
            "new in `{}` since the last `osctl up`: {shown}; git, editors and shells run these files, so read them first",
            project.display()
        ));
    }
    Some((scan, unseen))
}

/// Shows how the next container differs, and asks for consent if a setting is changed or removed.
fn ask_consent(
    changes: &SettingChanges,
    yes: bool,
    cx: &CommandContext,
    work: &WorkSpinner,
) -> Result<()> {
    let container = cx.instance.container_name();
    let must_ask = changes.needs_consent && !yes;
    if must_ask && !cx.ui.can_prompt() {
        let list = changes.lines.join("; ");
        let message = format!("replacing `{container}` changes its settings: {list}");
        let hint = "add `--yes` to replace the container; `osctl config show` prints each value with its source";
        return Err(Error::precondition(message, hint).into());
    }
    work.suspend(|| {
        if changes.lines.is_empty() {
            return Ok(());
        }
        cx.ui
            .print_message(format!("replacing `{container}` changes these settings:"));
        for line in &changes.lines {
            cx.ui.print_message(format!("  {line}"));
        }
        let consent_question = format!("Replace `{container}`?");
        if must_ask && !cx.ui.confirm(&consent_question, "--yes")? {
            let hint = "`osctl config show` prints each value with its source";
            return Err(
                Error::precondition(format!("`{container}` was not replaced"), hint).into(),
            );
        }
        Ok(())
    })
}

async fn report_instance(
    cx: &CommandContext,
    engine: &Engine,
    record: &InstanceRecord,
    config: &Config,
    outcome: &str,
) -> Result<()> {
    let status = super::instance_status::gather_status(cx, record, config, engine).await?;
    for warning in &status.warnings {
        cx.ui.print_warning(warning);
    }
    if cx.ui.json {
        cx.ui.print_json(&StatusAnswer::from(status))?;
        return Ok(());
    }
    cx.ui
        .print_line(format!("{} {outcome}", cx.instance.container_name()));
    for (what, address) in &status.endpoints {
        cx.ui.print_line(format!("  {what:<8}{address}"));
    }
    cx.ui
        .print_line(format!("  {:<8}{}", "token", status.token_file.display()));
    let mut next = vec![
        ("next", "exec 'print(6*7)'"),
        ("connect your agent", "mcp connect"),
    ];
    if status.services.iter().any(|service| service.name == "xvfb") {
        next.push(("see the desktop", "desktop"));
    }
    for (purpose, command) in next {
        let command = cx.instance.osctl_command(command);
        cx.ui.print_message(format!("{purpose}: {command}"));
    }
    Ok(())
}

/// Waits for a container that another verb has started, and reports as `up` does.
pub(super) async fn wait_and_report(
    record: &InstanceRecord,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let resolved = cx.lenient_config(Some(&record.project), Vec::new())?;
    let engine = cx.connect_engine(record.engine).await?;
    let work = cx.ui.start_work("waiting for the container");
    let bind = record.bind_address(resolved.config.bind);
    let client = CompanionClient::new(&cx.instance, record, bind)?;
    let watch = HealthWatch {
        instance: &cx.instance,
        engine: &engine,
        client: &client,
        name: &cx.instance.container_name(),
        progress: &work,
    };
    watch.wait_until_healthy().await?;
    watch.wait_until_open().await;
    drop(work);
    let has_loss = restored_sessions::report_when_restored(&client, cx).await;
    let outcome = "was restarted and is healthy; its files were kept";
    report_instance(cx, &engine, record, &resolved.config, outcome).await?;
    Ok(outcome_of_start(has_loss))
}

/// The outcome of a verb that has started the container. `has_loss` says that saved variables are lost, or that a
/// session is not restored.
fn outcome_of_start(has_loss: bool) -> VerbOutcome {
    match has_loss {
        true => VerbOutcome::Code(EXIT_NEGATIVE),
        false => VerbOutcome::Done,
    }
}
