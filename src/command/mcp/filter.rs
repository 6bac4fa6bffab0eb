//! How much of what the servers have a client is offered, as it is typed.

use crate::command::candidates::server_names;
use crate::host::bridge::BridgeTarget;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct McpFilterArgs {
    /// Of all servers only these, separated by commas; `*` stands for any part of a name
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_pattern, add = ArgValueCandidates::new(server_names))]
    servers: Vec<String>,
    /// Of all tools only these, under the names that the client sees, such as `filesystem__read_*`
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', value_parser = parse_pattern)]
    tools: Vec<String>,
}

impl McpFilterArgs {
    /// Of that server, or of all as one.
    pub(crate) fn into_target(self, server: Option<String>) -> BridgeTarget {
        let Self { servers, tools } = self;
        BridgeTarget {
            server,
            servers,
            tools,
        }
    }
}

/// An empty one would be none, which lets all pass.
fn parse_pattern(text: &str) -> Result<String, &'static str> {
    match text.trim() {
        "" => Err("a pattern can't be empty"),
        pattern => Ok(pattern.into()),
    }
}
