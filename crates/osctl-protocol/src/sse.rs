//! Parser for server-sent events; only ids and data are used.

use super::line_buffer::LineBuffer;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The id with which a client resumes a lost stream after this event.
    pub id: Option<String>,
    /// Often empty, for an event that has only an id.
    pub data: Vec<u8>,
}

#[derive(Debug, Default)]
pub struct SseParser {
    lines: LineBuffer,
    id: Option<String>,
    data: Option<Vec<u8>>,
}

impl SseParser {
    /// The events that are complete after this chunk.
    pub fn parse_chunk(&mut self, piece: &[u8]) -> Vec<SseEvent> {
        self.lines.push(piece);
        let mut whole = Vec::new();
        while let Some(line) = self.lines.next_line() {
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if line.is_empty() {
                let (id, data) = (self.id.take(), self.data.take().unwrap_or_default());
                if id.is_some() || !data.is_empty() {
                    whole.push(SseEvent { id, data });
                }
            } else if let Some(data) = field_value(line, b"data:") {
                match &mut self.data {
                    Some(before) => {
                        before.push(b'\n');
                        before.extend_from_slice(data);
                    }
                    None => self.data = Some(data.to_vec()),
                }
            } else if let Some(id) = field_value(line, b"id:") {
                self.id = Some(String::from_utf8_lossy(id).into_owned());
            }
        }
        whole
    }
}

fn field_value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name)?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::{SseEvent, SseParser};

    #[test]
    fn events_come_in_pieces_of_any_size() {
        let text = b": hello\r\nid: 1\r\ndata: a\r\ndata: b\r\n\r\nid: 2\nevent: x\ndata:\n\ndata:c\n\nevent: y\n\n";
        let event = |id: Option<&str>, data: &[u8]| SseEvent {
            id: id.map(str::to_owned),
            data: data.to_vec(),
        };
        for size in 1..text.len() {
            let mut events = SseParser::default();
            let pieces = text
                .chunks(size)
                .flat_map(|piece| events.parse_chunk(piece));
            assert_eq!(
                pieces.collect::<Vec<_>>(),
                [
                    event(Some("1"), b"a\nb"),
                    event(Some("2"), b""),
                    event(None, b"c"),
                ]
            );
        }
    }
}
