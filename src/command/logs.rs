//! `osctl logs`: what the container wrote.

use super::Context;
use crate::engine::LogOptions;
use crate::error::{Outcome, Result};
use crate::host::client::not_running;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Only lines of this service
    service: Option<String>,
    /// Go on as it writes
    #[arg(short, long)]
    follow: bool,
    /// Only the last so many lines
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,
}

#[derive(Debug)]
struct Plan {
    service: Option<String>,
    options: LogOptions,
}

impl From<LogsArgs> for Plan {
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

pub(crate) async fn run(args: LogsArgs, cx: &Context) -> Result<Outcome> {
    let plan = Plan::from(args);
    let engine = cx.engine(cx.record()?.engine).await?;
    let name = cx.instance.container();
    if engine.inspect(&name).await?.is_none() {
        return Err(not_running(&cx.instance));
    }
    let mut print = |line: &str| {
        if plan
            .service
            .as_deref()
            .is_none_or(|service| is_of(line, service))
        {
            cx.ui.line(line);
        }
    };
    engine.logs(&name, plan.options, &mut print).await?;
    Ok(Outcome::Done)
}

/// `2026-11-20T21:00:00Z  INFO kernel: …` is the kernel's.
fn is_of(line: &str, service: &str) -> bool {
    let source = line.split_whitespace().nth(2).unwrap_or_default();
    source
        .trim_end_matches(':')
        .rsplit("::")
        .any(|part| part == service)
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn a_service_is_told_by_the_source_of_a_line() {
        let line = "2026-11-20T21:00:00Z  INFO osctl::companion::kernel::task: started";
        assert!(is_of(line, "kernel") && is_of(line, "companion") && !is_of(line, "mcp"));
        assert!(!is_of("kernel", "kernel"));
    }
}
