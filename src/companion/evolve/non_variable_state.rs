//! State of a container other than variables, for the receipt: the kept state and the lost state.
//!
//! The old container lists the state that it keeps ([`EvolveParts::list_non_variable_state`]), and the new one reports
//! which of it exists ([`EvolveParts::verify_non_variable_state`]). Only the old container can list the lost state.

use super::EvolveParts;
use crate::protocol::evolve::container_reports::{ExpectedState, NonVariableState};
use std::collections::BTreeMap;

/// Limit in bytes for the names and folders of shells, because they are passed on as a command-line argument.
const MAX_SHELL_LIST_BYTES: usize = 32 << 10;

impl EvolveParts {
    /// Lists what happens to all state other than variables when another container takes over.
    pub(super) async fn list_non_variable_state(&self, browser: bool) -> Vec<NonVariableState> {
        let mut all: Vec<NonVariableState> = self
            .list_shell_folders()
            .into_iter()
            .map(|(session, folder)| report_shell(&session, &folder))
            .collect();
        for job in self.shells.list_jobs().await {
            let detail = format!("`{}` ends with the container", job.command);
            all.push(lost_state(format!("job:{}", job.session), detail));
        }
        let terminals = self.terminals.list_terminals().into_iter();
        let open = terminals.filter(|terminal| terminal.exit_status().is_none());
        let open = open.count();
        if open > 0 {
            let detail = match open {
                1 => "1 open terminal ends with the container".into(),
                _ => format!("{open} open terminals end with the container"),
            };
            all.push(lost_state("terminals".into(), detail));
        }
        let (sessions, connections) = self.hub.client_counts();
        all.extend((sessions > 0).then(|| report_clients(sessions as u64)));
        if connections > 0 {
            let detail = format!(
                "{connections} connections of the SSE transport end; the clients must reconnect"
            );
            all.push(lost_state("mcp:sse".into(), detail));
        }
        all.extend(browser.then(|| NonVariableState {
            name: "browser".into(),
            kept: true,
            detail: "the profile is kept, and the browser restarts".into(),
        }));
        all
    }

    /// Reports which of the previous container's state exists here.
    pub(super) fn verify_non_variable_state(
        &self,
        expected: &ExpectedState,
    ) -> Vec<NonVariableState> {
        let folders = self.list_shell_folders();
        let shells = expected.shells.iter();
        let mut all: Vec<NonVariableState> = shells
            .map(|(session, folder)| verify_shell(session, folder, folders.get(session)))
            .collect();
        if expected.clients > 0 {
            all.push(verify_clients(
                expected.clients,
                self.hub.persisted_session_count() as u64,
            ));
        }
        all
    }

    /// The folder of each shell that has its own context.
    pub(super) fn list_shell_folders(&self) -> BTreeMap<String, String> {
        let sessions = self.shells.context_serials().into_keys();
        let folder = |session: String| {
            let folder = self.shells.session_cwd(&session).display().to_string();
            (session, folder)
        };
        take_within_bytes(MAX_SHELL_LIST_BYTES, sessions.map(folder))
    }
}

/// Takes the entries that fit into `free_bytes` bytes.
fn take_within_bytes(
    mut free_bytes: usize,
    all: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    let fits = |(session, folder): &(String, String)| {
        let left = free_bytes.checked_sub(session.len() + folder.len());
        free_bytes = left.unwrap_or(free_bytes);
        left.is_some()
    };
    all.filter(fits).collect()
}

fn report_shell(session: &str, folder: &str) -> NonVariableState {
    NonVariableState {
        name: format!("shell:{session}"),
        kept: true,
        detail: format!("in `{folder}`, with environment and functions"),
    }
}

fn verify_shell(session: &str, folder: &str, current: Option<&String>) -> NonVariableState {
    match current {
        Some(current) if current == folder => report_shell(session, folder),
        // The environment was restored all the same.
        Some(current) => lost_state(
            format!("shell:{session}"),
            format!(
                "the folder `{folder}` does not exist; the shell is in `{current}`, with its environment"
            ),
        ),
        None => lost_state(
            format!("shell:{session}"),
            "the shell context is lost".into(),
        ),
    }
}

fn report_clients(sessions: u64) -> NonVariableState {
    NonVariableState {
        name: "mcp".into(),
        kept: true,
        detail: match sessions {
            1 => "1 client session continues".into(),
            sessions => format!("{sessions} client sessions continue"),
        },
    }
}

fn verify_clients(expected: u64, found: u64) -> NonVariableState {
    match found >= expected {
        true => report_clients(expected),
        false => lost_state(
            "mcp".into(),
            format!("{found} of {expected} client sessions continue"),
        ),
    }
}

fn lost_state(what: String, detail: String) -> NonVariableState {
    NonVariableState {
        name: what,
        kept: false,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::{take_within_bytes, verify_clients, verify_shell};

    #[test]
    fn the_list_of_shells_has_a_limit() {
        let folders = [("a", 3), ("b", 9), ("c", 3)];
        let folders = folders.map(|(session, length)| (session.to_owned(), "/".repeat(length)));
        let fitting = take_within_bytes(8, folders.into_iter());
        assert_eq!(fitting.into_keys().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn missing_state_is_reported_as_lost() {
        let current = "/data".to_owned();
        let state = verify_shell("default", "/data", Some(&current));
        assert!(state.kept && state.detail.contains("`/data`"), "{state:?}");
        let moved = verify_shell("default", "/tmp/gone", Some(&current));
        assert!(!moved.kept, "{moved:?}");
        assert!(
            moved.detail.contains("`/tmp/gone` does not exist"),
            "{moved:?}"
        );
        assert!(!verify_shell("default", "/data", None).kept);
        assert!(verify_clients(2, 5).kept);
        let fewer = verify_clients(2, 1);
        assert!(
            !fewer.kept && fewer.detail.starts_with("1 of 2"),
            "{fewer:?}"
        );
    }
}
