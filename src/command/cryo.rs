//! `osctl cryo`: stores variables and reloads them, with a receipt.

use super::CommandContext;
use super::answers::{
    GenerationAnswer, GenerationsRemovedAnswer, ReloadAnswer, StoreAnswer, StoredStatesAnswer,
};
use super::candidates::{session_names, stored_names};
use super::progress::wait_with_meter;
use crate::error::{EXIT_NEGATIVE, Result, VerbOutcome};
use crate::protocol::cryo::{
    CryoStore, GenerationDetails, GenerationList, ReceiptRow, ReloadRequest,
};
use crate::protocol::kernel::{DEFAULT_SESSION, KernelReport, KernelState};
use crate::protocol::restored::{LostVariable, RestoredFrom};
use crate::protocol::words::count_noun;
use crate::ui;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct CryoArgs {
    #[command(subcommand)]
    verb: Option<CryoVerb>,
}

impl CryoArgs {
    pub(crate) fn removes_state(&self) -> bool {
        matches!(self.verb, Some(CryoVerb::Rm(_)))
    }
}

#[derive(Debug, Subcommand)]
enum CryoVerb {
    /// Store variables and print a receipt
    #[command(alias = "save")]
    Store(StoreArgs),
    /// Reload stored variables
    #[command(aliases = ["load", "restore"])]
    Reload(ReloadArgs),
    /// List stored states (default)
    #[command(alias = "list")]
    Ls,
    /// Show a stored state
    Show(CryoGenerationArgs),
    /// Remove a stored state
    #[command(aliases = ["remove", "delete"])]
    Rm(CryoRemoveArgs),
}

#[derive(Debug, Args)]
struct StoreArgs {
    /// Name of the stored state [default: the session's name]
    #[arg(add = ArgValueCandidates::new(stored_names))]
    name: Option<String>,
    /// Session whose variables to store
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Store nothing if a variable would be lost, altered or unverified
    #[arg(long)]
    strict: bool,
    /// Print the receipt and store nothing
    #[arg(long)]
    dry_run: bool,
    /// Store open files by path and position
    #[arg(long)]
    files: bool,
}

impl From<StoreArgs> for CryoStore {
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
struct ReloadArgs {
    /// Name of the stored state [default: the session's name]
    #[arg(add = ArgValueCandidates::new(stored_names))]
    name: Option<String>,
    /// Session that receives the variables
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Generation of the stored state [default: the newest]
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
}

impl From<ReloadArgs> for ReloadRequest {
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
struct CryoGenerationArgs {
    /// Name of the stored state
    #[arg(add = ArgValueCandidates::new(stored_names))]
    name: String,
    /// Generation of the stored state [default: the newest]
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
}

#[derive(Debug, Args)]
struct CryoRemoveArgs {
    /// Name of the stored state
    #[arg(add = ArgValueCandidates::new(stored_names))]
    name: String,
    /// Generation to remove [default: all generations]
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
}

pub(crate) async fn run(args: CryoArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let client = cx.companion_client()?;
    match args.verb.unwrap_or(CryoVerb::Ls) {
        CryoVerb::Store(args) => {
            let request = CryoStore::from(args);
            let what = format!("storing `{}`", request.session);
            let call = client.cryo_store(&request).await?;
            let stored = wait_with_meter(call, &what, cx).await?;
            if cx.ui.json {
                cx.ui.print_json(&StoreAnswer::from(stored))?;
                return Ok(VerbOutcome::Done);
            }
            print_receipt(&stored.receipt, cx);
            let (size, time) = (ui::format_bytes(stored.size_bytes), stored.timing_ms / 1e3);
            let place = match stored.generation {
                Some(generation) => format!("; `{}` generation {generation}", stored.name),
                None => String::new(),
            };
            let time = super::format_duration(time);
            cx.ui
                .print_message(format!("{}{place}, {size} in {time}", stored.message));
            if let Some(kernel) = &stored.kernel {
                warn_of(kernel, cx);
            }
        }
        CryoVerb::Reload(args) => {
            let request = ReloadRequest::from(args);
            let what = format!(
                "reloading `{}`",
                request.name.as_deref().unwrap_or(&request.session)
            );
            let call = client.cryo_reload(&request).await?;
            let reloaded = wait_with_meter(call, &what, cx).await?;
            let from = reloaded.kernel.restored_from.as_deref();
            let outcome = restore_outcome(from);
            if cx.ui.json {
                cx.ui.print_json(&ReloadAnswer::from(reloaded))?;
                return Ok(outcome);
            }
            print_receipt(&reloaded.receipt, cx);
            for warning in &reloaded.warnings {
                cx.ui.print_warning(warning);
            }
            let (name, generation) = (&reloaded.name, reloaded.generation);
            let time = super::format_duration(reloaded.timing_ms / 1e3);
            let message = &reloaded.message;
            cx.ui.print_message(format!(
                "{message}; from `{name}` generation {generation}, in {time}"
            ));
            if let Some(from) = from {
                report_restored(from, cx);
            }
            return Ok(outcome);
        }
        CryoVerb::Ls => {
            let lines = client.cryo_list().await?;
            if cx.ui.json {
                cx.ui.print_json(&StoredStatesAnswer::from(lines))?;
            } else {
                let store = cx.instance.osctl_command("cryo store");
                let empty = format!("no stored states; `{store}` stores variables");
                cx.ui.print_list(&generation_table(&lines.cryo), &empty);
            }
        }
        CryoVerb::Show(CryoGenerationArgs { name, generation }) => {
            let shown = client.cryo_show(&name, generation).await?;
            if cx.ui.json {
                cx.ui.print_json(&GenerationAnswer::from(shown))?;
            } else {
                show_generation(&shown, cx);
            }
        }
        CryoVerb::Rm(CryoRemoveArgs { name, generation }) => {
            let removed = client.cryo_remove(&name, generation).await?;
            if cx.ui.json {
                cx.ui.print_json(&GenerationsRemovedAnswer::from(removed))?;
            } else {
                let count = count_noun(removed.generations.len(), "generation");
                cx.ui.print_message(format!("removed {count} of `{name}`"));
            }
        }
    }
    Ok(VerbOutcome::Done)
}

/// The exit code of a restore: whether a variable is lost, or differs, that the store had kept.
pub(super) fn restore_outcome(from: Option<&RestoredFrom>) -> VerbOutcome {
    match from.is_some_and(|from| from.lost_unexpectedly > 0) {
        true => VerbOutcome::Code(EXIT_NEGATIVE),
        false => VerbOutcome::Done,
    }
}

/// Prints the age of the stored state and the differences to it.
pub(super) fn report_restored(from: &RestoredFrom, cx: &CommandContext) {
    match from.lost_unexpectedly {
        0 => cx.ui.print_message(from.describe()),
        1 => cx.ui.print_warning(format!(
            "1 variable is lost or differs from the store; {}",
            from.describe()
        )),
        lost => cx.ui.print_warning(format!(
            "{lost} variables are lost or differ from the store; {}",
            from.describe()
        )),
    }
}

/// Warns if the kernel had lost or restored its state before the store.
fn warn_of(kernel: &KernelReport, cx: &CommandContext) {
    let generation = kernel.generation;
    match (kernel.state, &kernel.restored_from) {
        (KernelState::Lost, _) => cx.ui.print_warning(format!(
            "the kernel lost its state before this store (kernel generation {generation})"
        )),
        (KernelState::Restored, Some(from)) => cx.ui.print_warning(format!(
            "the kernel's state was restored before this store, from {} (kernel generation {generation})",
            from.describe()
        )),
        (KernelState::Restored, None) | (KernelState::Kept, _) => {}
    }
}

fn print_receipt(rows: &[ReceiptRow], cx: &CommandContext) {
    if rows.is_empty() {
        return;
    }
    let heads = ["NAME", "VERDICT", "TYPE", "SIZE", "WHY"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|row| {
        vec![
            row.name.clone(),
            row.verdict.as_str().into(),
            row.kind.clone(),
            ui::format_bytes(row.bytes),
            row.why.clone().unwrap_or_default(),
        ]
    }));
    cx.ui.print_table(&table);
}

fn generation_table(lines: &[GenerationList]) -> Vec<Vec<String>> {
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
                super::format_age(found.created),
                found.reason.clone(),
                found.session.clone(),
                ui::format_bytes(found.size_bytes),
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

fn show_generation(shown: &GenerationDetails, cx: &CommandContext) {
    print_receipt(&shown.receipt, cx);
    let found = &shown.generation;
    cx.ui.print_message(format!(
        "`{}` generation {}, {} old, {} at {}, Python {}",
        shown.name,
        found.generation,
        super::format_age(found.created),
        ui::format_bytes(found.size_bytes),
        shown.path,
        found.python
    ));
    if let Some(reload) = &found.reload {
        let (age, session) = (super::format_age(reload.time), &reload.session);
        match reload.lost_count {
            0 => cx.ui.print_message(format!(
                "reloaded into `{session}` {age} ago without losses"
            )),
            lost => {
                let named: Vec<String> = reload.lost.iter().map(LostVariable::describe).collect();
                cx.ui.print_warning(format!(
                    "reloaded into `{session}` {age} ago; {lost} more lost: {}",
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
        ("installed at the store", &shown.packages),
    ] {
        if !all.is_empty() {
            cx.ui.print_message(format!("{what}: {}", versions(all)));
        }
    }
}
