//! The activity log of the container, read over the companion's API.

use super::bounded_response::{ResponseLines, reopen_stream};
use super::client::CompanionClient;
use crate::error::{Error, Result};
use crate::protocol::activity::{ActivityEvent, ActivityList, ActivityQuery, ActivityRecord};
use reqwest::Method;
use reqwest::header::ACCEPT;
use std::time::Duration;

/// How often a follower reconnects after a lost connection, and the delay between attempts: a container that is replaced
/// answers again after some seconds.
const MAX_ACTIVITY_RECONNECT_ATTEMPTS: u32 = 60;
const ACTIVITY_RECONNECT_DELAY: Duration = Duration::from_millis(500);

impl CompanionClient {
    pub(crate) async fn list_activity(&self, query: &ActivityQuery) -> Result<ActivityList> {
        let request = self.build_request(Method::GET, "/activity", None::<&()>);
        let response = self.send_request(request.query(query)).await?;
        self.read_json(response).await
    }

    async fn open_activity(&self, query: &ActivityQuery) -> Result<reqwest::Response> {
        let request = self.build_request(Method::GET, "/activity", None::<&()>);
        let request = request.query(query).header(ACCEPT, "application/x-ndjson");
        self.send_request(request).await
    }
}

/// Earlier records, then each new one; continues in the next container after a replacement.
#[derive(Debug)]
pub(crate) struct FollowedActivity {
    client: CompanionClient,
    query: ActivityQuery,
    response: reqwest::Response,
    lines: ResponseLines,
}

impl FollowedActivity {
    /// # Errors
    /// When the companion can't be reached.
    pub(crate) async fn open(client: CompanionClient, query: ActivityQuery) -> Result<Self> {
        let response = client.open_activity(&query).await?;
        Ok(Self {
            client,
            query,
            response,
            lines: ResponseLines::default(),
        })
    }

    /// The next record, or the number of records that the companion left out.
    ///
    /// # Errors
    /// When the connection is lost and the companion does not answer again.
    pub(crate) async fn next(&mut self) -> Result<std::result::Result<ActivityRecord, u64>> {
        loop {
            if let Some(line) = self.lines.next() {
                match self.client.parse_json(&line)? {
                    ActivityEvent::Record(record) => {
                        self.query.after = Some(record.seq);
                        return Ok(Ok(record));
                    }
                    ActivityEvent::Skipped { count } => return Ok(Err(count)),
                    ActivityEvent::Heartbeat => continue,
                }
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => {
                    let pushed = self.lines.push(&bytes);
                    pushed.map_err(|failure| self.client.read_error(&failure))?;
                }
                Ok(None) | Err(_) => self.reconnect().await?,
            }
        }
    }

    async fn reconnect(&mut self) -> Result<()> {
        self.lines.clear();
        let (attempts, delay) = (MAX_ACTIVITY_RECONNECT_ATTEMPTS, ACTIVITY_RECONNECT_DELAY);
        let open = || self.client.open_activity(&self.query);
        self.response = reopen_stream(attempts, delay, is_final, open).await?;
        Ok(())
    }
}

/// Whether another attempt can't help: the companion answers and refuses.
fn is_final(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref();
    matches!(
        refused,
        Some(Error::Refused {
            status: 400..500,
            ..
        })
    )
}
