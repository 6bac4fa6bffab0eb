//! Writing what memory does not hold of a run's output to files, one for each stream.
//!
//! The owner waits for each write but the last, so a slow disk slows the code down, as a slow
//! reader of its pipes would. What is gathered or on its way is no more than the tail in memory
//! holds, so nobody looks for it in the file. A file that is full or can't be written is left as it
//! is: head and tail remain.

use super::run::Run;
use crate::protocol::kernel::Stream;
use std::path::{Path, PathBuf};
use tokio::fs::{self, File};
use tokio::io::{self, AsyncWriteExt, BufWriter};

/// Bytes of one file.
const LIMIT: u64 = 256 << 20;

/// Bytes that are written at once; as many may be on their way.
const GATHERED: usize = super::output::HALF / 2;

#[derive(Debug, Default)]
pub(super) struct Spill {
    files: [Slot; 2],
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Unused,
    Open {
        file: BufWriter<File>,
        path: PathBuf,
        written: u64,
    },
    Closed,
}

impl Spill {
    pub(super) async fn write(&mut self, folder: &Path, run: &Run, stream: Stream, bytes: &[u8]) {
        let slot = &mut self.files[stream as usize];
        if matches!(slot, Slot::Unused) {
            *slot = match create(folder, run, stream).await {
                Ok((file, path)) => Slot::Open {
                    file,
                    path,
                    written: 0,
                },
                Err(error) => refused(folder, &error),
            };
        }
        let Slot::Open {
            file,
            path,
            written,
        } = slot
        else {
            return;
        };
        let room = usize::try_from(LIMIT - *written).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        match file.write_all(bytes).await {
            Ok(()) => {
                *written += bytes.len() as u64;
                run.spilled(stream, path, bytes.len() as u64);
                if *written == LIMIT {
                    *slot = Slot::Closed;
                }
            }
            Err(error) => {
                run.unspilled(stream, 2 * GATHERED as u64);
                *slot = refused(path, &error);
            }
        }
    }
}

async fn create(
    folder: &Path,
    run: &Run,
    stream: Stream,
) -> io::Result<(BufWriter<File>, PathBuf)> {
    fs::create_dir_all(folder).await?;
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let path = folder.join(format!("{}.{name}", run.id));
    let file = BufWriter::with_capacity(GATHERED, File::create(&path).await?);
    Ok((file, path))
}

fn refused(path: &Path, error: &io::Error) -> Slot {
    tracing::warn!("`{}` can't be written: {error}", path.display());
    Slot::Closed
}
