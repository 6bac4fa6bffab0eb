//! The self-test of a body: runs in a container with throw-away data before the body replaces the current one. The test
//! needs no network, and does not write to shared data.

use super::health_checks::{EVOLVE_KERNEL_TIMEOUT, run_check};
use super::{EvolveHandle, EvolveParts};
use crate::companion::cryo;
use crate::companion::kernel::{KernelAnswer, KernelQuery, stored_sessions};
use crate::protocol::cryo::{CryoStore, CryoVerdict, ReceiptRow, ReloadRequest};
use crate::protocol::evolve::container_reports::{EvolveCheck, SelfTestReply};
use crate::protocol::kernel::{ExecReply, Execute, RunStatus};
use crate::protocol::shell::ShellRequest;
use crate::protocol::words::count_noun;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The session of the test.
const SELFTEST_SESSION: &str = "selftest";

const SELFTEST_STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the reload of one session's state may take.
const SELFTEST_RELOAD_TIMEOUT: Duration = Duration::from_secs(300);

/// How many generations of one session are tried if each disappears during its trial.
const MAX_SELFTEST_GENERATIONS: usize = 3;

/// A sample of every kind of value that is stored in its own way.
const SELFTEST_SAMPLE_CODE: &str = "
import dataclasses
@dataclasses.dataclass
class Point:
    x: int
base = 40
point = Point(1)
def answer(more):
    return base + more
";

impl EvolveHandle {
    /// Runs all checks. `state` has the structure of the data folder, and is only read. `same_image`: whether the
    /// current container has this image.
    pub(crate) async fn selftest(&self, state: Option<PathBuf>, same_image: bool) -> SelfTestReply {
        let evolve = self.clone();
        // The task runs to its end even if the caller disconnects, so that it cleans up.
        let checks = async move {
            evolve
                .run_selftest_checks(state.as_deref(), same_image)
                .await
        };
        let done = tokio::spawn(checks);
        let checks = done.await.unwrap_or_else(|error| {
            vec![EvolveCheck {
                name: "selftest".into(),
                passed: false,
                detail: error.to_string(),
                timing_ms: 0.0,
            }]
        });
        SelfTestReply {
            passed: checks.iter().all(|check| check.passed),
            checks,
        }
    }

    async fn run_selftest_checks(
        &self,
        state: Option<&Path>,
        same_image: bool,
    ) -> Vec<EvolveCheck> {
        let parts = &self.parts;
        let browsed = parts.desktop.is_browser_active();
        let kernel = parts.check_kernel().await;
        // No other check can pass without a kernel.
        if !kernel.passed {
            return vec![kernel];
        }
        if let Some(state) = state {
            self.copy_server_configs(state);
        }
        let (services, refused) = match parts.desktop.service_names() {
            Ok(names) => (names, None),
            Err((why, is_fine)) => {
                let found = if is_fine { Ok(why) } else { Err(why) };
                let absent = run_check("services", SELFTEST_STEP_TIMEOUT, async { found }).await;
                (Vec::new(), Some(absent))
            }
        };
        let servers = self.select_servers(state);
        let (tried, services, servers, ports) = tokio::join!(
            parts.selftest_kernel(state),
            parts.check_services(&services),
            parts.check_servers(&servers, same_image),
            self.check_ports(),
        );
        let scripts = self.settings.body_folder.join("selftest.d");
        let scripts = parts.check_scripts(&scripts, SELFTEST_SESSION).await;
        // The session may already be gone.
        let _ = parts.sessions.delete_session(SELFTEST_SESSION).await;
        if !browsed && let Err(why) = parts.desktop.close_browser() {
            tracing::debug!(?why, "the companion can't close the browser");
        }
        std::iter::once(kernel)
            .chain(refused)
            .chain(services)
            .chain(ports)
            .chain(tried)
            .chain(servers)
            .chain(scripts)
            .collect()
    }

    /// Copies the configuration of MCP servers that users have added, which is part of the state.
    fn copy_server_configs(&self, state: &Path) {
        for file in ["mcp.json", "mcp/servers.json"] {
            let (from, to) = (state.join(file), self.settings.data_folder.join(file));
            if !from.is_file() || to.exists() {
                continue;
            }
            let folder = to.parent().map(fs::create_dir_all);
            if let Err(error) = folder.transpose().and_then(|_| fs::copy(&from, &to)) {
                tracing::warn!(
                    path = %to.display(),
                    %error,
                    "the companion can't copy the configuration of MCP servers"
                );
            }
        }
        self.parts.hub.reload_config();
    }

    /// Selects the servers that must answer: the servers of the body, and other servers if they have answered before
    /// and need nothing that a trial lacks.
    fn select_servers(&self, state: Option<&Path>) -> Vec<String> {
        let body = fs::read(self.settings.body_folder.join("mcp.json")).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let hub = &self.parts.hub;
        let mut servers = hub.local_servers();
        servers.retain(|name| {
            let is_bodys = body["mcpServers"].get(name).is_some();
            is_bodys
                || state.is_none_or(|state| {
                    is_required_server(name, &hub.server_command_line(name), state)
                })
        });
        servers
    }
}

/// Whether a server that users have added must answer in a trial.
fn is_required_server(name: &str, command: &[String], state: &Path) -> bool {
    let has_answered = state.join(format!("mcp/cache/{name}.json")).exists();
    let is_ours = |argument: &String| argument.contains("/data") || argument.contains("/root");
    let program = command.first().map_or("", String::as_str);
    let overlays = fs::read_dir(state.join("packages")).into_iter().flatten();
    let mut overlays = overlays.flatten().map(|overlay| overlay.path());
    // A program without a path may have been installed at run time.
    let is_installed = overlays.any(|overlay| overlay.join("bin").join(program).exists());
    has_answered && !command.is_empty() && !is_installed && !command.iter().any(is_ours)
}

impl EvolveParts {
    /// Checks code, commands, and a round trip of variables through cryo.
    async fn selftest_kernel(&self, state: Option<&Path>) -> Vec<EvolveCheck> {
        // Remove the session of an earlier test.
        let _ = self.sessions.delete_session(SELFTEST_SESSION).await;
        let mut checks = vec![
            run_check("exec", SELFTEST_STEP_TIMEOUT, self.selftest_code()).await,
            run_check("shell", SELFTEST_STEP_TIMEOUT, self.selftest_command()).await,
            run_check("cryo", SELFTEST_STEP_TIMEOUT, self.selftest_cryo()).await,
        ];
        let Some(state) = state else { return checks };
        for session in stored_sessions(&state.join("kernels")) {
            if find_newest_snapshot(state, &session).is_none() {
                continue;
            }
            let reload = self.selftest_newest_snapshot(state, &session);
            checks
                .push(run_check(format!("cryo:{session}"), SELFTEST_RELOAD_TIMEOUT, reload).await);
            // Free the memory of the session before the next one is loaded.
            let _ = self.sessions.delete_session(SELFTEST_SESSION).await;
        }
        checks
    }

    /// Tries one generation from its start to its end. If the generation was replaced and removed during the trial, a
    /// failure says nothing about the body. Then the newer generation is tried instead.
    async fn selftest_newest_snapshot(
        &self,
        state: &Path,
        session: &str,
    ) -> Result<String, String> {
        let mut tried = Err("the stored states were removed during the test".into());
        for _ in 0..MAX_SELFTEST_GENERATIONS {
            let Some(folder) = find_newest_snapshot(state, session) else {
                break;
            };
            tried = self.selftest_snapshot(state, folder.clone()).await;
            if tried.is_ok() || folder.is_dir() {
                break;
            }
            let _ = self.sessions.delete_session(SELFTEST_SESSION).await;
        }
        tried
    }

    async fn selftest_code(&self) -> Result<String, String> {
        let reply = self.run_code("print('out'); 6 * 7").await?;
        match (reply.stdout.as_str(), reply.result.as_deref()) {
            ("out\n", Some("42")) => Ok("the kernel executes code".into()),
            (out, result) => Err(format!("`6 * 7` returned {result:?} and printed `{out}`")),
        }
    }

    async fn selftest_command(&self) -> Result<String, String> {
        let command = ShellRequest {
            session: SELFTEST_SESSION.into(),
            ..ShellRequest::new("cd / && echo $((6 * 7))")
        };
        let started = self.shells.execute(command).await;
        let run = started.map_err(|refusal| format!("{refusal:?}"))?;
        run.wait_finished().await;
        let reply = run.build_reply(self.shells.command_report(SELFTEST_SESSION));
        match (reply.returncode, reply.stdout.as_str(), reply.cwd.as_str()) {
            (Some(0), "42\n", "/") => Ok("the shell runs commands".into()),
            _ => Err(format!(
                "`echo` ended with {:?}: {}",
                reply.returncode, reply.stderr
            )),
        }
    }

    async fn selftest_cryo(&self) -> Result<String, String> {
        let describe = |refusal: cryo::CryoRefusal| format!("{refusal:?}");
        self.run_code(SELFTEST_SAMPLE_CODE).await?;
        let request = CryoStore {
            name: None,
            session: SELFTEST_SESSION.into(),
            strict: true,
            dry_run: false,
            files: false,
            seen: None,
        };
        let reason = crate::protocol::cryo::StoreReason::Requested;
        self.cryo.store(request, reason).await.map_err(describe)?;
        let reset = self
            .sessions
            .query(SELFTEST_SESSION, KernelQuery::Reset)
            .await;
        reset.map_err(|refusal| format!("{refusal:?}"))?;
        let request = ReloadRequest {
            name: None,
            generation: None,
            session: SELFTEST_SESSION.into(),
        };
        self.cryo.reload(request).await.map_err(describe)?;
        let reply = self.run_code("base = 41; answer(point.x)").await?;
        // The generations of the trial must not appear in a list.
        let removed = self
            .cryo
            .remove_generations(SELFTEST_SESSION.into(), None)
            .await;
        removed.map_err(describe)?;
        match reply.result.as_deref() {
            Some("42") => Ok("stored variables are restored".into()),
            other => Err(format!("`answer(1)` returned {other:?} after a reload")),
        }
    }

    /// Reloads the objects of a session of the state from their folder.
    async fn selftest_snapshot(&self, state: &Path, folder: PathBuf) -> Result<String, String> {
        // The variables may need packages that were installed at run time.
        let packages = format!(
            "import glob, os, site, sys
_folder = os.path.relpath(os.environ.get('OSCTL_PACKAGES', '/data/packages'), '/data')
for _found in glob.glob(os.path.join({state:?}, _folder, 'lib', 'python*', 'site-packages')):
    _before = list(sys.path)
    site.addsitedir(_found)
    sys.path[:] = [p for p in sys.path if p not in _before] + _before
"
        );
        self.run_code(&packages).await?;
        let manifest = fs::read(folder.join("manifest.json")).map_err(|error| error.to_string())?;
        let stored: SelftestManifest =
            serde_json::from_slice(&manifest).map_err(|e| e.to_string())?;
        let kernel = self.sessions.find_kernel(SELFTEST_SESSION);
        let kernel = kernel.map_err(|refusal| format!("{refusal:?}"))?;
        let answer = kernel.query(KernelQuery::CryoReload { folder }).await;
        let KernelAnswer { value, .. } = answer.map_err(|refusal| format!("{refusal:?}"))?;
        let value = value.map_err(|raised| format!("{}: {}", raised.kind, raised.message))?;
        let read: SelftestReceipt =
            serde_json::from_value(value).map_err(|error| error.to_string())?;
        let lost = describe_lost_variables(&stored.variables, &read.receipt);
        if !lost.is_empty() {
            return Err(format!("variables are lost: {}", lost.join(", ")));
        }
        // Check that the objects could be stored again.
        let request = CryoStore {
            name: None,
            session: SELFTEST_SESSION.into(),
            strict: false,
            dry_run: true,
            files: false,
            seen: None,
        };
        let again = self
            .cryo
            .store(request, crate::protocol::cryo::StoreReason::Requested);
        again.await.map_err(|refusal| format!("{refusal:?}"))?;
        Ok(format!(
            "{} restored",
            count_noun(read.receipt.len(), "variable")
        ))
    }

    /// Runs code, which must end without an error.
    async fn run_code(&self, code: &str) -> Result<ExecReply, String> {
        let describe = |refusal| format!("{refusal:?}");
        let (_, kernel) = self
            .sessions
            .create_session(Some(SELFTEST_SESSION.into()))
            .await
            .map_err(describe)?;
        let ready = tokio::time::timeout(EVOLVE_KERNEL_TIMEOUT, kernel.wait_ready()).await;
        ready.map_err(|_| kernel.view().detail)?;
        let execute = Execute {
            session: SELFTEST_SESSION.into(),
            queue: true,
            ..Execute::new(code)
        };
        let run = self.sessions.execute(execute).await.map_err(describe)?;
        run.wait_finished().await;
        let reply = run.build_reply(self.sessions.kernel_report(&run));
        match (reply.status, &reply.error) {
            (RunStatus::Completed, _) => Ok(reply),
            (_, Some(raised)) => Err(format!("{}: {}", raised.kind, raised.message)),
            (status, None) => Err(format!("the run ended as {status:?}")),
        }
    }
}

/// The folder of the newest generation of a session.
fn find_newest_snapshot(state: &Path, session: &str) -> Option<PathBuf> {
    let all = cryo::reloadable_generations(&state.join("cryo"), session);
    all.into_iter().next()
}

#[derive(Debug, serde::Deserialize)]
struct SelftestManifest {
    variables: Vec<ReceiptRow>,
}

#[derive(Debug, serde::Deserialize)]
struct SelftestReceipt {
    receipt: Vec<ReceiptRow>,
}

/// Describes the variables that were stored as values and not reloaded, with the reasons. Variables that are recreated
/// are excluded, because they may need what a trial lacks.
pub(super) fn describe_lost_variables(stored: &[ReceiptRow], found: &[ReceiptRow]) -> Vec<String> {
    let saved = stored
        .iter()
        .filter(|row| row.verdict == CryoVerdict::Saved);
    let missing = saved.filter_map(|row| {
        let restored = found.iter().find(|restored| restored.name == row.name);
        match restored {
            Some(restored) if restored.verdict != CryoVerdict::Lost => None,
            Some(restored) => {
                let why = restored
                    .why
                    .as_deref()
                    .unwrap_or("the variable can't be read");
                Some(format!("`{}`: {why}", row.name))
            }
            None => Some(format!("`{}`", row.name)),
        }
    });
    missing.collect()
}

#[cfg(test)]
mod tests {
    use super::{describe_lost_variables, is_required_server};
    use crate::protocol::cryo::{CryoVerdict, ReceiptRow};

    fn row(name: &str, verdict: CryoVerdict) -> ReceiptRow {
        ReceiptRow {
            name: name.into(),
            verdict,
            kind: "int".into(),
            bytes: 1,
            why: Some("so".into()),
        }
    }

    #[test]
    fn only_saved_variables_must_be_restored() {
        let stored = [
            row("a", CryoVerdict::Saved),
            row("b", CryoVerdict::Saved),
            row("c", CryoVerdict::Recipe),
            row("d", CryoVerdict::Lost),
            row("e", CryoVerdict::Saved),
        ];
        let found = [
            row("a", CryoVerdict::Saved),
            row("b", CryoVerdict::Lost),
            row("c", CryoVerdict::Lost),
        ];
        assert_eq!(describe_lost_variables(&stored, &found), ["`b`: so", "`e`"]);
    }

    #[test]
    fn blocked_server_is_optional() {
        let state = tempfile::tempdir().unwrap();
        let touch = |path: &str| {
            let path = state.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        touch("mcp/cache/known.json");
        touch("packages/3.13/bin/installed");
        let is_required = |name: &str, command: &[&str]| {
            let command: Vec<String> = command.iter().map(|argument| (*argument).into()).collect();
            is_required_server(name, &command, state.path())
        };
        assert!(is_required("known", &["/usr/bin/server", "--fast"]));
        assert!(is_required("known", &["server"]));
        assert!(!is_required("unknown", &["/usr/bin/server"]));
        assert!(!is_required("known", &["installed"]));
        assert!(!is_required("known", &["python", "/root/host/server.py"]));
    }
}
