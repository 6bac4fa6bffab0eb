//! `GET /pty`, frame by frame, as a client that is not osctl uses it.

use crate::harness::{Api, TEST_TIMEOUT, shared};
use crate::trials;
use serde_json::{Value, json};
use std::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::HandshakeError;
use tokio_tungstenite::tungstenite::http::{HeaderValue, Request, Response};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, WebSocket};
use tokio_tungstenite::tungstenite::{self, Bytes, client};

trials![
    clients_without_the_token_or_of_another_origin_are_refused,
    browsers_present_the_token_as_a_subprotocol,
    the_list_has_the_state_of_each_terminal,
    invalid_requests_are_refused_with_a_reason,
    one_client_writes_others_see_and_may_take_over,
    a_client_that_reconnects_continues_where_it_was,
    the_place_of_a_lost_client_is_kept,
    a_slow_viewer_blocks_no_client_and_gets_the_count_of_lost_bytes,
    the_limit_of_terminals_holds,
    an_invalid_frame_ends_the_connection_and_not_the_terminal,
    a_silent_connection_is_closed,
];

/// A client of a terminal.
pub(crate) struct Peer {
    socket: WebSocket<TcpStream>,
    pub(crate) id: String,
    /// The response of the handshake.
    answer: Response<Option<Vec<u8>>>,
    /// Output that was not read yet.
    unread: Vec<u8>,
    /// The number of bytes of output until now.
    count: u64,
    /// Control frames that were not read yet.
    frames: Vec<Value>,
    greeting: Value,
    closed: Option<Option<CloseFrame>>,
    /// The number of pings since any other frame.
    pings: u32,
}

impl Peer {
    /// Connects; an error has the status and the type of the refusal.
    pub(crate) fn open(api: &Api, query: &str) -> Result<Self, (u16, String)> {
        let bearer = format!("Bearer {}", api.token);
        Self::open_as(api, query, &[("Authorization", &bearer)])
    }

    fn open_as(api: &Api, query: &str, headers: &[(&str, &str)]) -> Result<Self, (u16, String)> {
        let stream = TcpStream::connect(&api.address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut request = Request::get(format!("ws://{}/pty?{query}", api.address))
            .header("Host", &api.address)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
        for (name, value) in headers {
            request = request.header(*name, HeaderValue::from_str(value).unwrap());
        }
        match client(request.body(()).unwrap(), stream) {
            Ok((socket, answer)) => {
                let mut peer = Self {
                    socket,
                    id: String::new(),
                    answer,
                    unread: Vec::new(),
                    count: 0,
                    frames: Vec::new(),
                    greeting: Value::Null,
                    closed: None,
                    pings: 0,
                };
                peer.greeting = peer.control("hello");
                peer.id = peer.greeting["id"].as_str().unwrap().to_owned();
                Ok(peer)
            }
            Err(HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
                let body = answer.body().clone().unwrap_or_default();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let kind = body["error"]["type"].as_str().unwrap_or_default();
                Err((answer.status().as_u16(), kind.to_owned()))
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn hello(&self) -> Value {
        self.greeting.clone()
    }

    pub(crate) fn types(&mut self, keys: &str) {
        let keys = Bytes::copy_from_slice(keys.as_bytes());
        self.socket.send(Message::Binary(keys)).unwrap();
    }

    fn send(&mut self, frame: &Value) {
        self.socket
            .send(Message::Text(frame.to_string().into()))
            .unwrap();
    }

    /// Reads one frame; `false` at the end.
    #[track_caller]
    fn read_frame(&mut self) -> bool {
        if self.closed.is_some() {
            return false;
        }
        match self.socket.read() {
            Ok(Message::Binary(bytes)) => {
                self.count += bytes.len() as u64;
                self.unread.extend_from_slice(&bytes);
            }
            Ok(Message::Text(text)) => self.frames.push(serde_json::from_str(&text).unwrap()),
            Ok(Message::Close(frame)) => self.closed = Some(frame),
            Ok(_) => {
                self.pings += 1;
                assert!(self.pings < 12, "only pings after {:?}", self.frames);
                return true;
            }
            Err(error) => panic!("{error}"),
        }
        self.pings = 0;
        true
    }

    /// Waits until `text` is shown; the output up to its end.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) -> String {
        let mut looked = 0;
        loop {
            let mut places = self.unread[looked..].windows(text.len());
            if let Some(at) = places.position(|at| at == text.as_bytes()) {
                let rest = self.unread.split_off(looked + at + text.len());
                let before = std::mem::replace(&mut self.unread, rest);
                return String::from_utf8_lossy(&before).into_owned();
            }
            looked = (self.unread.len() + 1).saturating_sub(text.len());
            assert!(self.read_frame(), "`{text}` was not shown before the end");
        }
    }

    /// Waits for a control frame of that type.
    #[track_caller]
    fn control(&mut self, kind: &str) -> Value {
        loop {
            if let Some(at) = self.frames.iter().position(|frame| frame["type"] == kind) {
                return self.frames.remove(at);
            }
            assert!(
                self.read_frame(),
                "no `{kind}` before the end, but {:?}",
                self.frames
            );
        }
    }

    #[track_caller]
    pub(crate) fn exit(&mut self) -> Value {
        self.control("exit")
    }

    /// Waits for the end; the code of the close frame.
    #[track_caller]
    fn close_code(&mut self) -> u16 {
        while self.read_frame() {}
        let frame = self.closed.clone().flatten();
        frame.map_or(0, |frame| frame.code.into())
    }

    /// Ends the terminal, too.
    #[track_caller]
    fn end(self, api: &Api) {
        end(api, &self.id);
    }
}

#[track_caller]
fn end(api: &Api, id: &str) {
    let ended = api
        .connect()
        .send("DELETE", &format!("/pty/{id}"), &[], b"");
    assert_eq!(ended.status, 200, "{}", ended.json());
}

fn clients_without_the_token_or_of_another_origin_are_refused() {
    let api = shared().api();
    let refused = |headers: &[(&str, &str)]| Peer::open_as(&api, "", headers).err().unwrap();
    assert_eq!(refused(&[]), (401, "missing_token".into()));
    let wrong = [("Authorization", "Bearer osctl_wrong")];
    assert_eq!(refused(&wrong), (401, "wrong_token".into()));
    let wrong = [("Sec-WebSocket-Protocol", "osctl, osctl.token.wrong")];
    assert_eq!(refused(&wrong), (401, "wrong_token".into()));
    let bearer = format!("Bearer {}", api.token);
    let foreign = [
        ("Authorization", bearer.as_str()),
        ("Origin", "http://evil.example"),
    ];
    assert_eq!(refused(&foreign), (403, "foreign_origin".into()));
    let before = api.get("/pty").json()["terminals"]
        .as_array()
        .unwrap()
        .len();
    let same = format!("http://{}", api.address);
    let known = [
        ("Authorization", bearer.as_str()),
        ("Origin", same.as_str()),
    ];
    let peer = Peer::open_as(&api, "", &known).ok().unwrap();
    let after = api.get("/pty").json()["terminals"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(after, before + 1, "a refused connection opened a terminal");
    peer.end(&api);
}

fn browsers_present_the_token_as_a_subprotocol() {
    let api = shared().api();
    let offered = format!("osctl, osctl.token.{}", api.token);
    let headers = [("Sec-WebSocket-Protocol", offered.as_str())];
    let peer = Peer::open_as(&api, "", &headers).ok().unwrap();
    // The response does not repeat the token.
    assert_eq!(peer.answer.headers()["sec-websocket-protocol"], "osctl");
    assert_eq!(peer.answer.headers()["osctl-protocol"], "1");
    peer.end(&api);
}

fn the_list_has_the_state_of_each_terminal() {
    let api = shared().api();
    let mut peer = Peer::open(&api, "cols=90&rows=20").ok().unwrap();
    peer.until("# ");
    peer.types("sh -c 'echo be''gun; exec sleep 1000'\r");
    peer.until("begun");
    let find = |api: &Api, id: &str| {
        let list = api.get("/pty").json();
        let all = list["terminals"].as_array().unwrap();
        all.iter().find(|t| t["id"] == id).cloned().unwrap()
    };
    // The shell reported the command just before it executed the program.
    let stands = api.until("the program", |api| {
        let stands = find(api, &peer.id);
        (stands["program"] == "sleep").then_some(stands)
    });
    assert_eq!(
        (
            &stands["program"],
            &stands["exit"],
            &stands["viewers"],
            &stands["writer"]
        ),
        (&json!("sleep"), &Value::Null, &json!(1), &json!(true)),
        "{stands}"
    );
    assert_eq!((&stands["cols"], &stands["rows"]), (&json!(90), &json!(20)));
    assert!(stands["offset"].as_u64().unwrap() >= peer.count);
    let id = peer.id.clone();
    end(&api, &id);
    assert_eq!(peer.exit()["why"], "ended");
    assert_eq!(peer.close_code(), 1000);
    assert!(find(&api, &id)["exit"].as_u64().unwrap() > 128);
}

fn invalid_requests_are_refused_with_a_reason() {
    let api = shared().api();
    for (query, status, kind) in [
        ("id=nobody", 404, "unknown_terminal"),
        ("session=nobody", 404, "unknown_session"),
        ("role=king", 400, "invalid_query"),
        ("size=9", 400, "invalid_query"),
        ("cols=-1", 400, "invalid_query"),
        ("client=a/b", 400, "invalid_field"),
    ] {
        let refused = Peer::open(&api, query).err();
        assert_eq!(refused, Some((status, kind.into())), "{query}");
    }
    let (status, kind, _) = api
        .connect()
        .send("DELETE", "/pty/nobody", &[], b"")
        .error();
    assert_eq!((status, kind.as_str()), (404, "unknown_terminal"));
    let upgrade = [("Connection", "Upgrade"), ("Upgrade", "h2c")];
    let answer = api.connect().send("GET", "/pty", &upgrade, b"");
    assert_eq!(answer.error().1, "no_websocket");
}

fn one_client_writes_others_see_and_may_take_over() {
    let api = shared().api();
    let mut first = Peer::open(&api, "client=first").ok().unwrap();
    first.until("# ");
    let id = first.id.clone();
    let mut second = Peer::open(&api, &format!("id={id}&client=second"))
        .ok()
        .unwrap();
    let mut looks = Peer::open(&api, &format!("id={id}&role=view"))
        .ok()
        .unwrap();
    assert_eq!(first.hello()["writer"], true);
    assert_eq!(second.hello()["writer"], false);
    second.types("echo nev''er\r");
    assert_eq!(second.control("ignored")["bytes"], 13);
    first.types("echo firs''t\r");
    for peer in [&mut first, &mut second, &mut looks] {
        let shown = peer.until("first\r\n");
        assert!(!shown.contains("never"), "{shown}");
    }
    second.send(&json!({"type": "take"}));
    assert_eq!(second.control("writer")["held"], true);
    assert_eq!(first.control("writer")["held"], false);
    second.send(&json!({"type": "resize", "cols": 66, "rows": 22}));
    assert_eq!(
        first.control("resize"),
        json!({"type": "resize", "cols": 66, "rows": 22})
    );
    first.types("echo nev''er\r");
    assert_eq!(first.control("ignored")["bytes"], 13);
    second.types("stty size; echo secon''d\r");
    for peer in [&mut first, &mut second, &mut looks] {
        let shown = peer.until("second\r\n");
        assert!(
            shown.contains("\r22 66\r\n") && !shown.contains("never"),
            "{shown}"
        );
    }
    let third = Peer::open(&api, &format!("id={id}&take=true"))
        .ok()
        .unwrap();
    assert_eq!(third.hello()["writer"], true);
    assert_eq!(second.control("writer")["held"], false);
    third.end(&api);
    for peer in [&mut first, &mut second, &mut looks] {
        assert_eq!(peer.exit()["why"], "ended");
    }
}

fn a_client_that_reconnects_continues_where_it_was() {
    let api = shared().api();
    let mut peer = Peer::open(&api, "client=again").ok().unwrap();
    assert_eq!(peer.hello()["typed"], Value::Null);
    peer.until("# ");
    peer.types("echo on''e\r");
    peer.until("one\r\n");
    peer.until("# ");
    let since = peer.count - peer.unread.len() as u64;
    let id = peer.id.clone();
    // The old connection is still open: the new connection replaces it.
    let query = format!("id={id}&client=again&since={since}");
    let mut again = Peer::open(&api, &query).ok().unwrap();
    assert_eq!(peer.close_code(), 4000);
    let hello = again.hello();
    assert_eq!(
        (&hello["offset"], &hello["typed"], &hello["writer"]),
        (&json!(since), &json!(11), &json!(true))
    );
    again.types("echo tw''o\r");
    let shown = again.until("two\r\n");
    assert!(!shown.contains("one"), "{shown}");
    assert_eq!(again.control("typed")["offset"], 22);
    // From the beginning, and without an id: the client's name selects the terminal.
    let mut whole = Peer::open(&api, "client=again&since=0").ok().unwrap();
    assert_eq!((&whole.id, &whole.hello()["offset"]), (&id, &json!(0)));
    let shown = whole.until("two\r\n");
    assert!(shown.contains("\rone\r\n"), "{shown}");
    whole.end(&api);
}

fn the_place_of_a_lost_client_is_kept() {
    let api = shared().api();
    let mut writer = Peer::open(&api, "client=writer").ok().unwrap();
    writer.until("# ");
    let id = writer.id.clone();
    let viewers = |count: u64| {
        api.until("the end of a connection", |api| {
            let list = api.get("/pty").json();
            let all = list["terminals"].as_array().unwrap();
            let found = all.iter().find(|t| t["id"] == id.as_str()).unwrap();
            (found["viewers"] == count).then_some(())
        });
    };
    // The connection ends without a close frame.
    drop(writer);
    viewers(0);
    let other = Peer::open(&api, &format!("id={id}&client=other"))
        .ok()
        .unwrap();
    assert_eq!(other.hello()["writer"], false);
    let mut writer = Peer::open(&api, &format!("id={id}&client=writer"))
        .ok()
        .unwrap();
    assert_eq!(writer.hello()["writer"], true);
    // A close frame releases the place.
    writer.socket.close(None).unwrap();
    viewers(1);
    let next = Peer::open(&api, &format!("id={id}&client=next"))
        .ok()
        .unwrap();
    assert_eq!(next.hello()["writer"], true);
    drop(other);
    next.end(&api);
}

fn a_slow_viewer_blocks_no_client_and_gets_the_count_of_lost_bytes() {
    let api = shared().api();
    let mut fast = Peer::open(&api, "client=fast").ok().unwrap();
    fast.until("# ");
    let id = fast.id.clone();
    let query = format!("id={id}&role=view&since=0");
    let mut slow = Peer::open(&api, &query).ok().unwrap();
    // Far more than the buffers of connections hold.
    fast.types("head -c 24000000 /dev/zero | tr '\\0' x; echo; echo the'' end\r");
    let begin = fast.count;
    while fast.count < begin + 24_000_000 {
        let mib = fast.count >> 20;
        fast.read_frame();
        if fast.count >> 20 > mib {
            fast.unread.clear();
            // The client is active, and only reads nothing.
            slow.send(&json!({"type": "repaint"}));
        }
    }
    fast.until("the end\r\n");
    assert!(fast.frames.iter().all(|frame| frame["type"] != "lost"));
    let total = fast.count - fast.unread.len() as u64;
    slow.until("the end\r\n");
    let lost: u64 = slow
        .frames
        .iter()
        .filter(|frame| frame["type"] == "lost")
        .map(|frame| frame["bytes"].as_u64().unwrap())
        .sum();
    assert!(lost > 0);
    assert_eq!(slow.count - slow.unread.len() as u64 + lost, total);
    fast.end(&api);
}

fn the_limit_of_terminals_holds() {
    let api = shared().api();
    let living = api.get("/pty").json();
    for left in living["terminals"].as_array().unwrap() {
        if left["exit"].is_null() {
            end(&api, left["id"].as_str().unwrap());
        }
    }
    let peers: Vec<Peer> = (0..8).map(|_| Peer::open(&api, "").ok().unwrap()).collect();
    let refused = Peer::open(&api, "").err();
    assert_eq!(refused, Some((429, "too_many_terminals".into())));
    let mut peers = peers.into_iter();
    peers.next().unwrap().end(&api);
    let another = Peer::open(&api, "").ok().unwrap();
    another.end(&api);
    peers.for_each(|peer| peer.end(&api));
}

fn an_invalid_frame_ends_the_connection_and_not_the_terminal() {
    let api = shared().api();
    for nonsense in [
        "no json",
        r#"{"type":"dance"}"#,
        r#"{"type":"take","more":1}"#,
    ] {
        let mut peer = Peer::open(&api, "client=nonsense").ok().unwrap();
        peer.socket.send(Message::Text(nonsense.into())).unwrap();
        assert_eq!(peer.close_code(), 1008, "{nonsense}");
    }
    // A paste that is longer than the limit, to a program that reads nothing.
    let mut peer = Peer::open(&api, "client=nonsense").ok().unwrap();
    peer.types("stty raw -echo; echo ra''w; sleep 1000\r");
    peer.until("raw");
    let keys = Bytes::from(vec![b'x'; 512 << 10]);
    for _ in 0..4 {
        // The connection may be closed before all of it is sent.
        let _ = peer.socket.send(Message::Binary(keys.clone()));
    }
    assert_eq!(peer.close_code(), 1008);
    let mut peer = Peer::open(&api, "client=nonsense").ok().unwrap();
    assert_eq!(peer.hello()["writer"], true);
    let id = peer.id.clone();
    end(&api, &id);
    assert_eq!(peer.exit()["why"], "ended");
}

fn a_silent_connection_is_closed() {
    let api = shared().api();
    let peer = Peer::open(&api, "client=silent").ok().unwrap();
    let id = peer.id.clone();
    // No ping is answered, because the client reads nothing.
    api.until("the end of its connection", |api| {
        let list = api.get("/pty").json();
        let all = list["terminals"].as_array().unwrap();
        let found = all.iter().find(|t| t["id"] == id.as_str()).unwrap();
        (found["viewers"] == 0).then_some(())
    });
    peer.end(&api);
}
