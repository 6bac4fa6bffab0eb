//! Tools of evolving: asking for a new body, and hearing what became of it.

use super::answer::{Answer, said};
use super::desktop::Nothing;
use super::refused::Refused;
use super::server::Server;
use crate::companion::evolve::{Evolve as Keeper, unexpected};
use crate::protocol::evolve::{Ask, Evolve, Reply, Started, Status};
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};

#[tool_router(router = evolve_tools, vis = "pub(super)")]
impl Server {
    /// Rebuilds this computer from the project's `body/` and moves into it: variables, sessions and the shell's
    /// context come along. It is built and tested beside what runs, and taken back when it does not prove
    /// itself. This answers at once; `evolve_status` tells how it goes.
    #[tool(
        title = "Move into a new body",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = false, open_world_hint = false),
        output_schema = schema_for_output::<Started>()
    )]
    async fn evolve(&self, Parameters(wish): Parameters<Evolve>) -> Answer {
        let keeper = self.keeper()?;
        match keeper.ask(&Ask::Evolve(wish)).await? {
            (Reply::Started { run }, _) => {
                keeper.tell_runs();
                let text = format!(
                    "run {} has begun; `evolve_status` tells how it goes",
                    run.as_str()
                );
                let status = "started".into();
                said(Started { status, run }, text)
            }
            (other, _) => Err(unexpected(&other).into()),
        }
    }

    /// Whether this computer is moving into a new body, and how the latest such run ended.
    #[tool(
        title = "How evolving goes",
        annotations(read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Status>()
    )]
    async fn evolve_status(&self, _: Parameters<Nothing>) -> Answer {
        match self.keeper()?.ask(&Ask::Status {}).await? {
            (Reply::Status(status), _) => {
                let text = words(&status);
                said(status, text)
            }
            (other, _) => Err(unexpected(&other).into()),
        }
    }
}

impl Server {
    fn keeper(&self) -> Result<&Keeper, Refused> {
        let starting = || Refused::new("the computer is starting; ask again");
        self.os.0.evolve.get().ok_or_else(starting)
    }
}

fn words(status: &Status) -> String {
    let Some(run) = &status.latest_run else {
        return "it was never replaced".into();
    };
    let stage = match (status.stage, status.latest_status) {
        (Some(stage), _) => format!("is on: {}", stage.word()),
        (None, Some(end)) => format!("ended: {}", end.word()),
        (None, None) => "is on".into(),
    };
    let why = status.why.as_deref();
    let why = why.map_or_else(String::new, |why| format!("; {why}"));
    format!("run {} {stage}{why}", run.as_str())
}
