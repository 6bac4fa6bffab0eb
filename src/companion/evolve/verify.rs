//! The verification of a new container against the old one: the services and servers that were healthy are healthy, and
//! the stored variables are restored. The check reads the namespace, not the receipt of the store. Services and servers
//! that the new body does not declare are not required.

use super::health_checks::{EVOLVE_KERNEL_TIMEOUT, run_check};
use super::selftest::describe_lost_variables;
use super::{EvolveHandle, EvolveParts};
use crate::companion::kernel::{KernelAnswer, KernelQuery, KernelRefusal};
use crate::protocol::cryo::{CryoVerdict, ReceiptRow};
use crate::protocol::evolve::container_reports::{
    EvolveCheck, ExpectedSession, ExpectedState, RestoreMethod, SessionReceipt, VerifyReply,
};
use crate::protocol::session::Variable;
use crate::protocol::words::count_noun;
use futures_util::future::join_all;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use std::{fs, io};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Time between two requests to a kernel that is executing code.
const VERIFY_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Above this number, variables are not checked one by one.
const MAX_VERIFIED_VARIABLES: usize = 20_000;

/// How long a kernel may take to list its variables.
const VERIFY_QUERY_TIMEOUT: Duration = Duration::from_secs(20);

impl EvolveHandle {
    /// Waits for everything that is expected, and reports the state.
    #[tracing::instrument(name = "verify", skip_all)]
    pub(crate) async fn verify(&self, expected: &ExpectedState) -> VerifyReply {
        let parts = &self.parts;
        // Wait until the process checkpoints are restored.
        drop(self.quiesced.lock().await);
        let services = expected.healthy_before.iter();
        let services: Vec<String> = services.filter(|name| *name != "kernel").cloned().collect();
        let (services, no_services) = self.declared_services(services);
        let (servers, no_servers) = self.declared_servers(&expected.servers);
        let missing = no_services
            .into_iter()
            .chain(no_servers)
            .map(undeclared_check);
        let missing = join_all(missing).await;
        let (sessions, services, servers, ports) = tokio::join!(
            parts.check_sessions(&expected.sessions),
            parts.check_services(&services),
            parts.check_servers(&servers, expected.same_image),
            self.check_ports(),
        );
        let mut checks = missing;
        let mut receipt = Vec::new();
        for (check, mut session_receipt) in sessions {
            if session_receipt.restored_by == RestoreMethod::Objects {
                session_receipt.restored_by = self.kept_by(&session_receipt.session);
            }
            checks.push(check);
            receipt.push(session_receipt);
        }
        checks.extend(ports.into_iter().chain(services).chain(servers));
        let passed = checks.iter().all(|check| check.passed);
        if passed {
            let retained_runs = parts.retained_runs.clone();
            let is_synced = parts.run_store.wait_synced().await;
            drop(spawn_blocking(move || {
                retained_runs.clear_waiting(is_synced)
            }));
        }
        self.record_runs();
        VerifyReply {
            passed,
            checks,
            receipt,
            other_state: parts.verify_non_variable_state(expected),
        }
    }
}

impl EvolveHandle {
    /// Returns the services that this body declares, and the names of the checks that report the others.
    fn declared_services(&self, names: Vec<String>) -> (Vec<String>, Vec<String>) {
        let declared = match self.parts.desktop.service_names() {
            Ok(declared) => declared,
            // The body has no desktop.
            Err((_, true)) => Vec::new(),
            Err((_, false)) => return (names, Vec::new()),
        };
        let is_declared = |name: &String| declared.contains(name);
        let (present, missing): (Vec<_>, Vec<_>) = names.into_iter().partition(is_declared);
        let missing = missing.iter().map(|name| format!("service:{name}"));
        (present, missing.collect())
    }

    /// The same for MCP servers, which users may declare, too.
    fn declared_servers(&self, names: &[String]) -> (Vec<String>, Vec<String>) {
        let own = fs::read(self.settings.body_folder.join("mcp.json"));
        let is_declared = |name: &String| {
            self.parts.hub.is_configured(name) || is_server_declared(own.as_deref(), name)
        };
        let (present, missing): (Vec<_>, Vec<_>) = names.iter().cloned().partition(is_declared);
        let missing = missing.iter().map(|name| format!("mcp:{name}"));
        (present, missing.collect())
    }
}

/// Whether a body's file declares a server. If the file can't be read, the server counts as declared and must answer.
fn is_server_declared(file: Result<&[u8], &io::Error>, name: &str) -> bool {
    let servers = match file {
        Ok(text) => serde_json::from_slice::<Value>(text),
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    servers.map_or(true, |servers| {
        let entry = &servers["mcpServers"][name];
        !entry.is_null() && entry["disabled"] != true
    })
}

async fn undeclared_check(name: String) -> EvolveCheck {
    let result = async { Ok("this body does not declare it".into()) };
    run_check(name, VERIFY_QUERY_TIMEOUT, result).await
}

impl EvolveParts {
    async fn check_sessions(
        &self,
        expected: &[ExpectedSession],
    ) -> Vec<(EvolveCheck, SessionReceipt)> {
        let each = expected.iter().map(|session| async move {
            let mut session_receipt = SessionReceipt {
                session: session.session.clone(),
                restored_by: RestoreMethod::Nothing,
                rows: Vec::new(),
                why: None,
            };
            let name = format!("session:{}", session.session);
            let verification = self.verify_session(session, &mut session_receipt);
            let check = run_check(
                name,
                EVOLVE_KERNEL_TIMEOUT + VERIFY_QUERY_TIMEOUT,
                verification,
            )
            .await;
            (check, session_receipt)
        });
        join_all(each).await
    }

    async fn verify_session(
        &self,
        expected: &ExpectedSession,
        session_receipt: &mut SessionReceipt,
    ) -> Result<String, String> {
        let session = &expected.session;
        let describe = |refusal: KernelRefusal| format!("{refusal:?}");
        let kernel = self.sessions.find_kernel(session).map_err(describe)?;
        let ready = timeout(EVOLVE_KERNEL_TIMEOUT, kernel.wait_ready()).await;
        let view = ready.map_err(|_| kernel.view().detail)?;
        if let Some(checkpoint) = view.checkpoint {
            session_receipt.restored_by = RestoreMethod::Process;
            let detail = format!("the kernel is in the checkpoint `{checkpoint}`");
            session_receipt.why = Some(format!(
                "{detail}; `osctl criu restore` restores the kernel"
            ));
            return Ok(detail);
        }
        let (now, before) = (view.report.generation, expected.kernel_generation);
        if now <= before {
            return Err(format!(
                "generation {now} does not follow generation {before}"
            ));
        }
        let stored = match (expected.stored_generation, &expected.checkpoint) {
            (Some(stored), _) => stored,
            (None, None) => return Ok("the session was empty".into()),
            (None, Some(checkpoint)) if view.report.restored => {
                session_receipt.restored_by = RestoreMethod::Objects;
                return Ok(format!(
                    "the variables were restored; the checkpoint `{checkpoint}` can't be used"
                ));
            }
            (None, Some(checkpoint)) => {
                return Err(format!(
                    "the kernel was in the checkpoint `{checkpoint}`, which could not be used"
                ));
            }
        };
        if !view.report.restored {
            return Err("the stored state was not restored".into());
        }
        session_receipt.restored_by = RestoreMethod::Objects;
        let details = self
            .cryo
            .show_generation(session.clone(), Some(stored))
            .await;
        let rows = details.map_err(|refusal| format!("{refusal:?}"))?.receipt;
        if rows.len() > MAX_VERIFIED_VARIABLES {
            let many = format!("{}, all restored", count_noun(rows.len(), "variable"));
            session_receipt.rows = rows;
            return Ok(many);
        }
        let names = match timeout(VERIFY_QUERY_TIMEOUT, self.fetch_variable_names(session)).await {
            Ok(names) => names?,
            // A client's code runs in the kernel, which proves that the kernel works.
            Err(_) => {
                session_receipt.rows = rows;
                return Ok("the kernel executes code".into());
            }
        };
        session_receipt.rows = rows
            .iter()
            .map(|row| mark_if_missing(row, &names))
            .collect();
        let lost = describe_lost_variables(&rows, &session_receipt.rows);
        if !lost.is_empty() {
            return Err(format!("variables are lost: {}", lost.join(", ")));
        }
        let saved = session_receipt
            .rows
            .iter()
            .filter(|row| row.verdict != CryoVerdict::Lost);
        Ok(format!(
            "{} of {} restored",
            saved.count(),
            count_noun(session_receipt.rows.len(), "variable")
        ))
    }

    /// The names in a namespace.
    async fn fetch_variable_names(&self, session: &str) -> Result<BTreeSet<String>, String> {
        loop {
            let kernel = self.sessions.find_kernel(session);
            let kernel = kernel.map_err(|refusal| format!("{refusal:?}"))?;
            let limit = Some(MAX_VERIFIED_VARIABLES);
            match kernel.query_quietly(KernelQuery::Variables { limit }).await {
                Ok(KernelAnswer {
                    value: Ok(value), ..
                }) => {
                    let variables: Vec<Variable> =
                        serde_json::from_value(value).map_err(|error| error.to_string())?;
                    return Ok(variables
                        .into_iter()
                        .map(|variable| variable.name)
                        .collect());
                }
                Ok(KernelAnswer {
                    value: Err(raised), ..
                }) => {
                    return Err(format!("{}: {}", raised.kind, raised.message));
                }
                Err(KernelRefusal::Busy | KernelRefusal::QueueFull) => {
                    sleep(VERIFY_RETRY_INTERVAL).await
                }
                Err(refusal) => return Err(format!("{refusal:?}")),
            }
        }
    }
}

/// Marks a stored row as lost if its variable is missing.
fn mark_if_missing(row: &ReceiptRow, names: &BTreeSet<String>) -> ReceiptRow {
    let row = row.clone();
    // A magic is not a variable.
    let is_there = names.contains(&row.name) || row.name.starts_with('%');
    if is_there || row.verdict == CryoVerdict::Lost {
        return row;
    }
    ReceiptRow {
        verdict: CryoVerdict::Lost,
        why: Some("the variable is missing after the restore".into()),
        ..row
    }
}

#[cfg(test)]
mod tests {
    use super::is_server_declared;
    use std::io::{Error, ErrorKind};

    #[test]
    fn undeclared_servers_are_not_checked() {
        let file = br#"{"mcpServers": {"a": {"command": "x"}, "b": {"disabled": true}}}"#;
        let of = |name| is_server_declared(Ok(&file[..]), name);
        assert!(of("a") && !of("b") && !of("c"));
        assert!(!is_server_declared(Ok(b"{}"), "a"));
        assert!(!is_server_declared(
            Err(&Error::from(ErrorKind::NotFound)),
            "a"
        ));
        // If the file is invalid, the server counts as declared.
        assert!(is_server_declared(Ok(b"{"), "a"));
        assert!(is_server_declared(
            Err(&Error::from(ErrorKind::PermissionDenied)),
            "a"
        ));
    }
}
