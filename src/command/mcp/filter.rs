//! Arguments that restrict the servers and tools that a client is offered.

use crate::command::candidates::server_names;
use crate::host::bridge::BridgeTarget;
use crate::protocol::mcp::ToolProfile;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct McpFilterArgs {
    /// Offer only these servers, separated by commas; `*` matches any text
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = parse_pattern, add = ArgValueCandidates::new(server_names))]
    servers: Vec<String>,
    /// Offer only these tools, separated by commas, by their names in the client, such as `filesystem__read_*`
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',', value_parser = parse_pattern)]
    tools: Vec<String>,
    /// Tools to list [default: lean, or full with --servers or --tools]
    #[arg(long, value_parser = profile_parser())]
    profile: Option<ToolProfile>,
}

impl McpFilterArgs {
    /// The target: one server, or all servers combined.
    pub(crate) fn into_target(self, server: Option<String>) -> BridgeTarget {
        let Self {
            servers,
            tools,
            profile,
        } = self;
        BridgeTarget {
            server,
            servers,
            tools,
            profile,
        }
    }
}

fn profile_parser() -> impl TypedValueParser<Value = ToolProfile> {
    let all = ToolProfile::ALL_PROFILES;
    PossibleValuesParser::new(all.map(ToolProfile::as_str)).try_map(move |name| {
        let found = all.into_iter().find(|profile| profile.as_str() == name);
        found.ok_or("no profile")
    })
}

/// An empty pattern would be no filter and let all names pass.
fn parse_pattern(text: &str) -> Result<String, &'static str> {
    match text.trim() {
        "" => Err("a pattern cannot be empty"),
        pattern => Ok(pattern.into()),
    }
}
