//! The tests against the outside: the binary, a real engine, a real container.
//!
//! Most share one instance and run side by side. Those that stop or fill an engine have one of
//! their own, and come last, one after the other.

mod api;
mod archives;
mod bash;
mod body;
mod broken_copies;
mod cli;
mod commands;
mod completions;
mod connect;
mod connection;
mod cp;
mod criu;
mod criu_faults;
mod cryo;
mod cryo_faults;
mod desktop;
mod desktop_browser;
mod desktop_faults;
mod desktop_memory;
mod desktop_page;
mod desktop_person;
mod desktop_vnc;
mod embedded;
mod evolve;
mod evolve_back;
mod evolve_broken;
mod evolve_escapes;
mod evolve_faults;
mod evolve_inside;
mod evolve_mind;
mod evolve_way_back;
mod faults;
mod files;
mod handover;
mod harness;
mod hostile;
mod image;
mod instance;
mod interrupts;
mod jobs;
mod jupyter;
mod laws;
mod load;
mod lost_connections;
mod mcp;
mod mcp_bridge;
mod mcp_children;
mod mcp_clients;
mod mcp_killed;
mod mcp_notices;
mod mcp_os;
mod mcp_os_desktop;
mod mcp_os_files;
mod mcp_remote;
mod mcp_starts;
mod mcp_transports;
mod mcp_words;
mod middle;
mod pages;
mod pictures;
mod podman;
mod ports;
mod provision;
mod pty;
mod python;
mod remote;
mod repl;
mod runs;
mod second_engine;
mod sessions;
mod shell;
mod shell_commands;
mod soak;
mod streams;
mod succession;
mod terminal;
mod terminals;
mod user_control;
mod viewer;
mod web;
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
        connect::trials(),
        api::trials(),
        files::trials(),
        archives::trials(),
        cp::trials(),
        broken_copies::trials(),
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
        bash::trials(),
        shell::trials(),
        jobs::trials(),
        shell_commands::trials(),
        interrupts::trials(),
        mcp::trials(),
        mcp_transports::trials(),
        mcp_words::trials(),
        mcp_children::trials(),
        mcp_notices::trials(),
        mcp_starts::trials(),
        mcp_killed::trials(),
        mcp_remote::trials(),
        mcp_os::trials(),
        mcp_os_files::trials(),
        mcp_os_desktop::trials(),
        mcp_bridge::trials(),
        mcp_clients::trials(),
        connect::running::trials(),
        terminals::trials(),
        pty::trials(),
        lost_connections::trials(),
        soak::trials(),
        hostile::trials(),
        load::trials(),
        python::trials(),
        cryo::trials(),
        cryo_faults::trials(),
        evolve_inside::trials(),
        evolve_mind::trials(),
        desktop::trials(),
        desktop_vnc::trials(),
        desktop_person::trials(),
        desktop_page::trials(),
        desktop_browser::trials(),
        desktop_memory::trials(),
        desktop_faults::trials(),
        instance::trials(),
        user_control::trials(),
        ports::trials(),
        image::trials(),
        embedded::trials(),
        body::trials(),
        handover::trials(),
        succession::trials(),
        evolve::trials(),
        evolve_back::trials(),
        evolve_broken::trials(),
        evolve_escapes::trials(),
        evolve_way_back::trials(),
        evolve_faults::trials(),
        criu_faults::trials(),
        criu::trials(),
        provision::trials(),
        faults::trials(),
        remote::trials(),
        podman::trials(),
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
        criu::clean_up();
        desktop::clean_up();
        evolve::clean_up();
        harness::clean_up();
    }
    if first.has_failed() || last.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
