//! `osctl ls`: lists the instances that have been up.

use super::CommandContext;
use super::answers::{InstanceEntry, InstanceEntryState, InstancesAnswer};
use crate::config::{Config, EngineChoice, PortsConfig};
use crate::engine::ContainerPhase;
use crate::error::{Result, VerbOutcome};
use crate::host::instance::{Instance, InstanceRecord};
use clap::Args;
use std::net::{IpAddr, SocketAddr};

#[derive(Debug, Args)]
pub(crate) struct LsArgs {}

impl InstanceEntry {
    /// Without a record, only the name is known.
    fn new(
        instance: String,
        state: InstanceEntryState,
        record: Option<InstanceRecord>,
        bind: IpAddr,
    ) -> Self {
        let record = record.as_ref();
        let address = |choose: fn(PortsConfig) -> u16| {
            record.map(|record| SocketAddr::new(bind, choose(record.ports)).to_string())
        };
        let to_url = |address| format!("http://{address}");
        Self {
            instance,
            current: false,
            state,
            engine: record.map(|r| r.engine),
            machine: record
                .and_then(InstanceRecord::engine_machine)
                .map(str::to_owned),
            kernel_url: address(|ports| ports.kernel).map(to_url),
            mcp_url: address(|ports| ports.mcp).map(to_url),
            vnc_address: address(|ports| ports.vnc),
            project: record.map(|r| r.project.display().to_string()),
        }
    }

    fn into_columns(self) -> Vec<String> {
        let engine = self.engine.map(|engine| match (engine, self.machine) {
            (EngineChoice::Docker, None) => "docker".into(),
            (EngineChoice::Docker, Some(machine)) => format!("docker at {machine}"),
            (EngineChoice::Embedded, _) => "embedded".into(),
        });
        let port = |address: Option<String>| {
            let (_, port) = address.as_deref()?.rsplit_once(':')?;
            Some(port.to_owned())
        };
        let (mcp, vnc) = (port(self.mcp_url), port(self.vnc_address));
        let known = [engine, self.kernel_url, mcp, vnc, self.project];
        let known = known.map(|text| text.unwrap_or_else(|| "-".into()));
        let state = match self.state {
            InstanceEntryState::Running => "running",
            InstanceEntryState::Restarting => "restarting",
            InstanceEntryState::Paused => "paused",
            InstanceEntryState::Stopped => "stopped",
            InstanceEntryState::Absent => "absent",
            InstanceEntryState::Unreadable => "unreadable",
            InstanceEntryState::Unknown => "unknown: its engine does not answer",
        };
        let instance = match self.current {
            true => format!("{} *", self.instance),
            false => self.instance,
        };
        [instance, state.into()].into_iter().chain(known).collect()
    }
}

pub(crate) async fn run(args: LsArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let LsArgs {} = args;
    let mut rows = Vec::new();
    // An invalid configuration is reported, but hides no instance.
    let bind = match cx.lenient_config(None, Vec::new()) {
        Ok(resolved) => resolved.config.bind,
        Err(error) => {
            cx.ui.print_warning(format!("{error:#}"));
            Config::default().bind
        }
    };
    for instance in Instance::list_all(&cx.folders)? {
        let record = match instance.read_record() {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            Err(error) => {
                cx.ui.print_warning(format!("{error:#}"));
                rows.push(InstanceEntry::new(
                    instance.name,
                    InstanceEntryState::Unreadable,
                    None,
                    bind,
                ));
                continue;
            }
        };
        let found = match cx.engine_of(&record, record.engine).await {
            Ok(engine) => engine.inspect(&instance.container_name()).await,
            Err(error) => Err(error),
        };
        let state = match found.map(|container| container.map(|c| c.phase)) {
            Ok(None) => InstanceEntryState::Absent,
            Ok(Some(ContainerPhase::Running)) => InstanceEntryState::Running,
            Ok(Some(ContainerPhase::Restarting)) => InstanceEntryState::Restarting,
            Ok(Some(ContainerPhase::Paused)) => InstanceEntryState::Paused,
            Ok(Some(ContainerPhase::Created | ContainerPhase::Stopped | ContainerPhase::Dead)) => {
                InstanceEntryState::Stopped
            }
            Err(_) => InstanceEntryState::Unknown,
        };
        let bind = record.bind_address(bind);
        rows.push(InstanceEntry::new(instance.name, state, Some(record), bind));
    }
    for row in &mut rows {
        row.current = row.instance == cx.instance.name;
    }
    if cx.ui.json {
        cx.ui.print_json(&InstancesAnswer { instances: rows })?;
        return Ok(VerbOutcome::Done);
    }
    let header = [
        "INSTANCE", "STATE", "ENGINE", "KERNEL", "MCP", "VNC", "PROJECT",
    ]
    .map(str::to_owned)
    .to_vec();
    let lines = rows.into_iter().map(InstanceEntry::into_columns);
    let rows: Vec<_> = std::iter::once(header).chain(lines).collect();
    let up = cx.instance.osctl_command("up");
    let empty = format!("no instances; `{up}` creates an instance");
    cx.ui.print_list(&rows, &empty);
    Ok(VerbOutcome::Done)
}

#[cfg(test)]
mod tests {
    use super::{InstanceEntry, InstanceEntryState, run};
    use crate::command::CommandContext;
    use crate::config::{Config, EngineChoice};
    use crate::error::VerbOutcome;
    use crate::host::applied_settings::AppliedSettings;
    use crate::host::folders::Folders;
    use crate::host::instance::{Instance, InstanceRecord};
    use crate::ui::Ui;
    use std::net::Ipv6Addr;

    #[test]
    fn a_row_has_the_address_that_is_bound_or_nothing() {
        let record = InstanceRecord {
            project: "/p".into(),
            engine: EngineChoice::Docker,
            ports: Config::default().ports,
            criu: false,
            remote: None,
            applied: AppliedSettings::default(),
        };
        let bind = Ipv6Addr::LOCALHOST.into();
        let row = InstanceEntry::new("a".into(), InstanceEntryState::Running, Some(record), bind);
        assert_eq!(
            row.into_columns(),
            [
                "a",
                "running",
                "docker",
                "http://[::1]:8080",
                "8765",
                "5900",
                "/p"
            ]
        );
        let row = InstanceEntry::new("b".into(), InstanceEntryState::Unreadable, None, bind);
        assert_eq!(
            row.into_columns(),
            ["b", "unreadable", "-", "-", "-", "-", "-"]
        );
    }

    #[tokio::test]
    async fn a_record_that_can_not_be_read_does_not_end_the_list() {
        let home = tempfile::tempdir().unwrap();
        let folders = Folders::beneath(home.path());
        for name in ["broken", "Not An Instance"] {
            let folder = folders.state.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("instance.json"), "{").unwrap();
        }
        let ui = Ui::new(true, true, 0, None);
        let instance = Instance::new("default", &folders).unwrap();
        let cx = CommandContext::new(ui, folders, instance, None).unwrap();
        let names: Vec<_> = Instance::list_all(&cx.folders).unwrap();
        assert_eq!(names.len(), 1);
        let listed = run(super::LsArgs {}, &cx).await.unwrap();
        assert_eq!(listed, VerbOutcome::Done);
    }
}
