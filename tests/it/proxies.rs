//! Proxies between the command line and a companion or an engine: connections that break.

use crate::harness::Home;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The same instance, reached on another port.
pub(crate) fn by_port(home: &Home, name: &str, port: u16) -> Home {
    let other = Home {
        instance: home.instance.clone(),
        ..Home::new(name)
    };
    fs::create_dir_all(other.state()).unwrap();
    for file in ["token", "instance.json"] {
        fs::copy(home.state().join(file), other.state().join(file)).unwrap();
    }
    let path = other.state().join("instance.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["ports"]["kernel"] = port.into();
    record["project"] = other.project.to_str().unwrap().into();
    fs::write(path, record.to_string()).unwrap();
    other
}

/// What a broken connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Break {
    /// The connection is closed.
    Cut,
    /// The connection carries no more bytes, and stays open.
    Stall,
}

/// A proxy that breaks a connection after a number of bytes in one direction, a few times.
#[derive(Debug)]
pub(crate) struct BreakingProxy {
    pub(crate) port: u16,
    left: Arc<AtomicU64>,
}

impl BreakingProxy {
    pub(crate) fn start(to: &str, after: u64, times: u64, how: Break) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let left = Arc::new(AtomicU64::new(times));
        let (to, times) = (to.to_owned(), Arc::clone(&left));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (near, far) = (stream.unwrap(), TcpStream::connect(&to).unwrap());
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let times = Arc::clone(&times);
                    thread::spawn(move || pass(from, to, after, &times, how));
                }
            }
        });
        Self { port, left }
    }

    /// The number of connections that the proxy will still break.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// The address of the engine behind a TCP port, which can't be mounted as a socket.
pub(crate) fn engine_at_port() -> String {
    observed_engine_at_port(|_| ())
}

/// The address of a proxy of the engine at a TCP port; `observe` gets each request before the engine.
pub(crate) fn observed_engine_at_port(observe: impl Fn(&str) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let observe = Arc::new(observe);
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let (asks, end) = (near.try_clone().unwrap(), near.try_clone().unwrap());
            let end = move || drop(end.shutdown(Shutdown::Write));
            relay(asks, near, end, Arc::clone(&observe));
        }
    });
    format!("tcp://127.0.0.1:{port}")
}

/// The address of a proxy of the engine at a socket; `observe` gets each request before the engine.
pub(crate) fn observed_engine_at_socket(
    socket: &Path,
    observe: impl Fn(&str) + Send + Sync + 'static,
) -> String {
    let listener = UnixListener::bind(socket).unwrap();
    let observe = Arc::new(observe);
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let (asks, end) = (near.try_clone().unwrap(), near.try_clone().unwrap());
            let end = move || drop(end.shutdown(Shutdown::Write));
            relay(asks, near, end, Arc::clone(&observe));
        }
    });
    format!("unix://{}", socket.display())
}

/// Forwards requests to the engine, and answers back; `end` ends the stream of answers.
fn relay(
    mut asks: impl Read + Send + 'static,
    mut told: impl Write + Send + 'static,
    end: impl FnOnce() + Send + 'static,
    observe: Arc<impl Fn(&str) + Send + Sync + 'static>,
) {
    let mut far = UnixStream::connect("/var/run/docker.sock").unwrap();
    let mut asked = far.try_clone().unwrap();
    thread::spawn(move || {
        let mut bytes = vec![0; 65536];
        while let Ok(read @ 1..) = asks.read(&mut bytes) {
            observe(&String::from_utf8_lossy(&bytes[..read]));
            if asked.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = asked.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let _ = copy(&mut far, &mut told);
        end();
    });
}

fn pass(mut from: TcpStream, mut to: TcpStream, after: u64, times: &AtomicU64, how: Break) {
    let mut passed = 0;
    let mut bytes = vec![0; 65536];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        passed += read as u64;
        let down = |left: u64| left.checked_sub(1);
        if passed > after
            && times
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, down)
                .is_ok()
        {
            if how == Break::Stall {
                thread::park();
            }
            break;
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // Either connection may be closed already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
