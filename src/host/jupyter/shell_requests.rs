//! Requests of a front end other than running code; answered immediately, also while a cell runs.

use super::content::{CursorRequest, HistoryAccess, HistoryRequest, IsCompleteRequest};
use super::notebook_session::NotebookSession;
use super::wire::{JUPYTER_PROTOCOL_VERSION, JupyterRequest};
use crate::error::Result;
use crate::protocol::session::{CodeCursor, CompletenessQuery};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::Duration;

/// A front end treats a kernel that does not answer in time as dead.
const JUPYTER_INFO_TIMEOUT: Duration = Duration::from_secs(2);

/// Limit of cells in a history reply, as many as a kernel stores.
const MAX_JUPYTER_HISTORY_CELLS: u64 = 1_000_000;

/// The content of the reply; `None` for other message types.
pub(super) async fn answer_shell_request(
    request: &JupyterRequest,
    attached: &NotebookSession<'_>,
) -> Option<Result<Value>> {
    Some(match request.kind.as_str() {
        "kernel_info_request" => Ok(kernel_info(attached).await),
        "complete_request" => complete_reply(request, attached).await,
        "inspect_request" => inspect_reply(request, attached).await,
        "is_complete_request" => is_complete_reply(request, attached).await,
        "history_request" => history_reply(request, attached).await,
        "comm_info_request" => Ok(json!({"status": "ok", "comms": {}})),
        _ => return None,
    })
}

async fn kernel_info(attached: &NotebookSession<'_>) -> Value {
    let session = attached.session_name();
    let python = attached.with_client(async |client| {
        let found = client.list_sessions().await?.sessions.into_iter();
        Ok(found.filter(|s| s.name == session).find_map(|s| s.python))
    });
    let python = tokio::time::timeout(JUPYTER_INFO_TIMEOUT, python).await;
    // Without a session, the version does not matter.
    let python = python.ok().and_then(Result::ok).flatten();
    let python = python.unwrap_or_else(|| "3".into());
    let osctl = env!("CARGO_PKG_VERSION");
    json!({
        "status": "ok",
        "protocol_version": JUPYTER_PROTOCOL_VERSION,
        "implementation": "osctl",
        "implementation_version": osctl,
        "language_info": {
            "name": "python",
            "version": python,
            "mimetype": "text/x-python",
            "file_extension": ".py",
            "pygments_lexer": "ipython3",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "nbconvert_exporter": "python",
        },
        "banner": format!("Python {python} in the session `{session}` of os-host, by osctl {osctl}"),
        "help_links": [],
    })
}

async fn complete_reply(request: &JupyterRequest, attached: &NotebookSession<'_>) -> Result<Value> {
    let content: CursorRequest = request.parse_content()?;
    let cursor = content.cursor_pos;
    let at = CodeCursor {
        code: content.code,
        cursor,
        detail: None,
        session: attached.session_name(),
    };
    // While code runs, completion is not available.
    let found = attached
        .with_client(async |client| client.complete(&at).await)
        .await;
    let found = found.unwrap_or_default();
    let types: Vec<Value> = found
        .types
        .into_iter()
        .map(|mut each| {
            each.insert("start".into(), found.cursor_start.into());
            each.insert("end".into(), found.cursor_end.into());
            each.into()
        })
        .collect();
    let whole = cursor.unwrap_or_default();
    let (start, end) = match found.matches.is_empty() {
        true => (whole, whole),
        false => (found.cursor_start, found.cursor_end),
    };
    Ok(json!({
        "status": "ok",
        "matches": found.matches,
        "cursor_start": start,
        "cursor_end": end,
        "metadata": {"_jupyter_types_experimental": types},
    }))
}

async fn inspect_reply(request: &JupyterRequest, attached: &NotebookSession<'_>) -> Result<Value> {
    let content: CursorRequest = request.parse_content()?;
    let at = CodeCursor {
        code: content.code,
        cursor: content.cursor_pos,
        detail: Some(content.detail_level.min(1)),
        session: attached.session_name(),
    };
    let found = attached
        .with_client(async |client| client.inspect(&at).await)
        .await;
    let found = found.unwrap_or_default();
    let (data, metadata) = attached
        .output_policy()
        .filter_bundle(&found.data, &Default::default());
    Ok(json!({"status": "ok", "found": found.found, "data": data, "metadata": metadata}))
}

async fn is_complete_reply(
    request: &JupyterRequest,
    attached: &NotebookSession<'_>,
) -> Result<Value> {
    let content: IsCompleteRequest = request.parse_content()?;
    let code = CompletenessQuery {
        code: content.code,
        session: attached.session_name(),
    };
    let reply = attached
        .with_client(async |client| client.is_complete(&code).await)
        .await;
    Ok(match reply {
        Ok(reply) if reply.status == "incomplete" => {
            json!({"status": reply.status, "indent": reply.indent.unwrap_or_default()})
        }
        Ok(reply) => json!({"status": reply.status}),
        Err(_) => json!({"status": "unknown"}),
    })
}

async fn history_reply(request: &JupyterRequest, attached: &NotebookSession<'_>) -> Result<Value> {
    let content: HistoryRequest = request.parse_content()?;
    let session = attached.session_name();
    let n = match content.hist_access_type {
        HistoryAccess::Tail => content.n.unwrap_or(MAX_JUPYTER_HISTORY_CELLS),
        HistoryAccess::Range | HistoryAccess::Search => MAX_JUPYTER_HISTORY_CELLS,
    };
    let reply = attached
        .with_client(async |client| client.fetch_history(&session, n).await)
        .await;
    let cells = reply.map(|reply| reply.cells).unwrap_or_default();
    let history: Vec<Value> = select_cells(cells, &content)
        .into_iter()
        // All cells are of the current session, whose number is 0.
        .map(|(line, input)| match content.output {
            true => json!([0, line, [input, null]]),
            false => json!([0, line, input]),
        })
        .collect();
    Ok(json!({"status": "ok", "history": history}))
}

/// The requested cells, the oldest first.
fn select_cells(mut cells: Vec<(u64, String)>, content: &HistoryRequest) -> Vec<(u64, String)> {
    match content.hist_access_type {
        HistoryAccess::Tail => {}
        HistoryAccess::Range if content.session != 0 => cells.clear(),
        HistoryAccess::Range => {
            let number = |at: i64| u64::try_from(at).unwrap_or_default();
            let start = content.start.map_or(0, number);
            let stop = content.stop.map_or(u64::MAX, number);
            cells.retain(|(line, _)| (start..stop).contains(line));
        }
        HistoryAccess::Search => {
            let pattern: Vec<char> = content.pattern.as_deref().unwrap_or("*").chars().collect();
            cells.retain(|(_, input)| matches_glob(&pattern, input));
            if content.unique {
                let mut seen = HashSet::new();
                cells.reverse();
                cells.retain(|(_, input)| seen.insert(input.clone()));
                cells.reverse();
            }
        }
    }
    if let Some(n) = content
        .n
        .filter(|_| content.hist_access_type != HistoryAccess::Range)
    {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        cells.drain(..cells.len().saturating_sub(n));
    }
    cells
}

/// Whether the whole text matches the pattern: `*` matches any text, `?` one character.
fn matches_glob(pattern: &[char], text: &str) -> bool {
    // For each position of the text, whether the pattern up to now can match the text up to it.
    let text: Vec<char> = text.chars().collect();
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for part in pattern {
        if *part == '*' {
            let first = reached.iter().position(|r| *r).unwrap_or(reached.len());
            reached[first..].fill(true);
        } else {
            for at in (0..text.len()).rev() {
                reached[at + 1] = reached[at] && (*part == '?' || *part == text[at]);
            }
            reached[0] = false;
        }
    }
    reached[text.len()]
}

#[cfg(test)]
mod tests {
    use super::{matches_glob, select_cells};
    use serde_json::{Value, json};

    fn lines(content: Value) -> Vec<u64> {
        let cells = ["a = 1", "b = 2", "a = 1", "print(a)"];
        let cells = (1..).zip(cells.map(str::to_owned)).collect();
        let content = serde_json::from_value(content).unwrap();
        select_cells(cells, &content)
            .into_iter()
            .map(|(line, _)| line)
            .collect()
    }

    #[test]
    fn history_is_chosen_by_range_tail_and_pattern() {
        let range = |session, start, stop| {
            lines(
                json!({"hist_access_type": "range", "session": session, "start": start, "stop": stop}),
            )
        };
        assert_eq!(range(0, Some(2), Some(4)), [2, 3]);
        assert_eq!(range(0, Some(2), None), [2, 3, 4]);
        assert!(range(-1, None, None).is_empty());
        assert_eq!(
            lines(json!({"hist_access_type": "tail", "n": 3})),
            [2, 3, 4]
        );
        let search = json!({"hist_access_type": "search", "pattern": "a*"});
        assert_eq!(lines(search), [1, 3]);
        let search = json!({"hist_access_type": "search", "pattern": "*a*", "unique": true});
        assert_eq!(lines(search), [3, 4]);
        let search = json!({"hist_access_type": "search", "pattern": "*a*", "n": 1});
        assert_eq!(lines(search), [4]);
    }

    #[test]
    fn patterns_match_the_whole_text() {
        let fits = |pattern: &str, text| matches_glob(&pattern.chars().collect::<Vec<_>>(), text);
        assert!(fits("1?2*", "1+2 == 3"));
        assert!(fits("*", "") && fits("**", "äö") && fits("?", "ä"));
        assert!(fits("*b*d", "abcbd"));
        assert!(!fits("b", "ab") && !fits("a", "ab") && !fits("?", "") && !fits("", "a"));
    }
}
