//! The session that a notebook uses. The instance may stop and start: this module creates the client on demand, and
//! creates another after a failure.

use super::outputs::OutputPolicy;
use crate::error::{Error, Result};
use crate::host::client::CompanionClient;
use crate::protocol::kernel::DEFAULT_SESSION;
use std::cell::RefCell;
use std::fmt;

pub(crate) struct NotebookSession<'a> {
    connect: Box<dyn Fn() -> Result<CompanionClient> + 'a>,
    session: String,
    outputs: OutputPolicy,
    client: RefCell<Option<CompanionClient>>,
}

impl fmt::Debug for NotebookSession<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = &self.session;
        f.debug_struct("NotebookSession")
            .field("session", session)
            .finish_non_exhaustive()
    }
}

impl<'a> NotebookSession<'a> {
    /// `connect` creates a client of the current instance.
    pub(crate) fn new(
        session: String,
        outputs: OutputPolicy,
        connect: impl Fn() -> Result<CompanionClient> + 'a,
    ) -> Self {
        Self {
            connect: Box::new(connect),
            session,
            outputs,
            client: RefCell::default(),
        }
    }

    pub(super) fn output_policy(&self) -> OutputPolicy {
        self.outputs
    }

    pub(super) fn session_name(&self) -> String {
        self.session.clone()
    }

    /// Calls the instance with a connected client.
    pub(super) async fn with_client<T>(
        &self,
        question: impl AsyncFnOnce(&CompanionClient) -> Result<T>,
    ) -> Result<T> {
        let connected = match self.connect_client().await {
            Ok(client) => question(&client).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &connected
            && !is_refusal(error)
        {
            self.client.take();
        }
        connected
    }

    async fn connect_client(&self) -> Result<CompanionClient> {
        let known = self.client.borrow().clone();
        if let Some(client) = known {
            return Ok(client);
        }
        let client = (self.connect)()?;
        self.ensure_session(&client).await?;
        self.client.replace(Some(client.clone()));
        Ok(client)
    }

    /// Creates the session if missing; the default session always exists.
    pub(super) async fn ensure_session(&self, client: &CompanionClient) -> Result<()> {
        if self.session != DEFAULT_SESSION {
            client.create_session(Some(&self.session)).await?;
        }
        Ok(())
    }
}

/// Whether the instance and the session answered with a refusal.
fn is_refusal(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Error>() {
        Some(Error::Refused { status, .. }) => ![401, 403, 404].contains(status),
        _ => false,
    }
}
