//! What the engine knows about a companion that does not answer: its container is paused, or runs an earlier version,
//! which cannot prove that it knows the token.
//!
//! The engine can confirm that the port belongs to the container, but osctl uses this only to choose the message:
//! between that answer and a connection another process can take the port. osctl sends the token to no listener without
//! a proof, and the verbs that such a container needs (`up`, `down`, `restart`, `status`) use the engine alone.

use super::instance::{INSTANCE_LABEL, Instance};
use crate::engine::{Container, ContainerPhase, Engine};
use crate::error::Error;

/// Whether the engine may know more about the cause of an error.
pub(crate) fn may_engine_explain(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(
            Error::Unreachable { .. }
                | Error::ListenerUnproven {
                    has_proof: false,
                    ..
                }
        )
    )
}

/// The cause as the engine reports it, or the same error: [`Error::Paused`] for a paused container, and
/// [`Error::OlderCompanion`] if the listener without a proof is the instance's container.
pub(crate) async fn explain_by_engine(
    error: anyhow::Error,
    instance: &Instance,
    engine: &Engine,
) -> anyhow::Error {
    if !may_engine_explain(&error) {
        return error;
    }
    let container = instance.container_name();
    let Ok(Some(found)) = engine.inspect(&container).await else {
        return error;
    };
    if found.labels.get(INSTANCE_LABEL) != Some(&instance.name) {
        return error;
    }
    let up = instance.osctl_command("up");
    match error.downcast_ref() {
        _ if found.phase == ContainerPhase::Paused => Error::Paused { container, up }.into(),
        Some(Error::ListenerUnproven { port, .. }) if has_published_port(&found, *port) => {
            Error::OlderCompanion { container, up }.into()
        }
        _ => error,
    }
}

fn has_published_port(container: &Container, port: u16) -> bool {
    container.phase == ContainerPhase::Running
        && container.has_ports
        && container.ports.iter().any(|one| one.host == port)
}
