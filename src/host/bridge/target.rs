//! The hub endpoint that a client connects to, and the selection of servers and tools that the hub offers to it.

use crate::error::{Error, Result};
use crate::protocol::files::percent_encode;
use crate::protocol::mcp::ToolProfile;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BridgeTarget {
    /// One server under its own names; `None` for all servers combined.
    pub(crate) server: Option<String>,
    /// Only these servers of all; empty for no restriction, as with the tools.
    pub(crate) servers: Vec<String>,
    pub(crate) tools: Vec<String>,
    /// How many tools of all servers are listed; `None` for the hub's default.
    pub(crate) profile: Option<ToolProfile>,
}

impl BridgeTarget {
    /// The hub's endpoint for the target.
    ///
    /// # Errors
    /// When the server's name is not valid.
    pub(super) fn endpoint_path(&self) -> Result<String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let path = match &self.server {
            None => "/mcp".into(),
            Some(name) if !name.is_empty() && name.chars().all(is_plain) => {
                format!("/servers/{name}/mcp")
            }
            Some(name) => {
                let hint = "`osctl mcp ls` lists the servers";
                return Err(
                    Error::usage(format!("`{name}` is not a valid server name"), hint).into(),
                );
            }
        };
        let query: Vec<String> = self
            .chosen_patterns()
            .map(|(name, patterns)| format!("{name}={}", percent_encode(patterns.as_bytes())))
            .collect();
        Ok(match query.is_empty() {
            true => path,
            false => format!("{path}?{}", query.join("&")),
        })
    }

    /// The command-line arguments that restrict the bridge in the same way.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        // One argument each, so that a pattern may start with `-`.
        let argument = |(name, patterns)| format!("--{name}={patterns}");
        self.chosen_patterns().map(argument).collect()
    }

    /// Each kind of restriction, with its value in the hub's format.
    fn chosen_patterns(&self) -> impl Iterator<Item = (&'static str, String)> {
        let profile = self.profile.map(|profile| profile.as_str().to_owned());
        [("servers", &self.servers), ("tools", &self.tools)]
            .into_iter()
            .filter(|(_, patterns)| !patterns.is_empty())
            .map(|(name, patterns)| (name, patterns.join(",")))
            .chain(profile.map(|profile| ("profile", profile)))
    }
}

#[cfg(test)]
mod tests {
    use super::{BridgeTarget, ToolProfile};

    fn sample_target(server: Option<&str>, servers: &[&str], tools: &[&str]) -> BridgeTarget {
        let all = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        BridgeTarget {
            server: server.map(str::to_owned),
            servers: all(servers),
            tools: all(tools),
            profile: None,
        }
    }

    fn full_target() -> BridgeTarget {
        BridgeTarget {
            profile: Some(ToolProfile::Full),
            ..BridgeTarget::default()
        }
    }

    #[test]
    fn a_target_is_a_path_with_a_query() {
        for (target, path) in [
            (sample_target(None, &[], &[]), "/mcp"),
            (sample_target(Some("os"), &[], &[]), "/servers/os/mcp"),
            (sample_target(None, &["a", "b"], &[]), "/mcp?servers=a%2Cb"),
            (
                sample_target(None, &["a"], &["a__read_*", "&x=#é"]),
                "/mcp?servers=a&tools=a__read_%2A%2C%26x%3D%23%C3%A9",
            ),
            (
                sample_target(Some("os"), &[], &["read_*"]),
                "/servers/os/mcp?tools=read_%2A",
            ),
        ] {
            assert_eq!(target.endpoint_path().unwrap(), path);
        }
        let full = full_target();
        assert_eq!(full.endpoint_path().unwrap(), "/mcp?profile=full");
        for name in ["", "a/b", "a?servers=b"] {
            assert!(
                sample_target(Some(name), &[], &[]).endpoint_path().is_err(),
                "{name}"
            );
        }
    }

    #[test]
    fn a_target_becomes_arguments_of_the_bridge() {
        assert!(sample_target(None, &[], &[]).to_arguments().is_empty());
        let narrow = sample_target(None, &["a", "b"], &["-x*"]);
        assert_eq!(narrow.to_arguments(), ["--servers=a,b", "--tools=-x*"]);
        assert_eq!(full_target().to_arguments(), ["--profile=full"]);
    }
}
