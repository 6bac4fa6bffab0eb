//! mcp-proxy in its own environment in the same container, and `clients.py`, which measures there.

use crate::instance::{Instance, finish};
use anyhow::{Context, Result};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// The files that [`Peers::start`] needs in `/repo`.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("clients.py", include_str!("clients.py")),
    ("requirements.txt", include_str!("requirements.txt")),
];

const PYTHON: &str = "/tmp/peers/bin/python";

#[derive(Debug)]
pub(crate) struct Peers {
    pipes: RefCell<Option<(ChildStdin, BufReader<ChildStdout>)>>,
    process: Child,
}

impl Peers {
    /// Installs mcp-proxy and starts `clients.py`. The linux server runs once, so that the hub has its list.
    pub(crate) fn start(instance: &Instance, token: &str) -> Result<Self> {
        finish(instance.osctl(&["mcp", "tools", "linux"]))?;
        let venv = [
            "uv",
            "venv",
            "-q",
            "--python",
            "/usr/bin/python3",
            "/tmp/peers",
        ];
        finish(instance.docker_exec(&[], &venv))?;
        let install = [
            "uv",
            "pip",
            "install",
            "-q",
            "--compile-bytecode",
            "--no-build",
        ];
        let what = [
            "--python",
            PYTHON,
            "--require-hashes",
            "-r",
            "/repo/requirements.txt",
        ];
        finish(instance.docker_exec(&[], &[&install[..], &what].concat()))?;
        let mut process = instance
            .docker_exec(&["-i"], &[PYTHON, "/repo/clients.py"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdin = process.stdin.take().context("stdin is a pipe")?;
        let stdout = process.stdout.take().context("stdout is a pipe")?;
        writeln!(stdin, "{token}")?;
        let pipes = RefCell::new(Some((stdin, BufReader::new(stdout))));
        Ok(Self { pipes, process })
    }

    /// The measured values of `count` calls of one contestant.
    pub(crate) fn time(&self, way: &str, count: usize) -> Result<Vec<f64>> {
        let mut pipes = self.pipes.borrow_mut();
        let (stdin, stdout) = pipes.as_mut().context("the peers have ended")?;
        writeln!(stdin, "{way} {count}")?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("timing `{way}`: {line:?}"))
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // At the end of its stdin, `clients.py` ends its servers and exits.
        self.pipes.take();
        let _ = self.process.wait();
    }
}
