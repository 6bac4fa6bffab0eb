//! `osctl jupyter`: connects notebooks to a session. Jupyter starts `osctl jupyter kernel`.

use super::CommandContext;
use super::answers::{
    KernelspecAnswer, KernelspecEntry, KernelspecRemovedAnswer, KernelspecsAnswer,
};
use super::candidates::session_names;
use super::launch_command;
use crate::error::{Error, Result, VerbOutcome};
use crate::host::instance::DEFAULT_INSTANCE;
use crate::host::jupyter::{
    ConnectionFile, Kernelspec, KernelspecTarget, NotebookSession, OutputPolicy, data_folder,
    serve_kernel,
};
use crate::host::mount_safety::check_kernels_folder;
use crate::protocol::kernel::DEFAULT_SESSION;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct JupyterArgs {
    #[command(subcommand)]
    verb: Option<JupyterVerb>,
}

#[derive(Debug, Subcommand)]
enum JupyterVerb {
    /// Install a kernelspec that opens a session in JupyterLab and VS Code
    Install(KernelspecInstallArgs),
    /// Remove the kernelspec
    #[command(aliases = ["rm", "remove", "delete"])]
    Uninstall {
        /// Name of the kernelspec [default: that of the session `default`]
        #[arg(long, value_name = "KERNELSPEC")]
        name: Option<String>,
        #[command(flatten)]
        place: KernelspecLocation,
    },
    /// List the installed kernelspecs (default)
    #[command(alias = "list")]
    Ls {
        #[command(flatten)]
        place: KernelspecLocation,
    },
    /// Run the kernel process; started by Jupyter
    #[command(hide = true)]
    Kernel {
        #[arg(short = 'f', value_name = "FILE")]
        connection: PathBuf,
        #[arg(long, default_value = DEFAULT_SESSION)]
        session: String,
        #[arg(long)]
        trust_html: bool,
    },
}

#[derive(Debug, Args)]
struct KernelspecInstallArgs {
    /// Session to use; created if missing
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Name of the kernelspec [default: made of the names of the instance and the session]
    #[arg(long, value_name = "KERNELSPEC")]
    name: Option<String>,
    /// Pass outputs of all types, including scripts. Widgets and interactive charts need this option. Code in the container can then start programs on this machine
    #[arg(long)]
    trust_html: bool,
    #[command(flatten)]
    place: KernelspecLocation,
}

#[derive(Debug, Default, Args)]
struct KernelspecLocation {
    /// Kernelspecs of the current user (default)
    #[arg(long)]
    user: bool,
    /// Kernelspecs of the Python installation or environment in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    prefix: Option<PathBuf>,
}

impl KernelspecLocation {
    /// Jupyter's data folder.
    fn jupyter_folder(self, cx: &CommandContext) -> PathBuf {
        let Self { user: _, prefix } = self;
        match prefix {
            Some(prefix) => prefix.join("share/jupyter"),
            None => data_folder(&cx.folders.home),
        }
    }
}

pub(crate) async fn run(args: JupyterArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let list = || JupyterVerb::Ls {
        place: KernelspecLocation::default(),
    };
    match args.verb.unwrap_or_else(list) {
        JupyterVerb::Install(args) => install_kernelspec(args, cx),
        JupyterVerb::Uninstall { name, place } => uninstall_kernelspec(name, place, cx),
        JupyterVerb::Ls { place } => list_kernelspecs(place, cx),
        JupyterVerb::Kernel {
            connection,
            session,
            trust_html,
        } => {
            let outputs = match trust_html {
                true => OutputPolicy::Trusted,
                false => OutputPolicy::Sanitized,
            };
            let attached = NotebookSession::new(session, outputs, || {
                Ok(cx.companion_client()?.for_notebooks())
            });
            serve_kernel(&ConnectionFile::read(&connection)?, &attached).await?;
            Ok(VerbOutcome::Done)
        }
    }
}

fn install_kernelspec(args: KernelspecInstallArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let KernelspecInstallArgs {
        session,
        name,
        trust_html,
        place,
    } = args;
    let spec = Kernelspec {
        name: name.unwrap_or_else(|| usual_name(&cx.instance.name, &session)),
        display_name: match session == DEFAULT_SESSION {
            true => format!("os-host ({})", cx.instance.name),
            false => format!("os-host ({}, {session})", cx.instance.name),
        },
        argv: kernel_argv(&session, trust_html, cx)?,
        env: launch_command::state_environment(),
        opens: KernelspecTarget {
            instance: cx.instance.name.clone(),
            session,
        },
    };
    let data = place.jupyter_folder(cx);
    check_kernels_folder(&data, &cx.path_resolver()?)?;
    let folder = spec.write(&data)?;
    if cx.ui.json {
        cx.ui.print_json(&KernelspecAnswer {
            folder,
            kernelspec: spec.into(),
        })?;
        return Ok(VerbOutcome::Done);
    }
    cx.ui.print_message(format!(
        "installed the kernelspec `{}` in `{}`",
        spec.display_name,
        folder.display()
    ));
    match trust_html {
        true => cx.ui.print_warning(
            "code in the container can run scripts in the page of JupyterLab, which can start programs on this machine; \
             `osctl jupyter install` without `--trust-html` turns this off",
        ),
        false => cx.ui.print_message(
            "notebooks show text, tables and pictures, without scripts, widgets and interactive charts; \
             `--trust-html` passes all types on and lets code inside run scripts in the page of JupyterLab",
        ),
    }
    // Without an instance, the notebook would start with an error.
    match cx.instance.read_record()? {
        Some(_) => cx.ui.print_message(format!(
            "next: `jupyter lab`, or `jupyter console --kernel {}`",
            spec.name
        )),
        None => cx
            .ui
            .print_message(format!("next: {}", cx.instance.osctl_command("up"))),
    }
    Ok(VerbOutcome::Done)
}

fn uninstall_kernelspec(
    name: Option<String>,
    place: KernelspecLocation,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let name = name.unwrap_or_else(|| usual_name(&cx.instance.name, DEFAULT_SESSION));
    let data = place.jupyter_folder(cx);
    check_kernels_folder(&data, &cx.path_resolver()?)?;
    let removed = Kernelspec::remove(&data, &name)?;
    if !removed {
        let message = format!("the kernelspec `{name}` does not exist");
        return Err(Error::usage(message, "`osctl jupyter ls` lists the kernelspecs").into());
    }
    if cx.ui.json {
        cx.ui.print_json(&KernelspecRemovedAnswer { name })?;
    } else {
        cx.ui.print_message(format!(
            "removed the kernelspec `{name}`; its session keeps running"
        ));
    }
    Ok(VerbOutcome::Done)
}

fn list_kernelspecs(place: KernelspecLocation, cx: &CommandContext) -> Result<VerbOutcome> {
    let all = Kernelspec::list_all(&place.jupyter_folder(cx))?;
    if cx.ui.json {
        let kernelspecs = all.into_iter().map(KernelspecEntry::from).collect();
        cx.ui.print_json(&KernelspecsAnswer { kernelspecs })?;
        return Ok(VerbOutcome::Done);
    }
    let heads = ["NAME", "INSTANCE", "SESSION", "SHOWN AS"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(all.into_iter().map(|spec| {
        let KernelspecTarget { instance, session } = spec.opens;
        vec![spec.name, instance, session, spec.display_name]
    }));
    let install = cx.instance.osctl_command("jupyter install");
    let empty = format!("no kernelspecs; `{install}` installs a kernelspec");
    cx.ui.print_list(&rows, &empty);
    Ok(VerbOutcome::Done)
}

fn usual_name(instance: &str, session: &str) -> String {
    let own = |name: &str, usual| (name != usual).then(|| format!("-{name}"));
    let instance = own(instance, DEFAULT_INSTANCE).unwrap_or_default();
    let session = own(session, DEFAULT_SESSION).unwrap_or_default();
    format!("osctl{instance}{session}")
}

/// The command with which Jupyter starts the kernel: this binary by its full path, so that it works in any folder.
fn kernel_argv(session: &str, trust_html: bool, cx: &CommandContext) -> Result<Vec<String>> {
    let mut argv = vec![launch_command::program_path(cx)?];
    argv.extend(["--instance".into(), cx.instance.name.clone()]);
    argv.extend(launch_command::config_args(cx)?);
    argv.extend(["jupyter", "kernel", "--session", session].map(str::to_owned));
    argv.extend(trust_html.then(|| "--trust-html".to_owned()));
    argv.extend(["-f", "{connection_file}"].map(str::to_owned));
    Ok(argv)
}

#[cfg(test)]
mod tests {
    use super::usual_name;

    #[test]
    fn a_kernel_name_leaves_out_default_names() {
        assert_eq!(usual_name("default", "default"), "osctl");
        assert_eq!(usual_name("blue", "default"), "osctl-blue");
        assert_eq!(usual_name("blue", "plots"), "osctl-blue-plots");
    }
}
