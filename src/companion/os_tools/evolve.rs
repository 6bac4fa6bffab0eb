//! Evolve tools: request a new container from the project's `body/`, and read the outcome.

use super::desktop::Nothing;
use super::server::OsServer;
use super::tool_error::ToolError;
use super::tool_result::{ToolResult, text_result};
use crate::companion::evolve::{EvolveHandle as Keeper, unexpected_reply};
use crate::protocol::evolve::{
    EvolveRequest, EvolveStarted, EvolveStatus, KeeperReply, KeeperRequest,
};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};

#[tool_router(router = evolve_tools, vis = "pub(super)")]
impl OsServer {
    /// Rebuild this computer from the project's `body/` and move into the new container with variables, sessions and
    /// the shell's context. The new container is built and tested beside the running one, and rolled back if
    /// verification fails. This call returns immediately; `evolve_status` reports progress.
    #[tool(
        title = "Rebuild the computer",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = false,
            open_world_hint = false
        )
    )]
    async fn evolve(&self, Parameters(request): Parameters<EvolveRequest>) -> ToolResult {
        let keeper = self.keeper()?;
        match keeper
            .request_keeper(&KeeperRequest::Evolve(request))
            .await?
        {
            (KeeperReply::Started { run }, _) => {
                keeper.record_runs();
                let text = format!(
                    "evolve {} has started; `evolve_status` reports its progress",
                    run.as_str()
                );
                let status = "started".into();
                text_result(EvolveStarted { status, run }, text)
            }
            (other, _) => Err(unexpected_reply(&other).into()),
        }
    }

    /// Report whether this computer is moving into a new container, and the result of the latest run.
    #[tool(
        title = "Evolve status",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn evolve_status(&self, _: Parameters<Nothing>) -> ToolResult {
        match self
            .keeper()?
            .request_keeper(&KeeperRequest::Status {})
            .await?
        {
            (KeeperReply::Status(status), _) => {
                let text = status_text(&status);
                text_result(status, text)
            }
            (other, _) => Err(unexpected_reply(&other).into()),
        }
    }
}

impl OsServer {
    fn keeper(&self) -> Result<&Keeper, ToolError> {
        let starting = || ToolError::new("the computer is starting; call again in a moment");
        self.factory.0.evolve.get().ok_or_else(starting)
    }
}

fn status_text(status: &EvolveStatus) -> String {
    let Some(run) = &status.latest_run else {
        return "no evolve yet".into();
    };
    let progress = match (status.stage, status.latest_status) {
        (Some(stage), _) => format!("is in progress: {}", stage.as_str()),
        (None, Some(end)) => format!("ended: {}", end.as_str()),
        (None, None) => "is in progress".into(),
    };
    let why = status.why.as_deref();
    let why = why.map_or_else(String::new, |why| format!("; {why}"));
    format!("evolve {} {progress}{why}", run.as_str())
}
