//! `osctl status`: shows the status of the instance.

use super::CommandContext;
use super::answers::StatusAnswer;
use super::instance_status::{InstanceState, gather_status};
use super::runs::describe_run;
use crate::engine::ContainerUsage;
use crate::error::{EXIT_NEGATIVE, Result, VerbOutcome};
use crate::protocol::mcp::HubClientStatus;
use crate::protocol::service::ServiceStatus;
use crate::protocol::text_sanitizer;
use crate::ui::{Tone, format_bytes};
use clap::Args;
use std::collections::BTreeMap;

/// The numbers of runs and clients that are listed individually.
const MAX_SHOWN_RUNS: usize = 5;
const MAX_SHOWN_CLIENTS: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {}

pub(crate) async fn run(args: StatusArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let StatusArgs {} = args;
    let record = cx.require_record()?;
    let config = cx.lenient_config(Some(&record.project), Vec::new())?.config;
    let engine = cx.connect_engine(record.engine).await?;
    let status = gather_status(cx, &record, &config, &engine).await?;
    let outcome = if status.healthy {
        VerbOutcome::Done
    } else {
        VerbOutcome::Code(EXIT_NEGATIVE)
    };
    if cx.ui.json {
        cx.ui.print_json(&StatusAnswer::from(status))?;
        return Ok(outcome);
    }
    for warning in &status.warnings {
        cx.ui.print_warning(warning);
    }
    let (state, tone) = match (status.state, status.healthy) {
        (InstanceState::Running, true) => ("running, healthy", Tone::Good),
        (InstanceState::Running, false) => ("running, not healthy", Tone::Bad),
        (InstanceState::Restarting, _) => ("restarting", Tone::Doubtful),
        (InstanceState::Paused, _) => ("paused", Tone::Doubtful),
        (InstanceState::Stopped, _) => ("stopped", Tone::Doubtful),
        (InstanceState::Absent, _) => ("absent", Tone::Doubtful),
    };
    cx.ui
        .print_line(format!("{:<10}{}", "instance", status.instance));
    cx.ui
        .print_toned_line(&format!("{:<10}", "state"), tone, state, "");
    let mut rows = vec![
        ("engine", status.engine.to_owned()),
        ("project", status.project.display().to_string()),
    ];
    rows.extend(status.machine.map(|m| ("machine", m)));
    rows.extend(
        status
            .version
            .map(|v| ("version", text_sanitizer::sanitize_line(&v))),
    );
    rows.extend(status.image.map(|id| ("image", super::short_image_id(&id))));
    rows.extend(
        status
            .endpoints
            .iter()
            .map(|(what, address)| (*what, address.clone())),
    );
    if status.services.iter().any(|service| service.name == "xvfb") {
        rows.push(("desktop", cx.instance.osctl_command("desktop")));
    }
    rows.extend(usage_rows(&status.usage));
    rows.extend(service_rows(&status.services));
    if status.healthy {
        rows.push(("clients", describe_clients(&status.clients)));
    }
    let run_rows = status.runs.iter().take(MAX_SHOWN_RUNS);
    rows.extend(run_rows.map(|run| ("running", describe_run(run))));
    if let Some(more) = status.runs.len().checked_sub(MAX_SHOWN_RUNS + 1) {
        rows.push(("running", format!("and {} more", more + 1)));
    }
    rows.extend(
        status
            .sessions
            .iter()
            .filter_map(|s| Some(("variables", text_sanitizer::sanitize_line(&s.status_row()?)))),
    );
    rows.push(("token", status.token_file.display().to_string()));
    let password = status.vnc_password_file.display();
    rows.push(("vnc pass", password.to_string()));
    for (what, value) in rows {
        cx.ui.print_line(format!("{what:<10}{value}"));
    }
    if !status.healthy {
        cx.ui
            .print_message(format!("next: {}", cx.instance.osctl_command("up")));
    }
    Ok(outcome)
}

fn usage_rows(usage: &ContainerUsage) -> impl Iterator<Item = (&'static str, String)> {
    let started_at = usage
        .started_at
        .as_deref()
        .and_then(super::format::parse_time);
    let uptime = started_at.map(super::format_age);
    let memory = usage.memory.map(format_bytes);
    let rows = [("uptime", uptime), ("memory", memory)].into_iter();
    rows.filter_map(|(what, value)| Some((what, value?)))
}

/// The services in one row for each state, except those that are not ready, which have their own.
fn service_rows(services: &[ServiceStatus]) -> Vec<(&'static str, String)> {
    let (mut ready, mut idle, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for service in services {
        let name = text_sanitizer::sanitize_line(&service.name);
        let detail = text_sanitizer::sanitize_line(&service.detail);
        match (service.ready, service.idle) {
            (true, _) if detail == "ready" => ready.push(name),
            (true, _) => ready.push(format!("{name} ({detail})")),
            (false, true) => idle.push(name),
            (false, false) => rows.push(("service", format!("{name}: {detail}"))),
        }
    }
    let folded = [("services", ready), ("on demand", idle)].into_iter();
    let folded = folded.filter(|(_, names)| !names.is_empty());
    let folded = folded.map(|(what, names)| (what, names.join(", ")));
    folded.chain(rows).collect()
}

/// The names of the connected MCP clients, each with the number of its connections.
pub(crate) fn describe_clients(clients: &[HubClientStatus]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for client in clients {
        *counts
            .entry(text_sanitizer::sanitize_line(&client.name))
            .or_default() += 1;
    }
    let names = counts.into_iter().map(|(name, count)| match count {
        1 => name,
        count => format!("{name} ({count})"),
    });
    let names: Vec<String> = names.take(MAX_SHOWN_CLIENTS).collect();
    match names.is_empty() {
        true => "no MCP client".into(),
        false => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::{describe_clients, service_rows};
    use crate::protocol::mcp::HubClientStatus;
    use crate::protocol::service::ServiceStatus;

    #[test]
    fn ready_services_share_a_row_and_others_have_their_own() {
        let service = |name: &str, ready, idle, detail: &str| ServiceStatus {
            name: name.into(),
            ready,
            idle,
            detail: detail.into(),
        };
        let rows = service_rows(&[
            service("kernel", true, false, "idle"),
            service("xvfb", true, false, "ready"),
            service("openbox", false, false, "restarting: exit\ncode 1"),
            service("chromium", false, true, "on demand"),
            service("x11vnc", false, true, "on demand"),
        ]);
        let rows: Vec<(&str, &str)> = rows.iter().map(|(what, text)| (*what, &**text)).collect();
        assert_eq!(
            rows[..2],
            [
                ("services", "kernel (idle), xvfb"),
                ("on demand", "chromium, x11vnc")
            ]
        );
        assert!(rows.len() == 3 && rows[2].0 == "service", "{rows:?}");
        assert!(!rows[2].1.contains('\n'), "{rows:?}");
    }

    #[test]
    fn clients_of_one_name_are_counted() {
        let client = |name: &str| HubClientStatus {
            name: name.into(),
            version: "1".into(),
            server: None,
            revision: "2025-11-25".into(),
            idle_seconds: 0,
        };
        assert_eq!(describe_clients(&[]), "no MCP client");
        let all = [client("cursor"), client("claude-code"), client("cursor")];
        assert_eq!(describe_clients(&all), "claude-code, cursor (2)");
    }
}
