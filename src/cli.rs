//! The command line as one type, without logic.

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
    /// Select the instance
    #[arg(long, global = true, env = "OSCTL_INSTANCE", default_value = "default", value_name = "NAME", add = ArgValueCandidates::new(instance_names))]
    pub(crate) instance: String,
    /// Use this configuration file
    #[arg(long, global = true, env = "OSCTL_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print only data, warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print more; give it twice for diagnostics
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print one JSON document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to use colour
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
    /// Start the container, and build or install what is missing
    Up(up::UpArgs),
    /// Stop and remove the container; its state stays
    Down(down::DownArgs),
    /// Stop the container and start it again
    Restart(restart::RestartArgs),
    /// Show the status of the instance
    Status(status::StatusArgs),
    /// Show the log of the container
    Logs(logs::LogsArgs),
    /// List the instances
    Ls(ls::LsArgs),
    /// Build the image
    Build(build::BuildArgs),
    /// Execute Python in the kernel, which keeps its state
    Exec(exec::ExecArgs),
    /// Run Python in the kernel interactively
    Repl(repl::ReplArgs),
    /// Run a command inside, or open a terminal
    Shell(shell::ShellArgs),
    /// Follow a run that was started elsewhere
    Attach(attach::AttachArgs),
    /// List recent and running code and commands
    Runs(runs::RunsArgs),
    /// List, create and end sessions
    Sessions(sessions::SessionsArgs),
    /// Interrupt running code
    Interrupt(interrupt::InterruptArgs),
    /// Clear the kernel's namespace
    Reset(reset::ResetArgs),
    /// Copy files and folders in and out
    Cp(cp::CpArgs),
    /// Checkpoint whole kernels and restore them
    #[command(subcommand)]
    Criu(criu::CriuVerb),
    /// Store the kernel's variables and reload them
    #[command(subcommand)]
    Cryo(cryo::CryoVerb),
    /// Replace the container by one built from the changed body; roll back if it fails
    Evolve(evolve::EvolveArgs),
    /// Use the MCP servers inside, and connect MCP clients to them
    Mcp(mcp::McpArgs),
    /// Open the desktop in a browser, or change its resolution
    Desktop(desktop::DesktopArgs),
    /// Save a screenshot of the desktop
    Screenshot(screenshot::ScreenshotArgs),
    /// Open a session in JupyterLab and VS Code
    Jupyter(jupyter::JupyterArgs),
    /// Write the body into the project, to change it there
    Init(init::InitArgs),
    /// Check every precondition and name the fix
    Doctor(doctor::DoctorArgs),
    /// Show or edit the configuration
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// Print the completion script of a shell
    Completions(completions::CompletionsArgs),
    /// Write the man pages into a folder; for packages
    #[command(hide = true)]
    Man(man::ManArgs),
    /// Run the service inside the container
    #[command(hide = true)]
    Companion,
    /// Check the health of the companion; run by the engine
    #[command(hide = true)]
    Health(health::HealthArgs),
    /// Run the service that replaces the container
    #[command(hide = true)]
    Keeper(keeper::KeeperArgs),
    /// Supervise a kernel and end all its descendants with it
    #[command(hide = true)]
    Reaper(reaper::ReaperArgs),
    /// Connect stdin and stdout to a port inside; run by the engine for a host on another machine
    #[command(hide = true)]
    Relay(relay::RelayArgs),
    /// Store idle sessions; run by the keeper
    #[command(hide = true)]
    Remember(remember::RememberArgs),
    /// Test whether this body works; run by the keeper
    #[command(hide = true)]
    Selftest(selftest::SelfTestArgs),
    /// Refuse new requests and store everything; run by the keeper
    #[command(hide = true)]
    Quiesce(quiesce::QuiesceArgs),
    /// Answer requests again; run by the keeper
    #[command(hide = true)]
    Resume(resume::ResumeArgs),
    /// Verify that the state of the previous container is present; run by the keeper
    #[command(hide = true)]
    Verify(verify::VerifyArgs),
}

impl Verb {
    /// Whether the verb handles Ctrl-C itself.
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

    /// Whether the verb may run beside the thread of the log.
    pub(crate) fn has_log(&self) -> bool {
        !matches!(self, Self::Reaper(_))
    }

    /// Whether the verb is a service, whose log is its output.
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

/// Help and version are printed as data with exit code 0; every other parse error is a usage error.
pub(crate) fn report_parse_error(error: &clap::Error) -> ExitCode {
    // The terminal may be gone.
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
