//! A terminal inside, on the person's own: what is typed goes in, what is shown comes out, until
//! the shell ends, the person leaves, or the terminal is gone for good.

mod keys;
mod signals;

use super::Context;
use crate::error::{Error, Outcome, Result};
use crate::host::terminal::{Event, Terminal};
use crate::protocol::pty::{Attach, Why};
use crate::ui::screen::{self, Keyboard, Screen};
use keys::Keys;
use signals::{Signals, Told};
use std::future::pending;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// Bytes that may wait to be shown; then nothing more is taken.
const UNSHOWN: u64 = 128 << 10;

/// Nothing waits in silence for longer.
const SILENCE: Duration = Duration::from_millis(500);

/// How long a note is read.
const NOTE: Duration = Duration::from_secs(4);

/// How it was left.
#[derive(Debug)]
enum End {
    Exit(u8, Why),
    Detached,
    /// Somebody ended this process, or closed its window.
    Told,
}

/// Which terminal, and how it is left.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) attach: Attach,
    pub(super) detach_keys: String,
}

pub(super) async fn run(plan: Plan, cx: &Context) -> Result<Outcome> {
    let Plan {
        mut attach,
        detach_keys,
    } = plan;
    let keys = Keys::parse(&detach_keys)?;
    let mut signals = Signals::listen()?;
    (attach.cols, attach.rows) = screen::size();
    // What keeps it from beginning is told on a terminal that is as it was.
    let terminal = connect(attach, &mut signals, cx).await?;
    let (keyboard, screen) = screen::open(cx.ui)?;
    let mut live = Live {
        terminal,
        screen,
        keys,
        note: None,
        is_lost: false,
        is_first: true,
        detach_keys,
    };
    let end = live.run(keyboard, &mut signals).await;
    let Live {
        terminal, screen, ..
    } = live;
    let id = terminal.id().unwrap_or_default().to_owned();
    let again = cx.instance.command(&format!("shell --attach {id}"));
    tokio::join!(screen.close(), terminal.leave());
    match end? {
        End::Exit(code, why) => {
            match why {
                Why::Exited => {}
                Why::Ended => cx.ui.say(format!("somebody ended terminal `{id}`")),
                Why::Idle => cx.ui.say(format!("terminal `{id}` was idle for too long")),
                Why::Stopped => return Err(Error::TerminalGone { id }.into()),
            }
            Ok(match code {
                0 => Outcome::Done,
                code => Outcome::Code(code),
            })
        }
        End::Detached => {
            cx.ui.say(format!(
                "left terminal `{id}`, which goes on; `{again}` comes back"
            ));
            Ok(Outcome::Done)
        }
        End::Told => {
            cx.ui
                .say(format!("terminal `{id}` goes on; `{again}` comes back"));
            Err(Error::Interrupted.into())
        }
    }
}

async fn connect(attach: Attach, signals: &mut Signals, cx: &Context) -> Result<Terminal> {
    let mut open = std::pin::pin!(Terminal::open(cx.client()?, attach));
    let mut work = None;
    loop {
        tokio::select! {
            opened = &mut open => return opened,
            told = signals.next() => if told == Told::End {
                return Err(Error::Interrupted.into());
            },
            () = sleep(SILENCE), if work.is_none() => {
                work = Some(cx.ui.work("opening a terminal"));
            }
        }
    }
}

#[derive(Debug)]
struct Live {
    terminal: Terminal,
    screen: Screen,
    keys: Keys,
    /// What is due to be said, or to be removed.
    note: Option<(Instant, Option<String>)>,
    is_lost: bool,
    is_first: bool,
    detach_keys: String,
}

impl Live {
    async fn run(&mut self, mut keyboard: Keyboard, signals: &mut Signals) -> Result<End> {
        loop {
            let has_room = self.screen.unshown() < UNSHOWN;
            let due = self.note.as_ref().map(|(at, _)| *at);
            let note = async {
                match due {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                event = self.terminal.next(), if has_room => {
                    if let Some(end) = self.happen(event?) {
                        return Ok(end);
                    }
                }
                keys = keyboard.next(), if self.terminal.has_room() => {
                    let Some(keys) = keys else {
                        return Ok(End::Told);
                    };
                    let (keys, leaves) = self.keys.pass(&keys);
                    self.terminal.type_keys(&keys);
                    if leaves {
                        return Ok(End::Detached);
                    }
                }
                goes_on = self.screen.progress() => {
                    if !goes_on {
                        return Ok(End::Told);
                    }
                    self.terminal.shown(self.screen.unshown());
                }
                told = signals.next() => match told {
                    Told::Resized => self.resize(),
                    Told::Continued => {
                        self.screen.again()?;
                        self.resize();
                        self.terminal.repaint();
                    }
                    Told::End => return Ok(End::Told),
                },
                () = note => match self.note.take() {
                    Some((_, Some(text))) => self.say(&text),
                    _ => self.wipe(),
                },
            }
        }
    }

    fn happen(&mut self, event: Event) -> Option<End> {
        match event {
            Event::Open { writer, given_up } => {
                self.opened(writer);
                if given_up > 0 {
                    self.say("the last keys may not have arrived");
                }
            }
            Event::Lost => {
                self.is_lost = true;
                let leave = self.detach_keys.replace(',', " ");
                let text = format!(" connection lost, trying again; {leave} leaves ");
                // A moment is not worth a word.
                self.note = Some((Instant::now() + SILENCE, Some(text)));
            }
            Event::Output(bytes) => self.screen.show(bytes),
            Event::Skipped(bytes) => {
                let bytes = crate::ui::bytes(bytes);
                self.say(&format!(
                    " {bytes} of output came too fast and are skipped "
                ));
            }
            Event::Writer(true) => {
                self.say(" you write now ");
                self.resize();
            }
            Event::Writer(false) => self.say(" somebody else writes now "),
            Event::Ignored => self.say(" not typed: somebody else writes; `--take` takes over "),
            Event::Exit(code, why) => return Some(End::Exit(code, why)),
        }
        None
    }

    fn opened(&mut self, writer: bool) {
        if std::mem::take(&mut self.is_lost) {
            self.note = None;
            self.wipe();
        }
        let is_first = std::mem::replace(&mut self.is_first, false);
        if is_first && !writer {
            let leave = self.detach_keys.replace(',', " ");
            self.say(&format!(" you see only; {leave} leaves "));
        } else if writer {
            // The window may have changed meanwhile.
            self.resize();
        }
    }

    fn resize(&mut self) {
        let (cols, rows) = screen::size();
        self.terminal.resize(cols, rows);
    }

    /// Says something for a moment; while there is no connection, until there is one.
    fn say(&mut self, text: &str) {
        self.screen.note(text);
        if !self.is_lost {
            self.note = Some((Instant::now() + NOTE, None));
        }
    }

    fn wipe(&mut self) {
        if self.screen.wipe() {
            self.terminal.repaint();
        }
    }
}
