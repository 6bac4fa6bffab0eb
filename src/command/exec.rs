//! `osctl exec`: runs Python code in the kernel, which keeps its variables.

use super::CommandContext;
use super::answers::StartedAnswer;
use super::candidates::session_names;
use super::follow::{self, CtrlCAction, RunView};
use crate::error::{Error, Result, VerbOutcome, is_output_closed};
use crate::host::client::CompanionClient;
use crate::host::container_spec::CONTAINER_PROJECT_PATH;
use crate::protocol::hex::hex;
use crate::protocol::kernel::{DEFAULT_SESSION, Execute};
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Maximum size of a code file; the companion has the same limit.
const MAX_CODE_FILE_BYTES: u64 = 64 << 20;

#[derive(Debug, Args)]
#[command(
    override_usage = "osctl exec [OPTIONS] <CODE>\n       osctl exec [OPTIONS] -f <FILE> [ARG]...\n       osctl exec [OPTIONS] [- [ARG]...]"
)]
pub(crate) struct ExecArgs {
    /// Python code; `-` reads stdin, as does `osctl exec` in a pipe. With `-f` or `-`: arguments of the program. Write `--` before words that begin with a hyphen
    #[arg(value_name = "CODE", allow_negative_numbers = true)]
    words: Vec<String>,
    /// Run a file as a program, with `sys.argv` and `__file__`; `-` reads stdin
    #[arg(short, long, value_name = "FILE")]
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
    arguments: Vec<String>,
    timeout: Option<f64>,
    session: String,
    detach: bool,
    out: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
enum CodeSource {
    Argument(String),
    File(PathBuf),
    Stdin,
}

impl ExecPlan {
    /// # Errors
    /// When there is no code, or code in several words.
    fn new(args: ExecArgs, is_stdin_terminal: bool) -> Result<Self> {
        let ExecArgs {
            words,
            file,
            timeout,
            session,
            detach,
            out,
        } = args;
        let mut words = words.into_iter();
        let source = match file {
            Some(file) if file == Path::new("-") => CodeSource::Stdin,
            Some(file) => CodeSource::File(file),
            None => match words.next() {
                Some(code) if code == "-" => CodeSource::Stdin,
                Some(code) => CodeSource::Argument(code),
                None if is_stdin_terminal => return Err(no_code_error().into()),
                None => CodeSource::Stdin,
            },
        };
        let arguments: Vec<String> = words.collect();
        if let (CodeSource::Argument(code), [_, ..]) = (&source, &*arguments) {
            let message = format!("the code has several words: `{code}`, `{}`", arguments[0]);
            let hint = "quote the code: `osctl exec 'x = 1'`";
            return Err(Error::usage(message, hint).into());
        }
        Ok(Self {
            source,
            arguments,
            timeout,
            session,
            detach,
            out,
        })
    }

    /// `sys.argv` of the program; empty if the code is no program.
    fn argv(&self, cx: &CommandContext) -> Vec<String> {
        let name = match &self.source {
            CodeSource::Argument(_) => return Vec::new(),
            CodeSource::Stdin if self.arguments.is_empty() => return Vec::new(),
            CodeSource::Stdin => "-".to_owned(),
            CodeSource::File(file) => path_inside(file, cx),
        };
        std::iter::once(name)
            .chain(self.arguments.iter().cloned())
            .collect()
    }
}

/// The path of a file of the project in the container; the path as typed of another file.
fn path_inside(file: &Path, cx: &CommandContext) -> String {
    let project = cx.require_record().ok().map(|record| record.project);
    let whole = file.canonicalize().ok();
    let beneath = whole.zip(project).and_then(|(file, project)| {
        let beneath = file.strip_prefix(project.canonicalize().ok()?).ok()?;
        Some(Path::new(CONTAINER_PROJECT_PATH).join(beneath))
    });
    let path = beneath.as_deref().unwrap_or(file);
    path.to_string_lossy().into_owned()
}

impl CodeSource {
    fn read_code(&self, cx: &CommandContext) -> Result<String> {
        match self {
            Self::Argument(code) => Ok(code.clone()),
            Self::File(file) => {
                let unreadable = |e: io::Error| {
                    let message = format!("cannot read `{}`: {e}", file.display());
                    Error::usage(message, "name a Python file: `osctl exec -f FILE`").into()
                };
                let opened = cx.path_resolver()?.open_file(file);
                let (opened, _) = opened.map_err(|why| why.into_error(unreadable))?;
                let mut code = String::new();
                let mut opened = opened.take(MAX_CODE_FILE_BYTES + 1);
                opened.read_to_string(&mut code).map_err(unreadable)?;
                match code.len() as u64 > MAX_CODE_FILE_BYTES {
                    true => Err(unreadable(io::ErrorKind::FileTooLarge.into())),
                    false => Ok(code),
                }
            }
            Self::Stdin => read_piped_code(io::stdin()),
        }
    }
}

fn no_code_error() -> Error {
    let hint = "name the code: `osctl exec 'print(6 * 7)'` or `osctl exec -f FILE`; `osctl repl` opens a console";
    Error::usage("there is no code to run", hint)
}

fn read_piped_code(mut source: impl Read) -> Result<String> {
    let mut code = String::new();
    let read = source.read_to_string(&mut code);
    read.map_err(|error| {
        let message = format!("cannot read the code from stdin: {error}");
        let hint = "write Python code in UTF-8 to stdin, or name a file: `osctl exec -f FILE`";
        Error::usage(message, hint)
    })?;
    match code.trim().is_empty() {
        true => Err(no_code_error().into()),
        false => Ok(code),
    }
}

pub(crate) async fn run(args: ExecArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = ExecPlan::new(args, io::stdin().is_terminal())?;
    let client = cx.companion_client()?;
    let id = run_id()?;
    let request = Execute {
        id: Some(id.clone()),
        session: plan.session.clone(),
        timeout: plan.timeout,
        argv: plan.argv(cx),
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
    use super::{CodeSource, ExecArgs, ExecPlan, read_piped_code};
    use crate::error::{EXIT_USAGE, exit_code};

    fn plan(words: &[&str], file: Option<&str>, is_terminal: bool) -> Result<ExecPlan, String> {
        let args = ExecArgs {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            file: file.map(Into::into),
            timeout: None,
            session: "default".into(),
            detach: false,
            out: None,
        };
        ExecPlan::new(args, is_terminal).map_err(|error| error.to_string())
    }

    #[test]
    fn code_comes_from_a_word_a_file_or_stdin() {
        let stdin = || CodeSource::Stdin;
        let code = |code: &str| CodeSource::Argument(code.into());
        for (words, file, source, arguments) in [
            (&["-"][..], None, stdin(), &[][..]),
            (&["-", "a"], None, stdin(), &["a"]),
            (&[], None, stdin(), &[]),
            (&["a"], Some("-"), stdin(), &["a"]),
            (&["-1"], None, code("-1"), &[]),
            (&[""], None, code(""), &[]),
            (&[], Some("x.py"), CodeSource::File("x.py".into()), &[]),
            (
                &["-", "b"],
                Some("x.py"),
                CodeSource::File("x.py".into()),
                &["-", "b"],
            ),
        ] {
            let plan = plan(words, file, false).unwrap();
            assert_eq!(
                (plan.source, &*plan.arguments),
                (
                    source,
                    &arguments
                        .iter()
                        .map(|a| (*a).to_owned())
                        .collect::<Vec<_>>()[..]
                )
            );
        }
    }

    #[test]
    fn missing_code_and_code_without_quotes_are_errors() {
        assert_eq!(
            plan(&[], None, true).unwrap_err(),
            "there is no code to run"
        );
        let error = plan(&["x", "=", "1"], None, false).unwrap_err();
        assert_eq!(error, "the code has several words: `x`, `=`");
    }

    #[test]
    fn code_that_is_not_utf_8_is_a_usage_error() {
        let error = read_piped_code(&b"\xff\xfe"[..]).unwrap_err();
        assert_eq!(exit_code(&error), EXIT_USAGE);
        assert_eq!(read_piped_code(&b"1"[..]).unwrap(), "1");
        let error = read_piped_code(&b" \n"[..]).unwrap_err();
        assert_eq!(error.to_string(), "there is no code to run");
    }
}
