//! Arguments that restrict the servers and tools that a client is offered.

use crate::command::candidates::server_names;
use crate::host::bridge::BridgeTarget;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct McpFilterArgs {
    /// Offer only these servers, separated by commas; `*` matches any text
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = parse_pattern, add = ArgValueCandidates::new(server_names))]
    servers: Vec<String>,
    /// Offer only these tools, separated by commas, by their names in the client, such as `filesystem__read_*`
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',', value_parser = parse_pattern)]
    tools: Vec<String>,
}

impl McpFilterArgs {
    /// The target: one server, or all servers combined.
    pub(crate) fn into_target(self, server: Option<String>) -> BridgeTarget {
        let Self { servers, tools } = self;
        BridgeTarget {
            server,
            servers,
            tools,
        }
    }
}

/// An empty pattern would be no filter and let all names pass.
fn parse_pattern(text: &str) -> Result<String, &'static str> {
    match text.trim() {
        "" => Err("a pattern cannot be empty"),
        pattern => Ok(pattern.into()),
    }
}
