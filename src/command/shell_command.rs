//! `osctl shell COMMAND`: what it writes comes as it is written, byte by byte, and its exit code is
//! ours.

use super::Context;
use super::exec::{ensure_session, run_id};
use super::follow::{BY_CTRL_C, CtrlC, NOT_RECORDED, Presses, listen_for_ctrl_c, say_detached};
use crate::error::{Error, INTERRUPTED, Outcome, Result, is_unread};
use crate::host::client::Client;
use crate::host::events::Events;
use crate::protocol::kernel::{Event, Happened, RunStatus};
use crate::protocol::quote::quote_word;
use crate::protocol::shell::{Command, ShellReply};
use anyhow::Context as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use tokio::sync::mpsc;

/// Bytes read of stdin at once.
const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) text: String,
    pub(super) session: String,
    pub(super) timeout: Option<f64>,
    pub(super) detach: bool,
}

/// One word is text for bash; several are a command and its arguments, and arrive as they are.
///
/// # Errors
/// When the one word is no text.
pub(super) fn text(words: &[OsString]) -> Result<String> {
    if let [word] = words {
        return word.to_str().map(str::to_owned).ok_or_else(|| {
            let hint = "give the command and its arguments as words of their own";
            Error::usage("the command is not UTF-8", hint).into()
        });
    }
    let words: Vec<String> = words
        .iter()
        .enumerate()
        .map(|(at, word)| quote_word(word.as_encoded_bytes(), at == 0))
        .collect();
    Ok(words.join(" "))
}

pub(super) async fn run(plan: Plan, cx: &Context) -> Result<Outcome> {
    let Plan {
        text,
        session,
        timeout,
        detach,
    } = plan;
    let client = cx.client()?;
    let id = run_id()?;
    let is_fed = !detach && !io::stdin().is_terminal();
    let command = Command {
        id: Some(id.clone()),
        session,
        timeout,
        wait: detach.then_some(0.0),
        stdin_open: is_fed,
        ..Command::new(text)
    };
    ensure_session(&client, &command.session).await?;
    if detach {
        client.begin_shell(&command).await?;
        match cx.ui.json {
            true => cx.ui.document(&json!({"id": id}))?,
            false => cx.ui.line(&id),
        }
        return Ok(Outcome::Done);
    }
    // Before it begins, so that no press is missed.
    let presses = listen_for_ctrl_c()?;
    let events = client.shell(&command).await?;
    if is_fed {
        tokio::spawn(feed(client.clone(), id.clone()));
    }
    let outcome = show_all(&client, &id, events, (presses, CtrlC::Interrupt), cx).await;
    // What nobody reads any more ends, as it would here.
    if outcome.as_ref().is_err_and(is_unread) {
        client.interrupt_shell(&id).await?;
    }
    outcome
}

/// Follows a command that runs, or has run, to its end, which is the verb's.
pub(super) async fn follow(
    client: &Client,
    id: &str,
    events: Events<ShellReply>,
    cx: &Context,
) -> Result<Outcome> {
    let presses = listen_for_ctrl_c()?;
    show_all(client, id, events, (presses, CtrlC::Detach), cx).await
}

/// Shows a command to its end.
async fn show_all(
    client: &Client,
    id: &str,
    mut events: Events<ShellReply>,
    (mut presses, ctrl_c): (Presses, CtrlC),
    cx: &Context,
) -> Result<Outcome> {
    let mut was_pressed = false;
    let reply = loop {
        tokio::select! {
            event = events.next() => {
                let event = event?.context("the command's events ended without an end")?;
                match show(event, cx) {
                    Ok(None) => {}
                    Ok(Some(reply)) => break reply,
                    Err(error) => return Err(Error::from(error).into()),
                }
            }
            Some(()) = presses.recv() => {
                if ctrl_c == CtrlC::Detach {
                    say_detached("command", id, cx);
                    return Ok(Outcome::Code(BY_CTRL_C));
                }
                if was_pressed {
                    cx.ui.say(format!("no longer following command `{id}`, which is being ended"));
                    return Ok(Outcome::Code(BY_CTRL_C));
                }
                was_pressed = true;
                // Its outcome comes with the events that are followed anyway.
                let (client, id) = (client.clone(), id.to_owned());
                tokio::spawn(async move { client.interrupt_shell(&id).await });
            }
        }
    };
    if cx.ui.json {
        cx.ui.document(&reply)?;
    } else if let Some(error) = reply.error.as_ref().filter(|_| !was_pressed) {
        cx.ui.warn(&error.message);
    }
    if reply.durable == Some(false) && !cx.ui.json {
        cx.ui.warn(NOT_RECORDED);
    }
    Ok(outcome(&reply, was_pressed))
}

fn outcome(reply: &ShellReply, was_pressed: bool) -> Outcome {
    match (reply.status, reply.returncode) {
        (RunStatus::Interrupted, _) if was_pressed => Outcome::Code(BY_CTRL_C),
        (RunStatus::Interrupted, _) => Outcome::Code(INTERRUPTED),
        (_, Some(0)) => Outcome::Done,
        (_, Some(code)) => Outcome::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        (_, None) => Outcome::Code(u8::MAX),
    }
}

/// Writes what came; the reply, when that was the end.
fn show(event: Event<ShellReply>, cx: &Context) -> io::Result<Option<ShellReply>> {
    let (mut to, text, base64): (Box<dyn Write>, _, _) = match event.happened {
        Happened::Done { reply } => return Ok(Some(*reply)),
        _ if cx.ui.json => return Ok(None),
        Happened::Stdout { text, base64 } => (Box::new(cx.ui.output()), text, base64),
        Happened::Stderr { text, base64 } => (Box::new(cx.ui.errors()), text, base64),
        _ => return Ok(None),
    };
    match base64 {
        Some(exact) => to.write_all(&STANDARD.decode(exact).map_err(io::Error::other)?)?,
        None => to.write_all(text.as_bytes())?,
    }
    to.flush()?;
    Ok(None)
}

/// Brings our stdin to the command, as it is asked for.
async fn feed(client: Client, id: String) {
    let (pieces, coming) = mpsc::channel(2);
    // A thread of its own: nothing wakes a read of stdin, and nobody waits for it in the end.
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut piece = vec![0; PIECE];
            let read = match stdin.read(&mut piece) {
                Ok(0) => return,
                Ok(count) => {
                    piece.truncate(count);
                    Ok(Bytes::from(piece))
                }
                Err(error) => Err(error),
            };
            let is_over = read.is_err();
            if pieces.blocking_send(read).is_err() || is_over {
                return;
            }
        }
    });
    let bytes = futures_util::stream::unfold(coming, |mut coming| async move {
        coming.recv().await.map(|piece| (piece, coming))
    });
    // A command that has ended needs no more; its end is told anyway.
    let _ = client.stdin(&id, bytes).await;
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn one_word_is_bash_and_several_are_words() {
        assert_eq!(text(&["echo $HOME *".into()]).unwrap(), "echo $HOME *");
        let words = ["echo", "$HOME", "", "it's", "a b", "-n", "*"].map(Into::into);
        assert_eq!(
            text(&words).unwrap(),
            "'echo' '$HOME' '' 'it'\\''s' 'a b' -n '*'"
        );
    }
}
