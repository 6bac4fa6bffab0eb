//! Records of the journal: the start, the events and the end of a run.
//!
//! The records deliberately leave out the code beyond its first line, and the input of a command. For a run that is
//! kept out of the history, neither the code nor its output is recorded.

use super::removed_ids::RunIdDigest;
use crate::protocol::kernel::{OutputStream, RunStatus};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first record of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::companion::runs) struct StoredRunBegin {
    /// Path of its kind of runs in the HTTP API.
    // The companion of an older image, to which a rollback returns, must find the run: a repeated ID is not executed.
    #[serde(rename = "place")]
    pub(in crate::companion::runs) api_path: String,
    pub(in crate::companion::runs) id: String,
    pub(in crate::companion::runs) session: String,
    /// Digest of the request, which identifies a repeated request.
    pub(in crate::companion::runs) digest: String,
    /// The first line of the code or command.
    pub(in crate::companion::runs) line: String,
    /// Microseconds since 1970.
    pub(in crate::companion::runs) created: u64,
    /// Id of the machine's boot, to distinguish a power loss from a killed companion.
    pub(in crate::companion::runs) boot: String,
}

/// The last record of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::companion::runs) struct StoredRunEnd {
    pub(in crate::companion::runs) status: RunStatus,
    /// Report of the owner of the process; `None` for a lost run.
    pub(in crate::companion::runs) report: Option<Value>,
    pub(in crate::companion::runs) timing_ms: f64,
    /// Bytes of each stream, and of MIME bundles, recorded or not.
    pub(in crate::companion::runs) written: [u64; 2],
    pub(in crate::companion::runs) shown: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::companion::runs) enum StoredRunRecord {
    Begin(StoredRunBegin),
    /// The execution count, or a process id.
    Started(u64),
    /// Text of the event with this number.
    Text {
        stream: OutputStream,
        event: u64,
        bytes: Vec<u8>,
    },
    /// Text of the event that is in the stream's file, if it was written there.
    Spilled {
        stream: OutputStream,
        event: u64,
        length: u64,
    },
    /// The name of a stream's file, in the folder of the journal.
    File {
        stream: OutputStream,
        name: String,
    },
    /// Another event, as JSON.
    Event {
        number: u64,
        event_json: Vec<u8>,
    },
    /// The end of a stream that exceeds the limit of its file.
    Tail {
        stream: OutputStream,
        bytes: Vec<u8>,
    },
    End(StoredRunEnd),
    /// The run was refused, or removed because of newer runs. A removed run has the digest of its ID, so that later
    /// requests with this ID are refused.
    Forget(Option<RunIdDigest>),
}

const RECORD_KIND_BEGIN: u8 = 1;
const RECORD_KIND_STARTED: u8 = 2;
pub(super) const RECORD_KIND_TEXT: u8 = 3;
const RECORD_KIND_SPILLED: u8 = 4;
const RECORD_KIND_FILE: u8 = 5;
const RECORD_KIND_EVENT: u8 = 6;
const RECORD_KIND_TAIL: u8 = 7;
const RECORD_KIND_END: u8 = 8;
pub(super) const RECORD_KIND_FORGET: u8 = 9;

impl StoredRunRecord {
    /// Encodes the kind and the content.
    pub(super) fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Begin(begin) => (RECORD_KIND_BEGIN, to_json_bytes(begin)),
            Self::Started(number) => (RECORD_KIND_STARTED, number.to_le_bytes().into()),
            Self::Text {
                stream,
                event,
                bytes,
            } => (
                RECORD_KIND_TEXT,
                encode_stream_content(*stream, Some(*event), bytes),
            ),
            Self::Spilled {
                stream,
                event,
                length,
            } => (
                RECORD_KIND_SPILLED,
                encode_stream_content(*stream, Some(*event), &length.to_le_bytes()),
            ),
            Self::File { stream, name } => (
                RECORD_KIND_FILE,
                encode_stream_content(*stream, None, name.as_bytes()),
            ),
            Self::Event { number, event_json } => (
                RECORD_KIND_EVENT,
                [&number.to_le_bytes(), event_json.as_slice()].concat(),
            ),
            Self::Tail { stream, bytes } => (
                RECORD_KIND_TAIL,
                encode_stream_content(*stream, None, bytes),
            ),
            Self::End(end) => (RECORD_KIND_END, to_json_bytes(end)),
            Self::Forget(digest) => (
                RECORD_KIND_FORGET,
                digest.iter().flatten().copied().collect(),
            ),
        }
    }

    /// Decodes a record; `None` if a later version wrote it.
    pub(super) fn decode(kind: u8, content: &[u8]) -> Option<Self> {
        Some(match kind {
            RECORD_KIND_BEGIN => Self::Begin(serde_json::from_slice(content).ok()?),
            RECORD_KIND_STARTED => Self::Started(split_number(content)?.0),
            RECORD_KIND_TEXT => {
                let (stream, rest) = split_stream(content)?;
                let (event, bytes) = split_number(rest)?;
                let bytes = bytes.to_vec();
                Self::Text {
                    stream,
                    event,
                    bytes,
                }
            }
            RECORD_KIND_SPILLED => {
                let (stream, rest) = split_stream(content)?;
                let (event, rest) = split_number(rest)?;
                let (length, _) = split_number(rest)?;
                Self::Spilled {
                    stream,
                    event,
                    length,
                }
            }
            RECORD_KIND_FILE => {
                let (stream, name) = split_stream(content)?;
                let name = String::from_utf8(name.to_vec()).ok()?;
                Self::File { stream, name }
            }
            RECORD_KIND_EVENT => {
                let (number, event_json) = split_number(content)?;
                let event_json = event_json.to_vec();
                Self::Event { number, event_json }
            }
            RECORD_KIND_TAIL => {
                let (stream, bytes) = split_stream(content)?;
                let bytes = bytes.to_vec();
                Self::Tail { stream, bytes }
            }
            RECORD_KIND_END => Self::End(serde_json::from_slice(content).ok()?),
            RECORD_KIND_FORGET => Self::Forget(content.try_into().ok()),
            _ => return None,
        })
    }
}

fn to_json_bytes(value: &impl Serialize) -> Vec<u8> {
    // Texts, numbers and JSON values always serialize.
    serde_json::to_vec(value).unwrap_or_default()
}

fn encode_stream_content(stream: OutputStream, event: Option<u64>, bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::with_capacity(9 + bytes.len());
    content.push(stream as u8);
    content.extend(event.map(u64::to_le_bytes).into_iter().flatten());
    content.extend_from_slice(bytes);
    content
}

fn split_stream(content: &[u8]) -> Option<(OutputStream, &[u8])> {
    let (first, rest) = content.split_first()?;
    match first {
        0 => Some((OutputStream::Stdout, rest)),
        1 => Some((OutputStream::Stderr, rest)),
        _ => None,
    }
}

fn split_number(content: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = content.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}
