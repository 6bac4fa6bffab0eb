//! `osctl add`, `osctl remove` and `osctl packages`: the project's packages.
//!
//! The change happens in the container, which has the installers. In the container itself the verbs work, too.

use super::answers::{PackagesAnswer, PackagesChangedAnswer};
use super::attach::is_unknown;
use super::candidates::package_names;
use super::exec::run_id;
use super::{CommandContext, shutdown_signal};
use crate::engine::EngineProgress;
use crate::error::{EXIT_NEGATIVE, Error, Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::protocol::kernel::RunEventKind;
use crate::protocol::packages::{
    ListedPackage, PackageChange, PackageChangeRefusal, PackageChangeReply, PackageKind,
};
use crate::protocol::shell::{ShellReply, ShellRequest};
use crate::ui::{Ui, WorkSpinner};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use std::env;
use std::path::Path;
use std::time::Duration;

/// The binary in the container.
const BINARY_INSIDE: &str = "/opt/osctl/bin/osctl";
/// Delay before the second attempt to interrupt a command that the companion does not know yet.
const UNKNOWN_RUN_DELAY: Duration = Duration::from_millis(500);
/// The exit code of a container's binary that does not know the verb.
const UNKNOWN_VERB_CODE: i32 = 2;

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// Python packages, such as `polars` or `polars==1.35.2`
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<String>,
    #[command(flatten)]
    kind: KindArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Names of packages
    #[arg(required = true, value_name = "PACKAGE", add = ArgValueCandidates::new(package_names))]
    packages: Vec<String>,
    #[command(flatten)]
    kind: KindArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct KindArgs {
    /// Debian packages, such as `jq` or `jq=1.7.1-6`
    #[arg(long)]
    apt: bool,
    /// npm packages, such as `cowsay` or `cowsay@1.6.0`
    #[arg(long)]
    npm: bool,
    /// Python packages of the kernel (default)
    #[arg(long)]
    pip: bool,
}

impl KindArgs {
    fn kind(&self) -> Option<PackageKind> {
        match (self.apt, self.npm, self.pip) {
            (true, ..) => Some(PackageKind::Apt),
            (_, true, _) => Some(PackageKind::Npm),
            (_, _, true) => Some(PackageKind::Pip),
            _ => None,
        }
    }
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PackagesArgs {
    #[command(subcommand)]
    verb: Option<PackagesVerb>,
}

impl PackagesArgs {
    pub(crate) fn changes_packages(&self) -> bool {
        matches!(self.verb, Some(PackagesVerb::Lock))
    }
}

#[derive(Debug, Subcommand)]
enum PackagesVerb {
    /// List the project's packages
    #[command(alias = "list")]
    Ls,
    /// Install the packages of osctl.yaml, and write their versions to osctl.lock
    Lock,
}

pub(crate) async fn run_add(args: AddArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let AddArgs { packages, kind } = args;
    let kind = kind.kind().unwrap_or(PackageKind::Pip);
    change(&PackageChange::Add { kind, packages }, cx).await
}

pub(crate) async fn run_remove(args: RemoveArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let RemoveArgs { packages, kind } = args;
    let kind = kind.kind();
    change(&PackageChange::Remove { kind, packages }, cx).await
}

pub(crate) async fn run(args: PackagesArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    if let Some(PackagesVerb::Lock) = args.verb {
        return change(&PackageChange::Lock, cx).await;
    }
    let reply = request_change(&PackageChange::List, cx).await?;
    if cx.ui.json {
        let packages = reply.packages;
        cx.ui.print_json(&PackagesAnswer { packages })?;
        return Ok(VerbOutcome::Done);
    }
    let row = |listed: ListedPackage| {
        let version = listed.version.unwrap_or_else(|| "not locked".into());
        vec![listed.kind.to_string(), listed.package, version]
    };
    let header = ["INSTALLER", "PACKAGE", "VERSION"]
        .map(str::to_owned)
        .to_vec();
    let rows: Vec<_> = [header]
        .into_iter()
        .chain(reply.packages.into_iter().map(row))
        .collect();
    cx.ui.print_list(
        &rows,
        "the project adds no packages; `osctl add NAME` adds one",
    );
    Ok(VerbOutcome::Done)
}

async fn change(change: &PackageChange, cx: &CommandContext) -> Result<VerbOutcome> {
    let PackageChangeReply { changed, packages } = request_change(change, cx).await?;
    if cx.ui.json {
        cx.ui.print_json(&PackagesChangedAnswer {
            changes: changed,
            packages,
        })?;
        return Ok(VerbOutcome::Done);
    }
    for listed in &changed {
        let kind = listed.kind;
        let text = match (change, &listed.version) {
            (PackageChange::Remove { .. }, _) => format!("removed {} ({kind})", listed.package),
            (_, Some(version)) => format!("installed {} {version} ({kind})", listed.package),
            (_, None) => format!("installed {} ({kind})", listed.package),
        };
        cx.ui.print_line(text);
    }
    if changed.is_empty() {
        cx.ui.print_line("the packages are up to date");
    }
    let has_apt = changed.iter().any(|listed| listed.kind == PackageKind::Apt);
    let now = match change {
        PackageChange::Remove { .. } if has_apt => {
            "Debian packages stay in this container until it is replaced; "
        }
        _ => "",
    };
    let next = match is_inside() {
        true => "`runtime.evolve()` in Python".to_owned(),
        false => format!("`{}`", cx.instance.osctl_command("evolve")),
    };
    let does = match change {
        PackageChange::Remove { .. } => "removes the packages from the image",
        _ => "builds the packages into the image",
    };
    cx.ui
        .print_message(format!("{now}next: {next} {does} and keeps the variables"));
    Ok(VerbOutcome::Done)
}

/// Applies the change in the container.
async fn request_change(change: &PackageChange, cx: &CommandContext) -> Result<PackageChangeReply> {
    if !is_inside() {
        // An error here names the line, and the container would report the same file again.
        let project = cx.require_record()?.project;
        if let (_, Some(error)) = cx.config_with_error(Some(&project), Vec::new())? {
            return Err(error.into());
        }
    }
    let work = cx.ui.start_work(match change {
        PackageChange::List => "reading the packages",
        PackageChange::Remove { .. } => "removing packages",
        PackageChange::Add { .. } | PackageChange::Lock => "installing packages",
    });
    // The messages of installers are many lines; only a terminal shows each in the place of the last.
    let report = |line: &str| match cx.ui.has_terminal() {
        true => work.report_step(line.trim()),
        false => work.log(line.trim()),
    };
    let done = match is_inside() {
        true => change_here(change.clone(), &report).await?,
        false => change_inside(change, &report, &work, cx).await?,
    };
    done.map_err(refusal_error)
}

fn refusal_error(refusal: PackageChangeRefusal) -> anyhow::Error {
    let PackageChangeRefusal {
        error,
        hint,
        is_usage,
    } = refusal;
    match is_usage {
        true => Error::usage(error, hint).into(),
        false => Error::precondition(error, hint).into(),
    }
}

/// Whether this process runs in the container.
fn is_inside() -> bool {
    env::current_exe().is_ok_and(|binary| binary == Path::new(BINARY_INSIDE))
}

/// Runs the change in the container to its end. A signal ends the installers first: they would otherwise continue
/// without this process, and change the project later.
async fn change_inside(
    change: &PackageChange,
    report: &impl Fn(&str),
    work: &WorkSpinner,
    cx: &CommandContext,
) -> Result<std::result::Result<PackageChangeReply, PackageChangeRefusal>> {
    let ended = shutdown_signal()?;
    let client = cx.companion_client()?;
    let id = run_id()?;
    let request = ShellRequest {
        id: Some(id.clone()),
        durable: Some(false),
        ..ShellRequest::new(change.inside_command())
    };
    let mut ended = std::pin::pin!(ended);
    let (reply, was_interrupted) = tokio::select! {
        biased;
        reply = follow_change(&client, &request, report) => (reply?, false),
        () = &mut ended => {
            work.report_step("ending the installer");
            let again = shutdown_signal()?;
            tokio::select! {
                reply = interrupt_change(&client, &id) => (reply?, true),
                () = again => return Err(Error::Interrupted.into()),
            }
        }
    };
    if reply.returncode == Some(UNKNOWN_VERB_CODE) {
        let up = cx.instance.osctl_command("up");
        let error = "the osctl in the container has another version and knows no packages";
        return Err(Error::precondition(error, format!("`{up}` replaces it")).into());
    }
    read_reply(&reply, change, was_interrupted, cx)
}

/// Starts the change and reports the messages of the installers.
async fn follow_change(
    client: &CompanionClient,
    request: &ShellRequest,
    report: &impl Fn(&str),
) -> Result<ShellReply> {
    let mut events = client.execute_shell(request).await?;
    loop {
        let event = events.next().await?;
        match event
            .context("the container stopped before the packages were installed")?
            .happened
        {
            RunEventKind::Done { reply } => return Ok(*reply),
            RunEventKind::Stderr { text, .. } => {
                text.lines()
                    .filter(|line| !line.trim().is_empty())
                    .for_each(report);
            }
            _ => {}
        }
    }
}

/// Ends the change; the reply says whether it was complete before.
async fn interrupt_change(client: &CompanionClient, id: &str) -> Result<ShellReply> {
    match client.interrupt_shell(id).await {
        // The companion does not know the command yet.
        Err(error) if is_unknown(&error) => {
            tokio::time::sleep(UNKNOWN_RUN_DELAY).await;
            client.interrupt_shell(id).await
        }
        ended => ended,
    }
}

/// The result that the container's osctl printed.
fn read_reply(
    reply: &ShellReply,
    change: &PackageChange,
    was_interrupted: bool,
    cx: &CommandContext,
) -> Result<std::result::Result<PackageChangeReply, PackageChangeRefusal>> {
    let done = serde_json::from_str(&reply.stdout);
    if was_interrupted && !matches!(done, Ok(Ok(_))) {
        return Err(interruption_error(change).into());
    }
    let last = reply.stderr.lines().last().unwrap_or_default().to_owned();
    done.map_err(|_| {
        let hint = cx.instance.osctl_command("logs");
        let message = format!("the packages were not installed: {last}");
        Error::precondition(message, format!("`{hint}` shows the container's logs")).into()
    })
}

/// The error for a change that was ended before its reply: the project's files are written after the last installer, and
/// the reply directly after them.
fn interruption_error(change: &PackageChange) -> Error {
    match change {
        PackageChange::List => Error::Interrupted,
        _ => Error::PackagesInterrupted,
    }
}

/// `osctl change-packages`, which the host runs inside: prints the reply or the refusal as JSON.
pub(crate) async fn run_change_inside(document: &str, ui: Ui) -> Result<VerbOutcome> {
    let change: PackageChange = serde_json::from_str(document)
        .map_err(|error| Error::usage(error.to_string(), "`osctl add NAME` adds packages"))?;
    let report = move |line: &str| ui.print_message(line);
    let reply = change_here(change, &report).await?;
    ui.print_json(&reply)?;
    Ok(match reply {
        Ok(_) => VerbOutcome::Done,
        Err(_) => VerbOutcome::Code(EXIT_NEGATIVE),
    })
}

/// `osctl install-packages`, a step of the image's build.
#[cfg(target_os = "linux")]
pub(crate) async fn run_install(kind: &str, ui: Ui) -> Result<VerbOutcome> {
    let unknown = || Error::usage("the installers are apt, npm and pip", "`osctl add --help`");
    let kind = PackageKind::from_word(kind).ok_or_else(unknown)?;
    let report = move |line: &str| ui.print_message(line);
    let installer = crate::companion::PackageInstaller::new(&report);
    let installed = installer.install_listed(kind).map_err(refusal_error);
    installed.map(|()| VerbOutcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn run_install(_kind: &str, _ui: Ui) -> Result<VerbOutcome> {
    Err(super::linux_only_error())
}

/// Applies the change to the project that is mounted in this container.
#[cfg(target_os = "linux")]
async fn change_here(
    change: PackageChange,
    report: &(impl Fn(&str) + Sync),
) -> Result<std::result::Result<PackageChangeReply, PackageChangeRefusal>> {
    let project = crate::companion::PackageProject::new("/repo".into());
    Ok(project.change(&change, report))
}

#[cfg(not(target_os = "linux"))]
async fn change_here(
    _change: PackageChange,
    _report: &impl Fn(&str),
) -> Result<std::result::Result<PackageChangeReply, PackageChangeRefusal>> {
    Err(super::linux_only_error())
}
