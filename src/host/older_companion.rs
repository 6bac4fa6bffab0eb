//! A companion of an earlier version, which cannot prove that it knows the token.
//!
//! The engine can confirm that the port belongs to the container, but osctl uses this only to choose the message:
//! between that answer and a connection another process can take the port. osctl sends the token to no listener without
//! a proof, and the verbs that such a container needs (`up`, `down`, `restart`, `status`) use the engine alone.

use super::instance::{INSTANCE_LABEL, Instance};
use crate::engine::{Container, ContainerPhase, Engine};
use crate::error::Error;

/// Whether an error means that a listener answered without a proof.
pub(crate) fn is_missing_proof(error: &anyhow::Error) -> bool {
    let expected = error.downcast_ref();
    matches!(
        expected,
        Some(Error::ListenerUnproven {
            has_proof: false,
            ..
        })
    )
}

/// The same error, or [`Error::OlderCompanion`] if the engine reports that the listener without a proof is the
/// instance's container.
pub(crate) async fn name_older_companion(
    error: anyhow::Error,
    instance: &Instance,
    engine: &Engine,
) -> anyhow::Error {
    let Some(Error::ListenerUnproven {
        has_proof: false,
        port,
        ..
    }) = error.downcast_ref()
    else {
        return error;
    };
    let container = instance.container_name();
    match engine.inspect(&container).await {
        Ok(Some(found)) if has_published_port(&found, instance, *port) => {
            let up = instance.osctl_command("up");
            Error::OlderCompanion { container, up }.into()
        }
        _ => error,
    }
}

fn has_published_port(container: &Container, instance: &Instance, port: u16) -> bool {
    container.labels.get(INSTANCE_LABEL) == Some(&instance.name)
        && container.phase == ContainerPhase::Running
        && container.has_ports
        && container.ports.iter().any(|one| one.host == port)
}
