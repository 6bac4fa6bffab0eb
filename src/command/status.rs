//! `osctl status`: shows the status of the instance.

use super::CommandContext;
use super::answers::StatusAnswer;
use super::instance_status::{InstanceState, gather_status};
use crate::error::{EXIT_NEGATIVE, Result, VerbOutcome};
use crate::protocol::text_sanitizer;
use crate::ui::Tone;
use clap::Args;

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
    rows.extend(status.services.iter().map(|s| {
        (
            "service",
            text_sanitizer::sanitize_line(&format!("{}: {}", s.name, s.detail)),
        )
    }));
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
