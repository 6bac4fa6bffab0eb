//! Commands inside of running containers, without a terminal.

use super::{Docker, lost};
use crate::error::Result;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecResults};
use futures_util::StreamExt;

/// What a command left.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) code: i64,
    /// The end of what it wrote to stderr.
    pub(crate) stderr: String,
}

/// Bytes of stderr that are kept.
const STDERR: usize = 16 << 10;

impl Docker {
    /// Runs a command in a container, and hands what it writes to stdout to `each` as it comes.
    ///
    /// # Errors
    /// When there is no such container, it does not run, or the engine goes away; and what `each` says.
    pub(crate) async fn exec(
        &self,
        name: &str,
        command: &[&str],
        each: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
    ) -> Result<Output> {
        let doing = "to run a command in the container";
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command.to_vec()),
            ..Default::default()
        };
        let made = self.api.create_exec(name, options).await;
        let id = made.map_err(|e| lost(doing, e))?.id;
        let started = self.api.start_exec(&id, None).await;
        let mut stderr = Vec::new();
        if let StartExecResults::Attached { mut output, .. } =
            started.map_err(|e| lost(doing, e))?
        {
            while let Some(chunk) = output.next().await {
                match chunk.map_err(|e| lost(doing, e))? {
                    LogOutput::StdErr { message } => {
                        stderr.extend_from_slice(&message);
                        let beyond = stderr.len().saturating_sub(STDERR);
                        stderr.drain(..beyond);
                    }
                    LogOutput::StdOut { message }
                    | LogOutput::StdIn { message }
                    | LogOutput::Console { message } => each(&message)?,
                }
            }
        }
        let ended = self.api.inspect_exec(&id).await;
        let code = ended.map_err(|e| lost(doing, e))?.exit_code;
        Ok(Output {
            // One that has none was ended with its container.
            code: code.unwrap_or(-1),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }
}
