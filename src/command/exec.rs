//! `osctl exec`: runs Python code in the kernel, which keeps its variables.

use super::CommandContext;
use super::answers::StartedAnswer;
use super::candidates::session_names;
use super::follow::{self, CtrlCAction, RunView};
use crate::error::{Error, Result, VerbOutcome, is_output_closed};
use crate::host::client::CompanionClient;
use crate::protocol::hex::hex;
use crate::protocol::kernel::{DEFAULT_SESSION, Execute};
use anyhow::Context as _;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum size of a code file; the companion has the same limit.
const MAX_CODE_FILE_BYTES: u64 = 64 << 20;

#[derive(Debug, Args)]
#[command(
    override_usage = "osctl exec [OPTIONS] <CODE>\n       osctl exec [OPTIONS] -f <FILE>\n       osctl exec [OPTIONS] -"
)]
pub(crate) struct ExecArgs {
    /// Python code; `-` reads stdin. Write `--` before code that begins with a hyphen
    #[arg(required_unless_present = "file", allow_negative_numbers = true)]
    code: Option<String>,
    /// Read the code from a file; `-` reads stdin
    #[arg(short, long, conflicts_with = "code", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Interrupt the code after SECONDS
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Session to use; created if missing
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Run in the background and print the run ID
    #[arg(long, conflicts_with = "out")]
    detach: bool,
    /// Save figures in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug)]
struct ExecPlan {
    source: CodeSource,
    timeout: Option<f64>,
    session: String,
    detach: bool,
    out: Option<PathBuf>,
}

#[derive(Debug)]
enum CodeSource {
    Argument(String),
    File(PathBuf),
    Stdin,
}

impl From<ExecArgs> for ExecPlan {
    fn from(args: ExecArgs) -> Self {
        let ExecArgs {
            code,
            file,
            timeout,
            session,
            detach,
            out,
        } = args;
        let source = match (code, file) {
            (Some(code), _) if code == "-" => CodeSource::Stdin,
            (_, Some(file)) if file == Path::new("-") => CodeSource::Stdin,
            (_, Some(file)) => CodeSource::File(file),
            (code, None) => CodeSource::Argument(code.unwrap_or_default()),
        };
        Self {
            source,
            timeout,
            session,
            detach,
            out,
        }
    }
}

impl CodeSource {
    fn read_code(self, cx: &CommandContext) -> Result<String> {
        match self {
            Self::Argument(code) => Ok(code),
            Self::File(file) => {
                let unreadable = |e: io::Error| {
                    let message = format!("cannot read `{}`: {e}", file.display());
                    Error::usage(message, "name a Python file: `osctl exec -f FILE`").into()
                };
                let opened = cx.path_resolver()?.open_file(&file);
                let (opened, _) = opened.map_err(|why| why.into_error(unreadable))?;
                let mut code = String::new();
                let mut opened = opened.take(MAX_CODE_FILE_BYTES + 1);
                opened.read_to_string(&mut code).map_err(unreadable)?;
                match code.len() as u64 > MAX_CODE_FILE_BYTES {
                    true => Err(unreadable(io::ErrorKind::FileTooLarge.into())),
                    false => Ok(code),
                }
            }
            Self::Stdin => {
                let mut code = String::new();
                std::io::stdin()
                    .read_to_string(&mut code)
                    .context("reading the code from stdin")?;
                Ok(code)
            }
        }
    }
}

pub(crate) async fn run(args: ExecArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = ExecPlan::from(args);
    let client = cx.companion_client()?;
    let id = run_id()?;
    let request = Execute {
        id: Some(id.clone()),
        timeout: plan.timeout,
        session: plan.session,
        queue: true,
        wait: plan.detach.then_some(0.0),
        ..Execute::new(plan.source.read_code(cx)?)
    };
    ensure_session(&client, &request.session).await?;
    if plan.detach {
        client.start_run(&request).await?;
        if cx.ui.json {
            cx.ui.print_json(&StartedAnswer { id })?;
        } else {
            cx.ui.print_line(&id);
            let attach = cx.instance.osctl_command(&format!("attach {id}"));
            cx.ui.print_message(format!("next: {attach}"));
        }
        return Ok(VerbOutcome::Done);
    }
    let mut view = RunView::new(cx, plan.out)?;
    let open_events = async { client.execute(&request).await };
    let outcome = follow::follow_code_run(
        &client,
        &id,
        open_events,
        CtrlCAction::Interrupt,
        &mut view,
        cx,
    )
    .await;
    // `osctl exec … | head`: when stdout is closed, interrupt the run, as a local program would end.
    if outcome.as_ref().is_err_and(is_output_closed) {
        client.interrupt_run(&id).await?;
    }
    outcome
}

/// Creates the session at its first use; the default session always exists.
pub(super) async fn ensure_session(client: &CompanionClient, session: &str) -> Result<()> {
    if session != DEFAULT_SESSION {
        client.create_session(Some(session)).await?;
    }
    Ok(())
}

/// A unique run id. It is generated here so that the run can be interrupted before the companion replies.
pub(super) fn run_id() -> Result<String> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| anyhow::anyhow!("no randomness: {e}"))?;
    Ok(hex(bytes))
}

#[cfg(test)]
mod tests {
    use super::{CodeSource, ExecArgs, ExecPlan};

    #[test]
    fn a_dash_is_stdin_as_code_and_as_file() {
        let args = |code: Option<&str>, file: Option<&str>| ExecArgs {
            code: code.map(Into::into),
            file: file.map(Into::into),
            timeout: None,
            session: "default".into(),
            detach: false,
            out: None,
        };
        assert!(matches!(
            ExecPlan::from(args(Some("-"), None)).source,
            CodeSource::Stdin
        ));
        assert!(matches!(
            ExecPlan::from(args(None, Some("-"))).source,
            CodeSource::Stdin
        ));
        assert!(matches!(
            ExecPlan::from(args(Some("-1"), None)).source,
            CodeSource::Argument(_)
        ));
        assert!(matches!(
            ExecPlan::from(args(None, Some("x.py"))).source,
            CodeSource::File(_)
        ));
    }
}
