//! `cargo bench --bench evolve`: the time without an answer during an evolve or a rollback, and the time of each stage.
//!
//! The benchmark brings up an instance with the full body and removes it at the end. Two clients send a request every
//! 10 ms over new connections: `/ping`, and `/exec` with `"queue": true`. "Refused" is the time from the last response
//! with status 200 to the next one. A third client calls a tool over `osctl mcp stdio`; none of its calls may fail. A
//! missed target makes the exit code 1.

mod clients;

use anyhow::{Context, Result, ensure};
use clients::{Bridge, Clients};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

const NAME: &str = "bench-evolve";
/// The time for which requests may be refused during the replacement.
const MAX_REFUSED_SECONDS: f64 = 3.0;
/// The time from the failed verification to the answers of the old container.
const MAX_ROLLBACK_SECONDS: f64 = 1.0;

/// An entry point that fails after the swap, but not in the self-test, which has no keeper.
const FAILS_AFTER_SWAP: &str = "if test -S /run/os/keeper.sock; then exit 4; fi\nexec /opt";

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

/// Prints the rows and counts the missed targets.
#[derive(Debug, Default)]
struct Table {
    missed: usize,
}

impl Table {
    fn row(&mut self, what: &str, value: f64, most: Option<f64>) {
        let verdict = most.map_or_else(String::new, |most| {
            let fine = value < most;
            self.missed += usize::from(!fine);
            format!("< {most} s  {}", if fine { "PASS" } else { "FAIL" })
        });
        print(&format!("{what:<48}{value:>8.2} s  {verdict}"));
    }

    fn stages(&mut self, record: &Value) {
        for stage in record["stages"].as_array().into_iter().flatten() {
            let name = stage["stage"].as_str().unwrap_or_default();
            let seconds = stage["duration_seconds"].as_f64().unwrap_or_default();
            self.row(&format!("  {name}"), seconds, None);
        }
    }
}

/// Measures all rows; returns the number of missed targets.
fn measure() -> Result<usize> {
    let instance = Instance::up()?;
    let mut table = Table::default();
    instance.osctl(&["exec", "x = list(range(1000))"])?;
    replaced(
        &instance,
        &mut table,
        "nothing changed",
        &["evolve", "--rebuild"],
        Some(15.0),
    )?;
    instance.write("kernel/more.py", "\"\"\"More.\"\"\"\n")?;
    replaced(
        &instance,
        &mut table,
        "a kernel file changed",
        &["evolve"],
        None,
    )?;
    let back = ["evolve", "rollback"];
    replaced(
        &instance,
        &mut table,
        "rollback to the previous image",
        &back,
        None,
    )?;
    rolled_back(&instance, &mut table)?;
    Ok(table.missed)
}

/// A replacement that succeeds, during which no call of the bridge's client fails.
fn replaced(
    instance: &Instance,
    table: &mut Table,
    what: &str,
    words: &[&str],
    most: Option<f64>,
) -> Result<()> {
    let (clients, bridge) = (instance.clients()?, instance.bridge()?);
    let begin = Instant::now();
    let record = instance.evolve(words)?;
    let took = begin.elapsed().as_secs_f64();
    ensure!(record["status"] == "succeeded", "{record:#}");
    table.row(&format!("{what}: total"), took, most);
    table.stages(&record);
    let [ping, exec] = clients.end();
    table.row("  /ping refused", ping.seconds, Some(MAX_REFUSED_SECONDS));
    table.row("  /exec refused", exec.seconds, Some(MAX_REFUSED_SECONDS));
    let longest = bridge
        .end()
        .context("a call of the client of `mcp stdio` failed")?;
    table.row(
        "  the longest call of `mcp stdio`, none failed",
        longest,
        None,
    );
    Ok(())
}

/// A body that passes the self-test and fails after the swap. The rollback lasts from the verdict in the
/// keeper's record to the next answer of each client.
fn rolled_back(instance: &Instance, table: &mut Table) -> Result<()> {
    let entrypoint = instance.read("entrypoint.sh")?;
    instance.write(
        "entrypoint.sh",
        &entrypoint.replace("exec /opt", FAILS_AFTER_SWAP),
    )?;
    let (clients, bridge) = (instance.clients()?, instance.bridge()?);
    let record = instance.evolve(&["evolve"])?;
    ensure!(record["status"] == "rolled_back", "{record:#}");
    table.row(
        "rollback: refused in total, by the keeper's record",
        refused(&record),
        None,
    );
    table.stages(&record);
    let last = record["stages"].as_array().and_then(|stages| stages.last());
    let last = last.context("no stages")?;
    let began = last["started_at"]
        .as_str()
        .context("a stage without a time")?;
    let began = chrono::DateTime::parse_from_rfc3339(began)?.timestamp_millis() as f64 / 1e3;
    let took = last["duration_seconds"].as_f64();
    let verdict = began + took.context("a stage without a duration")?;
    for (who, gap) in ["/ping", "/exec"].into_iter().zip(clients.end()) {
        table.row(&format!("  {who} refused in total"), gap.seconds, None);
        let back = gap.ended - verdict;
        ensure!(
            back > 0.0,
            "{who} was answered before the verdict: {record:#}"
        );
        table.row(
            &format!("  {who}: of it the rollback"),
            back,
            Some(MAX_ROLLBACK_SECONDS),
        );
    }
    bridge
        .end()
        .context("a call of the client of `mcp stdio` failed")?;
    Ok(())
}

fn refused(record: &Value) -> f64 {
    record["refused_seconds"].as_f64().unwrap_or_default()
}

/// The instance of this benchmark; dropping it removes everything.
#[derive(Debug)]
struct Instance {
    home: PathBuf,
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(why) = self.remove() {
            print(&format!("the instance is left: {why:#}"));
        }
    }
}

impl Instance {
    fn up() -> Result<Self> {
        let instance = Self {
            home: Path::new(env!("CARGO_TARGET_TMPDIR")).join("home-bench-evolve"),
        };
        // Remove the remains of a killed benchmark.
        instance.remove()?;
        fs::create_dir_all(instance.home.join("project"))?;
        instance.osctl(&["init"])?;
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

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osctl"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OSCTL_") {
                command.env_remove(name);
            }
        }
        command
            .env("HOST_HOME", &self.home)
            .env_remove("HOST_PWD")
            .current_dir(self.home.join("project"))
            .args(["--instance", NAME])
            .args(args)
            .stdin(Stdio::null());
        command
    }

    fn osctl(&self, args: &[&str]) -> Result<Vec<u8>> {
        let output = self.command(args).output()?;
        ensure!(output.status.success(), "{args:?}: {output:?}");
        Ok(output.stdout)
    }

    /// Starts a run; returns its record, also after a failure.
    fn evolve(&self, words: &[&str]) -> Result<Value> {
        let output = self.command(&["--json"]).args(words).output()?;
        serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))
    }

    fn place(&self, path: &str) -> PathBuf {
        self.home.join("project/body").join(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.place(path), text)?)
    }

    fn read(&self, path: &str) -> Result<String> {
        Ok(fs::read_to_string(self.place(path))?)
    }

    fn clients(&self) -> Result<Clients> {
        let status: Value = serde_json::from_slice(&self.osctl(&["--json", "status"])?)?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
        let address = text(&status["endpoints"]["kernel"])?.replace("http://", "");
        let token = fs::read_to_string(text(&status["token_file"])?)?;
        Ok(Clients::start(&address, token.trim()))
    }

    fn bridge(&self) -> Result<Bridge> {
        Bridge::start(self.command(&["mcp", "stdio", "--server", "os"]))
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are what the program is for"
)]
fn print(line: &str) {
    println!("{line}");
}
