//! Child processes of installers: their messages are reported as they come, and the last ones are kept for the error.

use super::{MessageReporter, PackageResult, refusal};
use crate::protocol::packages::PackageChangeRefusal;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

/// Lines of messages that an error keeps.
const MAX_MESSAGE_LINES: usize = 40;
/// Maximum size of a result on stdout.
const MAX_RESULT_BYTES: u64 = 16 << 20;

/// A failed installer.
#[derive(Debug)]
pub(super) struct InstallerFailure {
    program: String,
    /// The last lines of its messages.
    pub(super) messages: Vec<String>,
}

impl InstallerFailure {
    /// The refusal with the first message that names an error.
    pub(super) fn into_refusal(self) -> PackageChangeRefusal {
        let lines = self.messages.iter().map(|line| line.trim());
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let is_error = |line: &&&str| {
            let line = line.to_lowercase();
            line.starts_with("e:") || line.contains("error") || line.contains("because")
        };
        let named = lines.iter().find(is_error).or(lines.last());
        let why = named.copied().unwrap_or("no message");
        let why = why.trim_start_matches(['×', '╰', '─', '▶', ' ']);
        let program = &self.program;
        let error = format!("`{program}` failed: {why}; `osctl.yaml` was not changed");
        refusal(error, "`osctl -v add NAME` shows the installer's messages")
    }
}

/// Runs an installer to its end and returns its stdout.
///
/// # Errors
/// When the program can't be run; the inner error when it fails.
pub(super) fn run_installer(
    command: &mut Command,
    input: &str,
    report: MessageReporter<'_>,
) -> PackageResult<Result<String, InstallerFailure>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: io::Error| {
        let hint = "the image must have apt, npm and uv, as the default one has";
        refusal(format!("`{program}` can't be run: {error}"), hint)
    };
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (result, messages) = thread::scope(|scope| {
        let messages = scope.spawn(|| stderr.map(|from| forward_messages(from, report)));
        let result = scope.spawn(|| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            if let Some(mut stdout) = stdout {
                stdout
                    .by_ref()
                    .take(MAX_RESULT_BYTES)
                    .read_to_end(&mut bytes)?;
                io::copy(&mut stdout, &mut io::sink())?;
            }
            Ok(bytes)
        });
        // A program that ends early does not read its input.
        let _ = stdin.map(|mut stdin| stdin.write_all(input.as_bytes()));
        (result.join(), messages.join())
    });
    let status = child.wait().map_err(failed)?;
    let result = result.unwrap_or_else(|_| Err(io::Error::other("its output can't be read")));
    let result = String::from_utf8_lossy(&result.map_err(failed)?).into_owned();
    if status.success() {
        return Ok(Ok(result));
    }
    let mut messages = messages.ok().flatten().unwrap_or_default();
    if messages.is_empty() {
        messages = result.lines().map(str::to_owned).collect();
    }
    Ok(Err(InstallerFailure { program, messages }))
}

/// Reports lines and returns the last ones.
fn forward_messages(source: impl Read, report: MessageReporter<'_>) -> Vec<String> {
    let mut last = VecDeque::new();
    for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        report(&line);
        last.push_back(line);
        if last.len() > MAX_MESSAGE_LINES {
            last.pop_front();
        }
    }
    last.into()
}

#[cfg(test)]
mod tests {
    use super::run_installer;
    use std::process::Command;
    use std::sync::Mutex;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_result_is_returned_and_messages_are_reported() {
        let lines = Mutex::new(Vec::new());
        let report = |line: &str| lines.lock().unwrap().push(line.to_owned());
        let done = run_installer(&mut shell("echo step >&2; cat"), "in", &report);
        assert_eq!(done.unwrap().unwrap(), "in");
        assert_eq!(*lines.lock().unwrap(), ["step"]);
    }

    #[test]
    fn a_failure_names_the_first_error() {
        let script =
            "printf '  × No solution found:\\n  ╰─▶ Because a is old\\nlast\\n' >&2; exit 1";
        let failed = run_installer(&mut shell(script), "", &|_| {}).unwrap();
        let refused = failed.unwrap_err().into_refusal();
        assert!(refused.error.contains(": Because a is old;"), "{refused:?}");
        let mut missing = Command::new("/nonexistent/uv");
        assert!(run_installer(&mut missing, "", &|_| {}).is_err());
    }
}
