//! `osctl cp` against `docker cp`: a gigabyte, and twenty thousand small files, in and out.
//!
//! osctl syncs a single file before it renames the file; docker syncs nothing. Each copy has a new target; the copies
//! of earlier rounds are removed outside of the measured time. Peaks of memory are those of the whole row.

use crate::http::Connection;
use crate::instance::{CONTAINER, Instance};
use crate::report::Report;
use crate::samples::rounds;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
/// MiB of the large file.
const LARGE: usize = 1024;
const SMALL: usize = 20_000;
/// The allowed growth of memory: space for buffers, not for files.
const MAX_GROWTH_BYTES: f64 = 24.0 * 1024.0 * 1024.0;

/// The target folder in the container, which is not mounted from the host.
const INSIDE: &str = "/var/tmp/bench";

pub(crate) fn measure(report: &mut Report, host: &mut Connection, own: &Instance) -> Result<()> {
    let here = own.folder("files")?;
    let large = here.join("large");
    write_large(&large)?;
    let small = here.join("small");
    write_small(&small)?;
    host.execute(&format!(
        "import os; os.makedirs('{INSIDE}', exist_ok=True)"
    ))?;
    for (what, source) in [("1 GiB", &large), ("20,000 small files", &small)] {
        reset_peak(host)?;
        let before = peak(host)?;
        let mut ours = 0.0_f64;
        let landed = here.join("landed");
        let inner = format!("{INSIDE}/landed");
        let docker_path = format!("{CONTAINER}:{inner}");
        let osctl_path = format!("os:{inner}");
        let (source, back) = (text(source)?, text(&landed)?);
        let clean_inside = |host: &mut Connection| {
            let clean = "import os, shutil, contextlib\nwith contextlib.suppress(OSError): os.remove(P)\nshutil.rmtree(P, True)";
            host.execute(&format!("P = '{inner}'\n{clean}")).map(drop)
        };
        let docker = |from: &str, to: &str| {
            let mut command = Command::new("docker");
            command.args(["cp", from, to]);
            command
        };
        let host = std::cell::RefCell::new(&mut *host);
        let [up, docker_up] = rounds(
            ROUNDS,
            [
                &mut || {
                    clean_inside(&mut host.borrow_mut())?;
                    let (took, rss) = time(own.osctl(&["cp", &source, &osctl_path]))?;
                    ours = ours.max(rss);
                    Ok(vec![took])
                },
                &mut || {
                    clean_inside(&mut host.borrow_mut())?;
                    Ok(vec![time(docker(&source, &docker_path))?.0])
                },
            ],
        )?;
        let [down, docker_down] = rounds(
            ROUNDS,
            [
                &mut || {
                    clean_here(&landed)?;
                    let (took, rss) = time(own.osctl(&["cp", &osctl_path, &back]))?;
                    ours = ours.max(rss);
                    Ok(vec![took])
                },
                &mut || {
                    clean_here(&landed)?;
                    Ok(vec![time(docker(&docker_path, &back))?.0])
                },
            ],
        )?;
        let host = host.into_inner();
        let grown = peak(host)? - before;
        report.faster(
            &format!("osctl cp of {what} in, against docker cp"),
            [up.p50(), docker_up.p50()],
            1.0,
        );
        report.faster(
            &format!("osctl cp of {what} out, against docker cp"),
            [down.p50(), docker_down.p50()],
            1.0,
        );
        report.bytes(
            "  growth of the companion's memory, peak",
            grown,
            Some(MAX_GROWTH_BYTES),
        );
        report.bytes(
            "  memory of osctl cp, peak",
            ours,
            Some(2.0 * MAX_GROWTH_BYTES),
        );
        clean_inside(host)?;
        clean_here(&landed)?;
    }
    Ok(())
}

/// Writes bytes that cannot be compressed.
fn write_large(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..LARGE {
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let bytes: Vec<u8> = words.take((1 << 20) / 8).flatten().collect();
        file.write_all(&bytes)?;
    }
    Ok(file.sync_all()?)
}

fn write_small(folder: &Path) -> Result<()> {
    for number in 0..SMALL {
        let folder = folder.join(format!("folder-{}", number / 200));
        if number % 200 == 0 {
            fs::create_dir_all(&folder)?;
        }
        fs::write(
            folder.join(format!("file-{number}")),
            vec![b'x'; number % 4096],
        )?;
    }
    Ok(())
}

/// The seconds that a command takes, and its peak of memory.
fn time(mut command: Command) -> Result<(f64, f64)> {
    let begin = Instant::now();
    let mut child = command.stdout(Stdio::null()).stdin(Stdio::null()).spawn()?;
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut most = 0.0_f64;
    let ended = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        most = most.max(high_water(&text).unwrap_or_default());
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        sleep(Duration::from_millis(2));
    };
    let took = begin.elapsed().as_secs_f64();
    ensure!(ended.success(), "{command:?}: {ended}");
    Ok((took, most))
}

fn high_water(status: &str) -> Option<f64> {
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

const COMPANION: &str = "import glob, pathlib\nfor p in map(pathlib.Path, glob.glob('/proc/[0-9]*')):\n    if (p / 'cmdline').read_bytes().split(b'\\0')[1:2] == [b'companion']: break\n";

fn reset_peak(host: &mut Connection) -> Result<()> {
    let code = format!("{COMPANION}(p / 'clear_refs').write_text('5')");
    let reply = host.execute(&code)?;
    ensure!(reply["status"] == "completed", "{reply}");
    Ok(())
}

/// The companion's peak of memory since the last reset.
fn peak(host: &mut Connection) -> Result<f64> {
    let reply = host.execute(&format!("{COMPANION}print((p / 'status').read_text())"))?;
    let stdout = reply["stdout"].as_str().unwrap_or_default();
    high_water(stdout).with_context(|| format!("reading the companion's peak: {reply}"))
}

fn clean_here(path: &Path) -> Result<()> {
    let removed = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().context("the path is not UTF-8")?.to_owned())
}
