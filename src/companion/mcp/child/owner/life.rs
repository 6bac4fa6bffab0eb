//! How the server comes, and what becomes of who waits when it goes.

use super::{Ask, DISCOVER, GONE, Owner, PATIENCE, To};
use crate::companion::mcp::child::NoHello;
use crate::companion::mcp::child::era::Era;
use crate::companion::mcp::child::pipe::Pipe;
use crate::companion::mcp::child::policy::{Event, Phase};
use crate::companion::mcp::member::Reply;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

impl Owner {
    /// Starts the server, unless it runs, starts or rests.
    pub(super) async fn need(&mut self) {
        if let Phase::Resting { until } = self.life.phase
            && until > self.begun.elapsed() + PATIENCE
        {
            let rest = (until - self.begun.elapsed()).as_secs() + 1;
            let name = &self.known.server.name;
            let why = format!(
                "{}; it is started again in {rest} s at the earliest, and `osctl logs mcp/{name}` shows more",
                self.why
            );
            return self.fail_all(&why);
        }
        let before = self.life.phase;
        self.step(Event::Needed);
        if (before, self.life.phase) == (Phase::Starting, Phase::Starting)
            || self.life.phase != Phase::Starting
        {
            return;
        }
        self.show();
        self.known.log.note("it is started");
        match Pipe::open(&self.known).await {
            Ok(pipe) => {
                self.pipe = Some(pipe);
                self.refusal = None;
                match self.era {
                    Era::Handshake => self.shake_hands(),
                    Era::Stateless => {
                        self.ask(DISCOVER, "{}", To::Discovery, self.handshake_timeout())
                    }
                }
            }
            Err(error) => self.lost(&format!("{error:#}")),
        }
    }

    pub(super) fn shake_hands(&mut self) {
        let hello = self.hello.clone();
        let params = String::from_utf8_lossy(&hello);
        self.ask("initialize", &params, To::Hello, self.handshake_timeout());
    }

    /// The server is gone that nobody has ended.
    pub(super) fn lost(&mut self, why: &str) {
        self.known.log.note(why);
        self.known.crashes.fetch_add(1, Ordering::Relaxed);
        self.why = match self.known.log.last() {
            Some(last) => format!(
                "the server `{}` is gone: {why} ({last})",
                self.known.server.name
            ),
            None => format!("the server `{}` is gone: {why}", self.known.server.name),
        };
        self.step(Event::Ended);
        self.drop_pipe();
        let why = self.why.clone();
        self.fail_all(&why);
    }

    pub(super) fn drop_pipe(&mut self) {
        self.greeting = None;
        self.questions.clear();
        self.listening = None;
        self.listen_at = None;
        if let Some(pipe) = self.pipe.take() {
            self.leaving.spawn(pipe.end());
        }
    }

    pub(super) fn fail_all(&mut self, why: &str) {
        for (reply, id) in self.drop_open() {
            reply.fail(&id, -32603, why);
        }
        self.fail_unsent(why);
    }

    /// With the companion all ends. What was sent may have been done.
    pub(super) fn stop_all(&mut self) {
        for (reply, id) in self.drop_open() {
            reply.lost(&id);
        }
        for (message, _, reply) in std::mem::take(&mut self.queue) {
            reply.lost(message.id().unwrap_or("null"));
        }
        self.fail_unsent("the companion is stopping");
    }

    /// Forgets the calls that the server has, or that their client is asked about.
    fn drop_open(&mut self) -> Vec<(Reply, String)> {
        let calls = self.calls.take_all().into_iter();
        let open = calls.filter_map(|call| match call.to {
            To::Client { reply, .. } => Some((reply, call.id.into())),
            _ => None,
        });
        let mut open: Vec<_> = open.collect();
        open.extend(self.drop_asking(|_| true));
        open
    }

    fn fail_unsent(&mut self, why: &str) {
        for (message, member, reply) in std::mem::take(&mut self.queue) {
            if message.method == "resources/subscribe"
                && let Some(uri) = message.text_param(&["uri"])
            {
                self.standing.unsubscribe(&uri, member.number);
            }
            reply.fail(message.id().unwrap_or("null"), -32603, why);
        }
        let refusal = self.refusal.take().map(NoHello::Refused);
        let no_hello = refusal.unwrap_or_else(|| NoHello::Failed(why.into()));
        for to in self.greeted.drain(..) {
            // Who asked may have gone.
            let _ = to.send(Err(no_hello.clone()));
        }
    }
}

/// Nobody waits for one that takes nothing any more.
pub(super) async fn turn_away(mut mailbox: mpsc::UnboundedReceiver<Ask>, is_stopping: bool) {
    mailbox.close();
    while let Some(ask) = mailbox.recv().await {
        if let Ask::Request(message, _, reply) = ask {
            let id = message.id().unwrap_or("null");
            match is_stopping {
                true => reply.lost(id),
                false => reply.fail(id, -32603, GONE),
            }
        }
    }
}
