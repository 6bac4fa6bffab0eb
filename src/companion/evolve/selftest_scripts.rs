//! The user's own checks: the files in `body/selftest.d/` that begin with `#!`, in the order of their names.

use super::EvolveParts;
use super::health_checks::run_check;
use crate::protocol::evolve::container_reports::{EvolveCheck, SCRIPT_CHECK_PREFIX};
use crate::protocol::shell::ShellRequest;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Timeout of one script in seconds.
const SELFTEST_SCRIPT_TIMEOUT: f64 = 60.0;

/// Lines of a failed script's output that the check reports.
const MAX_SCRIPT_OUTPUT_LINES: usize = 15;

/// The names of the scripts in a folder, sorted.
pub(super) fn list_scripts(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let scripts = entries.filter(|entry| is_script(&entry.path()));
    let names = scripts.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn is_script(path: &Path) -> bool {
    let mut begin = [0; 2];
    path.is_file()
        && File::open(path).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok())
        && &begin == b"#!"
}

impl EvolveParts {
    /// Runs the scripts one after the other, in the shell of that session.
    pub(super) async fn check_scripts(&self, folder: &Path, session: &str) -> Vec<EvolveCheck> {
        let mut checks = Vec::new();
        for name in list_scripts(folder) {
            let path = folder.join(&name);
            let time_limit = Duration::from_secs_f64(SELFTEST_SCRIPT_TIMEOUT * 1.5);
            let run = self.run_script(&path, session);
            checks.push(run_check(format!("{SCRIPT_CHECK_PREFIX}{name}"), time_limit, run).await);
        }
        checks
    }

    async fn run_script(&self, path: &Path, session: &str) -> Result<String, String> {
        let command = ShellRequest {
            session: session.into(),
            timeout: Some(SELFTEST_SCRIPT_TIMEOUT),
            ..ShellRequest::new(quote_for_shell(&path.to_string_lossy()))
        };
        let started = self.shells.execute(command).await;
        let run = started.map_err(|refusal| format!("{refusal:?}"))?;
        run.wait_finished().await;
        let reply = run.build_reply(self.shells.command_report(session));
        match reply.returncode {
            Some(0) => Ok("exit code 0".into()),
            Some(-1) | None => Err(format!(
                "no end within {SELFTEST_SCRIPT_TIMEOUT} s{}",
                describe_last_lines(&reply)
            )),
            Some(code) => Err(format!("exit code {code}{}", describe_last_lines(&reply))),
        }
    }
}

/// The last lines of the output.
fn describe_last_lines(reply: &crate::protocol::shell::ShellReply) -> String {
    let both = [reply.stdout.as_str(), reply.stderr.as_str()];
    let lines = both.iter().flat_map(|text| text.lines());
    let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(MAX_SCRIPT_OUTPUT_LINES)..];
    match last {
        [] => String::new(),
        last => format!(": {}", last.join("\n")),
    }
}

/// Quotes a text as one word of bash.
fn quote_for_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::list_scripts;
    use std::fs;

    #[test]
    fn scripts_come_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("20-b", "#!/bin/sh\n");
        write("10-a", "#!/bin/sh\n");
        write("README", "What this is for.\n");
        write("empty", "");
        fs::create_dir(folder.path().join("folder")).unwrap();
        assert_eq!(list_scripts(folder.path()), ["10-a", "20-b"]);
        assert!(list_scripts(&folder.path().join("none")).is_empty());
    }
}
