//! `osctl activity`: shows what clients ran, called and wrote.

use super::CommandContext;
use super::answers::{ActivitiesAnswer, ActivityEntry};
use super::candidates::session_names;
use super::follow::CTRL_C_EXIT_CODE;
use crate::error::{Error, Result, VerbOutcome};
use crate::host::activity::{FollowedActivity, read_stored_activity};
use crate::host::engine_diagnosis::may_engine_explain;
use crate::protocol::activity::{ActivityKind, ActivityList, ActivityQuery, ActivityRecord};
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Args)]
pub(crate) struct ActivityArgs {
    /// Show new actions as they end
    #[arg(short, long)]
    follow: bool,
    /// Show only actions of the last TIME: seconds, or a number with s, m, h or d
    #[arg(long, value_name = "TIME")]
    since: Option<TimeSpan>,
    /// Show only actions of this client
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    /// Show only actions in this session
    #[arg(short, long, value_name = "NAME", add = ArgValueCandidates::new(session_names))]
    session: Option<String>,
    /// Show at most LINES earlier actions [default: 200]
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,
}

#[derive(Debug)]
struct ActivityPlan {
    follow: bool,
    query: ActivityQuery,
}

impl From<ActivityArgs> for ActivityPlan {
    fn from(args: ActivityArgs) -> Self {
        let ActivityArgs {
            follow,
            since,
            client,
            session,
            tail,
        } = args;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        let query = ActivityQuery {
            since: since.map(|TimeSpan(span)| (now - span).max(0.0)),
            after: None,
            client,
            session,
            limit: tail,
        };
        Self { follow, query }
    }
}

pub(crate) async fn run(args: ActivityArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = ActivityPlan::from(args);
    if !plan.follow {
        return list_activity(&plan.query, cx).await;
    }
    let ended = super::shutdown_signal()?;
    tokio::select! {
        biased;
        done = follow_activity(plan.query, cx) => done,
        // Ctrl-C is how a user stops following.
        () = ended => Ok(VerbOutcome::Code(CTRL_C_EXIT_CODE)),
    }
}

async fn list_activity(query: &ActivityQuery, cx: &CommandContext) -> Result<VerbOutcome> {
    let mut found = match cx.companion_client()?.list_activity(query).await {
        Err(error) => read_after_down(error, query, cx).await?,
        Ok(found) => found,
    };
    if cx.ui.json {
        cx.ui.print_json(&ActivitiesAnswer::from(found))?;
        return Ok(VerbOutcome::Done);
    }
    let heads = [
        "TIME", "CLIENT", "SESSION", "ACTION", "VERDICT", "TOOK", "TEXT",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    // The log has the order of the ends, and TIME is the start.
    found
        .records
        .sort_by(|a, b| a.started.total_cmp(&b.started));
    rows.extend(found.records.iter().map(|record| columns(record).to_vec()));
    let is_narrow = query.since.is_some() || query.client.is_some() || query.session.is_some();
    cx.ui.print_list(
        &rows,
        match is_narrow {
            true => "no action matches",
            false => "no actions are recorded",
        },
    );
    Ok(VerbOutcome::Done)
}

/// The log in the instance's data folder, which survives the container.
///
/// # Errors
/// The error of the request, unless the container does not run and its data folder is on this machine.
async fn read_after_down(
    error: anyhow::Error,
    query: &ActivityQuery,
    cx: &CommandContext,
) -> Result<ActivityList> {
    let error = match may_engine_explain(&error) {
        true => cx.explain_error(error).await,
        false => error,
    };
    let is_down = matches!(error.downcast_ref(), Some(Error::NotRunning { .. }));
    if !is_down || cx.require_record()?.remote.is_some() {
        return Err(error);
    }
    match read_stored_activity(&cx.instance.data_folder(), query) {
        Ok(found) => {
            cx.ui
                .print_message(format!("{error}; its log is read from the data folder"));
            Ok(found)
        }
        Err(_) => Err(error),
    }
}

async fn follow_activity(query: ActivityQuery, cx: &CommandContext) -> Result<VerbOutcome> {
    let mut followed = FollowedActivity::open(cx.companion_client()?, query).await?;
    loop {
        match followed.next().await? {
            Ok(record) if cx.ui.json => cx.ui.print_json_line(&ActivityEntry::from(record))?,
            Ok(record) => {
                let [time, client, session, action, verdict, took, text] = columns(&record);
                cx.ui.print_line(format!(
                    "{time}  {client:<16}  {session:<12}  {action:<24}  {verdict:<11}  {took:>7}  {text}"
                ));
            }
            Err(count) => cx.ui.print_warning(format!(
                "{count} actions were left out; `osctl activity` lists them"
            )),
        }
    }
}

/// The columns of a record for people.
fn columns(record: &ActivityRecord) -> [String; 7] {
    let action = match (&record.tool, record.kind) {
        (Some(tool), ActivityKind::Tool) => tool.clone(),
        (Some(method), ActivityKind::File) => match method.as_str() {
            "DELETE" => "remove file".into(),
            _ => "write file".into(),
        },
        (_, kind) => kind.as_str().replace('_', " "),
    };
    [
        super::format_time(record.started),
        record.client.clone(),
        record.session.clone().unwrap_or_default(),
        action,
        record.verdict.as_str().into(),
        super::format_duration(record.duration_ms / 1e3),
        record.text.clone(),
    ]
}

/// `90`, `90s`, `5m`, `1h` or `2d`, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TimeSpan(f64);

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (number, unit) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
            Some(number) => (number, &text[number.len()..]),
            None => (text, "s"),
        };
        let factor = match unit {
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => 1.0,
        };
        let number: Option<u32> = number.parse().ok();
        let seconds = number.map(|number| Self(f64::from(number) * factor));
        seconds.ok_or_else(|| "expected a number with s, m, h or d, such as `1h`".into())
    }
}

#[cfg(test)]
mod tests {
    use super::{TimeSpan, columns};
    use crate::protocol::activity::{ActivityKind, ActivityRecord, ActivityVerdict};
    use crate::protocol::activity_draft::ActivityDraft;

    #[test]
    fn a_time_span_has_a_unit_or_is_in_seconds() {
        for (text, expected) in [
            ("90", 90.0),
            ("90s", 90.0),
            ("5m", 300.0),
            ("1h", 3600.0),
            ("2d", 172_800.0),
        ] {
            assert_eq!(text.parse(), Ok(TimeSpan(expected)), "{text}");
        }
        for text in ["", "h", "1w", "-1h", "1.5h", "1 h", "ä"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_columns_name_the_action() {
        let draft = ActivityDraft::begin(ActivityKind::Exec, "claude-code".into());
        let record = ActivityRecord {
            duration_ms: 500.0,
            text: "1 + 1".into(),
            ..draft.finish(ActivityVerdict::Completed, 2)
        };
        assert_eq!(
            columns(&record)[3..],
            ["exec", "completed", "500 ms", "1 + 1"]
        );
        let tool = ActivityRecord {
            kind: ActivityKind::Tool,
            tool: Some("os__run_shell".into()),
            ..record.clone()
        };
        assert_eq!(columns(&tool)[3], "os__run_shell");
        let file = ActivityRecord {
            kind: ActivityKind::File,
            tool: Some("DELETE".into()),
            ..record
        };
        assert_eq!(columns(&file)[3], "remove file");
    }
}
