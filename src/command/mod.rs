//! The verbs, one file each: arguments, the plan made of them, and its execution.

pub(crate) mod activity;
mod answers;
pub(crate) mod attach;
pub(crate) mod build;
pub(crate) mod candidates;
pub(crate) mod companion;
mod completer;
pub(crate) mod completions;
pub(crate) mod config;
mod context;
pub(crate) mod cp;
pub(crate) mod criu;
pub(crate) mod cryo;
pub(crate) mod desktop;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod env;
pub(crate) mod evolve;
pub(crate) mod exec;
mod figures;
mod follow;
mod format;
pub(crate) mod health;
mod id_prefix;
pub(crate) mod init;
pub(crate) mod inside;
mod instance_status;
pub(crate) mod interrupt;
pub(crate) mod jupyter;
pub(crate) mod keeper;
mod launch_command;
#[cfg(not(target_os = "linux"))]
mod linux_only;
mod listed_runs;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod packages;
mod progress;
pub(crate) mod reaper;
pub(crate) mod relay;
pub(crate) mod repl;
pub(crate) mod reset;
pub(crate) mod restart;
mod restored_sessions;
pub(crate) mod runs;
pub(crate) mod screenshot;
pub(crate) mod sessions;
pub(crate) mod shell;
mod shell_command;
mod shutdown_signal;
mod snapshot;
pub(crate) mod status;
mod terminal;
pub(crate) mod up;

pub(crate) use completer::SHELL_COMPLETERS as COMPLETERS;
pub(crate) use context::CommandContext;
pub(crate) use shutdown_signal::shutdown_signal;

use self::context::ConfigFileSource;
use self::format::{format_age, format_duration, format_time, short_image_id};
#[cfg(not(target_os = "linux"))]
use self::linux_only::linux_only_error;
use crate::cli::{BlockingVerb, ContainerVerb, HostVerb};
use crate::error::{Result, VerbOutcome};
use crate::host::engine_diagnosis::may_engine_explain;
use crate::host::folders::Folders;
use crate::host::instance_lookup::{InstanceScope, find_instance};
use crate::ui::Ui;
use std::path::Path;

pub(crate) fn run_blocking_verb(verb: BlockingVerb, ui: Ui) -> Result<VerbOutcome> {
    match verb {
        BlockingVerb::Completions(args) => completions::run(args, ui),
        BlockingVerb::Version => {
            ui.print_line(concat!("osctl ", env!("CARGO_PKG_VERSION")));
            Ok(VerbOutcome::Done)
        }
        BlockingVerb::Reaper(args) => reaper::run(args),
        BlockingVerb::Relay(args) => relay::run(args, ui),
    }
}

pub(crate) async fn run_container_verb(verb: ContainerVerb, ui: Ui) -> Result<VerbOutcome> {
    match verb {
        ContainerVerb::Companion => companion::run().await,
        ContainerVerb::Health(args) => health::run(args).await,
        ContainerVerb::Keeper(args) => keeper::run(args, ui).await,
        ContainerVerb::InstallPackages { kind } => packages::run_install(&kind, ui).await,
        ContainerVerb::ChangePackages { change } => packages::run_change_inside(&change, ui).await,
        ContainerVerb::Inside(request) => inside::run(request, ui).await,
    }
}

/// The context of a verb: `instance` and `config` are the values of `--instance` and `--config`.
///
/// # Errors
/// When no instance can be chosen, or the configuration file's path can't be made absolute.
pub(crate) fn host_context(
    verb: &HostVerb,
    instance: Option<&str>,
    config: Option<&Path>,
    ui: Ui,
) -> Result<CommandContext> {
    let folders = Folders::find()?;
    let instance = find_instance(instance, instance_scope(verb), &folders)?;
    CommandContext::new(ui, folders, instance, config)
}

/// The instances among which a verb chooses if none is named.
fn instance_scope(verb: &HostVerb) -> InstanceScope<'_> {
    match verb {
        HostVerb::Up(args) => args.instance_scope(),
        HostVerb::Build(args) => InstanceScope::Project(args.project()),
        HostVerb::Mcp(args) if args.is_bridge() => InstanceScope::ExistingOrDefault,
        // These verbs also work without an instance.
        HostVerb::Ls(_)
        | HostVerb::Doctor(_)
        | HostVerb::Config(_)
        | HostVerb::Init(_)
        | HostVerb::Man(_) => InstanceScope::Optional,
        // These verbs change the project, its image, or saved state for good.
        HostVerb::Add(_) | HostVerb::Remove(_) | HostVerb::Reset(_) => InstanceScope::OfFolder,
        HostVerb::Packages(args) if args.changes_packages() => InstanceScope::OfFolder,
        HostVerb::Evolve(args) if args.changes_instance() => InstanceScope::OfFolder,
        HostVerb::Env(args) if args.changes_variables() => InstanceScope::OfFolder,
        HostVerb::Down(args) if args.purges() => InstanceScope::OfFolder,
        HostVerb::Cryo(args) if args.removes_state() => InstanceScope::OfFolder,
        HostVerb::Criu(args) if args.removes_state() => InstanceScope::OfFolder,
        HostVerb::Sessions(args) if args.removes_state() => InstanceScope::OfFolder,
        _ => InstanceScope::Existing,
    }
}

pub(crate) async fn run_host_verb(verb: HostVerb, cx: &CommandContext) -> Result<VerbOutcome> {
    if needs_named_config(&verb, cx.config_file_source) {
        cx.check_config_exists()?;
    }
    match run_with_context(verb, cx).await {
        Err(error) if may_engine_explain(&error) => Err(cx.explain_error(error).await),
        done => done,
    }
}

/// Whether the command fails if the file of `--config` or `OSCTL_CONFIG` is missing. A variable stays set for longer than
/// its file may exist, so it stops only commands that apply or show the configuration; others print a warning.
fn needs_named_config(verb: &HostVerb, source: ConfigFileSource) -> bool {
    match (source, verb) {
        (ConfigFileSource::Record, _) => false,
        (_, HostVerb::Config(args)) => !args.may_lack_file(),
        (ConfigFileSource::Flag, _) => true,
        (ConfigFileSource::Variable, HostVerb::Evolve(args)) => args.starts_evolve(),
        (ConfigFileSource::Variable, verb) => {
            matches!(
                verb,
                HostVerb::Up(_) | HostVerb::Build(_) | HostVerb::Restart(_)
            )
        }
    }
}

async fn run_with_context(verb: HostVerb, cx: &CommandContext) -> Result<VerbOutcome> {
    match verb {
        HostVerb::Up(args) => up::run(args, cx).await,
        HostVerb::Down(args) => down::run(args, cx).await,
        HostVerb::Restart(args) => restart::run(args, cx).await,
        HostVerb::Status(args) => status::run(args, cx).await,
        HostVerb::Logs(args) => logs::run(args, cx).await,
        HostVerb::Ls(args) => ls::run(args, cx).await,
        HostVerb::Build(args) => build::run(args, cx).await,
        HostVerb::Evolve(args) => evolve::run(args, cx).await,
        HostVerb::Add(args) => packages::run_add(args, cx).await,
        HostVerb::Remove(args) => packages::run_remove(args, cx).await,
        HostVerb::Packages(args) => packages::run(args, cx).await,
        HostVerb::Exec(args) => exec::run(args, cx).await,
        HostVerb::Repl(args) => repl::run(args, cx).await,
        HostVerb::Shell(args) => shell::run(args, cx).await,
        HostVerb::Attach(args) => attach::run(args, cx).await,
        HostVerb::Runs(args) => runs::run(args, cx).await,
        HostVerb::Sessions(args) => sessions::run(args, cx).await,
        HostVerb::Interrupt(args) => interrupt::run(args, cx).await,
        HostVerb::Reset(args) => reset::run(args, cx).await,
        HostVerb::Cp(args) => cp::run(args, cx).await,
        HostVerb::Activity(args) => activity::run(args, cx).await,
        HostVerb::Env(args) => env::run(args, cx).await,
        HostVerb::Criu(args) => criu::run(args, cx).await,
        HostVerb::Cryo(args) => cryo::run(args, cx).await,
        HostVerb::Mcp(args) => mcp::run(args, cx).await,
        HostVerb::Desktop(args) => desktop::run(args, cx).await,
        HostVerb::Screenshot(args) => screenshot::run(args, cx).await,
        HostVerb::Jupyter(args) => jupyter::run(args, cx).await,
        HostVerb::Init(args) => init::run(args, cx),
        HostVerb::Man(args) => man::run(args, cx),
        HostVerb::Doctor(args) => doctor::run(args, cx).await,
        HostVerb::Config(args) => config::run(args, cx),
    }
}

#[cfg(test)]
mod tests {
    use super::{ConfigFileSource, instance_scope, needs_named_config};
    use crate::cli::{HostVerb, Verb, parse_args};
    use crate::host::instance_lookup::InstanceScope;

    fn parse(words: &str) -> HostVerb {
        let words = format!("osctl {words}");
        let cli = parse_args(words.split(' ').map(Into::into)).unwrap();
        match cli.verb {
            Verb::Host(verb) => verb,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_up_and_build_choose_a_new_instance() {
        for (words, expected) in [
            ("up", InstanceScope::Project(None)),
            ("up --project a", InstanceScope::Project(Some("a".as_ref()))),
            ("up --move --project a", InstanceScope::Existing),
            (
                "build --project a",
                InstanceScope::Project(Some("a".as_ref())),
            ),
            ("mcp stdio", InstanceScope::ExistingOrDefault),
            ("mcp ls", InstanceScope::Existing),
            ("down", InstanceScope::Existing),
            ("down --purge", InstanceScope::OfFolder),
            ("add polars", InstanceScope::OfFolder),
            ("packages", InstanceScope::Existing),
            ("packages lock", InstanceScope::OfFolder),
            ("evolve", InstanceScope::OfFolder),
            ("evolve rollback", InstanceScope::OfFolder),
            ("evolve ls", InstanceScope::Existing),
            ("env set A=b", InstanceScope::OfFolder),
            ("env", InstanceScope::Existing),
            ("cryo rm x", InstanceScope::OfFolder),
            ("criu rm x", InstanceScope::OfFolder),
            ("sessions rm x", InstanceScope::OfFolder),
            ("cryo", InstanceScope::Existing),
            ("exec 1", InstanceScope::Existing),
            ("ls", InstanceScope::Optional),
            ("config show", InstanceScope::Optional),
        ] {
            assert_eq!(instance_scope(&parse(words)), expected, "{words}");
        }
    }

    #[test]
    fn a_missing_file_of_the_variable_stops_only_commands_that_apply_the_configuration() {
        let needs = |source, words: &str| needs_named_config(&parse(words), source);
        for words in ["up", "build", "restart", "evolve", "config show"] {
            assert!(needs(ConfigFileSource::Variable, words), "{words}");
            assert!(needs(ConfigFileSource::Flag, words), "{words}");
            assert!(!needs(ConfigFileSource::Record, words), "{words}");
        }
        for words in [
            "down",
            "interrupt",
            "status",
            "logs",
            "doctor",
            "evolve stop",
        ] {
            assert!(!needs(ConfigFileSource::Variable, words), "{words}");
            assert!(needs(ConfigFileSource::Flag, words), "{words}");
        }
        for words in ["config init", "config edit", "config path"] {
            assert!(!needs(ConfigFileSource::Flag, words), "{words}");
        }
    }
}
