//! What `osctl shell` does with changed frames of a terminal.

use crate::commands::{Ran, terminal};
use crate::fake_companion::{FakeCompanion, Request};
use crate::harness::{Home, TEST_TIMEOUT};
use crate::memory::{MAX_HELD_BYTES, Watched};
use crate::mutations::{Mutation, for_each, mutation};
use crate::trials;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

trials![
    changed_frames_end_no_shell_and_the_next_connection_continues,
    frames_without_an_end_are_not_held,
];

const TEXT: u8 = 1;
const BINARY: u8 = 2;

const HELLO: &str = r#"{"type":"hello","protocol":1,"id":"1","offset":7,"typed":0,"writer":true,"cols":80,"rows":24}"#;
const EXIT: &str = r#"{"type":"exit","code":0,"why":"exited"}"#;

const MOST_LOST: &str = r#"{"type":"lost","bytes":18446744073709551615}"#;

/// What a terminal sends on its first connection.
const FRAMES: [(u8, &str); 9] = [
    (TEXT, HELLO),
    (TEXT, r#"{"type":"screen","text":"user@os-host:~$ "}"#),
    (BINARY, "ls\r\nbody  data\r\n"),
    (TEXT, r#"{"type":"typed","offset":3}"#),
    (TEXT, r#"{"type":"lost","bytes":4096}"#),
    (BINARY, "more"),
    (TEXT, r#"{"type":"writer","held":false}"#),
    (TEXT, r#"{"type":"ignored","bytes":1}"#),
    (TEXT, r#"{"type":"resize","cols":100,"rows":30}"#),
];

fn frame(kind: u8, text: &[u8]) -> Vec<u8> {
    let length = u64::try_from(text.len()).unwrap().to_be_bytes();
    [&[0x80 | kind, 127], &length[..], text].concat()
}

fn upgrade(request: &Request, stream: &mut TcpStream) {
    let accept = derive_accept_key(request.headers["sec-websocket-key"].as_bytes());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nosctl-protocol: 1\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    let _ = stream.write_all(head.as_bytes());
}

/// The second connection: the terminal has ended.
fn send_exit(stream: &mut TcpStream) {
    let frames = [frame(TEXT, HELLO.as_bytes()), frame(TEXT, EXIT.as_bytes())].concat();
    let _ = stream.write_all(&frames);
}

/// A shell on a separate terminal, which must end and hold little.
#[track_caller]
fn attach(home: &Home) -> Ran {
    let command = terminal(&home.command(["shell", "--attach", "1"]));
    let mut watched = Watched::start(command);
    // It is open until the end: a closed keyboard is a closed window.
    let keyboard = watched.child.stdin.take();
    let (ran, peak) = watched.end();
    drop(keyboard);
    assert!(!ran.stdout.contains("panicked"), "{:.2000}", ran.stdout);
    let held = peak >> 20;
    assert!(
        peak < MAX_HELD_BYTES,
        "the process held {held} MiB: {:.2000}",
        ran.stdout
    );
    ran
}

fn changed_frames_end_no_shell_and_the_next_connection_continues() {
    type Change = (usize, Mutation, bool);
    let change: Arc<Mutex<Option<Change>>> = Arc::default();
    let (given, was_changed) = (Arc::clone(&change), Arc::new(AtomicBool::new(false)));
    let was = Arc::clone(&was_changed);
    let companion = FakeCompanion::start(move |request, stream| {
        upgrade(request, stream);
        let (which, mutation, is_raw) = given.lock().unwrap().clone().unwrap();
        if was.swap(true, Ordering::Relaxed) {
            return send_exit(stream);
        }
        for (at, (kind, text)) in FRAMES.iter().enumerate() {
            let mut bytes = text.as_bytes().to_vec();
            if at == which && !is_raw {
                bytes = mutation.apply(&bytes);
            }
            bytes = frame(*kind, &bytes);
            if at == which && is_raw {
                bytes = mutation.apply(&bytes);
            }
            if stream.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
    });
    let home = companion.home("frames");
    *change.lock().unwrap() = Some((0, Mutation::Number(Vec::new()), false));
    let ran = attach(&home);
    assert!(
        ran.code == 0 && ran.stdout.contains("body  data"),
        "{ran:?}"
    );
    let changes = (0..FRAMES.len(), mutation(), proptest::bool::weighted(0.2));
    let attach_to = |drawn: Change| {
        *change.lock().unwrap() = Some(drawn);
        was_changed.store(false, Ordering::Relaxed);
        attach(&home);
    };
    // The count of lost bytes overflows.
    attach_to((4, Mutation::Other(MOST_LOST), false));
    for_each(60, changes, attach_to);
}

fn frames_without_an_end_are_not_held() {
    let piece = vec![b'7'; 4 << 20];
    let whole = frame(BINARY, &piece[..(4 << 20) - 1]);
    // A message that is too long, a frame that never ends, frames without end.
    let huge = [
        &[0x80 | BINARY, 127],
        &(1_u64 << 62).to_be_bytes()[..],
        &piece,
    ]
    .concat();
    let part = [
        &[BINARY, 127],
        &(1_u64 << 20).to_be_bytes()[..],
        &piece[..1 << 20],
    ]
    .concat();
    let next = [
        &[0, 127],
        &(1_u64 << 20).to_be_bytes()[..],
        &piece[..1 << 20],
    ]
    .concat();
    // A message that is too long ends its connection; the shell shows all whole messages.
    for (begin, repeated, times, is_left) in [
        (huge, piece.clone(), 40, true),
        (part, next, 160, true),
        (Vec::new(), whole, 60, false),
    ] {
        let was = AtomicBool::new(false);
        let (done, finished) = mpsc::channel();
        let all = repeated.len() * times;
        let companion = FakeCompanion::start(move |request, stream| {
            upgrade(request, stream);
            if was.swap(true, Ordering::Relaxed) {
                return send_exit(stream);
            }
            let hello = frame(TEXT, HELLO.as_bytes());
            let mut taken = 0;
            let _ = stream.write_all(&[&hello[..], &begin].concat());
            while taken < all && stream.write_all(&repeated).is_ok() {
                taken += repeated.len();
            }
            let _ = done.send(taken);
            let _ = stream.shutdown(Shutdown::Write);
        });
        let ran = attach(&companion.home("frames-endless"));
        assert_eq!(ran.code, 0, "{:.2000}", ran.stdout);
        let taken = finished.recv_timeout(TEST_TIMEOUT).unwrap();
        let most = if is_left { 64 << 20 } else { all };
        assert!(taken <= most && (is_left || taken == all), "{taken}");
    }
}
