//! The integration tests: the binary, a real engine, a real container.
//!
//! Each module belongs to a lane (see `lanes`): the resource that its trials share or hold alone.

mod activity;
mod api;
mod archives;
mod bash;
mod body;
mod broken_copies;
mod build_attacks;
mod campaign;
mod campaign_faults;
mod campaign_load;
mod campaign_record;
mod circles;
mod cli;
mod commands;
mod completions;
mod connect;
mod connection;
mod container_processes;
mod cp;
mod criu;
mod criu_faults;
mod cryo;
mod cryo_faults;
mod cryo_reports;
mod cryo_restarts;
mod daily_use;
mod desktop;
mod desktop_browser;
mod desktop_faults;
mod desktop_memory;
mod desktop_page;
mod desktop_user;
mod desktop_vnc;
mod docs;
mod durable_runs;
mod embedded;
mod environment;
mod evolve;
mod evolve_broken;
mod evolve_engine_crashes;
mod evolve_escapes;
mod evolve_faults;
mod evolve_full_body;
mod evolve_inside;
mod evolve_keeper_socket;
mod evolve_repair;
mod evolve_rollback;
mod evolve_swap_recovery;
mod exposure;
mod fake_companion;
mod fake_engine;
mod faults;
mod files;
mod harness;
mod host_scans;
mod hostile;
mod hostile_answers;
mod hostile_bridge;
mod hostile_companion;
mod hostile_keeper;
mod hostile_notebook;
mod hostile_terminal;
mod image;
mod installer;
mod instance;
mod instance_folders;
mod interrupts;
mod jobs;
mod json_answers;
mod jupyter;
mod lanes;
mod laws;
mod load;
mod log_laws;
mod lost_connections;
mod mcp;
mod mcp_bridge;
mod mcp_children;
mod mcp_clients;
mod mcp_errors;
mod mcp_killed;
mod mcp_notices;
mod mcp_os;
mod mcp_os_desktop;
mod mcp_os_files;
mod mcp_remote;
mod mcp_starts;
mod mcp_transports;
mod memory;
mod mutations;
mod names;
mod npm;
mod older_companion;
mod packages;
mod pages;
mod phrases;
mod pictures;
mod planted_paths;
mod planted_trees;
mod podman;
mod ports;
mod project_packages;
mod protected_folders;
mod provision;
mod proxies;
mod pty;
mod published;
mod pytest;
mod python;
mod races;
mod remote;
mod repl;
mod replace;
mod replace_via_keeper;
mod runs;
mod second_engine;
mod sessions;
mod shell;
mod shell_commands;
mod soak;
mod streams;
mod supervisors;
mod terminal;
mod terminals;
mod user_control;
mod viewer;
mod web;
mod window;

use lanes::{Lane, MACHINE};
use libtest_mimic::Arguments;
use std::process::ExitCode;

/// Lists a module's tests; a test that is not listed is unused code, which fails the build.
///
/// `slow = "module::quick"` is a test of the long tier, and the test of the first tier that shows the
/// same promise in less time.
#[macro_export]
macro_rules! trials {
    ($($name:ident $(= $quick:literal)?),* $(,)?) => {
        pub(crate) fn trials() -> Vec<$crate::lanes::TestCase> {
            let module = module_path!().trim_start_matches("it::");
            vec![$($crate::lanes::TestCase::new(
                format!("{module}::{}", stringify!($name)),
                None$(.or(Some($quick)))?,
                $name,
            )),*]
        }
    };
}

/// The lanes. Lanes whose trials run one after another come first, the longest first; the other lanes fill idle time.
fn lanes() -> Vec<Lane> {
    let shared = Lane::new("shared instance")
        .share([
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
            jupyter::notebook_trials(),
            planted_paths::trials(),
            planted_trees::trials(),
            races::trials(),
            hostile_answers::trials(),
            older_companion::trials(),
            npm::trials(),
        ])
        .hold([
            streams::trials(),
            sessions::trials(),
            bash::trials(),
            shell::trials(),
            jobs::trials(),
            shell_commands::trials(),
            interrupts::trials(),
            terminals::trials(),
            pty::trials(),
            lost_connections::trials(),
            hostile::trials(),
            cryo::trials(),
            cryo_faults::trials(),
            cryo_restarts::trials(),
            cryo_reports::trials(),
            evolve_inside::trials(),
            instance::trials(),
            image::trials(),
            exposure::trials(),
            host_scans::trials(),
            user_control::trials(),
            environment::trials(),
            activity::trials(),
            json_answers::trials(),
            criu::refused::trials(),
        ]);
    // Each module has its own instance.
    let evolve = Lane::new("evolve").share([
        evolve_broken::trials(),
        evolve_full_body::trials(),
        evolve_rollback::trials(),
        evolve_swap_recovery::trials(),
        evolve_faults::trials(),
        evolve_engine_crashes::trials(),
        evolve_repair::trials(),
        evolve_escapes::trials(),
        evolve_keeper_socket::trials(),
        evolve::trials(),
        replace_via_keeper::trials(),
        replace::trials(),
        json_answers::of_the_keeper::trials(),
        build_attacks::trials(),
        body::trials(),
        project_packages::trials(),
    ]);
    let engines = Lane::new("second engines").hold([
        remote::trials(),
        provision::trials(),
        published::trials(),
        faults::trials(),
    ]);
    let servers = Lane::new("MCP servers").hold([
        mcp::trials(),
        mcp_transports::trials(),
        mcp_errors::trials(),
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
        mcp_clients::python_trials(),
        connect::running::trials(),
    ]);
    // The campaign waits most of its time for its container's restart.
    let campaign = Lane::new("fault campaign").hold([campaign::trials()]);
    let python = Lane::new("tests in Python").hold([python::trials()]);
    let desktop = Lane::new("desktop").hold([
        desktop::trials(),
        desktop_vnc::trials(),
        desktop_user::trials(),
        desktop_page::trials(),
        desktop_browser::trials(),
        desktop_memory::trials(),
        desktop_faults::trials(),
    ]);
    let own = Lane::new("own instances")
        .share([
            laws::trials(),
            log_laws::trials(),
            circles::trials(),
            names::trials(),
            phrases::trials(),
            docs::trials(),
            hostile_companion::trials(),
            hostile_keeper::trials(),
            hostile_bridge::trials(),
            hostile_terminal::trials(),
            hostile_notebook::trials(),
            installer::trials(),
            packages::trials(),
            supervisors::trials(),
        ])
        .hold([
            ports::trials(),
            embedded::trials(),
            durable_runs::trials(),
            instance_folders::trials(),
            daily_use::trials(),
            criu_faults::trials(),
            json_answers::of_checkpoints::trials(),
            criu::trials(),
        ]);
    // These trials compare memory over many requests, measure response times, or change the machine's network rules,
    // which the engine also changes.
    let machine = Lane::new(MACHINE).hold([podman::trials(), soak::trials(), load::trials()]);
    vec![
        shared, servers, python, desktop, engines, campaign, own, evolve, machine,
    ]
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let conclusion = lanes::run(&arguments, lanes());
    if !arguments.list {
        criu::clean_up();
        desktop::clean_up();
        evolve::clean_up();
        python::clean_up();
        harness::clean_up();
    }
    conclusion.exit_code()
}
