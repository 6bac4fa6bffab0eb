//! Unpacking of archives across connections.
//!
//! ```text
//! none ─start─▶ Leased ──input complete──▶ done
//!                │ ▲         │
//!              cut │ the same id resumes at its offset, and gets the outcome
//!                ▼ │         ▼
//!               Idle for two minutes, then cut: incomplete files are removed
//! ```
//!
//! A thread unpacks the input of a request. An unpacking with an id survives a lost connection together with its
//! thread, so that another request can resume in the middle of a file. Without an id, it is cut with its connection.
//! All unpackings end with the companion.

use super::{ContainerPath, FilesRefusal};
use crate::archive::{
    ChunkReader, ChunkSender, ReadProgress, ResumePoint, UnpackTotals, VerifiedReader, chunk_reader,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How long an unpacking without a request is kept.
const UNPACK_RESUME_TIMEOUT: Duration = Duration::from_secs(120);

/// Id and target folder.
type UnpackKey = (String, PathBuf);

/// The unpackings that have an id.
#[derive(Debug, Clone, Default)]
pub(super) struct ResumableUnpacks(Arc<Mutex<UnpackTable>>);

#[derive(Debug, Default)]
struct UnpackTable {
    last_lease: u64,
    slots: HashMap<UnpackKey, (u64, UnpackSlot)>,
}

impl UnpackTable {
    /// The outcome of this lease's unpacking, unless another request has resumed it since.
    fn take_outcome(
        &mut self,
        name: &UnpackKey,
        lease: u64,
    ) -> Option<oneshot::Receiver<Result<UnpackTotals, FilesRefusal>>> {
        match self.slots.remove(name) {
            Some((number, UnpackSlot::Idle(stream))) if number == lease => Some(stream.outcome),
            Some(other) => {
                self.slots.insert(name.clone(), other);
                None
            }
            None => None,
        }
    }
}

#[derive(Debug)]
enum UnpackSlot {
    /// A request feeds the unpacking.
    Leased,
    /// No request feeds the unpacking.
    Idle(UnpackStream),
}

/// The right of a request to feed an unpacking. If the unpacking was discarded or replaced since, its stream is not
/// kept.
#[derive(Debug)]
struct UnpackLease {
    unpacks: ResumableUnpacks,
    key: UnpackKey,
    lease_number: u64,
}

/// An unpacking that a request feeds. Dropping it before its end keeps it for another request.
#[derive(Debug)]
pub(crate) struct ActiveUnpack {
    stream: Option<UnpackStream>,
    lease: Option<UnpackLease>,
}

#[derive(Debug)]
struct UnpackStream {
    /// `None` when the input is complete.
    input: Option<ChunkSender>,
    fed_bytes: u64,
    progress: watch::Receiver<ReadProgress>,
    outcome: oneshot::Receiver<Result<UnpackTotals, FilesRefusal>>,
}

impl UnpackStream {
    fn start(
        unpack: impl FnOnce(VerifiedReader<ChunkReader>) -> Result<UnpackTotals, FilesRefusal>
        + Send
        + 'static,
    ) -> Self {
        let (input, reader) = chunk_reader();
        let (verified_reader, progress) = VerifiedReader::new(reader);
        let (outcome_sender, outcome) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            // The receiver is gone when the unpacking was cut.
            let _ = outcome_sender.send(unpack(verified_reader));
        });
        Self {
            input: Some(input),
            fed_bytes: 0,
            progress,
            outcome,
        }
    }
}

impl ActiveUnpack {
    /// Starts an unpacking that ends with its connection.
    pub(super) fn without_resume(
        unpack: impl FnOnce(VerifiedReader<ChunkReader>) -> Result<UnpackTotals, FilesRefusal>
        + Send
        + 'static,
    ) -> Self {
        Self {
            stream: Some(UnpackStream::start(unpack)),
            lease: None,
        }
    }

    /// Feeds a piece; `false` when the unpacking has ended.
    pub(crate) async fn feed_chunk(&mut self, piece: Bytes) -> bool {
        let Some(stream) = &mut self.stream else {
            return false;
        };
        let Some(input) = &stream.input else {
            // Data after the end does not belong to the archive.
            return false;
        };
        let length = piece.len() as u64;
        // If the request is dropped during this wait, the piece does not count as given.
        let is_given = input.send_chunk(piece).await;
        stream.fed_bytes += length;
        is_given
    }

    /// Marks the input as complete and waits for the outcome.
    pub(crate) async fn finish_input(mut self) -> Result<UnpackTotals, FilesRefusal> {
        if let Some(stream) = &mut self.stream
            && let Some(input) = &stream.input
        {
            input.finish().await;
            stream.input = None;
        }
        self.wait_outcome().await
    }

    /// Handles a lost connection.
    pub(crate) async fn handle_disconnect(mut self) -> FilesRefusal {
        if self.lease.is_none()
            && let Some(stream) = &mut self.stream
            && let Some(input) = stream.input.take()
        {
            input.fail(io::ErrorKind::UnexpectedEof.into()).await;
            // After this wait the incomplete file is removed.
            let _ = self.wait_outcome().await;
        }
        FilesRefusal::Disconnected
    }

    async fn wait_outcome(&mut self) -> Result<UnpackTotals, FilesRefusal> {
        let ended = || FilesRefusal::Failed("the unpacking task ended".into());
        let stream = self.stream.as_mut().ok_or_else(ended)?;
        let outcome = (&mut stream.outcome).await;
        self.stream.take();
        outcome.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for ActiveUnpack {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.return_stream(self.stream.take());
        }
    }
}

impl ResumableUnpacks {
    /// Resumes an unpacking at `offset`, or starts one.
    pub(super) fn start_or_resume(
        &self,
        id: &str,
        place: &ContainerPath,
        offset: u64,
        unpack: impl FnOnce(VerifiedReader<ChunkReader>) -> Result<UnpackTotals, FilesRefusal>
        + Send
        + 'static,
    ) -> Result<ActiveUnpack, FilesRefusal> {
        let key = (id.to_owned(), place.path.clone());
        let mut table = self.0.lock();
        let stream = match (table.slots.remove(&key), offset) {
            (Some(leased @ (_, UnpackSlot::Leased)), _) => {
                table.slots.insert(key, leased);
                return Err(FilesRefusal::InProgress(id.into()));
            }
            // An unpacking that started before is cut.
            (_, 0) => UnpackStream::start(unpack),
            (Some((_, UnpackSlot::Idle(stream))), _) if stream.fed_bytes == offset => stream,
            (Some((lease, UnpackSlot::Idle(stream))), _) => {
                let fed_bytes = stream.fed_bytes;
                table.slots.insert(key, (lease, UnpackSlot::Idle(stream)));
                return Err(FilesRefusal::OffsetMismatch(fed_bytes));
            }
            (None, _) => return Err(FilesRefusal::OffsetMismatch(0)),
        };
        table.last_lease += 1;
        let lease_number = table.last_lease;
        table
            .slots
            .insert(key.clone(), (lease_number, UnpackSlot::Leased));
        drop(table);
        let lease = UnpackLease {
            unpacks: self.clone(),
            key,
            lease_number,
        };
        Ok(ActiveUnpack {
            stream: Some(stream),
            lease: Some(lease),
        })
    }

    /// The resume point of an unpacking; nothing when there is none.
    ///
    /// # Errors
    /// When the unpacking has failed, why.
    pub(super) async fn find_resume_point(
        &self,
        id: &str,
        place: &ContainerPath,
    ) -> Result<Option<ResumePoint>, FilesRefusal> {
        let name = (id.to_owned(), place.path.clone());
        let (lease, fed_bytes, mut progress) = match self.0.lock().slots.get(&name) {
            None => return Ok(None),
            Some((_, UnpackSlot::Leased)) => return Err(FilesRefusal::InProgress(id.into())),
            Some((lease, UnpackSlot::Idle(stream))) => {
                (*lease, stream.fed_bytes, stream.progress.clone())
            }
        };
        // Wait until the thread has processed all input or has ended.
        let progress = progress
            .wait_for(|progress| progress.resume_point(fed_bytes).is_some())
            .await;
        let resume_point = progress.ok().and_then(|read| read.resume_point(fed_bytes));
        if resume_point.is_some() {
            return Ok(resume_point);
        }
        let Some(ended) = self.0.lock().take_outcome(&name, lease) else {
            // Another request has started or resumed one since.
            return Err(FilesRefusal::InProgress(id.into()));
        };
        match ended.await {
            Ok(Err(refusal)) => Err(refusal),
            Ok(Ok(_)) | Err(_) => Ok(None),
        }
    }

    /// Cuts an unpacking, and with it the request that feeds it.
    pub(super) fn discard_unpacking(&self, id: &str, place: &ContainerPath) -> bool {
        let name = (id.to_owned(), place.path.clone());
        self.0.lock().slots.remove(&name).is_some()
    }
}

impl UnpackLease {
    /// Returns the stream of a request that no longer feeds it; `None` when the unpacking has ended.
    fn return_stream(self, stream: Option<UnpackStream>) {
        let mut table = self.unpacks.0.lock();
        match table.slots.get_mut(&self.key) {
            Some((number, slot)) if *number == self.lease_number => match stream {
                Some(stream) => *slot = UnpackSlot::Idle(stream),
                None => {
                    table.slots.remove(&self.key);
                    return;
                }
            },
            _ => return,
        }
        drop(table);
        // Without a runtime the companion is ending, and cuts all unpackings.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(UNPACK_RESUME_TIMEOUT).await;
                self.discard_if_idle();
            });
        }
    }

    /// Cuts the unpacking if no request has resumed it since.
    fn discard_if_idle(&self) {
        let mut table = self.unpacks.0.lock();
        if matches!(table.slots.get(&self.key), Some((number, _)) if *number == self.lease_number) {
            tracing::info!("the companion discards an archive upload that no request has resumed");
            table.slots.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ActiveUnpack, ContainerPath, FilesRefusal, ResumableUnpacks, UnpackTotals};
    use std::io::Read;

    fn start_test_unpacking(
        unpacks: &ResumableUnpacks,
        offset: u64,
    ) -> Result<ActiveUnpack, FilesRefusal> {
        let place = ContainerPath::parse("/folder").unwrap();
        // This unpacking treats any input as archive structure without file data.
        unpacks.start_or_resume("id", &place, offset, |mut reader| {
            let mut all = Vec::new();
            reader
                .read_to_end(&mut all)
                .map_err(|_| FilesRefusal::Disconnected)?;
            Ok(UnpackTotals {
                bytes: all.len() as u64,
                ..UnpackTotals::default()
            })
        })
    }

    #[tokio::test]
    async fn an_interrupted_unpacking_resumes() {
        let unpacks = ResumableUnpacks::default();
        let place = ContainerPath::parse("/folder").unwrap();
        assert!(matches!(
            start_test_unpacking(&unpacks, 5),
            Err(FilesRefusal::OffsetMismatch(0))
        ));
        let mut first = start_test_unpacking(&unpacks, 0).unwrap();
        assert!(first.feed_chunk("12345".into()).await);
        assert!(matches!(
            start_test_unpacking(&unpacks, 5),
            Err(FilesRefusal::InProgress(_))
        ));
        assert!(unpacks.find_resume_point("id", &place).await.is_err());
        assert!(matches!(
            first.handle_disconnect().await,
            FilesRefusal::Disconnected
        ));
        let point = unpacks
            .find_resume_point("id", &place)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((point.bytes, point.metadata_digest.len()), (5, 64));
        assert!(matches!(
            start_test_unpacking(&unpacks, 4),
            Err(FilesRefusal::OffsetMismatch(5))
        ));
        let mut second = start_test_unpacking(&unpacks, 5).unwrap();
        assert!(second.feed_chunk("678".into()).await);
        assert_eq!(second.finish_input().await.unwrap().bytes, 8);
        assert_eq!(unpacks.find_resume_point("id", &place).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_repeated_request_gets_the_outcome() {
        let unpacks = ResumableUnpacks::default();
        let place = ContainerPath::parse("/folder").unwrap();
        let (go_on, goes_on) = std::sync::mpsc::channel();
        let first = unpacks.start_or_resume("id", &place, 0, move |mut reader| {
            let mut all = Vec::new();
            reader
                .read_to_end(&mut all)
                .map_err(|_| FilesRefusal::Disconnected)?;
            goes_on.recv().map_err(|_| FilesRefusal::Disconnected)?;
            Ok(UnpackTotals {
                files: 7,
                ..UnpackTotals::default()
            })
        });
        let mut first = first.unwrap();
        assert!(first.feed_chunk("12345".into()).await);
        // The connection is lost while the request waits for the outcome.
        let ended = tokio::time::timeout(std::time::Duration::ZERO, first.finish_input()).await;
        assert!(ended.is_err());
        go_on.send(()).unwrap();
        let again = start_test_unpacking(&unpacks, 5).unwrap();
        assert_eq!(again.finish_input().await.unwrap().files, 7);
    }

    #[tokio::test]
    async fn a_request_for_the_resume_point_gets_the_failure() {
        let unpacks = ResumableUnpacks::default();
        let place = ContainerPath::parse("/folder").unwrap();
        let full = |mut reader: crate::archive::VerifiedReader<_>| {
            let _ = reader.read(&mut [0]);
            Err(FilesRefusal::Failed("the disk is full".into()))
        };
        let mut first = unpacks.start_or_resume("id", &place, 0, full).unwrap();
        assert!(first.feed_chunk("12345".into()).await);
        drop(first);
        let found = unpacks.find_resume_point("id", &place).await;
        assert!(matches!(found, Err(FilesRefusal::Failed(why)) if why == "the disk is full"));
        assert_eq!(unpacks.find_resume_point("id", &place).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_connection_that_is_lost_at_the_very_end_loses_nothing() {
        let unpacks = ResumableUnpacks::default();
        let place = ContainerPath::parse("/folder").unwrap();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let slow = move |mut reader: crate::archive::VerifiedReader<_>| {
            goes_on.recv().map_err(|_| FilesRefusal::Disconnected)?;
            let mut all = Vec::new();
            reader
                .read_to_end(&mut all)
                .map_err(|_| FilesRefusal::Disconnected)?;
            Ok(UnpackTotals {
                bytes: all.len() as u64,
                ..UnpackTotals::default()
            })
        };
        let mut first = unpacks.start_or_resume("id", &place, 0, slow).unwrap();
        // The channel is full, so the end can't be sent.
        let mut fed_bytes = 0;
        let full = std::time::Duration::from_millis(50);
        while tokio::time::timeout(full, first.feed_chunk("1".into())).await == Ok(true) {
            fed_bytes += 1;
        }
        assert!(
            tokio::time::timeout(full, first.finish_input())
                .await
                .is_err()
        );
        go_on.send(()).unwrap();
        assert_eq!(
            unpacks
                .find_resume_point("id", &place)
                .await
                .unwrap()
                .unwrap()
                .bytes,
            fed_bytes
        );
        let again = start_test_unpacking(&unpacks, fed_bytes).unwrap();
        assert_eq!(again.finish_input().await.unwrap().bytes, fed_bytes);
    }

    #[tokio::test]
    async fn a_new_unpacking_cuts_the_previous_one() {
        let unpacks = ResumableUnpacks::default();
        let place = ContainerPath::parse("/folder").unwrap();
        let mut first = start_test_unpacking(&unpacks, 0).unwrap();
        assert!(first.feed_chunk("12345".into()).await);
        drop(first);
        let mut second = start_test_unpacking(&unpacks, 0).unwrap();
        assert!(second.feed_chunk("1".into()).await);
        drop(second);
        assert_eq!(
            unpacks
                .find_resume_point("id", &place)
                .await
                .unwrap()
                .unwrap()
                .bytes,
            1
        );
        assert!(
            unpacks.discard_unpacking("id", &place) && !unpacks.discard_unpacking("id", &place)
        );
    }

    #[tokio::test]
    async fn discarded_active_unpack_is_dropped() {
        let unpacks = ResumableUnpacks::default();
        let place = ContainerPath::parse("/folder").unwrap();
        let mut first = start_test_unpacking(&unpacks, 0).unwrap();
        assert!(first.feed_chunk("12345".into()).await);
        assert!(unpacks.discard_unpacking("id", &place));
        let second = start_test_unpacking(&unpacks, 0).unwrap();
        drop(first);
        assert!(unpacks.find_resume_point("id", &place).await.is_err());
        drop(second);
        assert_eq!(
            unpacks
                .find_resume_point("id", &place)
                .await
                .unwrap()
                .unwrap()
                .bytes,
            0
        );
    }
}
