//! Checks of a running container: its keeper, its ports, its memory, and the MCP clients that use it.

use super::{DoctorFinding, FindingVerdict};
use crate::command::CommandContext;
use crate::command::status::describe_clients;
use crate::config::{Config, parse_size};
use crate::engine::{Container, ContainerPhase, Engine};
use crate::ui::format_bytes;

/// The keeper, the ports, the memory and the MCP clients of a running container.
pub(super) async fn check_running_container(
    cx: &CommandContext,
    config: &Config,
    engine: &Engine,
) -> Vec<DoctorFinding> {
    let name = cx.instance.container_name();
    let Ok(Some(Container {
        phase: ContainerPhase::Running,
        has_ports,
        ..
    })) = engine.inspect(&name).await
    else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut add = |what, detail: String, warning: Option<&str>| {
        findings.push(DoctorFinding {
            what,
            verdict: match warning {
                Some(_) => FindingVerdict::Warning,
                None => FindingVerdict::Fine,
            },
            detail,
            hint: warning.map(Into::into),
        });
    };
    if let Engine::Docker(docker) = engine
        && let Ok(keeper) = docker.inspect(&cx.instance.keeper_container_name()).await
    {
        let phase = keeper.map(|keeper| keeper.phase);
        let hint = "`osctl up` starts the keeper; without it, `osctl evolve` is not available";
        let is_running = phase == Some(ContainerPhase::Running);
        let detail = phase.map_or("absent".into(), |phase| format!("{phase:?}").to_lowercase());
        add("keeper", detail, (!is_running).then_some(hint));
    }
    if let Ok(record) = cx.require_record() {
        let ports = record.ports.all().map(|port| port.to_string()).join(", ");
        let hint = "`osctl up` publishes the ports again";
        let verb = if has_ports { "are" } else { "are not all" };
        let detail = format!("{ports} {verb} published");
        add("ports", detail, (!has_ports).then_some(hint));
    }
    if let Some(used) = engine.usage(&name).await.memory {
        let limit = config.limits.memory.as_deref().and_then(parse_size);
        let is_full = limit.is_some_and(|limit| used > limit / 10 * 9);
        let of = limit.map(|limit| format!(" of {}", format_bytes(limit)));
        let detail = format!("{} in use{}", format_bytes(used), of.unwrap_or_default());
        let hint =
            "`osctl sessions` shows the memory of each session; `limits.memory` sets the limit";
        add("memory", detail, is_full.then_some(hint));
    }
    if let Ok(client) = cx.companion_client()
        && let Ok(hub) = client.fetch_hub_status().await
    {
        add("clients", describe_clients(&hub.clients), None);
    }
    findings
}
