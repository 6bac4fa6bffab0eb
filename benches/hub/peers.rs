//! The peers, each in its own environment, and `clients.py`, which measures beside them: mcp-proxy in the same
//! container, and supergateway on the host.

use crate::instance::{Instance, finish};
use anyhow::{Context, Result};
use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The files that [`Peers::start`] needs in `/repo`.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("clients.py", include_str!("clients.py")),
    ("requirements.txt", include_str!("requirements.txt")),
];

/// What [`Peers::start_on_host`] installs; the server is that of the image.
const HOST_PACKAGES: [&str; 2] = [
    "supergateway@4.0.0",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
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
        let clients = instance.docker_exec(&["-i"], &[PYTHON, "/repo/clients.py"]);
        Self::spawn(clients, token)
    }

    /// Installs supergateway on the host, which needs npm and Python, and starts `clients.py` there. `port` is the
    /// hub's. The peers in the container must have started before: they write the file that the hub's server reads.
    pub(crate) fn start_on_host(instance: &Instance, port: u16, token: &str) -> Result<Self> {
        let folder = instance.folder("supergateway")?;
        let mut install = Command::new("npm");
        install
            .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
            .arg(&folder)
            .args(HOST_PACKAGES);
        finish(install)?;
        let script = folder.join("clients.py");
        fs::write(&script, include_str!("clients.py"))?;
        let options = serde_json::json!({"port": port, "folder": folder});
        let mut clients = Command::new("python3");
        clients.arg(script).arg(options.to_string());
        Self::spawn(clients, token)
    }

    fn spawn(mut clients: Command, token: &str) -> Result<Self> {
        let mut process = clients
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
