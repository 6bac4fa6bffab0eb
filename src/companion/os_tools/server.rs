//! The MCP server of one client: rmcp's handler for the tools and the resources.

use super::OsServerFactory;
use super::channel_transport::ChannelTransport;
use super::logging::{ClientLogLevel, LogSeverity};
use bytes::Bytes;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, CustomRequest, CustomResult, Implementation, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// The instructions for a model, which it reads before the tools.
const OS_INSTRUCTIONS: &str = "A computer with a Python kernel that keeps its variables from call to call, \
a shell that keeps its working directory and environment, files, and a desktop with a browser that people also see. \
`execute_python_code` returns figures as images. Long output is shortened; `read_output` returns the rest. \
With `wait`, a call returns after at most that many seconds; the run continues, and `wait_for_run` returns its result. \
All clients share the session `default`; pass another `session` for separate variables and a separate folder. \
`cryo_store` saves variables on disk across replacements of the computer; `cryo_reload` restores them. \
`evolve` rebuilds the computer from the project's `body/`; stored variables, sessions and shell contexts continue, \
background jobs and terminals end.";

/// One client's server.
#[derive(Debug, Clone)]
pub(super) struct OsServer {
    pub(super) factory: OsServerFactory,
    log_level: Arc<ClientLogLevel>,
    is_disconnected: Arc<AtomicBool>,
}

/// Serves a new connection until its sender is dropped.
pub(super) fn serve_client(
    os: &OsServerFactory,
) -> (UnboundedSender<Bytes>, UnboundedReceiver<Bytes>) {
    let (to_server, incoming) = mpsc::unbounded_channel();
    let (outgoing, from_server) = mpsc::unbounded_channel();
    let is_disconnected = Arc::new(AtomicBool::new(false));
    let transport = ChannelTransport {
        incoming,
        outgoing,
        is_disconnected: is_disconnected.clone(),
    };
    let server = OsServer {
        factory: os.clone(),
        log_level: Arc::default(),
        is_disconnected,
    };
    tokio::spawn(async move {
        match server.serve(transport).await {
            // The other end of the channel detects the end.
            Ok(running) => drop(running.waiting().await),
            Err(error) => tracing::debug!("the handshake with the server `os` failed: {error}"),
        }
    });
    (to_server, from_server)
}

/// All tools. Their schemas contain only standard formats.
pub(super) fn all_tools() -> ToolRouter<OsServer> {
    let mut all = OsServer::code_tools()
        + OsServer::shell_tools()
        + OsServer::file_tools()
        + OsServer::cryo_tools()
        + OsServer::evolve_tools()
        + OsServer::desktop_tools();
    for route in all.map.values_mut() {
        let tool = &mut route.attr;
        let mut input = without_number_formats(&tool.input_schema);
        // Some clients require `properties` for tools without arguments, although JSON Schema does not.
        input
            .entry("properties")
            .or_insert_with(|| Map::new().into());
        tool.input_schema = Arc::new(input);
        tool.output_schema = tool
            .output_schema
            .as_deref()
            .map(|s| Arc::new(without_number_formats(s)));
    }
    all
}

/// Removes number formats such as `uint64` from a schema, because some validators reject them.
fn without_number_formats(schema: &Map<String, Value>) -> Map<String, Value> {
    let entries = schema.iter().filter(|(key, value)| {
        let is_number = |format: &str| {
            ["int", "uint", "float", "double"]
                .iter()
                .any(|kind| format.starts_with(kind))
        };
        !(key.as_str() == "format" && value.as_str().is_some_and(is_number))
    });
    let entries = entries.map(|(key, value)| (key.clone(), without_formats_in_value(value)));
    entries.collect()
}

fn without_formats_in_value(value: &Value) -> Value {
    match value {
        Value::Object(object) => without_number_formats(object).into(),
        Value::Array(all) => all
            .iter()
            .map(without_formats_in_value)
            .collect::<Vec<_>>()
            .into(),
        other => other.clone(),
    }
}

impl OsServer {
    /// Whether the client has disconnected without cancelling its calls.
    pub(super) fn is_disconnected(&self) -> bool {
        self.is_disconnected.load(Ordering::Relaxed)
    }

    /// Whether the client wants messages of this severity.
    pub(super) fn is_log_enabled(&self, weight: LogSeverity) -> bool {
        self.log_level.is_enabled_for(weight)
    }
}

impl ServerHandler for OsServer {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::default();
        capabilities.tools = Some(Default::default());
        capabilities.resources = Some(Default::default());
        capabilities.logging = Some(Default::default());
        let own = Implementation::new("os", env!("CARGO_PKG_VERSION")).with_title("The computer");
        ServerConfig::new(capabilities)
            .with_server_info(own)
            .with_instructions(OS_INSTRUCTIONS)
    }

    async fn on_initialized(&self, _cx: NotificationContext<RoleServer>) {}

    #[expect(
        deprecated,
        reason = "clients of the revisions before 2026-07-28 request log messages with it"
    )]
    async fn set_level(
        &self,
        request: rmcp::model::SetLevelRequestParams,
        _cx: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.log_level.set_level(&request);
        Ok(())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _cx: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(
            self.factory.tools().list_all(),
        ))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        cx: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tools = self.factory.tools();
        if !tools.has_route(&request.name) {
            let why = format!("there is no tool `{}`", request.name);
            return Err(ErrorData::invalid_params(why, None));
        }
        tools.call(ToolCallContext::new(self, request, cx)).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.factory.tools().get(name).cloned()
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _cx: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        self.resources_page(cursor.as_deref()).await
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _cx: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(self.resource_templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _cx: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.read_uri(&request.uri).await.map(Into::into)
    }

    // A capability that is not declared is an unknown method, not an empty list.
    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _cx: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _cx: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _cx: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // A known method arrives here if its parameters are invalid.
        let known_prefixes = [
            "tools/",
            "resources/",
            "logging/",
            "completion/",
            "prompts/",
        ];
        if known_prefixes
            .iter()
            .any(|prefix| request.method.starts_with(prefix))
        {
            let why = format!("the parameters of `{}` are invalid", request.method);
            return Err(ErrorData::invalid_params(why, None));
        }
        let why = format!("there is no method `{}`", request.method);
        let code = rmcp::model::ErrorCode::METHOD_NOT_FOUND;
        Err(ErrorData::new(code, why, None))
    }
}

#[cfg(test)]
mod tests {
    use super::{all_tools, without_number_formats};
    use crate::protocol::mcp::READ_ONLY_TOOLS;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    #[test]
    fn every_tool_has_complete_schemas() {
        let all = all_tools().list_all();
        assert!(all.len() > 15);
        let looks = all.iter().filter(|tool| {
            let hints = tool.annotations.as_ref();
            hints.and_then(|hints| hints.read_only_hint) == Some(true)
        });
        let looks: BTreeSet<&str> = looks.map(|tool| &*tool.name).collect();
        assert_eq!(looks, BTreeSet::from(READ_ONLY_TOOLS));
        for tool in &all {
            let name = &tool.name;
            let described = tool.description.as_deref().unwrap_or_default();
            assert!(described.len() > 20, "{name}");
            assert!(tool.output_schema.is_some(), "{name} has no output schema");
            let hints = tool.annotations.as_ref().unwrap();
            assert!(
                hints.read_only_hint.is_some() && hints.open_world_hint.is_some(),
                "{name}"
            );
            let input = Value::Object((*tool.input_schema).clone());
            assert_eq!(input["additionalProperties"], false, "{name}: {input}");
            for (argument, schema) in input["properties"].as_object().into_iter().flatten() {
                let text = schema.to_string();
                let says = text.contains("description") || text.contains("$ref");
                assert!(says, "{name} does not say what `{argument}` is");
            }
        }
    }

    #[test]
    fn every_tool_has_properties_in_its_input_schema() {
        for tool in all_tools().list_all() {
            let input = &tool.input_schema;
            assert!(input["properties"].is_object(), "{}", tool.name);
            assert_eq!(input["type"], "object", "{}", tool.name);
        }
    }

    #[test]
    fn formats_of_numbers_are_left_out_and_others_stay() {
        let schema = json!({"a": [{"type": "integer", "format": "uint64"}], "format": "date"});
        let expected = json!({"a": [{"type": "integer"}], "format": "date"});
        assert_eq!(
            Value::from(without_number_formats(schema.as_object().unwrap())),
            expected
        );
    }
}
