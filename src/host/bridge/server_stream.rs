//! The stream of server messages that belong to no request, open until the client leaves.

use super::StdioBridge;
use super::connection::is_events;
use crate::host::bounded_response::EventStream;
use reqwest::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Delay before a stream that ended is opened again.
const BRIDGE_STREAM_REOPEN_DELAY: Duration = Duration::from_millis(200);

impl StdioBridge {
    pub(super) async fn forward_notifications(self: Arc<Self>) {
        let mut last: Option<String> = None;
        loop {
            let (round, session) = (
                self.connection.connection_number(),
                self.connection.session(),
            );
            match self.connection.open_stream(last.as_deref()).await {
                Ok(response) if is_events(&response) => {
                    let mut stream = EventStream::new(response);
                    loop {
                        let events = match stream.next().await {
                            Ok(Some(events)) => events,
                            Ok(None) => break,
                            // The hub would send the same event again.
                            Err(error) => {
                                tracing::error!(%error, "the bridge stopped reading the hub's stream");
                                return;
                            }
                        };
                        for event in events {
                            last = event.id.or(last);
                            if !event.data.is_empty() {
                                self.send_to_client(&event.data).await;
                            }
                        }
                    }
                }
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    last = None;
                    self.reinitialize(session.as_ref()).await;
                }
                // A server without notifications is not asked again.
                Ok(response) if response.status().is_client_error() => return,
                Ok(_) => {}
                // Requests report the error; this task retries until the hub is found.
                Err(_) => drop(self.connection.reconnect(round).await),
            }
            sleep(BRIDGE_STREAM_REOPEN_DELAY).await;
        }
    }
}
