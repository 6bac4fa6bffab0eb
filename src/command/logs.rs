//! `osctl logs`: prints the container's log.

use super::CommandContext;
use super::answers::LogLine;
use super::candidates::{COMPANION_PARTS, log_services};
use super::follow::CTRL_C_EXIT_CODE;
use super::format::{format_time_of_day, parse_time};
use crate::engine::LogOptions;
use crate::error::{Error, Result, VerbOutcome, nearest_name};
use crate::host::client::not_running_error;
use crate::log_output::read_log_line;
use crate::protocol::line_buffer::LineBuffer;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use std::borrow::Cow;
use std::collections::VecDeque;

/// Maximum length of a line in a `--json` document, which is held until its end.
const MAX_JSON_LOG_LINE_BYTES: usize = 1 << 20;

/// Maximum number and length of the services that an error names; the agent can change them.
const MAX_NAMED_SERVICES: usize = 30;
const MAX_SERVICE_NAME_BYTES: usize = 64;

/// Characters of a service per edit, up to which a service is suggested for an unknown one.
const CHARS_PER_SERVICE_EDIT: usize = 2;

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Show only lines of this service; `mcp/NAME` is the log of an MCP server
    #[arg(value_name = "SERVICE", add = ArgValueCandidates::new(log_services))]
    service: Option<String>,
    /// Follow new lines
    #[arg(short, long)]
    follow: bool,
    /// Show only the last LINES lines, of SERVICE if it is given
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
    let is_followed = plan.options.follow;
    let ended = super::shutdown_signal()?;
    tokio::select! {
        biased;
        done = show_log(plan, cx) => done,
        // Ctrl-C is how a user stops following.
        () = ended => match is_followed {
            true => Ok(VerbOutcome::Code(CTRL_C_EXIT_CODE)),
            false => Err(Error::Interrupted.into()),
        },
    }
}

async fn show_log(plan: LogsPlan, cx: &CommandContext) -> Result<VerbOutcome> {
    if let Some(server) = plan.service.as_deref().and_then(|s| s.strip_prefix("mcp/")) {
        return of_server(server, plan.options, cx).await;
    }
    let engine = cx.connect_engine(cx.require_record()?.engine).await?;
    let name = cx.instance.container_name();
    if engine.inspect(&name).await?.is_none() {
        return Err(not_running_error(&cx.instance));
    }
    let service = plan.service.as_deref();
    // An unknown service would be followed without an end.
    if let Some(service) = service.filter(|_| plan.options.follow) {
        check_service(service, cx).await?;
    }
    let mut is_silent = true;
    let is_for_people = cx.ui.prints_to_terminal();
    let mut print = |line: &str| {
        is_silent = false;
        match cx.ui.json {
            true => print_json_line(line.as_bytes(), cx),
            false if is_for_people => cx.ui.print_text(&format!("{}\n", shorten_log_line(line))),
            false => cx.ui.print_text(&format!("{line}\n")),
        }
    };
    let LogOptions { follow, tail } = plan.options;
    match (service, tail) {
        (None, _) => {
            let mut of_any = |line: &str| print(&read_log_line(line));
            engine.logs(&name, plan.options, &mut of_any).await?;
        }
        (Some(service), None) => {
            let mut of_service = select_lines(service, 0, &mut print);
            engine.logs(&name, plan.options, &mut of_service).await?;
        }
        // The engine would count the lines of all services.
        (Some(service), Some(tail)) => {
            let mut last = LastLines::new(service, tail);
            let mut collect = |line: &str| {
                last.add(&read_log_line(line));
                Ok(())
            };
            let whole = |follow| LogOptions { follow, tail: None };
            engine.logs(&name, whole(false), &mut collect).await?;
            last.lines.iter().try_for_each(|line| print(line))?;
            if follow {
                let mut later = select_lines(service, last.seen, &mut print);
                engine.logs(&name, whole(true), &mut later).await?;
            }
        }
    }
    if let Some(service) = service.filter(|_| is_silent) {
        check_service(service, cx).await?;
        cx.ui
            .print_message(format!("no log lines from `{service}`"));
    }
    Ok(VerbOutcome::Done)
}

/// Shortens a line for people: the local time of the day, the level, and no module of osctl.
fn shorten_log_line(line: &str) -> Cow<'_, str> {
    let shortened = || {
        let (time, rest) = line.split_once(' ')?;
        let time = format_time_of_day(parse_time(time)?);
        let (level, rest) = rest.trim_start().split_once(' ')?;
        let module_end = rest.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)))?;
        let rest = match rest.starts_with("osctl") {
            true => rest[module_end..].trim_start(),
            false => rest,
        };
        Some(Cow::Owned(format!("{time} {level:>5} {rest}")))
    };
    shortened().unwrap_or(Cow::Borrowed(line))
}

/// Passes on the lines of a service, after the first lines of the log.
fn select_lines(
    service: &str,
    mut to_skip: usize,
    print: &mut (impl FnMut(&str) -> Result<()> + Send),
) -> impl FnMut(&str) -> Result<()> + Send {
    move |line| {
        if let Some(rest) = to_skip.checked_sub(1) {
            to_skip = rest;
            return Ok(());
        }
        let line = read_log_line(line);
        match is_of(&line, service) {
            true => print(&line),
            false => Ok(()),
        }
    }
}

/// The last lines of a service in a log.
#[derive(Debug)]
struct LastLines<'a> {
    service: &'a str,
    most: usize,
    lines: VecDeque<String>,
    /// The number of lines of all services.
    seen: usize,
}

impl<'a> LastLines<'a> {
    fn new(service: &'a str, most: usize) -> Self {
        Self {
            service,
            most,
            lines: VecDeque::new(),
            seen: 0,
        }
    }

    fn add(&mut self, line: &str) {
        self.seen += 1;
        if is_of(line, self.service) {
            self.lines.push_back(line.to_owned());
        }
        if self.lines.len() > self.most {
            self.lines.pop_front();
        }
    }
}

/// # Errors
/// When the companion answers, and the container has no such service.
async fn check_service(name: &str, cx: &CommandContext) -> Result<()> {
    if COMPANION_PARTS.contains(&name) {
        return Ok(());
    }
    let health = match cx.companion_client() {
        Ok(client) => client.fetch_health().await,
        Err(error) => Err(error),
    };
    // Without an answer, the services are unknown.
    let Ok(health) = health else {
        return Ok(());
    };
    let services: Vec<String> = health.services.into_iter().map(|s| s.name).collect();
    match services.iter().any(|service| service == name) {
        true => Ok(()),
        false => Err(unknown_service_error(name, &services).into()),
    }
}

fn unknown_service_error(name: &str, services: &[String]) -> Error {
    let services = services.iter().map(String::as_str);
    let services = services.filter(|service| service.len() <= MAX_SERVICE_NAME_BYTES);
    let services: Vec<&str> = services.take(MAX_NAMED_SERVICES).collect();
    // A user pastes the command of the hint; the names come from the container.
    let known = services.iter().copied().filter(|name| is_plain_word(name));
    let known = known.chain(COMPANION_PARTS);
    let nearest = nearest_name(name, known, CHARS_PER_SERVICE_EDIT);
    let mut message = format!("the service `{name}` does not exist");
    if !services.is_empty() {
        message = format!("{message}; the services are {}", services.join(", "));
    }
    let hint = match nearest {
        Some(nearest) => format!("did you mean `osctl logs {nearest}`?"),
        None => "`osctl logs mcp/NAME` shows the log of an MCP server".into(),
    };
    Error::usage(message, hint)
}

/// Whether a shell reads the name as one word that is no option.
fn is_plain_word(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_plain)
}

/// Prints the log of an MCP server, which is not part of the container's log.
async fn of_server(server: &str, options: LogOptions, cx: &CommandContext) -> Result<VerbOutcome> {
    let client = cx.companion_client()?;
    let mut log = client
        .server_log(server, options.tail, options.follow)
        .await?;
    let mut printer = LogChunkPrinter::default();
    while let Some(piece) = log.next().await? {
        printer.print_chunk(&piece, cx)?;
    }
    printer.print_rest(cx)?;
    Ok(VerbOutcome::Done)
}

/// Prints a log that arrives in chunks.
#[derive(Debug, Default)]
pub(super) struct LogChunkPrinter {
    unread: LineBuffer,
}

impl LogChunkPrinter {
    pub(super) fn print_chunk(&mut self, chunk: &[u8], cx: &CommandContext) -> Result<()> {
        self.unread.push(chunk);
        if !cx.ui.json {
            return cx.ui.print_text(&take_text(&mut self.unread));
        }
        while let Some(line) = self.unread.next_line() {
            print_json_line(&line, cx)?;
        }
        // A line that is too long is printed in parts.
        match self.unread.unread_bytes() > MAX_JSON_LOG_LINE_BYTES {
            true => print_json_line(&self.unread.take_unread(), cx),
            false => Ok(()),
        }
    }

    /// Prints what the end of the log left incomplete.
    pub(super) fn print_rest(mut self, cx: &CommandContext) -> Result<()> {
        let rest = self.unread.take_unread();
        match cx.ui.json {
            true if rest.is_empty() => Ok(()),
            true => print_json_line(&rest, cx),
            false => cx.ui.print_text(&String::from_utf8_lossy(&rest)),
        }
    }
}

fn print_json_line(line: &[u8], cx: &CommandContext) -> Result<()> {
    let line = String::from_utf8_lossy(line);
    cx.ui.print_json_line(&LogLine::from(&*line))
}

/// Takes the text from bytes that arrive in chunks, and leaves an incomplete character for later.
fn take_text(unread: &mut LineBuffer) -> String {
    let bytes = unread.take_unread();
    let whole = match std::str::from_utf8(&bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    unread.push(&bytes[whole..]);
    String::from_utf8_lossy(&bytes[..whole]).into_owned()
}

/// `2026-11-20T21:00:00Z  INFO kernel: …` belongs to the kernel. Lines of supervised services have the value `service`
/// before the message; in those of earlier versions, the message begins with the name of the service.
fn is_of(line: &str, service: &str) -> bool {
    let mut words = line.split_whitespace().skip(2);
    let source = words.next().unwrap_or_default().trim_end_matches(':');
    let is_supervised = source.contains("::service::");
    let value = words.next().unwrap_or_default();
    let name = value
        .strip_prefix("service=")
        .map(|name| name.trim_end_matches(':'))
        .or(value.strip_suffix(':'));
    source.rsplit("::").any(|part| part == service) || is_supervised && name == Some(service)
}

#[cfg(test)]
mod tests {
    use super::{LastLines, LineBuffer, is_of, shorten_log_line, take_text, unknown_service_error};

    #[test]
    fn the_last_lines_of_a_service_are_counted_without_those_of_others() {
        let line = |part: &str, n: u8| format!("2026 INFO osctl::companion::{part}: line {n}");
        let mut last = LastLines::new("kernel", 2);
        for n in 0..3 {
            last.add(&line("kernel", n));
            last.add(&line("http", n));
        }
        assert_eq!(last.lines, [line("kernel", 1), line("kernel", 2)]);
        assert_eq!(last.seen, 6);
        let mut none = LastLines::new("kernel", 0);
        none.add(&line("kernel", 0));
        assert!(none.lines.is_empty());
    }

    #[test]
    fn a_log_line_belongs_to_the_service_of_its_source() {
        let line = "2026-11-20T21:00:00Z  INFO osctl::companion::kernel::task: started";
        assert!(is_of(line, "kernel") && is_of(line, "companion") && !is_of(line, "mcp"));
        assert!(!is_of("kernel", "kernel"));
        let line =
            "2026-11-20T21:00:00Z  INFO osctl::companion::service::log_lines: xvfb: no display";
        assert!(is_of(line, "xvfb") && is_of(line, "service") && !is_of(line, "no"));
        let line = "2026-11-20T21:00:00Z  INFO osctl::companion::kernel::task: xvfb: started";
        assert!(!is_of(line, "xvfb"));
        let line =
            "2026-11-20T21:00:00Z  INFO osctl::companion::service::log_lines service=xvfb: no: x";
        assert!(is_of(line, "xvfb") && is_of(line, "service") && !is_of(line, "no"));
    }

    #[test]
    fn an_unknown_service_is_named_with_the_known_ones_and_the_nearest() {
        let services = ["kernel".to_owned(), "xvfb".to_owned(), "x".repeat(99)];
        let error = unknown_service_error("xvbf", &services);
        assert_eq!(
            error.to_string(),
            "the service `xvbf` does not exist; the services are kernel, xvfb"
        );
        let hint = error.hint().unwrap();
        assert_eq!(hint, "did you mean `osctl logs xvfb`?");
        for hostile in ["xvbf;reboot", "xvbf`id`", "$(xvbf)", "-xvbf", "xv bf"] {
            let services = [hostile.to_owned()];
            let hint = unknown_service_error(hostile, &services).hint().unwrap();
            assert!(hint.contains("mcp/NAME"), "{hint}");
        }
        let hint = unknown_service_error("filesystem-", &services).hint();
        assert!(hint.unwrap().contains("mcp/NAME"));
    }

    #[test]
    fn a_character_that_comes_in_pieces_is_one() {
        let mut unread = LineBuffer::default();
        unread.push(b"gr\xc3");
        assert_eq!(take_text(&mut unread), "gr");
        unread.push(b"\xbc\xffn\n");
        assert_eq!(take_text(&mut unread), "\u{fc}\u{fffd}n\n");
        assert_eq!(unread.unread_bytes(), 0);
    }

    #[test]
    fn a_line_for_people_has_the_time_of_the_day_and_no_module() {
        let shorten = |line: &str| shorten_log_line(line)[9..].to_owned();
        let line =
            "2026-11-20T21:00:00.123456Z  INFO osctl::companion::task session=a: it is ready";
        assert_eq!(shorten(line), " INFO session=a: it is ready");
        let line = "2026-11-20T21:00:00.123456Z  WARN osctl::companion: late code=3";
        assert_eq!(shorten(line), " WARN late code=3");
        let line = "2026-11-20T21:00:00Z ERROR hyper::proto: reset";
        assert_eq!(shorten(line), "ERROR hyper::proto: reset");
        for other in [
            "",
            "plain text",
            "2026-11-20T21:00:00Z",
            "yesterday INFO a: b",
        ] {
            assert_eq!(shorten_log_line(other), other);
        }
    }
}
