//! Whether the new container lives up to the old one: what was healthy is healthy, and what was
//! stored has come back, which a look at the namespace says and not the receipt of who stored it.
//! What the new body does not declare any more is not demanded of it.

use super::check::{KERNEL, check};
use super::selftest::lost;
use super::{Evolve, Parts};
use crate::companion::kernel::{Answer, Question, Refusal};
use crate::protocol::cryo::{Row, Verdict};
use crate::protocol::evolve::inside::{Check, Expected, Kept, KeptBy, Session, Verified};
use crate::protocol::session::Variable;
use futures_util::future::join_all;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use std::{fs, io};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Between two questions to a kernel that executes code already.
const AGAIN: Duration = Duration::from_millis(50);

/// More variables than these are not asked for one by one.
const MANY: usize = 20_000;

/// How long a kernel may take to be asked what it holds.
const LOOK: Duration = Duration::from_secs(20);

impl Evolve {
    /// Waits for everything that is expected, and says what there is.
    pub(crate) async fn verify(&self, expected: &Expected) -> Verified {
        let parts = &self.parts;
        // What was frozen is brought back before.
        drop(self.rest.lock().await);
        let services = expected.healthy_before.iter();
        let services: Vec<String> = services.filter(|name| *name != "kernel").cloned().collect();
        let (services, no_services) = self.declared_services(services);
        let (servers, no_servers) = self.declared_servers(&expected.servers);
        let gone = no_services.into_iter().chain(no_servers).map(left_out);
        let gone = join_all(gone).await;
        let (sessions, services, servers, ports) = tokio::join!(
            parts.check_sessions(&expected.sessions),
            parts.check_services(&services),
            parts.check_servers(&servers),
            self.check_ports(),
        );
        let mut checks = gone;
        let mut receipt = Vec::new();
        for (check, mut kept) in sessions {
            if kept.by == KeptBy::Objects {
                kept.by = self.kept_by(&kept.session);
            }
            checks.push(check);
            receipt.push(kept);
        }
        checks.extend(ports.into_iter().chain(services).chain(servers));
        let passed = checks.iter().all(|check| check.passed);
        if passed {
            let lives = parts.lives.clone();
            let taken = parts.store.settle().await;
            drop(spawn_blocking(move || lives.go_on(taken)));
        }
        self.tell_runs();
        Verified {
            passed,
            checks,
            receipt,
            besides: parts.besides_after(expected),
        }
    }
}

impl Evolve {
    /// Those that this body declares, and what is to be said of the others.
    fn declared_services(&self, names: Vec<String>) -> (Vec<String>, Vec<String>) {
        let declared = match self.parts.desktop.declared() {
            Ok(declared) => declared,
            // There is to be no desktop.
            Err((_, true)) => Vec::new(),
            Err((_, false)) => return (names, Vec::new()),
        };
        let is_declared = |name: &String| declared.contains(name);
        let (there, gone): (Vec<_>, Vec<_>) = names.into_iter().partition(is_declared);
        let gone = gone.iter().map(|name| format!("service:{name}"));
        (there, gone.collect())
    }

    /// The same of MCP servers, which others declare, too.
    fn declared_servers(&self, names: &[String]) -> (Vec<String>, Vec<String>) {
        let own = fs::read(self.settings.body.join("mcp.json"));
        let is_declared =
            |name: &String| self.parts.hub.is_known(name) || declares(own.as_deref(), name);
        let (there, gone): (Vec<_>, Vec<_>) = names.iter().cloned().partition(is_declared);
        let gone = gone.iter().map(|name| format!("mcp:{name}"));
        (there, gone.collect())
    }
}

/// Whether a body's file declares a server. A file that can't be read is not to let it off.
fn declares(file: Result<&[u8], &io::Error>, name: &str) -> bool {
    let servers = match file {
        Ok(text) => serde_json::from_slice::<Value>(text),
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    servers.map_or(true, |servers| {
        let entry = &servers["mcpServers"][name];
        !entry.is_null() && entry["disabled"] != true
    })
}

async fn left_out(name: String) -> Check {
    let said = async { Ok("this body does not have it any more".into()) };
    check(name, LOOK, said).await
}

impl Parts {
    async fn check_sessions(&self, expected: &[Session]) -> Vec<(Check, Kept)> {
        let each = expected.iter().map(|session| async move {
            let mut kept = Kept {
                session: session.session.clone(),
                by: KeptBy::Nothing,
                rows: Vec::new(),
                why: None,
            };
            let name = format!("session:{}", session.session);
            let look = self.look_at(session, &mut kept);
            let check = check(name, KERNEL + LOOK, look).await;
            (check, kept)
        });
        join_all(each).await
    }

    async fn look_at(&self, expected: &Session, kept: &mut Kept) -> Result<String, String> {
        let session = &expected.session;
        let words = |refusal: Refusal| format!("{refusal:?}");
        let kernel = self.sessions.kernel(session).map_err(words)?;
        let ready = timeout(KERNEL, kernel.ready()).await;
        let view = ready.map_err(|_| kernel.view().detail)?;
        if let Some(checkpoint) = view.checkpoint {
            kept.by = KeptBy::Process;
            let lies = format!("it lies in the checkpoint `{checkpoint}`");
            kept.why = Some(format!("{lies}; `osctl criu restore` brings it back"));
            return Ok(lies);
        }
        let (now, before) = (view.report.generation, expected.kernel);
        if now <= before {
            return Err(format!("its generation is {now}, and was {before} before"));
        }
        let stored = match (expected.stored, &expected.checkpoint) {
            (Some(stored), _) => stored,
            (None, None) => return Ok("it held nothing".into()),
            (None, Some(checkpoint)) if view.report.restored => {
                kept.by = KeptBy::Objects;
                return Ok(format!(
                    "its objects are back; the checkpoint `{checkpoint}` is of no use"
                ));
            }
            (None, Some(checkpoint)) => {
                return Err(format!("it lay in the checkpoint `{checkpoint}`"));
            }
        };
        if !view.report.restored {
            return Err("what was stored of it did not come back".into());
        }
        kept.by = KeptBy::Objects;
        let shown = self.cryo.show(session.clone(), Some(stored)).await;
        let rows = shown.map_err(|refusal| format!("{refusal:?}"))?.receipt;
        if rows.len() > MANY {
            let many = format!("all of {} variables are reloaded", rows.len());
            kept.rows = rows;
            return Ok(many);
        }
        let names = match timeout(LOOK, self.names(session)).await {
            Ok(names) => names?,
            // Code of a client runs in it already, which is as good an answer.
            Err(_) => {
                kept.rows = rows;
                return Ok("it executes code".into());
            }
        };
        kept.rows = rows.iter().map(|row| found(row, &names)).collect();
        let lost = lost(&rows, &kept.rows);
        if !lost.is_empty() {
            return Err(format!("not all comes back: {}", lost.join(", ")));
        }
        let saved = kept.rows.iter().filter(|row| row.verdict != Verdict::Lost);
        Ok(format!(
            "{} of {} variables are there",
            saved.count(),
            kept.rows.len()
        ))
    }

    /// The names in a namespace.
    async fn names(&self, session: &str) -> Result<BTreeSet<String>, String> {
        loop {
            let kernel = self.sessions.kernel(session);
            let kernel = kernel.map_err(|refusal| format!("{refusal:?}"))?;
            let limit = Some(MANY);
            match kernel.look(Question::Variables { limit }).await {
                Ok(Answer {
                    value: Ok(value), ..
                }) => {
                    let variables: Vec<Variable> =
                        serde_json::from_value(value).map_err(|error| error.to_string())?;
                    return Ok(variables
                        .into_iter()
                        .map(|variable| variable.name)
                        .collect());
                }
                Ok(Answer {
                    value: Err(raised), ..
                }) => {
                    return Err(format!("{}: {}", raised.kind, raised.message));
                }
                Err(Refusal::Busy | Refusal::QueueFull) => sleep(AGAIN).await,
                Err(refusal) => return Err(format!("{refusal:?}")),
            }
        }
    }
}

/// A row of what was stored, after a look at what is there.
fn found(row: &Row, names: &BTreeSet<String>) -> Row {
    let row = row.clone();
    // A magic is no variable.
    let is_there = names.contains(&row.name) || row.name.starts_with('%');
    if is_there || row.verdict == Verdict::Lost {
        return row;
    }
    Row {
        verdict: Verdict::Lost,
        why: Some("it is not there after the reload".into()),
        ..row
    }
}

#[cfg(test)]
mod tests {
    use super::declares;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_body_is_not_asked_for_what_it_does_not_declare() {
        let file = br#"{"mcpServers": {"a": {"command": "x"}, "b": {"disabled": true}}}"#;
        let of = |name| declares(Ok(&file[..]), name);
        assert!(of("a") && !of("b") && !of("c"));
        assert!(!declares(Ok(b"{}"), "a"));
        assert!(!declares(Err(&Error::from(ErrorKind::NotFound)), "a"));
        // What it declares is not known then.
        assert!(declares(Ok(b"{"), "a"));
        assert!(declares(
            Err(&Error::from(ErrorKind::PermissionDenied)),
            "a"
        ));
    }
}
