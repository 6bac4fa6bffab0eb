//! Executing code as a run: the part of the reply that other kinds of runs do not have.

use crate::companion::runs::{self, RunKind, RunSnapshot};
use crate::protocol::kernel::{ExecReply, Execute, KernelReport};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;

/// One execution, from its acceptance until its record is removed.
pub(crate) type KernelRun = runs::TrackedRun<Execute>;

impl RunKind for Execute {
    type Reply = ExecReply;
    type Report = KernelReport;

    const RUN_API_PATH: &'static str = "/exec";

    fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    fn text(&self) -> &str {
        &self.code
    }

    fn label(&self) -> Cow<'_, str> {
        let program = self.argv.first().map(Path::new);
        // `-` and `-c` are programs without a file.
        let name = program.and_then(Path::file_name);
        let name = name.filter(|name| !["-", "-c"].map(OsStr::new).contains(name));
        match name {
            Some(name) => format!("-f {}", name.display()).into(),
            None => self.text().into(),
        }
    }

    fn session(&self) -> &str {
        &self.session
    }

    fn durable(&self) -> Option<bool> {
        self.durable
    }

    fn is_private(&self) -> bool {
        self.silent || !self.store_history
    }

    fn hash_request(&self, hash: &mut Sha256) {
        for part in [&self.session, &self.code] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        let timeout = self.timeout.map(f64::to_bits);
        hash.update(format!(
            "{timeout:?} {} {}",
            self.silent, self.store_history
        ));
        for argument in &self.argv {
            hash.update(argument.len().to_le_bytes());
            hash.update(argument);
        }
    }

    fn from_recovered(id: String, session: String, line: String) -> Self {
        Self {
            id: Some(id),
            session,
            ..Self::new(line)
        }
    }

    fn is_same_request(&self, other: &Self) -> bool {
        self.code == other.code
            && self.session == other.session
            && self.timeout == other.timeout
            && (self.silent, self.store_history) == (other.silent, other.store_history)
            && self.argv == other.argv
    }

    fn reply(
        &self,
        so_far: RunSnapshot,
        ended: Option<KernelReport>,
        running: KernelReport,
    ) -> ExecReply {
        ExecReply {
            id: so_far.id,
            status: so_far.status,
            stdout: so_far.stdout,
            stderr: so_far.stderr,
            result: so_far.result,
            data: so_far.data,
            error: so_far.error,
            execution_count: so_far.number,
            timing_ms: so_far.timing_ms,
            kernel: ended.unwrap_or_else(|| running.relative_to(self.seen)),
            truncated: so_far.truncated,
            durable: Some(so_far.durable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Execute, RunKind};

    #[test]
    fn a_program_is_represented_by_its_file_and_other_code_by_itself() {
        for (argv, label) in [
            (&[][..], "x = 1"),
            (&["-", "a"], "x = 1"),
            (&["-c"], "x = 1"),
            (&["/repo/analyse.py", "a"], "-f analyse.py"),
            (&["analyse.py"], "-f analyse.py"),
        ] {
            let argv = argv.iter().map(|word| (*word).to_owned()).collect();
            let request = Execute {
                argv,
                ..Execute::new("x = 1")
            };
            assert_eq!(request.label(), label);
        }
    }
}
