//! One connection to a terminal: copies frames in both directions until either side closes.

use crate::companion::pty::{
    PtyChunk, PtyClient, PtyClientView, PtyConnection, PtyConnectionStatus, PtyDisconnectReason,
    PtyRefusal, PtyUpdate, TerminalSize,
};
use crate::protocol;
use crate::protocol::pty::{FromTerminal, ToTerminal};
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::time::{interval, timeout};

/// Time between two pings.
const PTY_PING_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a silent client counts as disconnected.
const PTY_SILENCE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time for a client to take the close frame.
const PTY_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum bytes of one frame with a part of the screen.
const MAX_SCREEN_FRAME_BYTES: usize = 32 << 10;

/// Close code of a connection that the same client's next one replaces.
const CLOSE_CODE_REPLACED: u16 = 4000;

type PtySocketSink = SplitSink<WebSocket, Message>;
type PtySocketStream = SplitStream<WebSocket>;

/// How a connection ends.
#[derive(Debug)]
enum PtySocketEnd {
    /// The client closed the connection.
    ClientClosed,
    ConnectionLost,
    /// The companion closes the connection, with this code and reason.
    ServerClosed(u16, &'static str),
}

/// Serves one client to the end of its connection; the terminal continues.
pub(super) async fn serve_terminal(socket: WebSocket, connection: PtyConnection) {
    let (mut sink, mut stream) = socket.split();
    let mut first = vec![control_frame(&hello_frame(&connection))];
    let PtyConnection {
        client,
        mut view,
        screen,
        ..
    } = connection;
    first.extend(
        screen
            .iter()
            .flat_map(|screen| split_text(screen))
            .map(|text| {
                let text = text.into();
                control_frame(&FromTerminal::Screen { text })
            }),
    );
    let end = tokio::select! {
        end = send_updates(&mut sink, &mut view, &client, first) => end,
        end = receive_frames(&mut stream, &client) => end,
    };
    if let PtySocketEnd::ServerClosed(code, reason) = end {
        let reason = Utf8Bytes::from_static(reason);
        // Waits for a client that still reads, because an immediate close would lose the bytes sent before. A
        // disconnected client loses nothing.
        let _ = timeout(PTY_CLOSE_TIMEOUT, async {
            let frame = Some(CloseFrame { code, reason });
            sink.send(Message::Close(frame)).await?;
            while stream.next().await.is_some_and(|message| message.is_ok()) {}
            Ok::<_, axum::Error>(())
        })
        .await;
    }
    if !matches!(end, PtySocketEnd::ConnectionLost) {
        client.detach();
    }
}

/// Splits a text into pieces of about [`MAX_SCREEN_FRAME_BYTES`].
fn split_text(text: &str) -> Vec<&str> {
    let mut rest = text;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let mut end = MAX_SCREEN_FRAME_BYTES.min(rest.len());
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, behind) = rest.split_at(end);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

fn hello_frame(connection: &PtyConnection) -> FromTerminal {
    let PtyConnectionStatus {
        is_writer, size, ..
    } = connection.view.status();
    FromTerminal::Hello {
        protocol: protocol::PROTOCOL_VERSION,
        id: connection.terminal_id().into(),
        offset: connection.view.offset(),
        typed: connection.typed_bytes,
        writer: is_writer,
        cols: size.cols,
        rows: size.rows,
    }
}

/// Sends the terminal's output and the status of the connection.
async fn send_updates(
    sink: &mut PtySocketSink,
    view: &mut PtyClientView,
    client: &PtyClient,
    first: Vec<Message>,
) -> PtySocketEnd {
    let ended = PtySocketEnd::ServerClosed(close_code::AWAY, "the terminal has ended");
    let mut reported = view.status();
    let mut pings = interval(PTY_PING_INTERVAL);
    for message in first {
        if sink.send(message).await.is_err() {
            return PtySocketEnd::ConnectionLost;
        }
    }
    loop {
        let update = tokio::select! {
            update = view.next_update() => update,
            _ = pings.tick() => {
                if sink.send(Message::Ping(Bytes::new())).await.is_err() {
                    return PtySocketEnd::ConnectionLost;
                }
                continue;
            }
        };
        let sent = match update {
            None => return ended,
            Some(PtyUpdate::Output(PtyChunk::Bytes(bytes))) => {
                let sent = sink.send(Message::Binary(bytes)).await;
                if sent.is_ok() && client.report_sent(view.offset()).await.is_err() {
                    return ended;
                }
                sent
            }
            Some(PtyUpdate::Output(PtyChunk::Lost(bytes))) => {
                sink.send(control_frame(&FromTerminal::Lost { bytes }))
                    .await
            }
            Some(PtyUpdate::Output(PtyChunk::Exit(exit))) => {
                let (code, why) = (exit.code, exit.reason);
                let exit = control_frame(&FromTerminal::Exit { code, why });
                return match sink.send(exit).await {
                    Ok(()) => PtySocketEnd::ServerClosed(close_code::NORMAL, ""),
                    Err(_) => PtySocketEnd::ConnectionLost,
                };
            }
            Some(PtyUpdate::Status(now)) => {
                match now.disconnect_reason {
                    Some(PtyDisconnectReason::Replaced) => {
                        return PtySocketEnd::ServerClosed(
                            CLOSE_CODE_REPLACED,
                            "the client opened another connection",
                        );
                    }
                    Some(PtyDisconnectReason::TooFast) => {
                        let reason = "the client sends keys faster than the terminal reads them";
                        return PtySocketEnd::ServerClosed(close_code::POLICY, reason);
                    }
                    None => {}
                }
                let changes = status_changes(std::mem::replace(&mut reported, now), now);
                let mut changes =
                    futures_util::stream::iter(changes.iter().map(control_frame).map(Ok));
                sink.send_all(&mut changes).await
            }
        };
        if sent.is_err() {
            return PtySocketEnd::ConnectionLost;
        }
    }
}

/// The differences between the reported status and the current one.
fn status_changes(reported: PtyConnectionStatus, now: PtyConnectionStatus) -> Vec<FromTerminal> {
    let mut changes = Vec::new();
    if reported.is_writer != now.is_writer {
        changes.push(FromTerminal::Writer {
            held: now.is_writer,
        });
    }
    if reported.size != now.size {
        let TerminalSize { cols, rows } = now.size;
        changes.push(FromTerminal::Resize { cols, rows });
    }
    if reported.typed_bytes != now.typed_bytes {
        changes.push(FromTerminal::Typed {
            offset: now.typed_bytes,
        });
    }
    if reported.ignored_bytes != now.ignored_bytes {
        let bytes = now.ignored_bytes - reported.ignored_bytes;
        changes.push(FromTerminal::Ignored { bytes });
    }
    changes
}

/// Executes the client's messages.
async fn receive_frames(stream: &mut PtySocketStream, client: &PtyClient) -> PtySocketEnd {
    loop {
        let done = match timeout(PTY_SILENCE_TIMEOUT, stream.next()).await {
            Err(_) | Ok(None | Some(Err(_))) => return PtySocketEnd::ConnectionLost,
            Ok(Some(Ok(Message::Close(_)))) => return PtySocketEnd::ClientClosed,
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => Ok(()),
            Ok(Some(Ok(Message::Binary(keys)))) => client.send_keys(keys).await,
            Ok(Some(Ok(Message::Text(text)))) => match serde_json::from_str(&text) {
                Ok(frame) => handle_control_frame(frame, client).await,
                Err(_) => {
                    let reason =
                        "the text frame is not a `ToTerminal` message, see `GET /openapi.json`";
                    return PtySocketEnd::ServerClosed(close_code::POLICY, reason);
                }
            },
        };
        if done.is_err() {
            return PtySocketEnd::ServerClosed(close_code::AWAY, "the terminal has ended");
        }
    }
}

async fn handle_control_frame(frame: ToTerminal, client: &PtyClient) -> Result<(), PtyRefusal> {
    match frame {
        ToTerminal::Resize { cols, rows } => client.resize(TerminalSize { cols, rows }).await,
        ToTerminal::Take {} => client.take_writer().await,
        ToTerminal::Seen { offset } => client.acknowledge_output(offset).await,
        ToTerminal::Repaint {} => client.repaint().await,
    }
}

fn control_frame(word: &FromTerminal) -> Message {
    // Numbers, names and flags always serialize.
    Message::Text(serde_json::to_string(word).unwrap_or_default().into())
}
