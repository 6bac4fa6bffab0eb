//! The command line as one type, and its help pages.

mod examples;
mod groups;
mod suggestions;
mod values;

use crate::command::candidates::instance_names;
use crate::command::{
    activity, attach, build, completions, config, cp, criu, cryo, desktop, doctor, down, env,
    evolve, exec, health, init, inside, interrupt, jupyter, keeper, logs, ls, man, mcp, packages,
    reaper, relay, repl, reset, restart, runs, screenshot, sessions, shell, status, up,
};
use crate::error::Error;
use clap::builder::{StyledStr, Styles};
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
    /// Instance to use [default: the current folder's]
    #[arg(short, long, global = true, env = "OSCTL_INSTANCE", hide_env_values = true, value_name = "NAME", help_heading = GLOBAL_OPTIONS_HEADING, add = ArgValueCandidates::new(instance_names))]
    pub(crate) instance: Option<String>,
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
    /// Format of diagnostics on stderr: text or json
    #[arg(long, global = true, env = "OSCTL_LOG_FORMAT", hide_env_values = true, value_enum, hide_possible_values = true, default_value_t = LogFormat::Text, value_name = "FORMAT", help_heading = GLOBAL_OPTIONS_HEADING)]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    pub(crate) fn is_json(self) -> bool {
        self == Self::Json
    }
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

// The doc comment of a flattened enum would replace the description of `osctl` in the help.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// A verb of the host, which gets the context of the instance
    #[command(flatten)]
    Host(HostVerb),
    /// A verb without runtime and log
    #[command(flatten)]
    Blocking(BlockingVerb),
    /// A verb of the container or the keeper
    #[command(flatten)]
    Container(ContainerVerb),
}

#[derive(Debug, Subcommand)]
pub(crate) enum HostVerb {
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
    /// Show what clients ran, called and wrote
    Activity(activity::ActivityArgs),
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
    /// Interrupt running code or a command
    Interrupt(interrupt::InterruptArgs),
    /// Clear the variables of a session
    Reset(reset::ResetArgs),
    /// Copy files and folders into and out of the container
    #[command(alias = "copy")]
    Cp(cp::CpArgs),
    /// Checkpoint and restore whole kernel processes
    Criu(criu::CriuArgs),
    /// Store and reload variables
    Cryo(cryo::CryoArgs),
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
    /// Add packages to the container and to its image
    Add(packages::AddArgs),
    /// Remove packages from the container and from its image
    Remove(packages::RemoveArgs),
    /// List the packages of the project, or lock their versions
    Packages(packages::PackagesArgs),
    /// Create body/ with files that change the image
    Init(init::InitArgs),
    /// Check your setup and suggest fixes
    Doctor(doctor::DoctorArgs),
    /// Set, list and remove variables, such as API keys
    #[command(alias = "environment")]
    Env(env::EnvironmentArgs),
    /// Show or edit the configuration
    Config(config::ConfigArgs),
    /// Write the man pages into a folder; for packages
    #[command(hide = true)]
    Man(man::ManArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum BlockingVerb {
    /// Print the completion script of a shell
    #[command(alias = "completion")]
    Completions(completions::CompletionsArgs),
    /// Print the version
    #[command(hide = true)]
    Version,
    /// Supervise a kernel, shell, command or service, and end all its descendants with it
    #[command(hide = true)]
    Reaper(reaper::ReaperArgs),
    /// Connect stdin and stdout to a port inside; run by the engine for a host on another machine
    #[command(hide = true)]
    Relay(relay::RelayArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ContainerVerb {
    /// Run the service inside the container
    #[command(hide = true)]
    Companion,
    /// Check the health of the companion; run by the engine
    #[command(hide = true)]
    Health(health::HealthArgs),
    /// Run the service that replaces the container
    #[command(hide = true)]
    Keeper(keeper::KeeperArgs),
    /// Install the project's packages; a step of the image's build
    #[command(hide = true)]
    InstallPackages {
        /// apt, npm or pip
        kind: String,
    },
    /// Change the project's packages; run by the host
    #[command(hide = true)]
    ChangePackages {
        /// The change as JSON
        change: String,
    },
    #[command(flatten)]
    Inside(inside::InsideRequest),
}

impl HostVerb {
    /// The error of a verb that Ctrl-C ends; `None` if the verb handles Ctrl-C itself.
    pub(crate) fn interruption(&self) -> Option<Error> {
        match self {
            Self::Evolve(_)
            | Self::Exec(_)
            | Self::Repl(_)
            | Self::Shell(_)
            | Self::Attach(_)
            | Self::Activity(_)
            | Self::Logs(_)
            | Self::Add(_)
            | Self::Remove(_)
            | Self::Packages(_) => None,
            Self::Mcp(args) if args.is_bridge() => None,
            // Run again, the verb completes its work.
            Self::Up(_) | Self::Down(_) | Self::Restart(_) | Self::Build(_) => {
                Some(Error::InterruptedRepeatable)
            }
            _ => Some(Error::Interrupted),
        }
    }
}

impl ContainerVerb {
    /// The error of a verb that Ctrl-C ends; `None` if the verb handles Ctrl-C itself.
    pub(crate) fn interruption(&self) -> Option<Error> {
        (!matches!(self, Self::Companion | Self::Keeper(_))).then_some(Error::Interrupted)
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
    parsed.map_err(|mut error| {
        suggestions::correct_suggestions(&mut error, &command);
        error
    })
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
    let command = values::with_checked_values(command.help_template(template));
    examples::with_examples(command, "")
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

/// Help and version are printed as data with exit code 0; every other parse error is a usage error. `print` gets a
/// function that returns the text of the error, with or without colours.
pub(crate) fn report_parse_error(
    error: &clap::Error,
    print: impl FnOnce(&dyn Fn(bool) -> String),
) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // The terminal may be gone.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            print(&|has_colors: bool| describe_parse_error(error, has_colors));
            ExitCode::from(2)
        }
    }
}

/// The text of a parse error. clap's label `tip:` becomes `hint:`, the label in all other errors.
fn describe_parse_error(error: &clap::Error, has_colors: bool) -> String {
    let styles = Styles::default();
    let label = styles.get_valid();
    let text = error.render().ansi().to_string().replace(
        &format!("\n  {label}tip:{label:#} "),
        &format!("\n  {label}hint:{label:#} "),
    );
    match has_colors {
        true => text,
        false => StyledStr::from(text).to_string(),
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
    fn a_group_without_a_verb_has_a_default() {
        let command = super::clap_command();
        let groups = command
            .get_subcommands()
            .filter(|verb| verb.has_subcommands() && !verb.is_hide_set());
        let mut count = 0;
        for group in groups {
            let words = ["osctl", group.get_name()].map(Into::into);
            let parsed = super::parse_args(words);
            assert!(parsed.is_ok(), "{}: {parsed:?}", group.get_name());
            count += 1;
        }
        assert_eq!(count, 9);
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
