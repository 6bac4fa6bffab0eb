//! A run, followed to its end, and what is told of it then.

use super::Context;
use super::shown::besides;
use crate::command::duration;
use crate::error::{INTERRUPTED, NO, Outcome, Result};
use crate::host::keeper::Keeper;
use crate::host::run::{End, end_of, follow};
use crate::protocol::cryo::Verdict;
use crate::protocol::evolve::{Record, Run, Stage};

pub(super) async fn to_the_end(keeper: &Keeper<'_>, run: &Run, cx: &Context) -> Result<Outcome> {
    let work = cx.ui.work(&format!("run {run} has begun"));
    let end = follow(keeper, run, &work).await?;
    drop(work);
    let End::Reached(record) = end else {
        let logs = cx.instance.command(&format!("evolve logs -f {run}"));
        cx.ui.say(format!(
            "run {run} goes on without you; `{logs}` follows it again"
        ));
        return Ok(Outcome::Code(INTERRUPTED));
    };
    let outcome = match record.status {
        Stage::Succeeded => Outcome::Done,
        _ => Outcome::Code(NO),
    };
    told(&record, outcome, cx)
}

/// As [`to_the_end`], where the end that is wished for is another one.
pub(super) async fn to_its_stop(keeper: &Keeper<'_>, run: &Run, cx: &Context) -> Result<Outcome> {
    let work = cx.ui.work(&format!("run {run} is being ended"));
    let record = end_of(keeper, run, &work).await?;
    drop(work);
    let outcome = match record.status {
        Stage::Succeeded => Outcome::Code(NO),
        _ => Outcome::Done,
    };
    told(&record, outcome, cx)
}

fn told(record: &Record, outcome: Outcome, cx: &Context) -> Result<Outcome> {
    if cx.ui.json {
        cx.ui.document(record)?;
        return Ok(outcome);
    }
    tell(record, cx)?;
    if let Some(why) = &record.untold {
        cx.ui.say(format!("no commit on `osctl/evolve`: {why}"));
    }
    Ok(outcome)
}

/// How it ended, for people.
fn tell(record: &Record, cx: &Context) -> Result<()> {
    let run = &record.run;
    let took = duration(record.seconds());
    if record.status == Stage::Succeeded {
        let end = match record.dry_run {
            true => "would be tried in place",
            false => "succeeded",
        };
        cx.ui.line(format!("run {run} {end} ({took})"));
        if let Some(ms) = record.refused_ms {
            let refused = duration(ms / 1e3);
            cx.ui
                .line(format!("  requests were not answered for {refused}"));
        }
        for kept in &record.receipt {
            let lost = kept.rows.iter().filter(|r| r.verdict == Verdict::Lost);
            let (session, lost) = (&kept.session, lost.count());
            let whole = kept.rows.len() - lost;
            cx.ui.line(format!(
                "  session `{session}`: {whole} variables are there, {lost} are lost"
            ));
        }
        for lost in record.besides.iter().filter(|one| !one.kept) {
            cx.ui.line(besides(lost));
        }
        return Ok(());
    }
    for text in &record.log_tail {
        cx.ui.detail(text);
    }
    let gate = record.gate.map_or("?", Stage::word);
    let why = record.why.as_deref().unwrap_or("no reason is known");
    let end = match (record.status, record.gate) {
        (Stage::RolledBack, _) => "the old container goes on",
        // The keeper has given it up.
        (_, Some(Stage::Swapping | Stage::Verifying)) => "what runs now is not known",
        _ => "nothing was changed",
    };
    cx.ui
        .warn(format!("run {run} failed while {gate}: {why}; {end}"));
    let show = cx.instance.command(&format!("evolve show {run}"));
    let logs = cx.instance.command(&format!("evolve logs {run}"));
    cx.ui.say(format!("next: {show}, or {logs}"));
    Ok(())
}
