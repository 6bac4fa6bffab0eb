//! One connection to a terminal: frames in, frames out, until either side has enough.

use crate::companion::pty::{News, Out, Piece, Place, Refusal, Sight, Size, Standing, Visit};
use crate::protocol;
use crate::protocol::pty::{FromTerminal, ToTerminal};
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::time::{interval, timeout};

/// Between two pings.
const PING: Duration = Duration::from_secs(5);
/// After which a client that says nothing is gone.
const SILENCE: Duration = Duration::from_secs(15);
/// How long a client may take to hear that it is over.
const GOODBYE: Duration = Duration::from_secs(5);

/// Of one frame with a part of the screen.
const PIECE_BYTES: usize = 32 << 10;

/// Close code of a connection that the same client's next one replaces.
const REPLACED: u16 = 4000;

type Sink = SplitSink<WebSocket, Message>;
type Stream = SplitStream<WebSocket>;

/// How a connection ends.
#[derive(Debug)]
enum End {
    /// The client said that it leaves.
    Left,
    Lost,
    /// We have enough; for that reason.
    Closed(u16, &'static str),
}

/// Serves one client to the end of its connection; the terminal goes on.
pub(super) async fn serve(socket: WebSocket, visit: Visit) {
    let (mut sink, mut stream) = socket.split();
    let mut first = vec![control(&hello(&visit))];
    let Visit {
        place,
        mut sight,
        screen,
        ..
    } = visit;
    first.extend(screen.iter().flat_map(|screen| pieces(screen)).map(|text| {
        let text = text.into();
        control(&FromTerminal::Screen { text })
    }));
    let end = tokio::select! {
        end = tell(&mut sink, &mut sight, &place, first) => end,
        end = hear(&mut stream, &place) => end,
    };
    if let End::Closed(code, reason) = end {
        let reason = Utf8Bytes::from_static(reason);
        // One that is gone misses nothing. One that reads is waited for, or what was sent before
        // would be lost with the connection.
        let _ = timeout(GOODBYE, async {
            let frame = Some(CloseFrame { code, reason });
            sink.send(Message::Close(frame)).await?;
            while stream.next().await.is_some_and(|heard| heard.is_ok()) {}
            Ok::<_, axum::Error>(())
        })
        .await;
    }
    if !matches!(end, End::Lost) {
        place.leave();
    }
}

/// A text as pieces of some [`PIECE_BYTES`].
fn pieces(text: &str) -> Vec<&str> {
    let mut rest = text;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let mut end = PIECE_BYTES.min(rest.len());
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, behind) = rest.split_at(end);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

fn hello(visit: &Visit) -> FromTerminal {
    let Standing { writes, size, .. } = visit.sight.standing();
    FromTerminal::Hello {
        protocol: protocol::VERSION,
        id: visit.id().into(),
        offset: visit.sight.offset(),
        typed: visit.typed,
        writer: writes,
        cols: size.cols,
        rows: size.rows,
    }
}

/// Sends what the terminal shows and how the connection stands.
async fn tell(sink: &mut Sink, sight: &mut Sight, place: &Place, first: Vec<Message>) -> End {
    let gone = End::Closed(close_code::AWAY, "the terminal is gone");
    let mut told = sight.standing();
    let mut pings = interval(PING);
    for message in first {
        if sink.send(message).await.is_err() {
            return End::Lost;
        }
    }
    loop {
        let news = tokio::select! {
            news = sight.next() => news,
            _ = pings.tick() => {
                if sink.send(Message::Ping(Bytes::new())).await.is_err() {
                    return End::Lost;
                }
                continue;
            }
        };
        let sent = match news {
            None => return gone,
            Some(News::Piece(Piece::Bytes(bytes))) => {
                let sent = sink.send(Message::Binary(bytes)).await;
                if sent.is_ok() && place.sent(sight.offset()).await.is_err() {
                    return gone;
                }
                sent
            }
            Some(News::Piece(Piece::Lost(bytes))) => {
                sink.send(control(&FromTerminal::Lost { bytes })).await
            }
            Some(News::Piece(Piece::Exit(exit))) => {
                let (code, why) = (exit.code, exit.why);
                let exit = control(&FromTerminal::Exit { code, why });
                return match sink.send(exit).await {
                    Ok(()) => End::Closed(close_code::NORMAL, ""),
                    Err(_) => End::Lost,
                };
            }
            Some(News::Standing(now)) => {
                match now.out {
                    Some(Out::Replaced) => {
                        return End::Closed(REPLACED, "the same client came again");
                    }
                    Some(Out::TooFast) => {
                        let reason = "far more was typed than the terminal takes";
                        return End::Closed(close_code::POLICY, reason);
                    }
                    None => {}
                }
                let changes = changes(std::mem::replace(&mut told, now), now);
                let mut changes = futures_util::stream::iter(changes.iter().map(control).map(Ok));
                sink.send_all(&mut changes).await
            }
        };
        if sent.is_err() {
            return End::Lost;
        }
    }
}

/// What is different from what was told.
fn changes(told: Standing, now: Standing) -> Vec<FromTerminal> {
    let mut changes = Vec::new();
    if told.writes != now.writes {
        changes.push(FromTerminal::Writer { held: now.writes });
    }
    if told.size != now.size {
        let Size { cols, rows } = now.size;
        changes.push(FromTerminal::Resize { cols, rows });
    }
    if told.typed != now.typed {
        changes.push(FromTerminal::Typed { offset: now.typed });
    }
    if told.ignored != now.ignored {
        let bytes = now.ignored - told.ignored;
        changes.push(FromTerminal::Ignored { bytes });
    }
    changes
}

/// Does what the client says.
async fn hear(stream: &mut Stream, place: &Place) -> End {
    loop {
        let done = match timeout(SILENCE, stream.next()).await {
            Err(_) | Ok(None | Some(Err(_))) => return End::Lost,
            Ok(Some(Ok(Message::Close(_)))) => return End::Left,
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => Ok(()),
            Ok(Some(Ok(Message::Binary(keys)))) => place.keys(keys).await,
            Ok(Some(Ok(Message::Text(text)))) => match serde_json::from_str(&text) {
                Ok(said) => obey(said, place).await,
                Err(_) => {
                    let reason = "a text frame is none of `ToTerminal`, see `GET /openapi.json`";
                    return End::Closed(close_code::POLICY, reason);
                }
            },
        };
        if done.is_err() {
            return End::Closed(close_code::AWAY, "the terminal is gone");
        }
    }
}

async fn obey(said: ToTerminal, place: &Place) -> Result<(), Refusal> {
    match said {
        ToTerminal::Resize { cols, rows } => place.resize(Size { cols, rows }).await,
        ToTerminal::Take {} => place.take().await,
        ToTerminal::Seen { offset } => place.seen(offset).await,
        ToTerminal::Repaint {} => place.repaint().await,
    }
}

fn control(word: &FromTerminal) -> Message {
    // Numbers, names and flags can't fail to be written.
    Message::Text(serde_json::to_string(word).unwrap_or_default().into())
}
