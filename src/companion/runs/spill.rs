//! Writing what memory does not hold of a run's output to files, one for each stream.
//!
//! Each file has a thread, which is handed the pieces as they were read. All files together have so
//! much on its way; beyond that the owner waits, and so a slow disk slows the code down as a slow
//! reader of its pipes would. A file that is full or can't be written is left as it is: head and
//! tail remain.

use super::Work;
use super::filling::Filling;
use super::run::Run;
use crate::protocol::kernel::Stream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::{spawn_blocking, yield_now};

/// Bytes of one file.
pub(super) const LIMIT: u64 = 256 << 20;

/// Bytes on their way to all files: a burst of so many waits for no disk.
static ON_THE_WAY: Semaphore = Semaphore::const_new(16 << 20);

/// Of files, since the companion began.
static SERIAL: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Default)]
pub(crate) struct Spill {
    files: [Slot; 2],
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Unused,
    Open {
        pieces: mpsc::UnboundedSender<Piece>,
        file: Arc<Filling>,
        sent: u64,
    },
    Closed,
}

#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    /// Free again when it is written.
    #[expect(dead_code, reason = "held, never read")]
    room: Option<SemaphorePermit<'static>>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Spill {
    pub(crate) async fn write(
        &mut self,
        folder: &Path,
        run: &Run<impl Work>,
        stream: Stream,
        mut piece: Vec<u8>,
    ) {
        let slot = &mut self.files[stream as usize];
        if matches!(slot, Slot::Unused) {
            *slot = open(folder, run, stream);
        }
        let Slot::Open { pieces, file, sent } = slot else {
            return;
        };
        piece.truncate(usize::try_from(LIMIT - *sent).unwrap_or(usize::MAX));
        let bytes = piece.len() as u64;
        // Nobody closes it.
        let room = ON_THE_WAY.acquire_many(piece.len() as u32).await.ok();
        if pieces.send(Piece { bytes: piece, room }).is_err() {
            // The thread has said why in the log.
            *slot = Slot::Closed;
            return;
        }
        *sent += bytes;
        run.spilled(stream, file, bytes);
        if *sent == LIMIT {
            *slot = Slot::Closed;
        }
        // The owner reads on as long as there is more. Whoever follows gets a turn before that: what
        // was just written is in memory still, and goes out while the code writes the rest.
        yield_now().await;
    }
}

fn open(folder: &Path, run: &Run<impl Work>, stream: Stream) -> Slot {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    // Who still reads a run that was forgotten keeps its file, and another run may have its id by then.
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let file = Arc::new(Filling::new(
        folder.join(format!("{}.{serial}.{name}", run.id)),
    ));
    let (pieces, mut coming) = mpsc::unbounded_channel();
    let own = Arc::clone(&file);
    spawn_blocking(move || {
        let all = std::iter::from_fn(|| coming.blocking_recv());
        if let Err(error) = own.fill(all) {
            tracing::warn!("`{}` can't be written: {error}", own.path().display());
        }
    });
    Slot::Open {
        pieces,
        file,
        sent: 0,
    }
}
