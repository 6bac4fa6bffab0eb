//! One running server and the task that owns it.
//!
//! [`Child`] is the handle. The owner ([`owner`]) starts the server when it is needed ([`policy`]), shakes
//! hands with it, knows which client waits for which answer ([`calls`]), speaks the revision that it knows ([`era`]), and ends it when nobody asks for
//! long. What the server does wrong stays here: whoever waits is told, and others never notice.
//!
//! A server is reached by a [`pipe`]: a process of ours ([`process`]), a URL ([`remote`]), or channels to the
//! one that is built in ([`inside`]).

mod calls;
pub(super) mod era;
mod inside;
mod owner;
mod pipe;
mod policy;
mod process;
mod questions;
mod remote;
mod standing;

pub(super) use inside::Within;
pub(super) use policy::Phase;

use super::cache::Cache;
use super::config::Server;
use super::links::Links;
use super::list_delay::ListDelay;
use super::log::Log;
use super::member::{Member, Reply};
use super::message::Message;
use bytes::Bytes;
use owner::Owner;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// What is known of a server beside its process, by all of its children.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) server: Server,
    pub(super) cache: Cache,
    pub(super) log: Arc<Log>,
    pub(super) links: Arc<Links>,
    pub(super) list_delay: Arc<ListDelay>,
    /// The server that is built in, should this be it.
    pub(super) os: Arc<dyn Within>,
    /// How often one of its children ended that nobody had ended.
    pub(super) crashes: AtomicUsize,
}

#[derive(Debug, Clone)]
pub(super) struct Child {
    asks: mpsc::UnboundedSender<Ask>,
    seen: Arc<Seen>,
}

/// How it stands, for everyone to see.
#[derive(Debug)]
struct Seen {
    phase: Mutex<(Phase, Option<i32>)>,
    calls: AtomicUsize,
}

/// A handshake that did not come about: the server's own error, or why there was none.
#[derive(Debug, Clone)]
pub(super) enum NoHello {
    /// The raw JSON of `error`.
    Refused(String),
    Failed(String),
}

#[derive(Debug)]
enum Ask {
    /// Hears from now on what belongs to no call.
    Join(Arc<Member>),
    Leave(u64),
    Hello(oneshot::Sender<Result<Bytes, NoHello>>),
    Request(Message, Arc<Member>, Reply),
    /// A notification, or an answer to the server's own request.
    Tell(Message, u64),
    /// From which level on a client wants to be told of logs.
    Level(String, u64),
    /// The call behind that stream is not waited for any more.
    GiveUp(u64),
    /// Ends when nothing is open any more.
    Retire,
    End(oneshot::Sender<()>),
}

impl Child {
    /// Nothing is started yet. `numbered`: clients share it.
    pub(super) fn new(known: Arc<Known>, hello: Bytes, numbered: bool) -> Self {
        let (asks, mailbox) = mpsc::unbounded_channel();
        let seen = Arc::new(Seen {
            phase: Mutex::new((Phase::Down, None)),
            calls: AtomicUsize::new(0),
        });
        let owner = Owner::new(known, hello, numbered, seen.clone());
        tokio::spawn(owner.run(mailbox));
        Self { asks, seen }
    }

    pub(super) fn join(&self, member: Arc<Member>) {
        self.say(Ask::Join(member));
    }

    pub(super) fn leave(&self, member: u64) {
        self.say(Ask::Leave(member));
    }

    /// The result of the handshake; starts the server if need be.
    pub(super) async fn hello(&self) -> Result<Bytes, NoHello> {
        let (answer, receiver) = oneshot::channel();
        self.say(Ask::Hello(answer));
        let gone = || NoHello::Failed(owner::GONE.into());
        receiver.await.map_err(|_| gone())?
    }

    pub(super) fn request(&self, message: Message, member: &Arc<Member>, reply: Reply) {
        if let Err(unsent) = self.asks.send(Ask::Request(message, member.clone(), reply))
            && let Ask::Request(message, _, reply) = unsent.0
        {
            let id = message.id().unwrap_or("null");
            reply.fail(id, -32603, owner::GONE);
        }
    }

    pub(super) fn tell(&self, message: Message, member: u64) {
        self.say(Ask::Tell(message, member));
    }

    pub(super) fn set_level(&self, level: &str, member: u64) {
        self.say(Ask::Level(level.into(), member));
    }

    pub(super) fn give_up(&self, stream: u64) {
        self.say(Ask::GiveUp(stream));
    }

    pub(super) fn retire(&self) {
        self.say(Ask::Retire);
    }

    /// Ends it with all that it has started; returns when all are gone.
    pub(super) async fn end(&self) {
        let (done, receiver) = oneshot::channel();
        self.say(Ask::End(done));
        // An owner that has ended already has left nobody behind.
        let _ = receiver.await;
    }

    /// Whether it has retired and has nothing open any more, or was ended.
    pub(super) fn is_over(&self) -> bool {
        self.asks.is_closed()
    }

    pub(super) fn phase(&self) -> (Phase, Option<i32>) {
        *self
            .seen
            .phase
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn calls(&self) -> usize {
        self.seen.calls.load(Ordering::Relaxed)
    }

    fn say(&self, ask: Ask) {
        // An owner that has ended has nobody to tell.
        let _ = self.asks.send(ask);
    }
}
