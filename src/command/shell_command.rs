//! `osctl shell COMMAND`: passes the command's output on unchanged as it arrives, and exits with the command's exit
//! code.

use super::CommandContext;
use super::answers::{ShellAnswer, StartedAnswer};
use super::exec::{ensure_session, run_id};
use super::follow::{
    CTRL_C_EXIT_CODE, CtrlCAction, NOT_RECORDED_WARNING, Presses, listen_for_ctrl_c, say_detached,
};
use crate::error::{EXIT_INTERRUPTED, Error, Result, VerbOutcome, is_output_closed};
use crate::host::client::CompanionClient;
use crate::host::events::ClientRunEvents;
use crate::protocol::kernel::{RunEvent, RunEventKind, RunStatus};
use crate::protocol::quote::quote_word;
use crate::protocol::shell::{ShellReply, ShellRequest};
use anyhow::Context as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use tokio::sync::mpsc;

/// Maximum number of bytes per read of stdin.
const STDIN_CHUNK_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct ShellCommandPlan {
    pub(super) text: String,
    pub(super) session: String,
    pub(super) timeout: Option<f64>,
    pub(super) detach: bool,
}

/// One word is text for bash; several words are a command and its arguments, and are passed unchanged.
///
/// # Errors
/// When the single word is not UTF-8.
pub(super) fn command_text(words: &[OsString]) -> Result<String> {
    if let [word] = words {
        return word.to_str().map(str::to_owned).ok_or_else(|| {
            let hint = "pass the command and its arguments as separate words";
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

pub(super) async fn run(plan: ShellCommandPlan, cx: &CommandContext) -> Result<VerbOutcome> {
    let ShellCommandPlan {
        text,
        session,
        timeout,
        detach,
    } = plan;
    let client = cx.companion_client()?;
    let id = run_id()?;
    let has_input = !detach && !io::stdin().is_terminal();
    let command = ShellRequest {
        id: Some(id.clone()),
        session,
        timeout,
        wait: detach.then_some(0.0),
        stdin_open: has_input,
        ..ShellRequest::new(text)
    };
    ensure_session(&client, &command.session).await?;
    if detach {
        client.start_shell_command(&command).await?;
        match cx.ui.json {
            true => cx.ui.print_json(&StartedAnswer { id })?,
            false => cx.ui.print_line(&id),
        }
        return Ok(VerbOutcome::Done);
    }
    // Listen before the command starts, so that no press is missed.
    let presses = listen_for_ctrl_c()?;
    let events = client.execute_shell(&command).await?;
    if has_input {
        tokio::spawn(feed_stdin(client.clone(), id.clone()));
    }
    let outcome = show_all(&client, &id, events, (presses, CtrlCAction::Interrupt), cx).await;
    // When stdout is closed, end the command, as a local command would end.
    if outcome.as_ref().is_err_and(is_output_closed) {
        client.interrupt_shell(&id).await?;
    }
    outcome
}

/// Follows a running or finished command to its end and returns its exit code as that of the verb.
pub(super) async fn follow_command(
    client: &CompanionClient,
    id: &str,
    events: ClientRunEvents<ShellReply>,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let presses = listen_for_ctrl_c()?;
    show_all(client, id, events, (presses, CtrlCAction::Detach), cx).await
}

/// Shows the output of a command to its end.
async fn show_all(
    client: &CompanionClient,
    id: &str,
    mut events: ClientRunEvents<ShellReply>,
    (mut presses, ctrl_c): (Presses, CtrlCAction),
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let mut was_pressed = false;
    let reply = loop {
        tokio::select! {
            event = events.next() => {
                let event = event?.context("the events of the command stopped before the command ended")?;
                match write_event(event, cx) {
                    Ok(None) => {}
                    Ok(Some(reply)) => break reply,
                    Err(error) => return Err(Error::from(error).into()),
                }
            }
            Some(()) = presses.recv() => {
                if ctrl_c == CtrlCAction::Detach {
                    say_detached("command", id, cx);
                    return Ok(VerbOutcome::Code(CTRL_C_EXIT_CODE));
                }
                if was_pressed {
                    cx.ui.print_message(format!("detached from command `{id}`, which is being ended"));
                    return Ok(VerbOutcome::Code(CTRL_C_EXIT_CODE));
                }
                was_pressed = true;
                // The outcome arrives with the followed events.
                let (client, id) = (client.clone(), id.to_owned());
                tokio::spawn(async move { client.interrupt_shell(&id).await });
            }
        }
    };
    if cx.ui.json {
        cx.ui.print_json(&ShellAnswer::from(reply.clone()))?;
    } else if let Some(error) = reply.error.as_ref().filter(|_| !was_pressed) {
        cx.ui.print_warning(&error.message);
    }
    if reply.durable == Some(false) && !cx.ui.json {
        cx.ui.print_warning(NOT_RECORDED_WARNING);
    }
    Ok(exit_outcome(&reply, was_pressed))
}

fn exit_outcome(reply: &ShellReply, was_pressed: bool) -> VerbOutcome {
    match (reply.status, reply.returncode) {
        (RunStatus::Interrupted, _) if was_pressed => VerbOutcome::Code(CTRL_C_EXIT_CODE),
        (RunStatus::Interrupted, _) => VerbOutcome::Code(EXIT_INTERRUPTED),
        (_, Some(0)) => VerbOutcome::Done,
        (_, Some(code)) => VerbOutcome::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        (_, None) => VerbOutcome::Code(u8::MAX),
    }
}

/// Writes an event's output; returns the reply if the event is the last one.
fn write_event(event: RunEvent<ShellReply>, cx: &CommandContext) -> io::Result<Option<ShellReply>> {
    let (mut to, text, base64): (Box<dyn Write>, _, _) = match event.happened {
        RunEventKind::Done { reply } => return Ok(Some(*reply)),
        _ if cx.ui.json => return Ok(None),
        RunEventKind::Stdout { text, base64 } => (Box::new(cx.ui.stdout_writer()), text, base64),
        RunEventKind::Stderr { text, base64 } => (Box::new(cx.ui.stderr_writer()), text, base64),
        _ => return Ok(None),
    };
    match base64 {
        Some(exact) => to.write_all(&STANDARD.decode(exact).map_err(io::Error::other)?)?,
        None => to.write_all(text.as_bytes())?,
    }
    to.flush()?;
    Ok(None)
}

/// Sends stdin to the command as the command reads it.
async fn feed_stdin(client: CompanionClient, id: String) {
    let (pieces, receiver) = mpsc::channel(2);
    // A separate thread, because a read of stdin can't be cancelled; the process does not wait for it.
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut piece = vec![0; STDIN_CHUNK_BYTES];
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
    let bytes = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    // If the command has ended, it needs no more input; its end is reported separately.
    let _ = client.send_stdin(&id, bytes).await;
}

#[cfg(test)]
mod tests {
    use super::command_text;

    #[test]
    fn one_argument_is_bash_and_several_are_quoted() {
        assert_eq!(
            command_text(&["echo $HOME *".into()]).unwrap(),
            "echo $HOME *"
        );
        let words = ["echo", "$HOME", "", "it's", "a b", "-n", "*"].map(Into::into);
        assert_eq!(
            command_text(&words).unwrap(),
            "'echo' '$HOME' '' 'it'\\''s' 'a b' -n '*'"
        );
    }
}
