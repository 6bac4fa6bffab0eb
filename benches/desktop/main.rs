//! `cargo bench --bench desktop`: the start time of the desktop, the time of a screenshot, and the memory of the
//! container with and without the desktop.
//!
//! The benchmark brings up its own instance and removes it at the end. A missed target makes the exit code 1. Times are
//! measured on the host. The first picture is that of a freshly started container, over VNC (from the connection to the
//! last pixel) and over HTTP; the other screenshots are over HTTP at 1280x800. Memory is the working set of the
//! container's cgroup: its usage without inactive files.

#[path = "../../tests/it/viewer.rs"]
mod viewer;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use viewer::Viewer;

const NAME: &str = "bench-desktop";

const COLD: usize = 5;
const WARM: usize = 200;

/// The wait before a measurement of memory.
const SETTLE_TIME: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match measure() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            print(&format!("{missed} of the targets are missed"));
            ExitCode::FAILURE
        }
        Err(why) => {
            print(&format!("the benchmark failed: {why:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Measures all rows; returns the number of missed targets.
fn measure() -> Result<usize> {
    let instance = Instance::up()?;
    let mut missed = 0;
    let mut row = |what: &str, value: f64, unit: &str, most: Option<f64>| {
        let verdict = most.map(|most| match value <= most {
            true => format!("≤ {most} {unit}  PASS"),
            false => format!("≤ {most} {unit}  FAIL"),
        });
        missed += usize::from(verdict.as_ref().is_some_and(|v| v.ends_with("FAIL")));
        let verdict = verdict.unwrap_or_default();
        print(&format!("{what:<52}{value:>9.1} {unit}  {verdict}"));
    };
    thread::sleep(SETTLE_TIME);
    let idle = instance.memory()?;
    row("memory, without the desktop", idle, "MiB", Some(120.0));
    let cold = |first: fn(&Instance) -> Result<f64>| {
        let times = (0..COLD).map(|_| {
            instance.osctl(&["restart"])?;
            first(&instance)
        });
        let mut times = times.collect::<Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok::<_, anyhow::Error>([times[COLD / 2], times[COLD - 1]])
    };
    let [p50, most] = cold(Instance::first_seen)?;
    row("the first picture by VNC, cold, p50", p50, "ms", None);
    row("  the slowest", most, "ms", Some(3000.0));
    let [p50, most] = cold(|instance| Connection::open(&instance.api()?)?.screenshot())?;
    row("the first picture over HTTP, cold, p50", p50, "ms", None);
    row("  the slowest", most, "ms", Some(3000.0));
    let viewer = Connection::open(&instance.api()?)?.look()?;
    thread::sleep(SETTLE_TIME);
    let shown = instance.memory()?;
    row(
        "memory, with the desktop and a viewer",
        shown,
        "MiB",
        Some(220.0),
    );
    drop(viewer);
    let [p50, p99] = warm(&instance)?;
    row("a screenshot of the desktop, p50", p50, "ms", None);
    row("  p99", p99, "ms", Some(100.0));
    Connection::open(&instance.api()?)?.browse()?;
    thread::sleep(SETTLE_TIME);
    let [p50, p99] = warm(&instance)?;
    row("a screenshot of the browser, p50", p50, "ms", None);
    row("  p99", p99, "ms", Some(100.0));
    let browsing = instance.memory()?;
    row("memory, with the browser, too", browsing, "MiB", None);
    Ok(missed)
}

/// The milliseconds of a screenshot: the median and the 99th percentile.
fn warm(instance: &Instance) -> Result<[f64; 2]> {
    let mut connection = Connection::open(&instance.api()?)?;
    let times = (0..WARM).map(|_| connection.screenshot());
    let mut times = times.collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok([times[WARM / 2], times[WARM * 99 / 100]])
}

/// The instance of this benchmark; dropping it removes everything.
#[derive(Debug)]
struct Instance {
    home: PathBuf,
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(why) = self.remove() {
            print(&format!("the instance is not removed: {why:#}"));
        }
    }
}

impl Instance {
    fn up() -> Result<Self> {
        let instance = Self {
            home: Path::new(env!("CARGO_TARGET_TMPDIR")).join("home-bench-desktop"),
        };
        // Remove the remains of a killed benchmark.
        instance.remove()?;
        fs::create_dir_all(instance.home.join("project"))?;
        instance.osctl(&["up", "--yes", "--auto-ports"])?;
        Ok(instance)
    }

    fn remove(&self) -> Result<()> {
        if self.home.join("project").is_dir() {
            // The instance may not exist.
            let _ = self.osctl(&["down", "--purge", "--yes"]);
            fs::remove_dir_all(&self.home)?;
        }
        Ok(())
    }

    fn osctl(&self, args: &[&str]) -> Result<Vec<u8>> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osctl"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OSCTL_") {
                command.env_remove(name);
            }
        }
        let output = command
            .env("HOST_HOME", &self.home)
            .env_remove("HOST_PWD")
            .current_dir(self.home.join("project"))
            .args(["--instance", NAME])
            .args(args)
            .stdin(Stdio::null())
            .output()?;
        ensure!(output.status.success(), "{args:?}: {output:?}");
        Ok(output.stdout)
    }

    /// The address of the companion, and its token.
    fn api(&self) -> Result<(String, String)> {
        let status: Value = serde_json::from_slice(&self.osctl(&["--json", "status"])?)?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
        let address = text(&status["endpoints"]["kernel"])?;
        let token = fs::read_to_string(text(&status["token_file"])?)?;
        Ok((address.replace("http://", ""), token.trim().to_owned()))
    }

    /// The milliseconds until a new VNC client sees the whole desktop.
    fn first_seen(&self) -> Result<f64> {
        let status: Value = serde_json::from_slice(&self.osctl(&["--json", "status"])?)?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
        let address = text(&status["endpoints"]["vnc"])?;
        let password = fs::read_to_string(text(&status["vnc_password_file"])?)?;
        let begin = Instant::now();
        let mut viewer = Viewer::open(&address, password.trim()).map_err(anyhow::Error::msg)?;
        // Most clients use a compressed encoding.
        viewer.pack()?;
        let picture = viewer.picture()?;
        let took = begin.elapsed().as_secs_f64() * 1e3;
        ensure!(picture.iter().any(|byte| *byte != 0), "a black picture");
        Ok(took)
    }

    /// Mebibytes of the container's working set.
    fn memory(&self) -> Result<f64> {
        let code = json!({"code": include_str!("../kernel/memory.py")}).to_string();
        let answer = Connection::open(&self.api()?)?.ask("POST", "/exec", &code)?;
        let reply: Value = serde_json::from_slice(&answer)?;
        let figures: Value = serde_json::from_str(reply["stdout"].as_str().unwrap_or_default())?;
        let bytes = figures["container"]
            .as_f64()
            .context("no number of bytes")?;
        Ok(bytes / f64::from(1 << 20))
    }
}

/// A keep-alive connection to the companion.
struct Connection {
    stream: BufReader<TcpStream>,
    head: String,
}

impl Connection {
    fn open((address, token): &(String, String)) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let head = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n");
        Ok(Self {
            stream: BufReader::new(stream),
            head,
        })
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<Vec<u8>> {
        let (head, length) = (&self.head, body.len());
        let request =
            format!("{method} {path} HTTP/1.1\r\n{head}Content-Length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let head = self.answer()?;
        ensure!(head[0].contains(" 200 "), "{path}: {head:?}");
        let length = head.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse().ok())?
        });
        let mut body = vec![0; length.context("no length")?];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    fn answer(&mut self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            match line.trim_end() {
                "" => return Ok(lines),
                line => lines.push(line.to_owned()),
            }
        }
    }

    /// The milliseconds of a screenshot.
    fn screenshot(&mut self) -> Result<f64> {
        let begin = Instant::now();
        let file = self.ask("GET", "/display/screenshot", "")?;
        let took = begin.elapsed().as_secs_f64() * 1e3;
        ensure!(file.starts_with(b"\x89PNG"), "no picture");
        Ok(took)
    }

    /// Opens a page of the companion in the browser.
    fn browse(&mut self) -> Result<()> {
        let page = "/display/browser?url=http%3A%2F%2F127.0.0.1%3A8080%2Fping";
        self.ask("POST", page, "").map(drop)
    }

    /// Connects to the desktop as a browser does, until this is dropped.
    fn look(mut self) -> Result<Self> {
        let words = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let request = format!("GET /desktop/socket HTTP/1.1\r\n{}{words}\r\n", self.head);
        self.stream.get_mut().write_all(request.as_bytes())?;
        let head = self.answer()?;
        ensure!(head[0].contains(" 101 "), "{head:?}");
        Ok(self)
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are what the program is for"
)]
fn print(line: &str) {
    println!("{line}");
}
