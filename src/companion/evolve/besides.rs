//! What of a container is no variable, for the receipt: what the next one has of it, and what ends.
//!
//! The old container says what it keeps ([`Parts::besides`]), and the new one what it found of that
//! ([`Parts::besides_after`]). What ends with the old one only that one knows.

use super::Parts;
use crate::protocol::evolve::inside::{Besides, Expected};
use std::collections::BTreeMap;

/// Bytes of names and folders of shells that are looked at: an argument hands them on, which has bounds.
const SHELLS: usize = 32 << 10;

impl Parts {
    /// What becomes of all that is no variable when another container takes over.
    pub(super) async fn besides(&self, browser: bool) -> Vec<Besides> {
        let mut all: Vec<Besides> = self
            .folders()
            .into_iter()
            .map(|(session, folder)| shell(&session, &folder))
            .collect();
        for job in self.shells.jobs().await {
            let detail = format!("`{}` ends with the container", job.command);
            all.push(lost(format!("job:{}", job.session), detail));
        }
        let terminals = self.terminals.all().len();
        if terminals > 0 {
            let detail = format!("{terminals} open ones end with the container");
            all.push(lost("terminals".into(), detail));
        }
        let (sessions, connections) = self.hub.clients();
        all.extend((sessions > 0).then(|| clients(sessions as u64)));
        if connections > 0 {
            let detail = format!(
                "{connections} connections of the older transport end: their clients connect again"
            );
            all.push(lost("mcp:sse".into(), detail));
        }
        all.extend(browser.then(|| Besides {
            what: "browser".into(),
            kept: true,
            detail: "its profile stays, and it is opened again".into(),
        }));
        all
    }

    /// What is here of what the container before has kept.
    pub(super) fn besides_after(&self, expected: &Expected) -> Vec<Besides> {
        let here = self.folders();
        let shells = expected.shells.iter();
        let mut all: Vec<Besides> = shells
            .map(|(session, folder)| found_shell(session, folder, here.get(session)))
            .collect();
        if expected.clients > 0 {
            all.push(found_clients(
                expected.clients,
                self.hub.kept_clients() as u64,
            ));
        }
        all
    }

    /// The folder of each shell that has a context of its own.
    pub(super) fn folders(&self) -> BTreeMap<String, String> {
        let sessions = self.shells.serials().into_keys();
        let folder = |session: String| {
            let folder = self.shells.cwd(&session).display().to_string();
            (session, folder)
        };
        within(SHELLS, sessions.map(folder))
    }
}

/// As many as there is room for.
fn within(
    mut room: usize,
    all: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    let fits = |(session, folder): &(String, String)| {
        let left = room.checked_sub(session.len() + folder.len());
        room = left.unwrap_or(room);
        left.is_some()
    };
    all.filter(fits).collect()
}

fn shell(session: &str, folder: &str) -> Besides {
    Besides {
        what: format!("shell:{session}"),
        kept: true,
        detail: format!("it is in `{folder}`, with its environment and functions"),
    }
}

fn found_shell(session: &str, folder: &str, here: Option<&String>) -> Besides {
    match here {
        Some(here) if here == folder => shell(session, folder),
        // Its environment is the session's own even so.
        Some(here) => lost(
            format!("shell:{session}"),
            format!("its folder `{folder}` is not there: it is in `{here}`, with its environment"),
        ),
        None => lost(format!("shell:{session}"), "it begins anew".into()),
    }
}

fn clients(sessions: u64) -> Besides {
    Besides {
        what: "mcp".into(),
        kept: true,
        detail: format!("{sessions} sessions of clients go on"),
    }
}

fn found_clients(expected: u64, found: u64) -> Besides {
    match found >= expected {
        true => clients(expected),
        false => lost(
            "mcp".into(),
            format!("{found} of {expected} sessions of clients go on"),
        ),
    }
}

fn lost(what: String, detail: String) -> Besides {
    Besides {
        what,
        kept: false,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::{found_clients, found_shell, within};

    #[test]
    fn what_is_handed_on_has_bounds() {
        let folders = [("a", 3), ("b", 9), ("c", 3)];
        let folders = folders.map(|(session, length)| (session.to_owned(), "/".repeat(length)));
        let kept = within(8, folders.into_iter());
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn what_is_not_found_again_is_told_as_lost() {
        let here = "/data".to_owned();
        let kept = found_shell("default", "/data", Some(&here));
        assert!(kept.kept && kept.detail.contains("`/data`"), "{kept:?}");
        let moved = found_shell("default", "/tmp/gone", Some(&here));
        assert!(!moved.kept, "{moved:?}");
        assert!(
            moved.detail.contains("`/tmp/gone` is not there"),
            "{moved:?}"
        );
        assert!(!found_shell("default", "/data", None).kept);
        assert!(found_clients(2, 5).kept);
        let fewer = found_clients(2, 1);
        assert!(
            !fewer.kept && fewer.detail.starts_with("1 of 2"),
            "{fewer:?}"
        );
    }
}
