//! Writing what memory does not hold of a run's output to files, one for each stream.
//!
//! Each file has a thread, which is handed the pieces as they were read. What is on its way there is
//! no more than the tail in memory holds, so nobody looks for it in the file; beyond that the owner
//! waits, and so a slow disk slows the code down as a slow reader of its pipes would. A file that is
//! full or can't be written is left as it is: head and tail remain.

use super::Work;
use super::output::HALF;
use super::run::Run;
use crate::companion::pipe::PIECE;
use crate::protocol::kernel::Stream;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// Bytes of one file.
const LIMIT: u64 = 256 << 20;

/// Pieces on their way, one in the thread's hands included.
const ON_THE_WAY: usize = HALF / PIECE - 1;

#[derive(Debug, Default)]
pub(crate) struct Spill {
    files: [Slot; 2],
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Unused,
    Open {
        pieces: mpsc::Sender<Vec<u8>>,
        path: PathBuf,
        sent: u64,
    },
    Closed,
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
        let Slot::Open { pieces, path, sent } = slot else {
            return;
        };
        piece.truncate(usize::try_from(LIMIT - *sent).unwrap_or(usize::MAX));
        let bytes = piece.len() as u64;
        if pieces.send(piece).await.is_err() {
            // The thread has said why in the log; what it was handed last may be missing.
            run.unspilled(stream, HALF as u64);
            *slot = Slot::Closed;
            return;
        }
        *sent += bytes;
        run.spilled(stream, path, bytes);
        if *sent == LIMIT {
            *slot = Slot::Closed;
        }
    }
}

fn open(folder: &Path, run: &Run<impl Work>, stream: Stream) -> Slot {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let path = folder.join(format!("{}.{name}", run.id));
    let (pieces, coming) = mpsc::channel(ON_THE_WAY);
    let own = path.clone();
    spawn_blocking(move || {
        if let Err(error) = keep(&own, coming) {
            tracing::warn!("`{}` can't be written: {error}", own.display());
        }
    });
    Slot::Open {
        pieces,
        path,
        sent: 0,
    }
}

fn keep(path: &Path, mut coming: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = File::create(path)?;
    while let Some(piece) = coming.blocking_recv() {
        file.write_all(&piece)?;
    }
    Ok(())
}
