//! The command line as one type; no logic.

use crate::command::candidates::instance_names;
use crate::command::{
    attach, build, completions, config, cp, criu, cryo, desktop, doctor, down, evolve, exec,
    health, init, interrupt, jupyter, keeper, logs, ls, man, mcp, quiesce, reaper, relay, remember,
    repl, reset, restart, resume, runs, screenshot, selftest, sessions, shell, status, up, verify,
};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// A computer of its own for an AI agent.
#[derive(Debug, Parser)]
#[command(
    name = "osctl",
    version,
    propagate_version = true,
    max_term_width = 100,
    arg_required_else_help = true
)]
#[command(after_help = "Start with `osctl up`, then `osctl exec 'print(6*7)'`.")]
pub(crate) struct Cli {
    /// Which instance, where there are several
    #[arg(long, global = true, env = "OSCTL_INSTANCE", default_value = "default", value_name = "NAME", add = ArgValueCandidates::new(instance_names))]
    pub(crate) instance: String,
    /// The configuration file
    #[arg(long, global = true, env = "OSCTL_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Say nothing but data, warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more; twice for diagnostics
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Answer with one JSON document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to colour
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

impl From<Color> for Option<bool> {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => None,
            Color::Always => Some(true),
            Color::Never => Some(false),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// From nothing to a healthy os-host
    Up(up::UpArgs),
    /// Stop and remove the container; its state stays
    Down(down::DownArgs),
    /// Stop the container and start it again
    Restart(restart::RestartArgs),
    /// How the instance stands
    Status(status::StatusArgs),
    /// What the container wrote
    Logs(logs::LogsArgs),
    /// List the instances
    Ls(ls::LsArgs),
    /// Build the image
    Build(build::BuildArgs),
    /// Execute Python in the kernel, which keeps its state
    Exec(exec::ExecArgs),
    /// Python in the kernel, line by line
    Repl(repl::ReplArgs),
    /// A terminal inside
    Shell(shell::ShellArgs),
    /// Follow a run that was begun elsewhere
    Attach(attach::AttachArgs),
    /// List what was executed lately, and what is
    Runs(runs::RunsArgs),
    /// List, make and end further kernels
    Sessions(sessions::SessionsArgs),
    /// Stop what runs
    Interrupt(interrupt::InterruptArgs),
    /// Clear the kernel's namespace
    Reset(reset::ResetArgs),
    /// Copy files and folders in and out
    Cp(cp::CpArgs),
    /// Freeze whole kernels, and bring them back
    #[command(subcommand)]
    Criu(criu::CriuVerb),
    /// Store the kernel's variables, and bring them back
    #[command(subcommand)]
    Cryo(cryo::CryoVerb),
    /// Replace the container by one made of the changed body, and take it back when it does not work
    Evolve(evolve::EvolveArgs),
    /// The MCP servers inside
    Mcp(mcp::McpArgs),
    /// Open the desktop in a browser, or change its resolution
    Desktop(desktop::DesktopArgs),
    /// Save a picture of the screen inside
    Screenshot(screenshot::ScreenshotArgs),
    /// Open a session in JupyterLab and VS Code
    Jupyter(jupyter::JupyterArgs),
    /// Write the body into the project, to change it there
    Init(init::InitArgs),
    /// Check every precondition and name its cure
    Doctor(doctor::DoctorArgs),
    /// Show or edit the configuration
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// Print the completion script of a shell
    Completions(completions::CompletionsArgs),
    /// Write the man pages into a folder; for packages
    #[command(hide = true)]
    Man(man::ManArgs),
    /// The service inside the container
    #[command(hide = true)]
    Companion,
    /// Ask the companion whether all is well; run by the engine
    #[command(hide = true)]
    Health(health::HealthArgs),
    /// The service that replaces the container
    #[command(hide = true)]
    Keeper(keeper::KeeperArgs),
    /// Guard a kernel and end all its descendants with it
    #[command(hide = true)]
    Reaper(reaper::ReaperArgs),
    /// Join stdin and stdout with a port inside; run by the engine for a host on another machine
    #[command(hide = true)]
    Relay(relay::RelayArgs),
    /// Store what is idle; run by the keeper
    #[command(hide = true)]
    Remember(remember::RememberArgs),
    /// Whether this body works; run by the keeper
    #[command(hide = true)]
    Selftest(selftest::SelfTestArgs),
    /// Begin nothing, and store everything; run by the keeper
    #[command(hide = true)]
    Quiesce(quiesce::QuiesceArgs),
    /// Answer requests again; run by the keeper
    #[command(hide = true)]
    Resume(resume::ResumeArgs),
    /// Whether all is there that was before; run by the keeper
    #[command(hide = true)]
    Verify(verify::VerifyArgs),
}

impl Verb {
    /// Whether Ctrl-C means something of its own to it.
    pub(crate) fn owns_interrupts(&self) -> bool {
        matches!(
            self,
            Self::Evolve(_)
                | Self::Exec(_)
                | Self::Repl(_)
                | Self::Shell(_)
                | Self::Attach(_)
                | Self::Companion
                | Self::Keeper(_)
        ) || matches!(self, Self::Mcp(args) if args.is_bridge())
    }

    /// Whether threads of ours may run beside it.
    pub(crate) fn has_log(&self) -> bool {
        !matches!(self, Self::Reaper(_))
    }

    /// Whether it is a service, whose log is its output.
    pub(crate) fn is_service(&self) -> bool {
        match self {
            Self::Companion => true,
            Self::Keeper(args) => args.is_service(),
            _ => false,
        }
    }
}

pub(crate) fn parse_args(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(args)
}

pub(crate) fn clap_command() -> clap::Command {
    Cli::command()
}

/// Help and version are data and fine; the rest is a usage error.
pub(crate) fn report_parse_error(error: &clap::Error) -> ExitCode {
    // Nobody is left to tell when the terminal is gone.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(2),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::clap_command().debug_assert();
    }
}
