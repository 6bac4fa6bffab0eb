//! `osctl` gives an AI agent a computer of its own.
//!
//! One binary is the host's command line, the companion inside the container and the keeper that
//! replaces it:
//!
//! ```text
//! main → run → cli → command ─┬─ host ───┬─ engine    where bodies run
//!                             ├─ keeper ─┴─ image     body/ → build context, rules for Dockerfiles
//!                             └─ companion            inside: HTTP, the kernel's owner
//!                      archive: trees as one stream, both ways, for all
//!                      protocol: the words between host, keeper and companion
//! ```
//!
//! Laws, kept by `tests/it/laws.rs`:
//!
//! - `protocol` imports nothing of the crate; `engine` and `archive` know `protocol` alone, `image`
//!   knows `archive`, too.
//! - `host`, `keeper` and `companion` never name each other.
//! - bollard is named in `engine/docker` only, axum in `companion/http` and `companion/mcp/face`, zeromq in `host/jupyter`,
//!   tokio_tungstenite in `host/terminal` and `companion/desktop/page.rs`, rmcp in `companion/mcp/os`, clap in `cli` and `command`, rustyline in `command/repl`,
//!   indicatif, dialoguer and console in `ui`.
//! - Only `ui` prints; only `main` ends the process.

mod archive;
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
#[cfg(all(test, target_os = "linux"))]
mod model;
mod protocol;
mod ui;

use crate::error::{Error, Result, VerbOutcome};
use crate::ui::Ui;
use std::ffi::OsString;
use std::process::ExitCode;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Runs one command line to its end.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // TLS is only spoken to remote engines, but no client is made without it, which completion needs,
    // too. Whoever installed a provider before is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    clap_complete::CompleteEnv::with_factory(cli::clap_command)
        .shells(command::COMPLETERS)
        .complete();
    let cli = match cli::parse_args(args) {
        Ok(cli) => cli,
        Err(error) => return cli::report_parse_error(&error),
    };
    let ui = Ui::new(cli.json, cli.quiet, cli.verbose, cli.color.into());
    // The reaper has no log: it owns its process by signals, and a thread would take them.
    let _log = cli.verb.has_log().then(|| init_log(&cli));
    let instance = cli.instance.clone();
    match run_cli(cli, ui) {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            if !error::is_unread(&error) {
                ui.print_failure(&error, &instance);
            }
            error::exit_code(&error).into()
        }
    }
}

fn run_cli(cli: cli::Cli, ui: Ui) -> Result<VerbOutcome> {
    if let cli::Verb::Reaper(args) = cli.verb {
        return command::reaper::run(args);
    }
    if let cli::Verb::Relay(args) = cli.verb {
        return command::relay::run(args, ui);
    }
    // One thread: an answer then needs no other thread to be woken, which is most of its time.
    // What computes or blocks for long goes to the runtime's blocking threads.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(async {
        if cli.verb.owns_interrupts() {
            return command::run_command(cli, ui).await;
        }
        // Listening begins before the first word is said.
        let ended = command::shutdown_signal()?;
        // A verb that has an end of its own for it comes first.
        tokio::select! {
            biased;
            done = command::run_command(cli, ui) => done,
            () = ended => Err(Error::Interrupted.into()),
        }
    });
    // A prompt that still reads the terminal must not hold the process.
    runtime.shutdown_background();
    answer
}

/// Diagnostics go to stderr: `RUST_LOG`, else by the number of `-v`. They are written by a thread
/// of their own and dropped when nobody reads them, so that no log ever holds up a service.
fn init_log(cli: &cli::Cli) -> WorkerGuard {
    let default = match (cli.verb.is_service(), cli.verbose) {
        (true, _) => "info,rmcp=warn",
        (false, 0) => "error",
        (false, 1) => "osctl=info",
        (false, _) => "osctl=debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(4096)
        .finish(std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false)
        .init();
    guard
}
