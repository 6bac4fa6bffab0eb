//! Cryo tools: store a session's variables and restore them.

use super::server::OsServer;
use super::tool_result::{ToolResult, text_result};
use crate::protocol::cryo::{CryoStore, CryoVerdict, ReloadReply, ReloadRequest, StoreReason};
use crate::protocol::kernel::KernelState;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};

#[tool_router(router = cryo_tools, vis = "pub(super)")]
impl OsServer {
    /// Store a session's variables on disk, load them back to compare them, and report for each whether it is saved,
    /// restored by a recipe, altered, unverified or lost. Earlier stored variables stay as earlier generations.
    #[tool(
        title = "Store variables",
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = false,
            open_world_hint = false
        )
    )]
    async fn cryo_store(&self, Parameters(request): Parameters<CryoStore>) -> ToolResult {
        let stored = self
            .factory
            .0
            .handles
            .cryo
            .store(request, StoreReason::Requested)
            .await?;
        let mut text = format!("`{}`: {}", stored.name, stored.message);
        if let Some(generation) = stored.generation {
            text = format!("generation {generation} of {text}");
        }
        let rows = stored.receipt.iter();
        for row in
            rows.filter(|row| !matches!(row.verdict, CryoVerdict::Saved | CryoVerdict::Recipe))
        {
            let (verdict, why) = (row.verdict.as_str(), row.why.as_deref());
            let why = why.unwrap_or("no reason given");
            text.push_str(&format!(
                "\n{verdict}: `{}` ({}): {why}",
                row.name, row.kind
            ));
        }
        match stored.kernel.as_ref().map(|k| (k.state, &k.restored_from)) {
            Some((KernelState::Lost, _)) => {
                text.push_str("\nthe kernel is new: earlier variables were already lost");
            }
            Some((KernelState::Restored, Some(from))) => text.push_str(&format!(
                "\nthe kernel is new and has the variables of {}",
                from.describe()
            )),
            _ => {}
        }
        text_result(stored, text)
    }

    /// Restore stored variables into a session; the session's other variables stay.
    #[tool(
        title = "Restore variables",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn cryo_reload(&self, Parameters(request): Parameters<ReloadRequest>) -> ToolResult {
        self.ensure_session(Some(request.session.clone())).await?;
        let reloaded = self.factory.0.handles.cryo.reload(request).await?;
        let ReloadReply {
            generation,
            name,
            message,
            warnings,
            kernel,
            ..
        } = &reloaded;
        let mut text = format!("generation {generation} of `{name}`: {message}");
        if let Some(from) = &kernel.restored_from {
            text.push_str(&format!("\nfrom {}", from.describe()));
        }
        for warning in warnings {
            text.push_str(&format!("\n{warning}"));
        }
        text_result(reloaded, text)
    }
}
