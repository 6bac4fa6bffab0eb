//! `osctl logs`: prints the container's log.

use super::CommandContext;
use super::answers::LogLine;
use crate::engine::LogOptions;
use crate::error::{EXIT_NEGATIVE, Result, VerbOutcome};
use crate::host::client::not_running_error;
use clap::Args;

/// Maximum length of a line in a `--json` document, which is held until its end.
const MAX_JSON_LOG_LINE_BYTES: usize = 1 << 20;

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Show only lines of this service; `mcp/NAME` is the log of an MCP server
    #[arg(value_name = "SERVICE")]
    service: Option<String>,
    /// Follow new lines
    #[arg(short, long)]
    follow: bool,
    /// Read only the last LINES lines of the log, before SERVICE is selected
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,
}

#[derive(Debug)]
struct LogsPlan {
    service: Option<String>,
    options: LogOptions,
}

impl From<LogsArgs> for LogsPlan {
    fn from(args: LogsArgs) -> Self {
        let LogsArgs {
            service,
            follow,
            tail,
        } = args;
        Self {
            service,
            options: LogOptions { follow, tail },
        }
    }
}

pub(crate) async fn run(args: LogsArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = LogsPlan::from(args);
    if let Some(server) = plan.service.as_deref().and_then(|s| s.strip_prefix("mcp/")) {
        return of_server(server, plan.options, cx).await;
    }
    let engine = cx.connect_engine(cx.require_record()?.engine).await?;
    let name = cx.instance.container_name();
    if engine.inspect(&name).await?.is_none() {
        return Err(not_running_error(&cx.instance));
    }
    let service = plan.service.as_deref();
    let mut is_silent = true;
    let mut print = |line: &str| {
        if !service.is_none_or(|service| is_of(line, service)) {
            return Ok(());
        }
        is_silent = false;
        print_lines(&format!("{line}\n"), cx)
    };
    engine.logs(&name, plan.options, &mut print).await?;
    match service {
        Some(service) if is_silent => {
            let status = cx.instance.osctl_command("status");
            cx.ui.print_warning(format!(
                "no log lines from `{service}`; `{status}` lists the services"
            ));
            Ok(VerbOutcome::Code(EXIT_NEGATIVE))
        }
        _ => Ok(VerbOutcome::Done),
    }
}

/// Prints the log of an MCP server, which is not part of the container's log.
async fn of_server(server: &str, options: LogOptions, cx: &CommandContext) -> Result<VerbOutcome> {
    let client = cx.companion_client()?;
    let mut log = client
        .server_log(server, options.tail, options.follow)
        .await?;
    let mut unread = Vec::new();
    while let Some(piece) = log.next().await? {
        unread.extend_from_slice(&piece);
        let text = match cx.ui.json {
            true => take_lines(&mut unread),
            false => take_text(&mut unread),
        };
        print_lines(&text, cx)?;
    }
    print_lines(&String::from_utf8_lossy(&unread), cx)?;
    Ok(VerbOutcome::Done)
}

/// Prints a part of a log; with `--json`, one object per line.
fn print_lines(text: &str, cx: &CommandContext) -> Result<()> {
    match cx.ui.json {
        true => text
            .lines()
            .try_for_each(|line| cx.ui.print_json_line(&LogLine::from(line))),
        false => cx.ui.print_text(text),
    }
}

/// Takes the complete lines from bytes that arrive in chunks. A line that is too long is taken in parts.
fn take_lines(unread: &mut Vec<u8>) -> String {
    let whole = match unread.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => end + 1,
        None if unread.len() > MAX_JSON_LOG_LINE_BYTES => unread.len(),
        None => 0,
    };
    let rest = unread.split_off(whole);
    let lines = String::from_utf8_lossy(unread).into_owned();
    *unread = rest;
    lines
}

/// Takes the text from bytes that arrive in chunks, and leaves an incomplete character for later.
fn take_text(unread: &mut Vec<u8>) -> String {
    let whole = match std::str::from_utf8(unread) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => unread.len(),
    };
    let rest = unread.split_off(whole);
    let text = String::from_utf8_lossy(unread).into_owned();
    *unread = rest;
    text
}

/// `2026-11-20T21:00:00Z  INFO kernel: …` belongs to the kernel. In messages about supervised services, the next word
/// is the name of the service.
fn is_of(line: &str, service: &str) -> bool {
    let mut words = line.split_whitespace().skip(2);
    let source = words.next().unwrap_or_default().trim_end_matches(':');
    let is_supervised = source.contains("::service::");
    let name = words.next().and_then(|word| word.strip_suffix(':'));
    source.rsplit("::").any(|part| part == service) || is_supervised && name == Some(service)
}

#[cfg(test)]
mod tests {
    use super::{is_of, take_text};

    #[test]
    fn a_service_is_told_by_the_source_of_a_line() {
        let line = "2026-11-20T21:00:00Z  INFO osctl::companion::kernel::task: started";
        assert!(is_of(line, "kernel") && is_of(line, "companion") && !is_of(line, "mcp"));
        assert!(!is_of("kernel", "kernel"));
        let line =
            "2026-11-20T21:00:00Z  INFO osctl::companion::service::log_lines: xvfb: no display";
        assert!(is_of(line, "xvfb") && is_of(line, "service") && !is_of(line, "no"));
        let line = "2026-11-20T21:00:00Z  INFO osctl::companion::kernel::task: xvfb: started";
        assert!(!is_of(line, "xvfb"));
    }

    #[test]
    fn a_character_that_comes_in_pieces_is_one() {
        let mut unread = b"gr\xc3".to_vec();
        assert_eq!(take_text(&mut unread), "gr");
        unread.extend_from_slice(b"\xbc\xffn\n");
        assert_eq!(take_text(&mut unread), "\u{fc}\u{fffd}n\n");
        assert!(unread.is_empty());
    }
}
