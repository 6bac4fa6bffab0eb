//! The activity log of the container, read over the companion's API, or from the data folder of a container that does
//! not run.

use super::bounded_response::{ResponseLines, reopen_stream};
use super::client::CompanionClient;
use crate::archive::{EntryStat, Folder};
use crate::error::{Error, Result};
use crate::protocol::activity::{
    ActivityEvent, ActivityList, ActivityQuery, ActivityRecord, DEFAULT_ACTIVITY_RECORDS,
    MAX_ACTIVITY_RECORDS,
};
use crate::protocol::files::EntryKind;
use reqwest::Method;
use reqwest::header::ACCEPT;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

/// What is read of the stored log, where code in the container can write: names in the folder, the newest segments, and
/// bytes of a segment.
const MAX_STORED_NAMES: usize = 1000;
const MAX_STORED_SEGMENTS: usize = 20;
const MAX_STORED_SEGMENT_BYTES: u64 = 4 << 20;

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

/// The newest matching records in the data folder, the oldest first.
///
/// # Errors
/// When there is no log, or it can't be read.
pub(crate) fn read_stored_activity(
    data_folder: &Path,
    query: &ActivityQuery,
) -> io::Result<ActivityList> {
    let folder = Folder::open(data_folder)?.open_folder(OsStr::new("activity"))?;
    let number = |name: OsString| {
        let number = name.to_str()?.strip_suffix(".jsonl")?;
        Some((number.parse::<u64>().ok()?, name))
    };
    let names = folder.names_up_to(MAX_STORED_NAMES)?.into_iter();
    let mut segments: Vec<_> = names.filter_map(number).collect();
    segments.sort_unstable();
    let limit = query.limit.unwrap_or(DEFAULT_ACTIVITY_RECORDS);
    let limit = limit.min(MAX_ACTIVITY_RECORDS);
    let mut records = VecDeque::new();
    for (_, name) in segments.iter().rev().take(MAX_STORED_SEGMENTS) {
        let text = read_segment(&folder, name).unwrap_or_default();
        let lines = text.rsplit(|byte| *byte == b'\n');
        let found = lines.filter_map(|line| serde_json::from_slice(line).ok());
        let found = found.filter(|record| query.matches(record));
        found
            .take(limit - records.len())
            .for_each(|record| records.push_front(record));
    }
    Ok(ActivityList {
        records: records.into(),
    })
}

fn read_segment(folder: &Folder, name: &OsStr) -> io::Result<Vec<u8>> {
    let file = folder.open_file(name)?;
    let mut text = Vec::new();
    if EntryStat::stat_file(&file)?.kind == EntryKind::File {
        file.take(MAX_STORED_SEGMENT_BYTES).read_to_end(&mut text)?;
    }
    Ok(text)
}

#[cfg(all(test, unix))]
mod tests {
    use super::read_stored_activity;
    use crate::protocol::activity::{ActivityKind, ActivityQuery, ActivityRecord, ActivityVerdict};
    use crate::protocol::activity_draft::ActivityDraft;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_stored_log_is_read_through_no_link_and_without_lines_that_are_no_records() {
        let data = tempfile::tempdir().unwrap();
        let all = ActivityQuery::default();
        assert!(read_stored_activity(data.path(), &all).is_err());
        let record = |seq, client: &str| {
            let draft = ActivityDraft::begin(ActivityKind::Exec, client.into());
            let finished = draft.finish(ActivityVerdict::Completed, 2);
            serde_json::to_string(&ActivityRecord { seq, ..finished }).unwrap()
        };
        let folder = data.path().join("activity");
        fs::create_dir(&folder).unwrap();
        let first = format!("{}\nno record\n{}\n", record(1, "a"), record(2, "b"));
        fs::write(folder.join("00000001.jsonl"), first).unwrap();
        fs::write(folder.join("00000002.jsonl"), record(3, "a")).unwrap();
        let outside = data.path().join("outside");
        fs::write(&outside, record(9, "a")).unwrap();
        symlink(&outside, folder.join("00000003.jsonl")).unwrap();
        fs::create_dir(folder.join("00000004.jsonl")).unwrap();
        let read = |query: &ActivityQuery| {
            let found = read_stored_activity(data.path(), query).unwrap().records;
            found.iter().map(|record| record.seq).collect::<Vec<_>>()
        };
        assert_eq!(read(&all), [1, 2, 3]);
        let limit = Some(2);
        assert_eq!(
            read(&ActivityQuery {
                limit,
                ..all.clone()
            }),
            [2, 3]
        );
        let client = Some("A".into());
        assert_eq!(read(&ActivityQuery { client, ..all }), [1, 3]);
    }
}
