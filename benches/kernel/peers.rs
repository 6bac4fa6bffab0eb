//! The peers in their own environment in the same container, and `peers.py`, which measures there.

use crate::instance::{Instance, finish};
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// The files that [`Peers::start`] needs in `/repo`.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("peers.py", include_str!("../peers.py")),
    ("cryo.py", include_str!("../cryo.py")),
    ("requirements.txt", include_str!("../requirements.txt")),
];

/// The interpreter of the kernel.
const PYTHON: &str = "/usr/bin/python3";
const ENVIRONMENT: &str = "/tmp/peers";

#[derive(Debug)]
pub(crate) struct Peers {
    pipes: RefCell<Option<(ChildStdin, BufReader<ChildStdout>)>>,
    process: Child,
}

impl Peers {
    /// Installs the peers, byte-compiled like the kernel, and starts `peers.py`.
    pub(crate) fn start(instance: &Instance, token: &str) -> Result<Self> {
        let python = &format!("{ENVIRONMENT}/bin/python");
        finish(instance.docker_exec(&[], &["uv", "venv", "-q", "--python", PYTHON, ENVIRONMENT]))?;
        let install = [
            "uv",
            "pip",
            "install",
            "-q",
            "--compile-bytecode",
            "--no-build",
        ];
        let what = ["--require-hashes", "-r", "/repo/requirements.txt"];
        let words = [&install[..], &["--python", python], &what].concat();
        finish(instance.docker_exec(&[], &words))?;
        let mut process = instance
            .docker_exec(&["-i"], &[python, "/repo/peers.py"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdin = process.stdin.take().context("stdin is a pipe")?;
        let stdout = process.stdout.take().context("stdout is a pipe")?;
        writeln!(stdin, "{token}")?;
        let pipes = RefCell::new(Some((stdin, BufReader::new(stdout))));
        Ok(Self { pipes, process })
    }

    /// The seconds of `count` samples.
    pub(crate) fn time(&self, sampler: &str, count: usize) -> Result<Vec<f64>> {
        self.sample(sampler, count)
    }

    /// `count` samples of a sampler.
    pub(crate) fn sample<T: DeserializeOwned>(&self, sampler: &str, count: usize) -> Result<T> {
        let mut pipes = self.pipes.borrow_mut();
        let (stdin, stdout) = pipes.as_mut().context("the peers have ended")?;
        writeln!(stdin, "{sampler} {count}")?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("timing `{sampler}`: {line:?}"))
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // At the end of its stdin, `peers.py` ends its kernel and exits.
        self.pipes.take();
        let _ = self.process.wait();
    }
}
