//! The check of the body's programs and data files before a build: the running container's Python and bash parse the
//! files.
//!
//! The check finds mistakes soon and grants nothing: a container that does not answer, or answers wrongly, only loses
//! the early message. The body that is built is the keeper's own copy.

use super::{BuildPolicy, RunExecutor};
use crate::engine::EngineProgress;
use crate::error::Result;
use crate::keeper::sanitize;
use anyhow::bail;
use std::time::Duration;

const SYNTAX_CHECK_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_SYNTAX_CHECK_BYTES: usize = 64 << 10;
const MAX_SYNTAX_PROBLEMS: usize = 3;

const SYNTAX_CHECK_CODE: &str = include_str!("syntax_check.py");
/// Runs the code, which is `$1`, for the folder `$2`.
const SYNTAX_CHECK_COMMAND: &str =
    r#"cd / && exec "${OSCTL_PYTHON:-python3}" -I -c "$1" "/repo/$2""#;

impl RunExecutor {
    /// # Errors
    /// When a file of the body can't be parsed; names the file and the line.
    pub(super) async fn check_syntax(&self) -> Result<()> {
        let Some(old) = &self.journal_entry.old else {
            return Ok(());
        };
        let body = self.target.config.body.to_string_lossy();
        if self.build_policy == BuildPolicy::Unchecked || !self.journal_entry.running {
            return Ok(());
        }
        let mut found = Vec::new();
        let mut on_output = |bytes: &[u8]| {
            let free = MAX_SYNTAX_CHECK_BYTES.saturating_sub(found.len());
            found.extend_from_slice(&bytes[..bytes.len().min(free)]);
            Ok(())
        };
        let command = [
            "/bin/bash",
            "-c",
            SYNTAX_CHECK_COMMAND,
            "osctl-syntax",
            SYNTAX_CHECK_CODE,
            &body,
        ];
        let ran = self.target.docker.exec(old, &command, &mut on_output);
        match tokio::time::timeout(SYNTAX_CHECK_TIMEOUT, ran).await {
            Ok(Ok(output)) if output.code == 0 => {}
            _ => {
                self.log.log("the syntax of the body was not checked");
                return Ok(());
            }
        }
        let text = String::from_utf8_lossy(&found);
        let problems: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        if problems.is_empty() {
            return Ok(());
        }
        let named = problems.iter().take(MAX_SYNTAX_PROBLEMS);
        let named = named.copied().collect::<Vec<_>>().join("; ");
        let more = match problems.len().saturating_sub(MAX_SYNTAX_PROBLEMS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = sanitize::sanitize_sentence(&named);
        bail!("{named}{more} (in `{body}/`; `osctl evolve --rebuild` skips this check)")
    }
}
