//! The tests against the outside: the binary, a real engine, a real container.
//!
//! Most share one instance and run side by side. Those that stop or fill an engine have one of
//! their own, and come last, one after the other.

mod api;
mod archives;
mod body;
mod cli;
mod commands;
mod completions;
mod cp;
mod embedded;
mod faults;
mod files;
mod harness;
mod hostile;
mod instance;
mod interrupts;
mod jupyter;
mod laws;
mod load;
mod lost_connections;
mod middle;
mod pictures;
mod provision;
mod pty;
mod python;
mod repl;
mod runs;
mod second_engine;
mod sessions;
mod shell;
mod shell_commands;
mod soak;
mod streams;
mod terminal;
mod terminals;
mod window;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// Names a module's tests; one that is not listed is unused code, which fails the build.
#[macro_export]
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            let module = module_path!().trim_start_matches("it::");
            vec![$(libtest_mimic::Trial::test(format!("{module}::{}", stringify!($name)), || { $name(); Ok(()) })),*]
        }
    };
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let together: Vec<Trial> = [
        laws::trials(),
        cli::trials(),
        completions::trials(),
        api::trials(),
        files::trials(),
        archives::trials(),
        cp::trials(),
        repl::trials(),
        pictures::trials(),
        runs::trials(),
        jupyter::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let apart = [
        streams::trials(),
        sessions::trials(),
        shell::trials(),
        shell_commands::trials(),
        interrupts::trials(),
        terminals::trials(),
        pty::trials(),
        lost_connections::trials(),
        soak::trials(),
        hostile::trials(),
        load::trials(),
        python::trials(),
        instance::trials(),
        embedded::trials(),
        body::trials(),
        provision::trials(),
        faults::trials(),
    ];
    let apart = apart.into_iter().flatten().collect();
    let first = libtest_mimic::run(&arguments, together);
    let last = libtest_mimic::run(
        &Arguments {
            test_threads: Some(1),
            ..arguments.clone()
        },
        apart,
    );
    if !arguments.list {
        harness::clean_up();
    }
    if first.has_failed() || last.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
