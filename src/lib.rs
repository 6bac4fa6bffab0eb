//! `osctl` gives an AI agent its own computer.
//!
//! The binary contains the host's command line, the companion inside the container, and the keeper that replaces the
//! container:
//!
//! ```text
//! main → run → cli → command ─┬─ host ───┬─ engine    container engine, or plain processes
//!                             ├─ keeper ─┴─ image     body/ → build context, rules for Dockerfiles
//!                             └─ companion            in the container: HTTP, owner of the kernels
//!                      replacement: steps of replacing a container, for host and keeper
//!                      log_output: lines of the log
//! crates:              protocol: messages between host, keeper and companion
//!                      archive: file trees as one stream, in both directions
//!                      support: atomic writes, delays between attempts, refusals over HTTP
//!                      supervise: supervisors of process trees
//!                      hub: the hub of MCP servers
//! ```
//!
//! Rules, enforced by `tests/it/laws.rs`:
//!
//! - `error` and `log_output` import nothing of this crate; `engine` imports `protocol`, `error` and `atomic_write`;
//!   `image` imports `protocol`, `error` and `archive`.
//! - `replacement` imports `protocol`, `error` and `engine`.
//! - `host`, `keeper` and `companion` never import each other.
//! - These crates are used only here: bollard in `engine/docker`; axum in `companion/http` and
//!   `companion/refusal_table`; zeromq in `host/jupyter`; tokio_tungstenite in `host/terminal` and
//!   `companion/desktop/page.rs`; rmcp in `companion/os_tools`; clap in `cli` and `command`; reedline in `command/repl`;
//!   indicatif, dialoguer and console in `ui`.
//! - Only `ui` prints; only `main` ends the process.

mod cli;
mod command;
#[cfg(target_os = "linux")]
mod companion;
mod config;
mod engine;
mod error;
mod host;
mod image;
#[cfg(target_os = "linux")]
mod keeper;
mod log_output;
#[cfg(all(test, target_os = "linux"))]
mod model_checker;
mod replacement;
mod ui;

use crate::cli::Verb;
use crate::error::{Error, Result, VerbOutcome};
use crate::ui::Ui;
use osctl_archive as archive;
use osctl_protocol as protocol;
#[cfg(target_os = "linux")]
use osctl_supervise as supervise;
use osctl_support::{atomic_write, backoff};
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs one command line to its end.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // TLS is used only for remote engines, but no HTTP client can be created without a provider, and completion needs a
    // client, too. The call fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    clap_complete::CompleteEnv::with_factory(cli::completion_command)
        .shells(command::COMPLETERS)
        .complete();
    let cli = match cli::parse_args(args) {
        Ok(cli) => cli,
        Err(error) => return cli::report_parse_error(&error, ui::print_usage_error),
    };
    let ui = Ui::new(cli.json, cli.quiet, cli.verbose, cli.color.into());
    // The reaper waits for signals of its process, and a log thread would receive them.
    let has_log = !matches!(cli.verb, Verb::Blocking(_));
    let _log = has_log.then(|| log_output::start_log(log_filter(&cli), cli.log_format.is_json()));
    let mut hint_name = cli.instance.clone();
    match run_cli(cli, ui, &mut hint_name) {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            if !error::is_output_closed(&error) {
                ui.print_failure(&error, hint_name.as_deref());
            }
            error::exit_code(&error).into()
        }
    }
}

/// `hint_name` becomes the name of the instance if hints must name it.
fn run_cli(cli: cli::Cli, ui: Ui, hint_name: &mut Option<String>) -> Result<VerbOutcome> {
    match cli.verb {
        Verb::Blocking(verb) => command::run_blocking_verb(verb, ui),
        Verb::Container(verb) => {
            block_on_verb(verb.interruption(), command::run_container_verb(verb, ui))
        }
        Verb::Host(verb) => {
            let cx =
                command::host_context(&verb, cli.instance.as_deref(), cli.config.as_deref(), ui)?;
            *hint_name = cx.instance.hint_name().map(str::to_owned);
            block_on_verb(verb.interruption(), command::run_host_verb(verb, &cx))
        }
    }
}

/// Runs a verb to its end, or until a signal arrives that ends it with this error.
fn block_on_verb(
    interruption: Option<Error>,
    running: impl Future<Output = Result<VerbOutcome>>,
) -> Result<VerbOutcome> {
    // One thread: a reply then needs no wake-up of another thread, which would be most of its latency. Long
    // computations and blocking calls go to the runtime's blocking threads.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(async {
        let Some(interruption) = interruption else {
            return running.await;
        };
        // Listen for signals before the first output.
        let ended = command::shutdown_signal()?;
        // `biased`: the outcome of a verb that handles the signal itself takes precedence.
        tokio::select! {
            biased;
            done = running => done,
            () = ended => Err(interruption.into()),
        }
    });
    // A prompt that still reads the terminal must not block the exit.
    runtime.shutdown_background();
    answer
}

/// The filter of the log without `RUST_LOG`: the level of a service, or of the number of `-v`.
fn log_filter(cli: &cli::Cli) -> &'static str {
    match (&cli.verb, cli.verbose) {
        (Verb::Container(verb), _) if verb.is_service() => "info,rmcp=warn",
        (_, 0) => "error",
        (_, 1) => "osctl=info",
        (_, _) => "osctl=debug",
    }
}
