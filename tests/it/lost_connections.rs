//! Terminals whose connection is cut many times: no byte is lost or doubled in either direction.

use crate::harness::{Engine, Home, shared};
use crate::trials;
use crate::window::Window;
use nix::sys::socket::{setsockopt, sockopt::Linger};
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

trials![
    a_counter_has_no_gap_and_no_double,
    typed_text_arrives_once_and_in_order,
    a_restarted_network_is_a_lost_connection,
    a_lost_connection_is_reported_in_a_line_that_disappears,
    a_program_waits_for_a_writer_that_comes_back,
    a_connection_that_carries_nothing_any_more_is_lost,
    a_terminal_that_does_not_open_can_be_cancelled,
    a_user_can_leave_while_there_is_no_connection,
    a_terminal_that_has_ended_is_reported_as_ended,
];

/// A proxy of the companion's port that can be cut, and closed.
#[derive(Debug, Clone)]
struct CuttableProxy(Arc<(Mutex<Traffic>, Condvar)>);

#[derive(Debug, Default)]
struct Traffic {
    port: u16,
    is_closed: bool,
    /// Bytes are lost on the way.
    is_frozen: bool,
    ways: Vec<TcpStream>,
    /// The number of forwarded connections.
    count: usize,
}

impl CuttableProxy {
    fn open(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let traffic = Traffic {
            port,
            ..Traffic::default()
        };
        let proxy = Self(Arc::new((Mutex::new(traffic), Condvar::new())));
        let ours = proxy.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut traffic = ours.0.0.lock().unwrap();
                if traffic.is_closed {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&to) else {
                    continue; // the companion restarts
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let proxy = ours.clone();
                    thread::spawn(move || {
                        let mut bytes = [0; 16384];
                        while let Ok(length @ 1..) = from.read(&mut bytes) {
                            if proxy.0.0.lock().unwrap().is_frozen {
                                continue;
                            }
                            if to.write_all(&bytes[..length]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
                traffic.ways.extend([client, server]);
                traffic.count += 1;
                ours.0.1.notify_all();
            }
        });
        proxy
    }

    /// Cuts every connection with a reset: bytes on the way are lost, and neither side gets an end.
    fn cut(&self) {
        let ways = std::mem::take(&mut self.0.0.lock().unwrap().ways);
        for way in ways {
            let now = nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            setsockopt(&way, Linger, &now).unwrap();
            // The forwarding threads have copies of the sockets, which end with this one.
            let _ = way.shutdown(Shutdown::Both);
        }
    }

    /// Cuts every connection, and refuses new connections.
    fn close(&self) {
        self.0.0.lock().unwrap().is_closed = true;
        self.cut();
    }

    /// Connections stay open, and carry nothing, as when a cable is unplugged.
    fn freeze(&self) {
        self.0.0.lock().unwrap().is_frozen = true;
    }

    fn reopen(&self) {
        let mut traffic = self.0.0.lock().unwrap();
        (traffic.is_closed, traffic.is_frozen) = (false, false);
    }

    fn count(&self) -> usize {
        self.0.0.lock().unwrap().count
    }

    /// Waits until more than `count` connections were forwarded.
    fn more_than(&self, count: usize) {
        let (traffic, changed) = &*self.0;
        let more = changed.wait_while(traffic.lock().unwrap(), |t| t.count <= count);
        drop(more.unwrap());
    }
}

/// A user's machine that reaches the shared instance through a separate proxy.
fn remote_home(name: &str) -> (Home, CuttableProxy) {
    let shared = shared();
    let proxy = CuttableProxy::open(shared.api().address);
    let home = Home {
        folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("home-away-{name}")),
        ..shared.clone()
    };
    let state = home.state();
    fs::create_dir_all(&state).unwrap();
    fs::copy(shared.state().join("token"), state.join("token")).unwrap();
    let record = fs::read(shared.state().join("instance.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    record["ports"]["kernel"] = proxy.0.0.lock().unwrap().port.into();
    fs::write(state.join("instance.json"), record.to_string()).unwrap();
    (home, proxy)
}

#[track_caller]
pub(crate) fn open(home: &Home) -> Window {
    let mut window = Window::open(home.command(["shell"]));
    window.wait_for("# ");
    window
}

/// What the terminal printed, without osctl's own lines.
fn inside(shown: &str) -> String {
    let mut rest = shown.replace("\x1bD\x1b[A", "");
    while let Some(begin) = rest.find("\x1b7") {
        let end = begin + rest[begin..].find("\x1b8").unwrap() + 2;
        rest.replace_range(begin..end, "");
    }
    rest
}

/// The shown numbers are 1 to `to`, each once and in order, in separate lines.
#[track_caller]
pub(crate) fn assert_counts(shown: &str, prefix: &str, to: u32) {
    let shown = inside(shown);
    // Mode changes of the shell come before its first line.
    let lines = shown.lines().map(|l| l.rsplit('\r').next().unwrap());
    let numbers = lines.filter_map(|line| line.strip_prefix(prefix)?.parse().ok());
    let mut next = 1;
    for number in numbers {
        let number: u32 = number;
        assert_eq!(number, next);
        next += 1;
    }
    assert_eq!(next, to + 1);
}

fn a_counter_has_no_gap_and_no_double() {
    let (home, proxy) = remote_home("counter");
    let mut window = open(&home);
    // More than is kept of a terminal, as fast as possible.
    let count = "for ((i = 1; i <= 250000; i++)); do echo n$i; done; echo al''l\r";
    window.types(count);
    let mut shown = String::new();
    for cut in (10_000..250_000).step_by(30_000) {
        shown += &window.wait_for(&format!("n{cut}\r\n"));
        let before = proxy.count();
        proxy.cut();
        // A cut without a connection cuts nothing.
        proxy.more_than(before);
    }
    shown += &window.wait_for("all\r\n");
    assert_counts(&shown, "n", 250_000);
    assert!(proxy.count() > 8, "{}", proxy.count());
    window.types("exit\r");
    assert_eq!(window.end().0, 0);
}

fn typed_text_arrives_once_and_in_order() {
    let (home, proxy) = remote_home("typed");
    let mut window = open(&home);
    window.types("stty -echo; echo rea''dy; head -n 6000 > /root/host/typed; echo al''l\r");
    window.wait_for("ready\r\n");
    let lines: Vec<String> = (1..=6000).map(|n| format!("line {n}")).collect();
    for piece in lines.chunks(250) {
        window.types(&format!("{}\r", piece.join("\r")));
        let before = proxy.count();
        proxy.cut();
        // A cut without a connection cuts nothing.
        shared().api().until("the next connection", |_| {
            (proxy.count() > before).then_some(())
        });
    }
    window.wait_for("all\r\n");
    let typed = fs::read_to_string(shared().files().join("typed")).unwrap();
    let typed: Vec<&str> = typed.lines().collect();
    assert_eq!(typed, lines);
    assert!(proxy.count() > 24, "{}", proxy.count());
    window.types("exit\r");
    assert_eq!(window.end().0, 0);
}

fn a_restarted_network_is_a_lost_connection() {
    let home = shared();
    let mut window = open(home);
    window.types("for ((i = 1; i <= 200; i++)); do echo n$i; sleep 0.02; done; echo al''l\r");
    let mut shown = window.wait_for("n20\r\n");
    for change in ["disconnect", "connect"] {
        let path = format!("/networks/osctl-{}/{change}", home.instance);
        let answer = Engine.send("POST", &path, &json!({"Container": home.container()}));
        assert_eq!(answer.status, 200, "{}", answer.json());
    }
    shown += &window.wait_for("all\r\n");
    assert_counts(&shown, "n", 200);
    window.types("exit\r");
    assert_eq!(window.end().0, 0);
}

fn a_lost_connection_is_reported_in_a_line_that_disappears() {
    let (home, proxy) = remote_home("told");
    let mut window = open(&home);
    proxy.close();
    window.wait_for("connection lost, trying again; ctrl-] ctrl-] leaves");
    // osctl sends later what is typed now.
    window.types("echo aft''er\r");
    proxy.reopen();
    let shown = window.wait_for("after\r\n");
    assert!(shown.contains("\x1b[2K"), "{shown:?}");
    // Over a full screen the message is in the last line, and osctl draws the screen again.
    window.wait_for("# ");
    window.types("vim\r");
    window.wait_for("\x1b[29;1H");
    proxy.close();
    window.wait_for("\x1b[30;1H\x1b[0;7m connection lost");
    proxy.reopen();
    window.wait_for("\x1b[29;1H");
    window.types(":q\r");
    window.wait_for("# ");
    window.types("exit\r");
    assert_eq!(window.end().0, 0);
}

fn a_program_waits_for_a_writer_that_comes_back() {
    let (home, proxy) = remote_home("waits");
    let mut window = open(&home);
    window.types("echo be''gun; seq 1 400000; echo al''l\r");
    window.wait_for("begun\r\n");
    proxy.close();
    let mut shown = window.wait_for("connection lost");
    let connected = proxy.count();
    proxy.reopen();
    proxy.more_than(connected);
    if !shown.contains("all\r\n") {
        shown += &window.wait_for("all\r\n");
    }
    assert_counts(&shown, "", 400_000);
    window.types("exit\r");
    assert_eq!(window.end().0, 0);
}

fn a_connection_that_carries_nothing_any_more_is_lost() {
    let (home, proxy) = remote_home("silent");
    let mut window = open(&home);
    proxy.freeze();
    window.types("echo aft''er\r");
    window.wait_for("connection lost");
    proxy.reopen();
    window.wait_for("after\r\n");
    window.types("exit\r");
    assert_eq!(window.end().0, 0);
}

fn a_terminal_that_does_not_open_can_be_cancelled() {
    let (home, proxy) = remote_home("begins");
    proxy.freeze();
    let mut window = Window::open(home.command(["shell", "--attach", "any"]));
    window.wait_for("opening a terminal");
    window.types("\x03");
    assert_eq!(window.wait(), 5);
    assert_eq!(window.mode(), window.before);
}

fn a_user_can_leave_while_there_is_no_connection() {
    let (home, proxy) = remote_home("leaves");
    let mut window = open(&home);
    proxy.close();
    window.wait_for("connection lost");
    window.types("\x1d\x1d");
    let code = window.wait();
    assert_eq!(code, 0);
    assert_eq!(window.mode(), window.before);
    let (_, shown) = window.end();
    assert!(shown.contains("returns to it"), "{shown:?}");
    proxy.reopen();
    let mut window = Window::open(home.command(["shell", "--attach", "--take"]));
    window.wait_for("# ");
    window.types("exit 3\r");
    assert_eq!(window.end().0, 3);
}

fn a_terminal_that_has_ended_is_reported_as_ended() {
    let (home, proxy) = remote_home("gone");
    // The companion ends, and says so.
    let window = open(&home);
    shared().ok(["restart"]);
    let (code, shown) = window.end();
    assert_eq!(code, 3, "{shown:?}");
    assert!(shown.contains("no longer exists: it ended, or the container was restarted"));
    // The terminal ends while osctl has no connection.
    let window = open(&home);
    proxy.close();
    shared().ok(["restart"]);
    proxy.reopen();
    let mode = window.before.clone();
    let mut window = window;
    assert_eq!(window.wait(), 3);
    assert_eq!(window.mode(), mode);
    let (_, shown) = window.end();
    assert!(shown.contains("no longer exists: it ended"), "{shown:?}");
}
