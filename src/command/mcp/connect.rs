//! `osctl mcp connect` and `disconnect`: osctl's entry in the configuration of an MCP client.

use super::narrow::NarrowArgs;
use crate::command::{Context, itself};
use crate::error::{Outcome, Result};
use crate::host::connect::{self, Call, Change, Client, Places};
use crate::host::instance::DEFAULT;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    #[arg(value_parser = clients())]
    client: Client,
    #[command(flatten)]
    narrow: NarrowArgs,
    #[command(flatten)]
    how: How,
    /// Connect it also while the instance does not answer
    #[arg(long)]
    no_verify: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DisconnectArgs {
    #[arg(value_parser = clients())]
    client: Client,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Show what would change, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
}

fn clients() -> impl TypedValueParser<Value = Client> {
    let names = Client::ALL.map(Client::name);
    PossibleValuesParser::new(names).try_map(|name| {
        let mut all = Client::ALL.into_iter();
        all.find(|client| client.name() == name).ok_or("no client")
    })
}

pub(super) async fn connect(args: ConnectArgs, cx: &Context) -> Result<Outcome> {
    let ConnectArgs {
        client,
        narrow,
        how,
        no_verify,
    } = args;
    let (name, call) = (name(cx), call(narrow, cx)?);
    let change = connect::connect(client, &name, &call, &Places::of(&cx.folders.home))?;
    show(&change, client, cx);
    let mut tools = None;
    if !how.dry_run && !no_verify {
        let work = cx
            .ui
            .work("asking what the client will start for its tools");
        let found = connect::probe(&call).await?;
        drop(work);
        tools = Some(found.tools.len());
        cx.ui.say(format!("it serves {} tools", found.tools.len()));
        for server in &found.missing {
            super::warn_missing(server, cx);
        }
    }
    let title = client.title();
    let is_done = change.is_none() || make(&change, client, &how, cx)?;
    if cx.ui.json {
        let next = (is_done && !change.is_none()).then(|| client.next());
        let more = json!({"tools": tools, "next": next});
        cx.ui
            .document(&document(&change, client, &name, is_done, more))?;
    } else if change.is_none() {
        cx.ui.say(format!(
            "{title} is connected already, by `{name}` in `{}`",
            change.file.display()
        ));
    } else if is_done {
        if let Some(backup) = change.backup() {
            cx.ui
                .say(format!("what was there is in `{}`", backup.display()));
        }
        cx.ui.say(format!(
            "{title} has the server `{name}` now; next: {}",
            client.next()
        ));
    }
    Ok(Outcome::Done)
}

pub(super) fn disconnect(args: DisconnectArgs, cx: &Context) -> Result<Outcome> {
    let DisconnectArgs { client, how } = args;
    let name = name(cx);
    let change = connect::disconnect(client, &name, &Places::of(&cx.folders.home))?;
    show(&change, client, cx);
    let title = client.title();
    let is_done = change.is_none() || make(&change, client, &how, cx)?;
    if cx.ui.json {
        cx.ui
            .document(&document(&change, client, &name, is_done, json!({})))?;
    } else if change.is_none() {
        cx.ui.say(format!(
            "{title} is not connected: `{}` has no server `{name}`",
            change.file.display()
        ));
    } else if is_done {
        cx.ui.say(format!(
            "{title} is not connected any more; next: {}",
            client.next()
        ));
    }
    Ok(Outcome::Done)
}

fn show(change: &Change, client: Client, cx: &Context) {
    if change.is_none() || cx.ui.json {
        return;
    }
    cx.ui
        .say(format!("{}: `{}`", client.title(), change.file.display()));
    for line in change.lines() {
        cx.ui.difference(line.is_new, &line.text);
    }
    if let Some(copy) = change.dropped() {
        cx.ui.say(format!("the copy `{}` goes", copy.display()));
    }
}

/// Whether it was made.
fn make(change: &Change, client: Client, how: &How, cx: &Context) -> Result<bool> {
    if how.dry_run {
        return Ok(false);
    }
    let question = format!("Change the configuration of {}?", client.title());
    let is_wanted = how.yes || cx.ui.confirm(&question, "--yes")?;
    if is_wanted {
        change.apply()?;
    }
    Ok(is_wanted)
}

fn document(change: &Change, client: Client, name: &str, is_done: bool, more: Value) -> Value {
    let lines = change.lines().into_iter().map(|line| {
        let mark = if line.is_new { "+" } else { "-" };
        format!("{mark} {}", line.text)
    });
    let mut all = json!({
        "client": client.name(),
        "server": name,
        "file": change.file,
        "changed": is_done && !change.is_none(),
        "difference": lines.collect::<Vec<_>>(),
        "backup": change.backup().filter(|_| is_done),
    });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}

/// What the client calls the server.
fn name(cx: &Context) -> String {
    match cx.instance.name.as_str() {
        DEFAULT => "osctl".into(),
        other => format!("osctl-{other}"),
    }
}

/// What the client starts.
fn call(narrow: NarrowArgs, cx: &Context) -> Result<Call> {
    let mut words = Vec::new();
    if cx.instance.name != DEFAULT {
        words.extend(["--instance".into(), cx.instance.name.clone()]);
    }
    words.extend(itself::configuration(cx)?);
    Ok(Call::bridge(
        itself::program(cx)?,
        words,
        narrow.of(None).words(),
        itself::environment(),
    ))
}
