//! The MCP server of one client: rmcp's handler for the tools and the resources.

use super::OsServerFactory;
use super::channel_transport::ChannelTransport;
use super::input_schema::{CHARS_PER_NAME_EDIT, check_arguments, portable_schema};
use super::logging::{ClientLogLevel, LogSeverity};
use crate::error::nearest_name;
use crate::protocol::mcp::STRUCTURED_RESULT_KEY;
use bytes::Bytes;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ContentBlock, CustomRequest, CustomResult, ErrorCode,
    Implementation, ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// The instructions for a model, which it reads before the tools. The hub adds its prefix to the names of tools.
const OS_INSTRUCTIONS: &str = "\
A Linux computer of your own: a Python kernel, a shell, files, and a desktop with a browser that people also see.

Code: `execute_python_code` keeps its variables from call to call and returns figures as images. `run_shell` keeps its \
working directory and environment. Long output is shortened; `read_output` returns the rest. With `wait`, a call \
returns after at most that many seconds; the run continues, and `wait_for_run` returns its result. All clients share \
the session `default`; pass another `session` for separate variables. `list_sessions` shows what runs.

Files: the user's project is in `/repo`. Relative paths of the file tools are in it; `search_files`, `find_files`, \
`edit_file` and `apply_patch` also work on every other path.

What persists: `/repo`, `/data`, `/root/host` (shared with the user) and packages of `install_package`. \
`osctl add NAME` in `run_shell` keeps a package for the project's image. All other files, also those in `/root`, are \
lost when the computer is replaced. Variables survive a planned replacement if `cryo_store` can store them; background \
processes end.

To add tools: write an MCP server into `/data/mcp.json`, such as {\"mcpServers\": {\"NAME\": {\"command\": \"npx\", \
\"args\": [\"-y\", \"PACKAGE\"]}}}; its tools appear at once. To change the computer, edit `/repo/body/` (the user \
creates the folder with `osctl init`) and call `evolve`.";

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
            Err(error) => tracing::debug!(%error, "the handshake with the server `os` failed"),
        }
    });
    (to_server, from_server)
}

/// All tools, with schemas that every client accepts.
pub(super) fn all_tools() -> ToolRouter<OsServer> {
    let mut all = OsServer::code_tools()
        + OsServer::session_tools()
        + OsServer::shell_tools()
        + OsServer::file_tools()
        + OsServer::change_tools()
        + OsServer::search_tools()
        + OsServer::cryo_tools()
        + OsServer::evolve_tools()
        + OsServer::desktop_tools();
    for route in all.map.values_mut() {
        let tool = &mut route.attr;
        tool.input_schema = Arc::new(portable_schema(&tool.input_schema));
    }
    all
}

fn refused_call(why: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(why)])
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
        mut request: CallToolRequestParams,
        cx: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tools = self.factory.tools();
        let Some(tool) = tools.get(&request.name) else {
            let known = tools.map.keys().map(|name| &**name);
            let near = nearest_name(&request.name, known, CHARS_PER_NAME_EDIT);
            let near = near.map(|near| format!("; did you mean `{near}`?"));
            let why = format!(
                "there is no tool `{}`{}",
                request.name,
                near.unwrap_or_default()
            );
            return Err(ErrorData::invalid_params(why, None));
        };
        let arguments = request.arguments.get_or_insert_default();
        if let Err(why) = check_arguments(&request.name, &tool.input_schema, arguments) {
            return Ok(refused_call(why).into());
        }
        let wants_fields = cx.meta.get(STRUCTURED_RESULT_KEY) == Some(&Value::Bool(true));
        match tools.call(ToolCallContext::new(self, request, cx)).await {
            Ok(CallToolResponse::Complete(mut result)) => {
                result.structured_content = result.structured_content.filter(|_| wants_fields);
                Ok(result.into())
            }
            // A part of an argument that the schema does not describe exactly.
            Err(error) if error.code == ErrorCode::INVALID_PARAMS => {
                Ok(refused_call(error.message.into_owned()).into())
            }
            other => other,
        }
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
        let code = ErrorCode::METHOD_NOT_FOUND;
        Err(ErrorData::new(code, why, None))
    }
}

#[cfg(test)]
mod tests {
    use super::{OS_INSTRUCTIONS, all_tools};
    use crate::protocol::mcp::READ_ONLY_TOOLS;
    use serde_json::Value;
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
            let hints = tool.annotations.as_ref().unwrap();
            assert!(
                hints.read_only_hint.is_some() && hints.open_world_hint.is_some(),
                "{name}"
            );
            let input = Value::Object((*tool.input_schema).clone());
            for (argument, schema) in input["properties"].as_object().into_iter().flatten() {
                let text = schema.to_string();
                let says = text.contains("description") || text.contains("$ref");
                assert!(says, "{name} does not say what `{argument}` is");
            }
        }
    }

    #[test]
    fn every_input_schema_has_only_what_every_client_accepts() {
        for tool in all_tools().list_all() {
            let input = Value::Object((*tool.input_schema).clone());
            assert!(input["properties"].is_object(), "{}", tool.name);
            assert_eq!(input["type"], "object", "{}", tool.name);
            let text = input.to_string();
            for rejected in [
                "\"null\"",
                "$schema",
                "$ref",
                "additionalProperties",
                "\"format\"",
            ] {
                assert!(!text.contains(rejected), "{}: {text}", tool.name);
            }
            assert!(tool.output_schema.is_none(), "{}", tool.name);
        }
    }

    #[test]
    fn the_instructions_name_only_tools_and_commands_that_exist() {
        let all = all_tools();
        let names = OS_INSTRUCTIONS.split('`').skip(1).step_by(2);
        let names: Vec<&str> = names.collect();
        let tools: Vec<&&str> = names.iter().filter(|name| name.contains('_')).collect();
        assert!(tools.len() > 5, "{tools:?}");
        for tool in tools {
            assert!(all.has_route(tool), "{tool}");
        }
        let mut commands = names.clone();
        commands.retain(|name| name.starts_with("osctl "));
        assert_eq!(commands, ["osctl add NAME", "osctl init"]);
    }
}
