//! Spill files: run output that memory does not hold, in one file for each stream.
//!
//! Each file has a thread, which receives the pieces as they were read. The bytes in flight of all files together are
//! limited. Beyond the limit the owner waits, so a slow disk slows the code down as a slow reader of its pipes would. A
//! file that is full or can't be written stays as it is: head and tail remain.

use super::RunKind;
use super::growing_file::GrowingFile;
use super::run::TrackedRun;
use crate::protocol::kernel::OutputStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::{spawn_blocking, yield_now};

/// Maximum bytes of one file.
pub(super) const MAX_SPILL_FILE_BYTES: u64 = 256 << 20;

/// Maximum bytes on their way to all files: a burst of this size waits for no disk.
static SPILL_QUEUE_PERMITS: Semaphore = Semaphore::const_new(16 << 20);

/// Number of files since the start of the companion.
static NEXT_SPILL_SERIAL: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Default)]
pub(crate) struct SpillFiles {
    files: [SpillSlot; 2],
}

#[derive(Debug, Default)]
enum SpillSlot {
    #[default]
    Unused,
    Open {
        sender: mpsc::UnboundedSender<SpillPiece>,
        file: Arc<GrowingFile>,
        sent_bytes: u64,
    },
    Closed,
}

#[derive(Debug)]
struct SpillPiece {
    bytes: Vec<u8>,
    /// Released when the piece is written.
    #[expect(dead_code, reason = "held, never read")]
    permit: Option<SemaphorePermit<'static>>,
}

impl AsRef<[u8]> for SpillPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl SpillFiles {
    pub(crate) async fn write_output(
        &mut self,
        folder: &Path,
        run: &TrackedRun<impl RunKind>,
        stream: OutputStream,
        mut piece: Vec<u8>,
    ) {
        let slot = &mut self.files[stream as usize];
        if matches!(slot, SpillSlot::Unused) {
            *slot = open_slot(folder, run, stream);
        }
        let SpillSlot::Open {
            sender,
            file,
            sent_bytes,
        } = slot
        else {
            return;
        };
        piece.truncate(usize::try_from(MAX_SPILL_FILE_BYTES - *sent_bytes).unwrap_or(usize::MAX));
        let bytes = piece.len() as u64;
        // The semaphore is never closed.
        let permit = SPILL_QUEUE_PERMITS
            .acquire_many(piece.len() as u32)
            .await
            .ok();
        if sender
            .send(SpillPiece {
                bytes: piece,
                permit,
            })
            .is_err()
        {
            // The thread has logged the reason.
            *slot = SpillSlot::Closed;
            return;
        }
        *sent_bytes += bytes;
        run.record_spill(stream, file, bytes);
        if *sent_bytes == MAX_SPILL_FILE_BYTES {
            *slot = SpillSlot::Closed;
        }
        // The owner reads as long as output is available. Followers get a turn before: the output that was just written
        // is still in memory, and followers receive it while the code writes more.
        yield_now().await;
    }
}

fn open_slot(folder: &Path, run: &TrackedRun<impl RunKind>, stream: OutputStream) -> SpillSlot {
    let name = match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    };
    // A reader of a removed run keeps its file, and another run may have the same id by then.
    let serial = NEXT_SPILL_SERIAL.fetch_add(1, Ordering::Relaxed);
    let file = Arc::new(GrowingFile::new(
        folder.join(format!("{}.{serial}.{name}", run.id)),
    ));
    let (pieces, mut coming) = mpsc::unbounded_channel();
    let own = Arc::clone(&file);
    spawn_blocking(move || {
        let all = std::iter::from_fn(|| coming.blocking_recv());
        if let Err(error) = own.fill_from(all) {
            tracing::warn!(path = %own.path().display(), %error, "the output of a run can't be written");
        }
    });
    SpillSlot::Open {
        sender: pieces,
        file,
        sent_bytes: 0,
    }
}
