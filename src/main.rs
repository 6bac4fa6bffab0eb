use std::process::ExitCode;

fn main() -> ExitCode {
    osctl::run(std::env::args_os())
}
