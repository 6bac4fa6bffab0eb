//! The command line as one type, and its help pages.

mod examples;
mod groups;
mod suggestions;

use crate::command::candidates::instance_names;
use crate::command::{
    attach, build, completions, config, cp, criu, cryo, desktop, doctor, down, evolve, exec,
    health, init, interrupt, jupyter, keeper, logs, ls, man, mcp, quiesce, reaper, relay, remember,
    repl, reset, restart, resume, runs, screenshot, selftest, sessions, shell, status, up, verify,
};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use groups::GLOBAL_OPTIONS_HEADING;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// A persistent, isolated computer for an AI agent: Python, shell, desktop, MCP
#[derive(Debug, Parser)]
#[command(
    name = "osctl",
    version,
    propagate_version = true,
    disable_help_flag = true,
    disable_version_flag = true,
    max_term_width = 80,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    /// Instance
    #[arg(short, long, global = true, env = "OSCTL_INSTANCE", hide_env_values = true, default_value = "default", value_name = "NAME", help_heading = GLOBAL_OPTIONS_HEADING, add = ArgValueCandidates::new(instance_names))]
    pub(crate) instance: String,
    /// Configuration file
    #[arg(long, global = true, env = "OSCTL_CONFIG", hide_env_values = true, value_name = "FILE", help_heading = GLOBAL_OPTIONS_HEADING)]
    pub(crate) config: Option<PathBuf>,
    /// Print only results, warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = GLOBAL_OPTIONS_HEADING)]
    pub(crate) quiet: bool,
    /// Print more detail (-vv: debug)
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = GLOBAL_OPTIONS_HEADING)]
    pub(crate) verbose: u8,
    /// Print JSON
    #[arg(long, global = true, help_heading = GLOBAL_OPTIONS_HEADING)]
    pub(crate) json: bool,
    /// Use colour: auto, always or never
    #[arg(long, global = true, value_enum, hide_possible_values = true, default_value_t = Color::Auto, value_name = "WHEN", help_heading = GLOBAL_OPTIONS_HEADING)]
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
    /// Start the container; build the image if needed
    #[command(alias = "start")]
    Up(up::UpArgs),
    /// Stop and remove the container; saved state stays
    Down(down::DownArgs),
    /// Stop the container and start it again
    Restart(restart::RestartArgs),
    /// Show the instance's state and addresses
    Status(status::StatusArgs),
    /// Show the container's logs
    #[command(alias = "log")]
    Logs(logs::LogsArgs),
    /// List the instances
    #[command(aliases = ["list", "ps"])]
    Ls(ls::LsArgs),
    /// Build the image
    Build(build::BuildArgs),
    /// Run Python code in the kernel, which keeps its variables
    Exec(exec::ExecArgs),
    /// Open an interactive Python console
    Repl(repl::ReplArgs),
    /// Open a terminal, or run a command, in the container
    Shell(shell::ShellArgs),
    /// Show and follow the output of a run
    Attach(attach::AttachArgs),
    /// List recent and running code and commands
    Runs(runs::RunsArgs),
    /// List, create and remove sessions
    #[command(alias = "session")]
    Sessions(sessions::SessionsArgs),
    /// Interrupt running code
    Interrupt(interrupt::InterruptArgs),
    /// Clear the variables of a session
    Reset(reset::ResetArgs),
    /// Copy files and folders into and out of the container
    #[command(alias = "copy")]
    Cp(cp::CpArgs),
    /// Checkpoint and restore whole kernel processes
    #[command(subcommand)]
    Criu(criu::CriuVerb),
    /// Store and reload variables
    #[command(subcommand)]
    Cryo(cryo::CryoVerb),
    /// Rebuild from body/, test, switch over; roll back on failure
    Evolve(evolve::EvolveArgs),
    /// Use the MCP servers, and connect MCP clients to them
    Mcp(mcp::McpArgs),
    /// Open the desktop in a browser, or change its resolution
    Desktop(desktop::DesktopArgs),
    /// Save a screenshot of the desktop
    Screenshot(screenshot::ScreenshotArgs),
    /// Connect JupyterLab and VS Code to a session
    Jupyter(jupyter::JupyterArgs),
    /// Copy the container's definition to body/ for editing
    Init(init::InitArgs),
    /// Check your setup and suggest fixes
    Doctor(doctor::DoctorArgs),
    /// Show or edit the configuration
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// Print the completion script of a shell
    #[command(alias = "completion")]
    Completions(completions::CompletionsArgs),
    /// Print the version
    #[command(hide = true)]
    Version,
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
    let mut command = clap_command();
    let parsed = match command.try_get_matches_from_mut(args) {
        Ok(matches) => Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command)),
        Err(error) => Err(error),
    };
    match parsed {
        Ok(Cli {
            verb: Verb::Version,
            ..
        }) => parse_args(["osctl", "--version"].map(Into::into)),
        Ok(cli) => Ok(cli),
        Err(mut error) => {
            suggestions::correct_suggestions(&mut error, &command);
            Err(error)
        }
    }
}

pub(crate) fn clap_command() -> clap::Command {
    // The derived options of help and version have no heading.
    let help = Arg::new("help").short('h').long("help");
    let help = help.action(ArgAction::Help).help("Print help");
    let version = Arg::new("version").short('V').long("version");
    let version = version.action(ArgAction::Version).help("Print version");
    let global = [help, version].map(|arg| arg.global(true).help_heading(GLOBAL_OPTIONS_HEADING));
    let command = Cli::command().args(global);
    let template = groups::help_template(&command);
    examples::with_examples(command.help_template(template), "")
}

/// The command line that shells complete: clap offers a hidden verb when nothing else matches.
pub(crate) fn completion_command() -> clap::Command {
    let visible = visible_only("osctl", &clap_command());
    let visible = visible.mut_subcommands(|verb| match verb.get_name() {
        "jupyter" => visible_only("jupyter", &verb),
        _ => verb,
    });
    let visible = visible
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true);
    visible.disable_help_flag(true).disable_version_flag(true)
}

fn visible_only(name: &'static str, command: &clap::Command) -> clap::Command {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    clap::Command::new(name)
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().cloned())
        .subcommands(verbs.cloned())
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
        super::completion_command().debug_assert();
    }

    #[test]
    fn a_shell_completes_no_hidden_verb() {
        let mut commands = vec![super::completion_command()];
        let mut count = 0;
        while let Some(command) = commands.pop() {
            assert!(!command.is_hide_set(), "{}", command.get_name());
            commands.extend(command.get_subcommands().cloned());
            count += 1;
        }
        assert!(count > 50, "{count}");
    }
}
