//! The check whether processes can be checkpointed here, and why not.

use super::criu_cli::CriuTool;
use super::error_text::CriuFailure;
use super::pid_reservation;
use super::store::CriuStore;
use crate::protocol::criu::CriuCheck;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PassCred;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

/// Capability numbers of Linux.
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;

/// How a container gets the rights for checkpoints.
const CRIU_RIGHTS_HINT: &str = "run `osctl up --criu`";

/// The check on which most others depend: the other checks have the same fix.
const CRIU_ENABLED_CHECK: &str = "enabled";

/// Detail of the check when the trial is skipped.
const CRIU_TRIAL_SKIPPED: &str = "not tried: a checkpoint or restore runs right now";

/// The results of the checks.
#[derive(Debug)]
pub(super) struct CriuFindings {
    pub(super) checks: Vec<CriuCheck>,
    pub(super) warnings: Vec<String>,
}

impl CriuFindings {
    pub(super) fn is_available(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.passed || !check.needed)
    }

    /// The result as one sentence.
    pub(super) fn message(&self) -> String {
        let missing = self.checks.iter().filter(|c| !c.passed && c.needed);
        let mut missing: Vec<&CriuCheck> = missing.collect();
        if missing.iter().any(|check| check.name == CRIU_ENABLED_CHECK) {
            missing.retain(|check| check.name == CRIU_ENABLED_CHECK);
        }
        let missing: Vec<&str> = missing.iter().map(|check| check.detail.as_str()).collect();
        match missing.is_empty() {
            true => "kernels can be checkpointed and restored here".into(),
            false => format!("kernels can't be checkpointed here: {}", missing.join("; ")),
        }
    }
}

/// The process IDs that this companion generation uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PidReservation {
    Reserved(i32),
    /// The IDs were not reserved, because the instance was started without `--criu` or because the attempt failed.
    Failed(String),
}

/// Makes this companion's process IDs start in a region that contains no ID of a stored checkpoint.
pub(super) fn reserve_pids(store: &CriuStore) -> PidReservation {
    let taken = store
        .list_all()
        .into_iter()
        .flat_map(|found| found.manifest.ids);
    let taken = taken.collect();
    let placed = pid_reservation::read_pid_max().and_then(|highest| {
        let begin = pid_reservation::choose_pid_region(highest, &taken);
        pid_reservation::set_next_pid(begin).map(|()| begin)
    });
    match placed {
        Ok(begin) => PidReservation::Reserved(begin),
        Err(error) => PidReservation::Failed(error.to_string()),
    }
}

/// Checks every prerequisite; the last check is a trial, which runs only if criu is available.
pub(super) async fn probe_criu(
    is_wanted: bool,
    placed: &PidReservation,
    tool: Option<&CriuTool>,
) -> CriuFindings {
    let version = CriuTool::read_version().await;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut checks = vec![
        check_enabled(is_wanted),
        check_program(version),
        check_capabilities(&status),
        check_seccomp(&status),
    ];
    // Without `--criu`, no IDs are reserved.
    checks.extend(is_wanted.then(|| check_pid_reservation(placed)));
    let mut findings = CriuFindings {
        checks: Vec::new(),
        warnings: list_warnings(),
    };
    let may_try = checks.iter().all(|check| check.passed || !check.needed);
    if may_try {
        checks.push(match tool {
            Some(tool) => check_trial(tool).await,
            None => build_check("trial", true, Ok(CRIU_TRIAL_SKIPPED.into())),
        });
    }
    findings.checks = checks;
    findings
}

fn build_check(what: &str, needed: bool, result: Result<String, String>) -> CriuCheck {
    CriuCheck {
        name: what.into(),
        passed: result.is_ok(),
        detail: result.unwrap_or_else(|why| why),
        needed,
    }
}

fn check_enabled(is_wanted: bool) -> CriuCheck {
    let result = match is_wanted {
        true => Ok("the instance was started with `--criu`".into()),
        false => Err(format!(
            "the instance was started without `--criu`: {CRIU_RIGHTS_HINT}"
        )),
    };
    build_check(CRIU_ENABLED_CHECK, true, result)
}

fn check_program(version: Result<String, String>) -> CriuCheck {
    let result = version.map(|version| format!("criu {version} is installed"));
    let result = result.map_err(|why| {
        format!("{why}: add the package `criu` to `body/Dockerfile`, then run `osctl evolve`")
    });
    build_check("program", true, result)
}

fn check_capabilities(status: &str) -> CriuCheck {
    let capabilities =
        find_status_field(status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    let capabilities = capabilities.unwrap_or(0);
    let wanted = [("SYS_PTRACE", CAP_SYS_PTRACE), ("SYS_ADMIN", CAP_SYS_ADMIN)];
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(_, number)| capabilities & (1 << number) == 0)
        .map(|(name, _)| *name)
        .collect();
    let result = match missing.is_empty() {
        true => Ok("the container has SYS_PTRACE and SYS_ADMIN".into()),
        false => Err(format!(
            "the container does not have {}: {CRIU_RIGHTS_HINT}",
            missing.join(" and ")
        )),
    };
    build_check("capabilities", true, result)
}

fn check_seccomp(status: &str) -> CriuCheck {
    let result = match find_status_field(status, "Seccomp:") {
        Some("0") | None => Ok("no profile filters system calls".into()),
        Some(_) => Err(format!(
            "a seccomp profile filters the system calls of checkpoints: {CRIU_RIGHTS_HINT}"
        )),
    };
    build_check("seccomp", true, result)
}

fn check_pid_reservation(placed: &PidReservation) -> CriuCheck {
    let result = match placed {
        PidReservation::Reserved(begin) => Ok(format!(
            "new processes have IDs from {begin} on, which no checkpoint needs"
        )),
        PidReservation::Failed(why) => Err(format!(
            "no process IDs are reserved ({why}), so that a restore fails while another process uses an ID of the checkpoint; `osctl restart` tries again"
        )),
    };
    build_check("ids", false, result)
}

/// Lists what can't be checkpointed on this Linux.
fn list_warnings() -> Vec<String> {
    let network = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    );
    let is_refused = network.is_ok_and(|network| {
        getsockopt(&network, PassCred).is_err_and(|error| error == Errno::EOPNOTSUPP)
    });
    let problem = "this version of Linux can't checkpoint a kernel with a network socket, even if the socket only listens; close the sockets first";
    is_refused.then(|| problem.to_owned()).into_iter().collect()
}

/// Checkpoints and restores a sleeping process.
async fn check_trial(tool: &CriuTool) -> CriuCheck {
    let result = run_trial(tool).await;
    let result = result.map(|()| "a process was checkpointed and restored".to_owned());
    let result = result.map_err(|why| format!("the trial failed: {why}"));
    build_check("trial", true, result)
}

async fn run_trial(tool: &CriuTool) -> Result<(), String> {
    let images = tool.work_folder.join("trial");
    // Remove the images of an earlier trial.
    let _ = fs::remove_dir_all(&images);
    fs::create_dir_all(&images).map_err(|error| error.to_string())?;
    let tried = checkpoint_and_restore(tool, &images).await;
    let _ = fs::remove_dir_all(&images);
    tried
}

async fn checkpoint_and_restore(tool: &CriuTool, images: &Path) -> Result<(), String> {
    let mut sleeper = Command::new("/usr/bin/sleep")
        .arg("infinity")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| error.to_string())?;
    let pid = sleeper.id().ok_or("the trial process ended immediately")?;
    let dumped = tool.dump(pid.cast_signed(), images).await;
    sleeper.kill().await.map_err(|error| error.to_string())?;
    dumped.map_err(describe_failure)?;
    // Dropping the restored process ends it.
    tool.restore(images)
        .await
        .map(drop)
        .map_err(describe_failure)
}

/// Why criu failed, and the fix if there is one.
fn describe_failure(failure: CriuFailure) -> String {
    let hint = failure.hint.map(|hint| format!(": {hint}"));
    failure.why + &hint.unwrap_or_default()
}

fn find_status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::{CriuFindings, check_capabilities, check_enabled, check_program, check_seccomp};

    #[test]
    fn missing_prerequisites_are_named_with_their_fix() {
        let status = "Name:\tosctl\nCapEff:\t00000000802c04fb\nSeccomp:\t0\n";
        assert!(check_capabilities(status).passed && check_seccomp(status).passed);
        let status = "CapEff:\t00000000800404fb\nSeccomp:\t2\n";
        let findings = CriuFindings {
            checks: vec![
                check_enabled(true),
                check_program(Err("`criu` is not installed in the image".into())),
                check_capabilities(status),
                check_seccomp(status),
            ],
            warnings: Vec::new(),
        };
        assert!(!findings.is_available());
        let message = findings.message();
        for part in [
            "not installed",
            "body/Dockerfile",
            "SYS_PTRACE and SYS_ADMIN",
            "seccomp",
            "up --criu",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn an_instance_without_criu_names_one_fix() {
        let findings = CriuFindings {
            checks: vec![
                check_enabled(false),
                check_capabilities("CapEff:\t00000000800404fb\n"),
            ],
            warnings: Vec::new(),
        };
        assert_eq!(
            findings.message(),
            "kernels can't be checkpointed here: the instance was started without `--criu`: run `osctl up --criu`"
        );
    }
}
