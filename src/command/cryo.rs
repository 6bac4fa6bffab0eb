//! `osctl cryo`: objects that survive, with a receipt.

use super::Context;
use super::candidates::{session_names, stored_names};
use super::told::told;
use crate::error::{NO, Outcome, Result};
use crate::protocol::cryo::{Line, Reload, Row, Shown, Store};
use crate::protocol::kernel::{DEFAULT_SESSION, KernelReport, KernelState};
use crate::protocol::restored::{LostVariable, RestoredFrom};
use crate::ui;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Subcommand)]
pub(crate) enum CryoVerb {
    /// Store the kernel's variables, and say of each what became of it
    Store(StoreArgs),
    /// Bring stored variables back
    Reload(ReloadArgs),
    /// List what is stored
    List,
    /// What a stored state holds
    Show(WhichArgs),
    /// Remove what is stored
    Rm(WhichArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// What to call it [default: the session's name]
    #[arg(add = ArgValueCandidates::new(stored_names))]
    name: Option<String>,
    /// The kernel to store
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION, hide_default_value = true, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Store nothing when a variable would be lost, altered or unverified
    #[arg(long)]
    strict: bool,
    /// Write and check as a store does, keep nothing, and show the receipt
    #[arg(long)]
    dry_run: bool,
    /// Store open files by path and position
    #[arg(long)]
    files: bool,
}

impl From<StoreArgs> for Store {
    fn from(args: StoreArgs) -> Self {
        let StoreArgs {
            name,
            session,
            strict,
            dry_run,
            files,
        } = args;
        Self {
            name,
            session,
            strict,
            dry_run,
            files,
            seen: None,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// What it is called [default: the session's name]
    #[arg(add = ArgValueCandidates::new(stored_names))]
    name: Option<String>,
    /// The kernel that gets it
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION, hide_default_value = true, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Which one of that name [default: the newest]
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
}

impl From<ReloadArgs> for Reload {
    fn from(args: ReloadArgs) -> Self {
        let ReloadArgs {
            name,
            session,
            generation,
        } = args;
        Self {
            name,
            generation,
            session,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct WhichArgs {
    /// What it is called
    #[arg(add = ArgValueCandidates::new(stored_names))]
    name: String,
    /// Which one of that name
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
}

pub(crate) async fn run(verb: CryoVerb, cx: &Context) -> Result<Outcome> {
    let client = cx.client()?;
    match verb {
        CryoVerb::Store(args) => {
            let wish = Store::from(args);
            let what = format!("storing `{}`", wish.session);
            let tale = client.cryo_store(&wish).await?;
            let stored = told(tale, &what, cx).await?;
            if cx.ui.json {
                cx.ui.document(&stored)?;
                return Ok(Outcome::Done);
            }
            receipt(&stored.receipt, cx);
            let (size, time) = (ui::bytes(stored.size_bytes), stored.timing_ms / 1e3);
            let place = match stored.generation {
                Some(generation) => format!("; `{}` generation {generation}", stored.name),
                None => String::new(),
            };
            let time = super::duration(time);
            cx.ui
                .say(format!("{}{place}, {size} in {time}", stored.message));
            if let Some(kernel) = &stored.kernel {
                warn_of(kernel, cx);
            }
        }
        CryoVerb::Reload(args) => {
            let wish = Reload::from(args);
            let what = format!(
                "reloading `{}`",
                wish.name.as_deref().unwrap_or(&wish.session)
            );
            let tale = client.cryo_reload(&wish).await?;
            let reloaded = told(tale, &what, cx).await?;
            let from = reloaded.kernel.restored_from.as_deref();
            let outcome = match from.is_some_and(|from| from.lost_unexpectedly > 0) {
                true => Outcome::Code(NO),
                false => Outcome::Done,
            };
            if cx.ui.json {
                cx.ui.document(&reloaded)?;
                return Ok(outcome);
            }
            receipt(&reloaded.receipt, cx);
            for warning in &reloaded.warnings {
                cx.ui.warn(warning);
            }
            let (name, generation) = (&reloaded.name, reloaded.generation);
            let time = super::duration(reloaded.timing_ms / 1e3);
            let said = &reloaded.message;
            cx.ui.say(format!(
                "{said}; from `{name}` generation {generation}, in {time}"
            ));
            if let Some(from) = from {
                tell(from, cx);
            }
            return Ok(outcome);
        }
        CryoVerb::List => {
            let lines = client.cryo_list().await?;
            if cx.ui.json {
                cx.ui.document(&lines)?;
            } else {
                cx.ui.table(&table(&lines.cryo));
            }
        }
        CryoVerb::Show(WhichArgs { name, generation }) => {
            let shown = client.cryo_show(&name, generation).await?;
            if cx.ui.json {
                cx.ui.document(&shown)?;
            } else {
                show(&shown, cx);
            }
        }
        CryoVerb::Rm(WhichArgs { name, generation }) => {
            let removed = client.cryo_remove(&name, generation).await?;
            if cx.ui.json {
                cx.ui.document(&removed)?;
            } else {
                let count = removed.generations.len();
                cx.ui.say(format!("{count} of `{name}` removed"));
            }
        }
    }
    Ok(Outcome::Done)
}

/// How old it is and what differs from it.
fn tell(from: &RestoredFrom, cx: &Context) {
    match from.lost_unexpectedly {
        0 => cx.ui.say(from.words()),
        lost => cx.ui.warn(format!(
            "{lost} that the store called saved did not come back; {}",
            from.words()
        )),
    }
}

/// A store of another state than the one that was left last.
fn warn_of(kernel: &KernelReport, cx: &Context) {
    let generation = kernel.generation;
    match (kernel.state, &kernel.restored_from) {
        (KernelState::Lost, _) => cx.ui.warn(format!(
            "the kernel's state had been lost before it was stored; the kernel is generation {generation}"
        )),
        (KernelState::Restored, Some(from)) => cx.ui.warn(format!(
            "the kernel's state had been restored before it was stored, from {}; the kernel is generation {generation}",
            from.words()
        )),
        (KernelState::Restored, None) | (KernelState::Kept, _) => {}
    }
}

fn receipt(rows: &[Row], cx: &Context) {
    if rows.is_empty() {
        return;
    }
    let heads = ["NAME", "VERDICT", "TYPE", "SIZE", "WHY"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|row| {
        vec![
            row.name.clone(),
            row.verdict.word().into(),
            row.kind.clone(),
            ui::bytes(row.bytes),
            row.why.clone().unwrap_or_default(),
        ]
    }));
    cx.ui.table(&table);
}

fn table(lines: &[Line]) -> Vec<Vec<String>> {
    let heads = [
        "NAME",
        "GENERATION",
        "AGE",
        "WHY",
        "SESSION",
        "SIZE",
        "VARIABLES",
        "ALTERED",
        "UNVERIFIED",
        "LOST",
        "",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for line in lines {
        rows.extend(line.generations.iter().map(|found| {
            vec![
                line.name.clone(),
                found.generation.to_string(),
                super::age(found.created),
                found.reason.clone(),
                found.session.clone(),
                ui::bytes(found.size_bytes),
                found.variables.to_string(),
                found.altered.to_string(),
                found.unverified.to_string(),
                found.lost.to_string(),
                found
                    .damage
                    .as_ref()
                    .map(|why| format!("damaged: {why}"))
                    .unwrap_or_default(),
            ]
        }));
    }
    rows
}

fn show(shown: &Shown, cx: &Context) {
    receipt(&shown.receipt, cx);
    let found = &shown.generation;
    cx.ui.say(format!(
        "`{}` generation {}, {} old, {} at {}, Python {}",
        shown.name,
        found.generation,
        super::age(found.created),
        ui::bytes(found.size_bytes),
        shown.path,
        found.python
    ));
    if let Some(reload) = &found.reload {
        let (age, session) = (super::age(reload.time), &reload.session);
        match reload.lost_count {
            0 => cx.ui.say(format!(
                "reloaded into `{session}` {age} ago; nothing was lost"
            )),
            lost => {
                let named: Vec<String> = reload.lost.iter().map(LostVariable::words).collect();
                cx.ui.warn(format!(
                    "reloaded into `{session}` {age} ago, which lost {lost} more: {}",
                    named.join(", ")
                ));
            }
        }
    }
    let versions = |all: &std::collections::BTreeMap<String, String>| {
        let each = all
            .iter()
            .map(|(name, version)| format!("{name} {version}"));
        each.collect::<Vec<_>>().join(", ")
    };
    for (what, all) in [
        ("needs", &shown.libraries),
        ("installed then", &shown.packages),
    ] {
        if !all.is_empty() {
            cx.ui.say(format!("{what}: {}", versions(all)));
        }
    }
}
