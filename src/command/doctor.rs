//! `osctl doctor`: checks the setup and suggests fixes.

mod configuration;
mod running_container;

use self::configuration::{find_unused_sections, read_config};
use self::running_container::check_running_container;
use super::CommandContext;
use super::answers::{CheckVerdict, DoctorAnswer, DoctorEntry};
use super::instance_status::isolation_warnings;
use crate::config::Config;
use crate::engine::{ContainerPhase, Docker, Engine};
use crate::error::{EXIT_NEGATIVE, Error, Result, VerbOutcome, hint_for_instance};
use crate::host::client::CompanionClient;
use crate::host::engine_diagnosis::explain_by_engine;
#[cfg(unix)]
use crate::host::folders::is_open_to_others;
use crate::host::instance::{DEFAULT_INSTANCE, Instance};
use crate::host::ports::{self, PortMachine};
use crate::host::project::{self, ProjectChoice};
use crate::host::{autorun, disk, escapes};
use crate::image::{Body, CompanionBinary};
use crate::protocol::quote::quote_word;
use crate::protocol::text_sanitizer;
use crate::protocol::words::count_noun;
use crate::ui::Tone;
use clap::Args;
use std::io::ErrorKind;
use std::path::Path;

/// Maximum number of findings of one kind that are listed individually.
const MAX_SHOWN_FINDINGS: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Install and start the engine if needed
    #[arg(long)]
    fix: bool,
}

#[derive(Debug)]
struct DoctorFinding {
    what: &'static str,
    verdict: FindingVerdict,
    detail: String,
    hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FindingVerdict {
    Fine,
    Warning,
    Broken,
}

/// What follows from a configuration that can't be read.
const UNREAD_CONFIG_CONSEQUENCE: &str = "; the other checks use the default settings; settings that weaken the isolation were not checked";

pub(crate) async fn run(args: DoctorArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let DoctorArgs { fix } = args;
    let mut findings = Vec::new();
    let read = read_config(cx);
    let mut unused_sections = Vec::new();
    let (read, problem) = match read {
        Ok((resolved, problem)) => {
            unused_sections = find_unused_sections(&resolved.sections, cx)?;
            (Ok(resolved.config), problem)
        }
        Err(error) => (Err(error), None),
    };
    let config = record_check(&mut findings, "configuration", read, |_| "readable".into());
    let is_config_read = config.is_some();
    let config = config.unwrap_or_default();
    if !is_config_read && let Some(finding) = findings.last_mut() {
        finding.detail += UNREAD_CONFIG_CONSEQUENCE;
    }
    findings.extend(problem.map(|error| DoctorFinding {
        what: "project file",
        verdict: FindingVerdict::Warning,
        detail: error.to_string(),
        hint: error.hint(),
    }));
    findings.extend(unused_sections);
    let record = cx.instance.read_record()?;
    let choice = record
        .as_ref()
        .map_or(config.engine, |record| record.engine);
    let work = cx.ui.start_work("looking for the container engine");
    let engine = cx.provided_engine(choice, &|_| Ok(fix), &work).await;
    drop(work);
    let engine = record_check(&mut findings, "engine", engine, describe_engine);
    findings.extend(state_room(cx));
    let socket = engine.as_ref().and_then(Engine::socket_path);
    // Outside the project, a named instance is checked with its own project.
    let recorded = record.as_ref().map(|record| record.project.as_path());
    let project = ProjectChoice {
        named: recorded,
        may_move: false,
    };
    let found = project::find_project(project, record.as_ref(), &cx.instance, &cx.folders, socket);
    let project = record_check(&mut findings, "project", found, |p| p.display().to_string());
    if let Some(project) = &project {
        let body = Body::from_project(project, &config.body);
        record_check(&mut findings, "body", body, |b| match &b.folder {
            Some(folder) => folder.display().to_string(),
            None => "included in this binary".into(),
        });
    }
    if let Some(Engine::Docker(docker)) = &engine {
        check_docker(&mut findings, docker, &config, cx).await;
    }
    if let Some(engine) = &engine {
        let found = engine.inspect(&cx.instance.container_name()).await;
        let phase = found.ok().flatten().map(|container| container.phase);
        if phase.is_none() {
            let wanted = record.as_ref().map_or(config.ports, |r| r.ports);
            // `up` takes the next free ports for a new instance that is not the first one.
            let takes_others = record.is_none() && cx.instance.name != DEFAULT_INSTANCE;
            let free = ports::choose_ports(
                wanted,
                None,
                PortMachine::from_engine(engine, config.bind),
                takes_others.then_some(&[][..]),
                engine,
            )
            .await;
            record_check(&mut findings, "ports", free, |p| {
                format!("{}, {}, {} are free", p.kernel, p.mcp, p.vnc)
            });
        } else if phase != Some(ContainerPhase::Paused) {
            let client = cx.require_record().and_then(|record| {
                CompanionClient::new(&cx.instance, &record, record.bind_address(config.bind))
            });
            let health = match client {
                Ok(client) => client.fetch_health().await,
                Err(error) => Err(error),
            };
            let health = match health {
                Err(error) => Err(explain_by_engine(error, &cx.instance, engine).await),
                other => other,
            };
            let health = record_check(&mut findings, "companion", health, |h| {
                format!("{:?}, version {}", h.status, h.version).to_lowercase()
            });
            // The hint of most errors names this command.
            if let (None, Some(finding)) = (health, findings.last_mut())
                && let Some(hint) = finding.hint.as_mut()
                && hint.contains("osctl doctor")
            {
                *hint = "`osctl logs` shows the companion's messages; run `osctl down` and `osctl up` to start the container with its stored state".into();
            }
        }
    }
    if let Some(engine) = &engine {
        findings.extend(check_running_container(cx, &config, engine).await);
    }
    if engine.is_some() && is_config_read {
        let criu = record.as_ref().map_or(config.criu, |r| r.criu);
        for detail in isolation_warnings(choice, &config, criu, &cx.instance) {
            findings.push(DoctorFinding {
                what: "safety",
                verdict: FindingVerdict::Warning,
                detail,
                hint: None,
            });
        }
    }
    // With an engine on another machine, the container has a copy of the project, which programs of this machine do not
    // run.
    if let Some(record) = record.as_ref().filter(|record| record.remote.is_none()) {
        check_what_agents_write(&mut findings, &cx.instance, &record.project);
    }
    for text in findings.iter_mut().filter_map(|f| f.hint.as_mut()) {
        *text = hint_for_instance(text, cx.instance.hint_name());
    }
    print_findings(cx, &findings)
}

fn describe_engine(engine: &Engine) -> String {
    match engine {
        Engine::Docker(docker) => format!("version {} at {}", docker.version(), docker.address()),
        Engine::Embedded(_) => "embedded".into(),
    }
}

async fn check_docker(
    findings: &mut Vec<DoctorFinding>,
    docker: &Docker,
    config: &Config,
    cx: &CommandContext,
) {
    let binary = CompanionBinary::load(config.companion.as_deref(), docker.architecture());
    record_check(findings, "binary", binary, |b| {
        format!(
            "static, {}",
            crate::ui::format_bytes(b.content.len() as u64)
        )
    });
    for detail in escapes::find_known_escapes(docker.components()) {
        findings.push(DoctorFinding {
            what: "engine",
            verdict: FindingVerdict::Warning,
            detail,
            hint: Some(escapes::ENGINE_ESCAPE_FIX.into()),
        });
    }
    let name = cx.instance.container_name();
    let own = match docker.inspect(&name).await {
        Ok(found) => cx.instance.check_owner(&name, found),
        Err(error) => Err(error),
    };
    let own = match own {
        Ok(Some(container)) if container.phase == ContainerPhase::Paused => {
            findings.push(DoctorFinding {
                what: "container",
                verdict: FindingVerdict::Broken,
                detail: "paused: no process in it runs".into(),
                hint: Some("`osctl up` unpauses the container, which keeps its memory".into()),
            });
            Ok(None)
        }
        other => other.map(Some),
    };
    if let Some(own) = own.transpose() {
        record_check(findings, "container", own, |c| {
            c.as_ref()
                .map_or("absent".into(), |c| format!("{:?}", c.phase).to_lowercase())
        });
    }
    let image = docker
        .find_image(&format!("{}:latest", cx.instance.image_name()))
        .await;
    let image = record_check(findings, "image", image, |i| {
        i.as_ref()
            .map_or("not built yet".into(), |i| crate::ui::format_bytes(i.size))
    });
    if let Ok(Some(root)) = docker.local_data_root().await {
        // An existing image runs without further disk space.
        let short = match image.flatten() {
            Some(_) => FindingVerdict::Warning,
            None => FindingVerdict::Broken,
        };
        let hint = "free disk space: `docker system df` shows the usage, `docker builder prune` removes the build cache";
        findings.extend(disk::free_disk_bytes(&root).map(|free| {
            let verdict = disk_verdict(free, disk::IMAGE_DISK_BYTES, short);
            disk_finding(
                "engine's disk",
                &root,
                (free, disk::IMAGE_DISK_BYTES),
                verdict,
                hint,
            )
        }));
    }
}

/// Checks for files from the agent that programs and other users of this machine would use.
fn check_what_agents_write(findings: &mut Vec<DoctorFinding>, instance: &Instance, project: &Path) {
    const READ_FIRST_HINT: &str = "read the file before git, an editor or a shell runs it; the next `osctl up` names it and then accepts it";
    let mut setuid = Vec::new();
    let mut add = |what, detail: String, hint: Option<String>| {
        findings.push(DoctorFinding {
            what,
            verdict: FindingVerdict::Warning,
            detail,
            hint,
        });
    };
    match autorun::find_autorun_changes(instance, project) {
        Ok((changes, scan)) => {
            // All changes are listed: in a shorter list the agent could choose which changes are hidden.
            for change in changes {
                let detail = format!("{change} in the project since the last `osctl up`");
                add("autorun", detail, Some(READ_FIRST_HINT.into()));
            }
            setuid.push((project.to_owned(), scan));
        }
        Err(error) => add("autorun", format!("{error:#}"), None),
    }
    let mounts = instance.writable_mounts().unwrap_or_else(|error| {
        let hint = error.downcast_ref().and_then(Error::hint);
        add("mounts", format!("{error:#}"), hint);
        Vec::new()
    });
    for folder in [instance.files_folder(), instance.data_folder()]
        .into_iter()
        .chain(mounts)
    {
        match autorun::scan_project(&folder) {
            Ok(scan) => setuid.push((folder, scan)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => add("setuid", format!("`{}`: {error}", folder.display()), None),
        }
    }
    for (folder, scan) in &setuid {
        let root = quote_word(folder.as_os_str().as_encoded_bytes(), true);
        // The agent chooses the names, so none of them appears in a command that the user copies.
        let hint = format!(
            "`{}`, then `sudo find {root} -xdev -type f -perm /6000 -exec chmod ug-s {{}} +`",
            instance.osctl_command("down")
        );
        for path in scan.setuid.iter().take(MAX_SHOWN_FINDINGS) {
            let path = text_sanitizer::sanitize_line(&folder.join(path).display().to_string());
            let detail = format!("`{path}` is setuid or setgid");
            add("setuid", detail, Some(hint.clone()));
        }
        if let Some(more) = scan.setuid.len().checked_sub(MAX_SHOWN_FINDINGS + 1) {
            add("setuid", format!("and {} more", more + 1), None);
        }
        if let Some(why) = &scan.incomplete {
            add("autorun", format!("`{}`: {why}", folder.display()), None);
        }
    }
    #[cfg(unix)]
    for folder in [instance.files_folder(), instance.data_folder()] {
        if is_open_to_others(&folder).unwrap_or_default() {
            let detail = format!("`{}` is accessible to other users", folder.display());
            add(
                "folders",
                detail,
                Some("`osctl up` restricts the permissions".into()),
            );
        }
    }
    if findings.iter().all(|f| f.what != "autorun") {
        findings.push(DoctorFinding {
            what: "autorun",
            verdict: FindingVerdict::Fine,
            detail: "no new files in the project that programs run automatically".into(),
            hint: None,
        });
    }
}

fn state_room(cx: &CommandContext) -> Option<DoctorFinding> {
    let folder = &cx.folders.state;
    let free = disk::free_disk_bytes(folder)?;
    // Tokens and records need little disk space, but some.
    let short = match free {
        0..0x10_0000 => FindingVerdict::Broken,
        _ => FindingVerdict::Warning,
    };
    let hint = "free disk space: `osctl ls` lists the instances, `osctl --instance NAME down --purge` deletes an instance with its image and state";
    let verdict = disk_verdict(free, disk::STATE_DISK_BYTES, short);
    Some(disk_finding(
        "state's disk",
        folder,
        (free, disk::STATE_DISK_BYTES),
        verdict,
        hint,
    ))
}

fn disk_verdict(free: u64, needed: u64, short: FindingVerdict) -> FindingVerdict {
    if free < needed {
        short
    } else {
        FindingVerdict::Fine
    }
}

fn disk_finding(
    what: &'static str,
    folder: &Path,
    (free, needed): (u64, u64),
    verdict: FindingVerdict,
    hint: &str,
) -> DoctorFinding {
    let mut detail = format!(
        "{} free at {}",
        crate::ui::format_bytes(free),
        folder.display()
    );
    if verdict != FindingVerdict::Fine {
        detail += &format!(", {} may be needed", crate::ui::format_bytes(needed));
    }
    DoctorFinding {
        what,
        verdict,
        detail,
        hint: (verdict != FindingVerdict::Fine).then(|| hint.into()),
    }
}

/// Records the outcome of a check and returns its value.
fn record_check<T>(
    findings: &mut Vec<DoctorFinding>,
    what: &'static str,
    found: Result<T>,
    say: impl Fn(&T) -> String,
) -> Option<T> {
    match found {
        Ok(value) => {
            findings.push(DoctorFinding {
                what,
                verdict: FindingVerdict::Fine,
                detail: say(&value),
                hint: None,
            });
            Some(value)
        }
        Err(error) => {
            let hint = error.downcast_ref::<Error>().and_then(Error::hint);
            findings.push(DoctorFinding {
                what,
                verdict: FindingVerdict::Broken,
                detail: format!("{error:#}"),
                hint,
            });
            None
        }
    }
}

impl From<&DoctorFinding> for DoctorEntry {
    fn from(finding: &DoctorFinding) -> Self {
        Self {
            name: finding.what.into(),
            verdict: match finding.verdict {
                FindingVerdict::Fine => CheckVerdict::Ok,
                FindingVerdict::Warning => CheckVerdict::Warning,
                FindingVerdict::Broken => CheckVerdict::Broken,
            },
            detail: finding.detail.clone(),
            hint: finding.hint.clone(),
        }
    }
}

fn print_findings(cx: &CommandContext, findings: &[DoctorFinding]) -> Result<VerbOutcome> {
    let broken = findings.iter().any(|f| f.verdict == FindingVerdict::Broken);
    let outcome = if broken {
        VerbOutcome::Code(EXIT_NEGATIVE)
    } else {
        VerbOutcome::Done
    };
    if cx.ui.json {
        let findings = findings.iter().map(DoctorEntry::from).collect();
        cx.ui.print_json(&DoctorAnswer { findings })?;
        return Ok(outcome);
    }
    for finding in findings {
        let (label, tone) = match finding.verdict {
            FindingVerdict::Fine => ("ok", Tone::Good),
            FindingVerdict::Warning => ("warning", Tone::Doubtful),
            FindingVerdict::Broken => ("broken", Tone::Bad),
        };
        let gap = " ".repeat(9 - label.len());
        let rest = format!("{gap}{:<15}{}", finding.what, finding.detail);
        cx.ui.print_toned_line("", tone, label, &rest);
        if let Some(hint) = &finding.hint {
            cx.ui.print_line(format!("{:<24}hint: {hint}", ""));
        }
    }
    cx.ui.print_message(summarize_findings(findings));
    Ok(outcome)
}

/// `1 broken, 2 warnings`, or that nothing is broken.
fn summarize_findings(findings: &[DoctorFinding]) -> String {
    let count = |verdict: FindingVerdict| {
        let of_verdict = findings.iter().filter(|finding| finding.verdict == verdict);
        of_verdict.count()
    };
    let warnings = match count(FindingVerdict::Warning) {
        0 => "no warnings".into(),
        warnings => count_noun(warnings, "warning"),
    };
    match count(FindingVerdict::Broken) {
        0 => format!("{warnings}, nothing broken"),
        broken => format!("{broken} broken, {warnings}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{DoctorFinding, FindingVerdict, summarize_findings};

    #[test]
    fn the_last_line_counts_what_is_broken_and_the_warnings() {
        let summarize = |verdicts: &[FindingVerdict]| {
            let findings = verdicts.iter().map(|verdict| DoctorFinding {
                what: "x",
                verdict: *verdict,
                detail: String::new(),
                hint: None,
            });
            summarize_findings(&findings.collect::<Vec<_>>())
        };
        let (fine, warning, broken) = (
            FindingVerdict::Fine,
            FindingVerdict::Warning,
            FindingVerdict::Broken,
        );
        assert_eq!(summarize(&[fine]), "no warnings, nothing broken");
        let warnings = summarize(&[warning, fine, warning, warning]);
        assert_eq!(warnings, "3 warnings, nothing broken");
        assert_eq!(summarize(&[broken, warning]), "1 broken, 1 warning");
    }
}
