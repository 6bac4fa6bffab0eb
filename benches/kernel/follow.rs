//! A client that follows a large output inside the container, like ipykernel's client: this program, started a second
//! time there.

use crate::http::Connection;
use crate::instance::Instance;
use crate::report::print;
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::process::Stdio;
use std::time::Instant;

/// The argument that starts the program as this client.
pub(crate) const FOLLOW_ARGUMENT: &str = "follow";

const PRINT_IN_ONE_WRITE: &str = "print('x' * 10_000_000)";

/// The path of the program in the container.
const PROGRAM: &str = "/repo/follow";

#[derive(Debug)]
pub(crate) struct Inside<'a> {
    instance: &'a Instance,
    token: &'a str,
}

impl<'a> Inside<'a> {
    pub(crate) fn new(instance: &'a Instance, token: &'a str) -> Result<Self> {
        let program = std::env::current_exe()?;
        std::fs::copy(program, instance.project().join("follow"))?;
        Ok(Self { instance, token })
    }

    /// The seconds of one output.
    pub(crate) fn time(&self) -> Result<Vec<f64>> {
        let command = &mut self
            .instance
            .docker_exec(&["-i"], &[PROGRAM, FOLLOW_ARGUMENT]);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdin = process.stdin.take().context("stdin is a pipe")?;
        writeln!(stdin, "{}", self.token)?;
        drop(stdin);
        let output = process.wait_with_output()?;
        ensure!(output.status.success(), "following: {}", output.status);
        let seconds = String::from_utf8(output.stdout)?;
        Ok(vec![seconds.trim().parse()?])
    }
}

/// The client: reads the token from stdin, and prints the seconds.
pub(crate) fn run() -> Result<()> {
    let token = std::io::read_to_string(std::io::stdin())?;
    let api = ("127.0.0.1:8080".to_owned(), token.trim().to_owned());
    let mut connection = Connection::open(&api)?;
    // The first measurement warms up and does not count.
    time(&mut connection)?;
    print(time(&mut connection)?);
    Ok(())
}

/// The seconds until the whole output has arrived.
pub(crate) fn time(connection: &mut Connection) -> Result<f64> {
    let begin = Instant::now();
    let written = connection.follow(PRINT_IN_ONE_WRITE)?;
    let took = begin.elapsed().as_secs_f64();
    ensure!(written == 10_000_001, "{written} bytes have arrived");
    Ok(took)
}
