//! Commands in running containers, without a terminal.

use super::container::WORKING_DIR;
use super::{Docker, explain_api_error};
use crate::error::Result;
use crate::protocol::text_sanitizer;
use anyhow::bail;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use std::io;
use std::pin::Pin;
use tokio::io::AsyncWrite;

/// The result of a command.
#[derive(Debug, Clone)]
pub(crate) struct EngineExecOutput {
    pub(crate) code: i64,
    /// The end of the command's stderr.
    pub(crate) stderr: String,
}

/// The pipes of a running command.
pub(crate) struct EngineExecPipes {
    pub(crate) stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// Ends with the command.
    pub(crate) stdout: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
}

const EXEC_ACTION_TEXT: &str = "running a command in the container";
/// Bytes of stderr that are kept.
const MAX_ENGINE_EXEC_STDERR_BYTES: usize = 16 << 10;

impl Docker {
    /// Runs a command in a container, and passes its stdout to `on_output` as it arrives.
    ///
    /// # Errors
    /// When the container does not exist or does not run, when the engine goes away, and when `on_output` fails.
    pub(crate) async fn exec(
        &self,
        name: &str,
        command: &[&str],
        on_output: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
    ) -> Result<EngineExecOutput> {
        let (id, started) = self.start_exec(name, command, false).await?;
        let mut stderr = Vec::new();
        if let StartExecResults::Attached { mut output, .. } = started {
            while let Some(chunk) = output.next().await {
                match chunk.map_err(|e| explain_api_error(EXEC_ACTION_TEXT, e))? {
                    LogOutput::StdErr { message } => {
                        stderr.extend_from_slice(&message);
                        let beyond = stderr.len().saturating_sub(MAX_ENGINE_EXEC_STDERR_BYTES);
                        stderr.drain(..beyond);
                    }
                    LogOutput::StdOut { message }
                    | LogOutput::StdIn { message }
                    | LogOutput::Console { message } => on_output(&message)?,
                }
            }
        }
        let ended = self.api.inspect_exec(&id).await;
        let code = ended
            .map_err(|e| explain_api_error(EXEC_ACTION_TEXT, e))?
            .exit_code;
        Ok(EngineExecOutput {
            // A command without an exit code was ended with its container.
            code: code.unwrap_or(-1),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }

    /// Runs a command in a container, with pipes to its stdin and stdout. Its stderr is logged.
    ///
    /// # Errors
    /// When the container does not exist or does not run.
    pub(crate) async fn exec_piped(&self, name: &str, command: &[&str]) -> Result<EngineExecPipes> {
        let (_, started) = self.start_exec(name, command, true).await?;
        let StartExecResults::Attached { output, input } = started else {
            bail!("the engine started the command without attached streams");
        };
        let stdout = output.filter_map(async |chunk| match chunk {
            Ok(LogOutput::StdErr { message }) => {
                let words = String::from_utf8_lossy(&message);
                let line = text_sanitizer::sanitize_line(words.trim_end());
                tracing::debug!(line, "the command in the container wrote to stderr");
                None
            }
            Ok(
                LogOutput::StdOut { message }
                | LogOutput::StdIn { message }
                | LogOutput::Console { message },
            ) => Some(Ok(message)),
            Err(error) => Some(Err(io::Error::other(error))),
        });
        Ok(EngineExecPipes {
            stdin: input,
            stdout: Box::pin(stdout),
        })
    }

    async fn start_exec(
        &self,
        name: &str,
        command: &[&str],
        stdin: bool,
    ) -> Result<(String, StartExecResults)> {
        let options = CreateExecOptions {
            attach_stdin: Some(stdin),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command.to_vec()),
            working_dir: Some(WORKING_DIR),
            ..Default::default()
        };
        let made = self.api.create_exec(name, options).await;
        let id = made.map_err(|e| explain_api_error(EXEC_ACTION_TEXT, e))?.id;
        let started = self.api.start_exec(&id, None).await;
        Ok((
            id,
            started.map_err(|e| explain_api_error(EXEC_ACTION_TEXT, e))?,
        ))
    }
}
