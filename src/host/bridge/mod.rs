//! The bridge from stdio to the hub of MCP servers, for clients that start a command.
//!
//! ```text
//! stdin ── line ──┬─ request ──── exchange ──┐
//!                 └─ the rest ─── in turn ───┼── link ── hub
//! stdout ◀─ lines, in the server's bytes ────┤
//!                              hearing ──────┘
//! ```
//!
//! Messages pass as they are. The [`link`] finds the hub again when the container was started anew, and the
//! session, should that be gone; what was asked meanwhile is asked again where that can do no harm
//! ([`policy`]), so that a client notices nothing but a call whose end is not known, which it is told.
//! It keeps no queue beyond what is on its way, and knows nothing of what the messages are about.

mod exchange;
mod fault;
mod hearing;
mod line;
mod link;
mod policy;
mod wish;

pub(crate) use link::{Find, Start};
pub(crate) use wish::Wish;

use crate::error::Result;
use bytes::Bytes;
use fault::Fault;
use line::{Kind, Line};
use link::Link;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Messages on their way to the hub that must keep their order.
const DEPTH: usize = 64;
/// Bytes that wait for a client that does not read; then nothing more is taken of the hub.
const MAX_UNREAD_BYTES: u32 = 64 << 20;
/// For a handshake that is on its way when the end comes: clients end what does not end soon.
const HANDSHAKE: Duration = Duration::from_secs(1);

/// One client, from its first line to its last.
#[derive(Debug)]
struct Bridge {
    link: Link,
    out: mpsc::Sender<Unread>,
    /// Of [`MAX_UNREAD_BYTES`], what is left.
    room: Arc<Semaphore>,
    /// Requests on their way by their raw ids.
    asked: Mutex<HashMap<Box<str>, Asked>>,
}

/// A line for the client, which takes its room until it is dropped.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) text: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct Asked {
    task: Option<AbortHandle>,
    /// Whether the client wants no answer any more.
    is_cancelled: bool,
}

/// What a client is bridged to.
pub(crate) struct Way {
    /// Finds the instance, anew each time.
    pub(crate) find: Find,
    /// Starts it, should that be wanted.
    pub(crate) start: Option<Start>,
    pub(crate) wish: Wish,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way")
            .field("wish", &self.wish)
            .finish_non_exhaustive()
    }
}

/// What is on its way; ended with this.
#[derive(Debug, Default)]
struct Tasks {
    requests: JoinSet<()>,
    background: JoinSet<()>,
    /// The handshake, which alone is waited for.
    shaking: JoinSet<()>,
}

/// Bridges until `lines` end and all is answered, nobody reads `out` any more, or `ended` comes. The hub is
/// told of the end in each case, so that what it had started for this client ends, too.
///
/// # Errors
/// When the server's name can't be one.
pub(crate) async fn run(
    way: Way,
    lines: mpsc::Receiver<Bytes>,
    out: mpsc::Sender<Unread>,
    ended: impl Future<Output = ()>,
) -> Result<()> {
    let bridge = Arc::new(Bridge {
        link: Link::new(way)?,
        out: out.clone(),
        room: Arc::new(Semaphore::new(MAX_UNREAD_BYTES as usize)),
        asked: Mutex::default(),
    });
    let mut tasks = Tasks::default();
    tokio::select! {
        () = bridge.serve(lines, &mut tasks) => {}
        () = out.closed() => {}
        () = ended => {}
    }
    // A session that is just being opened can only be left once its name is known.
    let shaken = async { while tasks.shaking.join_next().await.is_some() {} };
    let _ = timeout(HANDSHAKE, shaken).await;
    drop(tasks);
    bridge.link.leave().await;
    Ok(())
}

impl Bridge {
    /// Takes lines until they end and all is answered.
    async fn serve(self: &Arc<Self>, mut lines: mpsc::Receiver<Bytes>, tasks: &mut Tasks) {
        let (tell, told) = mpsc::channel(DEPTH);
        let Tasks {
            requests,
            background,
            shaking,
        } = tasks;
        requests.spawn(self.clone().tell_all(told));
        loop {
            let text = tokio::select! {
                text = lines.recv() => text,
                Some(_) = requests.join_next() => continue,
            };
            let Some(text) = text else {
                break;
            };
            let messages = match Line::parse_all(&text) {
                Ok(messages) => messages,
                Err(why) => {
                    self.fail("null", &Fault::parse(&why)).await;
                    continue;
                }
            };
            for message in messages {
                match message.kind {
                    // Nothing is said before hands are shaken.
                    Kind::Request if message.method == "initialize" => {
                        shaking.spawn(self.clone().ask(message));
                        shaking.join_next().await;
                    }
                    Kind::Request => {
                        let id = message.id.clone();
                        self.note(&id);
                        let tasks = match message.method == "subscriptions/listen" {
                            true => &mut *background,
                            false => &mut *requests,
                        };
                        let task = tasks.spawn(self.clone().ask(message));
                        if let Some(asked) = self.asked().get_mut(&id) {
                            asked.task = Some(task);
                        }
                    }
                    Kind::Other => {
                        if self.is_taken_back(&message) {
                            continue;
                        }
                        let begins = message.method == "notifications/initialized";
                        // The task that takes it lives as long as we do.
                        let _ = tell.send(message).await;
                        if begins {
                            background.spawn(self.clone().hear());
                        }
                    }
                }
            }
        }
        // Its task ends when all is told.
        drop(tell);
        while requests.join_next().await.is_some() {}
    }

    /// Notifications, and answers to the server's requests, one after the other.
    async fn tell_all(self: Arc<Self>, mut told: mpsc::Receiver<Line>) {
        while let Some(message) = told.recv().await {
            self.tell(&message).await;
        }
    }

    fn note(&self, id: &str) {
        let asked = Asked {
            task: None,
            is_cancelled: false,
        };
        self.asked().insert(id.into(), asked);
    }

    /// Notes a call that its client gives up. Without a session its connection is all that there is to end.
    fn is_taken_back(&self, message: &Line) -> bool {
        let Some(id) = message.cancelled.as_deref() else {
            return false;
        };
        let mut asked = self.asked();
        let Some(call) = asked.get_mut(id) else {
            return false;
        };
        call.is_cancelled = true;
        if self.link.has_session() {
            return false;
        }
        if let Some(task) = &call.task {
            task.abort();
        }
        asked.remove(id);
        true
    }

    /// Hands a message to the client.
    async fn say(&self, text: &[u8]) {
        // A client that is gone ends the whole.
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(length.min(MAX_UNREAD_BYTES));
        let unread = Unread {
            // It is never closed.
            _room: room.await.ok(),
            text: line::on_one_line(text),
        };
        let _ = self.out.send(unread).await;
    }

    async fn fail(&self, id: &str, fault: &Fault) {
        self.say(fault.answer(id).as_bytes()).await;
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<Box<str>, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
