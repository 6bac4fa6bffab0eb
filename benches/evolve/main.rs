//! `cargo bench --bench evolve`: for how long nobody answers while the body is replaced or taken back,
//! and what each stage takes.
//!
//! It brings up an instance of the whole body, gone in the end. Two clients ask every 10 ms, each with a
//! connection of its own: `/ping`, and `/exec` with `"queue": true`. Refused is the time from the last
//! answer that was 200 to the first one after. A third one calls a tool over `osctl mcp stdio`, and must
//! see none of it. A missed target makes the exit code one.

mod clients;

use anyhow::{Context, Result, ensure};
use clients::{Bridge, Clients};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

const NAME: &str = "bench-evolve";
/// Seconds that requests may be refused while a body takes over.
const REFUSED: f64 = 3.0;
/// Seconds from the verdict on a body that does not work to the answers of the one before.
const BACK: f64 = 1.0;

/// Does not run where the keeper is to be reached, which a trial is not.
const ELSEWHERE: &str = "if test -S /run/os/keeper.sock; then exit 4; fi\nexec /opt";

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

/// Figures, and how many of them miss their target.
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

/// How many targets were missed.
fn measure() -> Result<usize> {
    let instance = Instance::up()?;
    let mut table = Table::default();
    instance.osctl(&["exec", "x = list(range(1000))"])?;
    replaced(
        &instance,
        &mut table,
        "nothing changed",
        &["evolve"],
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
        "back to the image before",
        &back,
        None,
    )?;
    taken_back(&instance, &mut table)?;
    Ok(table.missed)
}

/// One replacement that succeeds, which a client of the bridge does not see.
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
    table.row(&format!("{what}: all of it"), took, most);
    table.stages(&record);
    let [ping, exec] = clients.end();
    table.row("  /ping refused", ping.seconds, Some(REFUSED));
    table.row("  /exec refused", exec.seconds, Some(REFUSED));
    let longest = bridge
        .end()
        .context("a client of `mcp stdio` has seen it")?;
    table.row(
        "  the longest call of `mcp stdio`, none failed",
        longest,
        None,
    );
    Ok(())
}

/// A body that works beside and not in place: the way back is from the verdict, as the keeper's record has
/// it, to the first answer that each client gets again.
fn taken_back(instance: &Instance, table: &mut Table) -> Result<()> {
    let entrypoint = instance.read("entrypoint.sh")?;
    instance.write("entrypoint.sh", &entrypoint.replace("exec /opt", ELSEWHERE))?;
    let (clients, bridge) = (instance.clients()?, instance.bridge()?);
    let record = instance.evolve(&["evolve"])?;
    ensure!(record["status"] == "rolled_back", "{record:#}");
    table.row(
        "taken back: refused in all, as the keeper tells",
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
        table.row(&format!("  {who} refused in all"), gap.seconds, None);
        let back = gap.ended - verdict;
        ensure!(
            back > 0.0,
            "{who} was answered before the verdict: {record:#}"
        );
        table.row(&format!("  {who}: of it the way back"), back, Some(BACK));
    }
    bridge
        .end()
        .context("a client of `mcp stdio` has seen it")?;
    Ok(())
}

fn refused(record: &Value) -> f64 {
    record["refused_seconds"].as_f64().unwrap_or_default()
}

/// An instance for this run alone, gone with all it brought when it is dropped.
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
        // What a run that was killed has left.
        instance.remove()?;
        fs::create_dir_all(instance.home.join("project"))?;
        instance.osctl(&["init"])?;
        instance.osctl(&["up", "--yes", "--auto-ports"])?;
        Ok(instance)
    }

    fn remove(&self) -> Result<()> {
        if self.home.join("project").is_dir() {
            // It may never have been up.
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

    /// The record of a run, however it ended.
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
