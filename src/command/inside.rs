//! Requests to the companion of this container: one hidden verb each, which the keeper runs inside by an engine exec.
//!
//! A keeper of another version runs the same verbs, also after a rollback to an older image: their names and options
//! stay. The reply is one JSON document.

use crate::error::{Error, Result, VerbOutcome};
use crate::ui::Ui;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum InsideRequest {
    /// Store idle sessions; run by the keeper
    #[command(hide = true)]
    Remember,
    /// Test whether this body works; run by the keeper
    #[command(hide = true)]
    Selftest {
        /// The state to restore, in the layout of the data folder; read-only
        #[arg(long, value_name = "DIR")]
        snapshot: Option<PathBuf>,
        /// The image is that of the current container
        #[arg(long)]
        same_image: bool,
    },
    /// Refuse new requests and store everything; run by the keeper
    #[command(hide = true)]
    Quiesce {
        /// Seconds that running code has to end
        #[arg(long, value_name = "SECONDS")]
        grace: f64,
        /// Interrupt code that runs longer, instead of giving up
        #[arg(long)]
        force: bool,
    },
    /// Answer requests again; run by the keeper
    #[command(hide = true)]
    Resume,
    /// Verify that the state of the previous container is present; run by the keeper
    #[command(hide = true)]
    Verify {
        /// The expected state, as `osctl quiesce` reported it
        #[arg(long, value_name = "DOCUMENT")]
        expected: String,
    },
}

impl InsideRequest {
    /// The path and the body of the HTTP request.
    fn into_http(self) -> Result<(&'static str, Value)> {
        Ok(match self {
            Self::Remember => ("/evolve/remember", json!({})),
            Self::Selftest {
                snapshot,
                same_image,
            } => {
                let body = json!({"snapshot": snapshot, "same_image": same_image});
                ("/evolve/selftest", body)
            }
            Self::Quiesce { grace, force } => {
                ("/evolve/quiesce", json!({"grace": grace, "force": force}))
            }
            Self::Resume => ("/evolve/resume", json!({})),
            Self::Verify { expected } => {
                let expected: Value = serde_json::from_str(&expected).map_err(|error| {
                    let hint = "`osctl quiesce` prints the value as `expected`";
                    Error::usage(format!("cannot parse the expected state: {error}"), hint)
                })?;
                ("/evolve/verify", expected)
            }
        })
    }
}

/// Sends the request to the companion and prints the reply.
pub(crate) async fn run(request: InsideRequest, ui: Ui) -> Result<VerbOutcome> {
    let (path, body) = request.into_http()?;
    ui.print_json(&post_inside(path, &body).await?)?;
    Ok(VerbOutcome::Done)
}

#[cfg(target_os = "linux")]
async fn post_inside(path: &str, body: &Value) -> Result<Value> {
    crate::companion::post_to_companion(path, body).await
}

#[cfg(not(target_os = "linux"))]
async fn post_inside(_path: &str, _body: &Value) -> Result<Value> {
    Err(super::linux_only_error())
}

#[cfg(test)]
mod tests {
    use super::InsideRequest;
    use crate::cli::{self, ContainerVerb, Verb};
    use serde_json::json;

    fn parse_request(words: &str) -> InsideRequest {
        let words = ["osctl"].into_iter().chain(words.split(' '));
        match cli::parse_args(words.map(Into::into)).unwrap().verb {
            Verb::Container(ContainerVerb::Inside(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_verb_of_the_keeper_becomes_its_request() {
        for (words, path, body) in [
            ("remember --json", "/evolve/remember", json!({})),
            (
                "selftest --json",
                "/evolve/selftest",
                json!({"snapshot": null, "same_image": false}),
            ),
            (
                "selftest --json --snapshot /a --same-image",
                "/evolve/selftest",
                json!({"snapshot": "/a", "same_image": true}),
            ),
            (
                "quiesce --json --grace 0.5",
                "/evolve/quiesce",
                json!({"grace": 0.5, "force": false}),
            ),
            (
                "quiesce --json --grace 5 --force",
                "/evolve/quiesce",
                json!({"grace": 5.0, "force": true}),
            ),
            ("resume --json", "/evolve/resume", json!({})),
            (
                r#"verify --json --expected {"runs":[]}"#,
                "/evolve/verify",
                json!({"runs": []}),
            ),
        ] {
            let found = parse_request(words).into_http().unwrap();
            assert_eq!(found, (path, body), "{words}");
        }
        let broken = parse_request("verify --expected {").into_http();
        let error = broken.unwrap_err().to_string();
        assert!(error.contains("cannot parse the expected state"), "{error}");
    }
}
