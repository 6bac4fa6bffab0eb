//! Cells, run one after the other in the session, and what they do as front ends hear it.
//!
//! A cell is a run like any other: it queues behind runs of others, has an id by which it is found
//! again when the connection is lost, and stays in `osctl runs`.

use super::attached::Attached;
use super::content::{ExecuteRequest, error_reply, failure};
use super::sockets::{Iopub, Replies};
use super::story::{Ended, Story};
use super::wire::{Request, fresh_id};
use crate::error::Result;
use crate::protocol::kernel::{Execute, Happened, KernelReport, KernelState, Raised, Reply};
use serde_json::{Map, Value, json};
use std::cell::{Cell, RefCell};
use tokio::sync::mpsc::UnboundedReceiver;

pub(super) struct Cells<'a> {
    pub(super) attached: &'a Attached<'a>,
    pub(super) iopub: &'a Iopub,
    pub(super) replies: Replies,
    /// The id of the run that goes on.
    running: RefCell<Option<String>>,
    /// The generation of the kernel that answered last.
    seen: Cell<Option<u64>>,
    /// What the last cell counted as.
    count: Cell<u64>,
    /// What became of the namespace since then, until a cell tells it.
    untold: RefCell<Option<String>>,
}

impl<'a> Cells<'a> {
    pub(super) fn new(attached: &'a Attached<'a>, iopub: &'a Iopub, replies: Replies) -> Self {
        Self {
            attached,
            iopub,
            replies,
            running: RefCell::default(),
            seen: Cell::default(),
            count: Cell::default(),
            untold: RefCell::default(),
        }
    }

    /// Runs what comes in, in order.
    pub(super) async fn run(&self, queue: &mut UnboundedReceiver<Request>) -> Result<()> {
        while let Some(request) = queue.recv().await {
            let asked: ExecuteRequest = match request.content() {
                Ok(asked) => asked,
                Err(error) => {
                    let reply = error_reply(&failure(&error));
                    self.replies.send(&request, &reply).await?;
                    continue;
                }
            };
            self.iopub.begin(&request).await?;
            let ended = self.cell(&request, &asked).await?;
            // What was asked before the failure was told is given up; so those that wait in the
            // socket are taken in first.
            let mut aborted = Vec::new();
            if ended.raised.is_some() && asked.stop_on_error {
                tokio::task::yield_now().await;
                aborted.extend(std::iter::from_fn(|| queue.try_recv().ok()));
            }
            let reply = self.reply(&asked, ended).await;
            self.replies.send(&request, &reply).await?;
            self.iopub.end(&request).await?;
            for request in aborted {
                self.iopub.busy(&request).await?;
                let reply = json!({"status": "aborted"});
                self.replies.send(&request, &reply).await?;
                self.iopub.idle(&request).await?;
            }
        }
        Ok(())
    }

    /// Interrupts the cell that runs, if there is one; runs of others go on.
    pub(super) async fn interrupt(&self) -> Result<()> {
        let running = self.running.borrow().clone();
        let Some(id) = running else {
            return Ok(());
        };
        let asked = self
            .attached
            .ask(async |client| client.interrupt_begun(&id).await);
        asked.await.map(drop)
    }

    async fn cell(&self, request: &Request, asked: &ExecuteRequest) -> Result<Ended> {
        if !asked.silent {
            let input = json!({"code": asked.code, "execution_count": self.next_count().await});
            self.iopub
                .say(Some(request), "execute_input", &input)
                .await?;
        }
        let mut story = Story::new(request, self.iopub, asked.silent, self.attached.outputs());
        let reply = self
            .follow(asked.into(), async |happened| story.tell(happened).await)
            .await;
        match reply {
            // What a front end runs silently, nobody sees.
            Ok(reply) if asked.silent => story.end(reply, None).await,
            Ok(reply) => story.end(reply, self.untold.take()).await,
            Err(error) => story.fail(&error).await,
        }
    }

    /// Runs code to its end.
    async fn follow(
        &self,
        cell: Execute,
        mut tell: impl AsyncFnMut(Happened) -> Result<()>,
    ) -> Result<Reply> {
        let id = fresh_id()?;
        let execute = Execute {
            id: Some(id.clone()),
            session: self.attached.session(),
            queue: true,
            seen: self.seen.get(),
            ..cell
        };
        self.running.replace(Some(id));
        let followed = self.attached.ask(async |client| {
            // One that nobody used for long is gone.
            self.attached.ensure(client).await?;
            let mut events = client.execute(&execute).await?;
            while let Some(event) = events.next().await? {
                match event.happened {
                    Happened::Done { reply } => return Ok(*reply),
                    happened => tell(happened).await?,
                }
            }
            Err(anyhow::anyhow!("the run's events ended without an end"))
        });
        let followed = followed.await;
        self.running.take();
        if let Ok(reply) = &followed {
            self.seen.set(Some(reply.kernel.generation));
            if let Some(text) = became(&reply.kernel) {
                self.untold.replace(Some(text));
            }
        }
        followed
    }

    /// What the next cell will count as, unless others come first.
    async fn next_count(&self) -> u64 {
        let name = self.attached.session();
        let sessions = self.attached.ask(async |client| client.sessions().await);
        let sessions = sessions.await.map(|found| found.sessions);
        let mut found = sessions.into_iter().flatten().filter(|s| s.name == name);
        let count = found.next().map_or(self.count.get(), |s| s.exec_count);
        count.saturating_add(1)
    }

    async fn reply(&self, asked: &ExecuteRequest, ended: Ended) -> Value {
        let count = ended.count.unwrap_or(self.count.get());
        self.count.set(count);
        let mut reply = match ended.raised {
            Some(raised) => error_reply(&raised),
            None => {
                let values = self.values(asked.user_expressions.as_ref()).await;
                json!({"status": "ok", "user_expressions": values, "payload": []})
            }
        };
        reply["execution_count"] = count.into();
        reply
    }

    /// The values of a front end's own expressions, each shown by a run that leaves no trace.
    async fn values(&self, expressions: Option<&Map<String, Value>>) -> Map<String, Value> {
        let mut values = Map::new();
        for (name, expression) in expressions.into_iter().flatten() {
            let code = format!("display(eval({expression}))");
            let cell = Execute {
                silent: true,
                ..Execute::new(code)
            };
            let mut shown = None;
            let told = self
                .follow(cell, async |happened| {
                    if let Happened::Display(found) = happened {
                        shown = Some(found);
                    }
                    Ok(())
                })
                .await;
            let value = match (told.map(|reply| reply.error), shown) {
                (Ok(None), Some(shown)) => {
                    let outputs = self.attached.outputs();
                    let (data, metadata) = outputs.bundle(&shown.data, &shown.metadata);
                    json!({"status": "ok", "data": data, "metadata": metadata})
                }
                (Ok(raised), _) => error_reply(&raised.unwrap_or_else(|| nothing(name))),
                (Err(error), _) => error_reply(&failure(&error)),
            };
            values.insert(name.clone(), value);
        }
        values
    }
}

fn nothing(name: &str) -> Raised {
    Raised {
        kind: "ValueError".into(),
        message: format!("`{name}` has shown nothing"),
        traceback: Vec::new(),
    }
}

/// What a person has to know about the namespace.
fn became(kernel: &KernelReport) -> Option<String> {
    let became = match (kernel.state, &kernel.restored_from) {
        (KernelState::Kept, _) => return None,
        (KernelState::Lost, _) => "lost".into(),
        (KernelState::Restored, None) => "restored".into(),
        (KernelState::Restored, Some(from)) => format!("restored from {}", from.words()),
    };
    let generation = kernel.generation;
    Some(format!(
        "warning: the kernel's state was {became}; this is generation {generation}\n"
    ))
}
