//! The evolve protocol: requests to the keeper, its replies, and its calls into the container.
//!
//! Three channels use these types:
//!
//! - **To the keeper**, through a Unix socket: one [`KeeperRequest`] as a line of JSON, then [`KeeperReply`]s as lines
//!   of JSON until the keeper closes the connection. The agent's end is [`KEEPER_SOCKET`] in `os-host`. A caller
//!   there can't name an image, mount, command or environment, because no request has a field for one.
//! - **From the keeper into `os-host`**, by an engine exec of the hidden verbs of [`container_reports`], which answer
//!   with one JSON document on stdout.
//! - **To all other clients**: [`EvolveStatus`] and [`EvolveRecord`], over HTTP and from the command line.

mod api;
pub mod container_reports;
mod deploy_config;
mod record;
pub mod repository;
mod run_log_line;

pub use api::{EvolveEvent, EvolveLog, EvolveRun, EvolveRuns, EvolveStarted};
pub use deploy_config::{
    CertificateAuthority, DEPLOY_CONFIG_FILE, DeployConfig, EvolveLimits,
    FORMER_DEPLOY_CONFIG_FILE, ProxyVariables, built_body_name, is_built_body_name,
    portless_network,
};
pub use record::{
    BodyChange, EvolveCaller, EvolveRecord, EvolveRunId, EvolveStage, EvolveStatus, FileEdit,
    RunTask, StageRecord,
};
pub use run_log_line::RunLogLine;

use super::error::ApiError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The folder of the agent socket in `os-host`, which is [`AGENT_SOCKET_FOLDER`] in the keeper. It is mounted read-only:
/// the socket can be connected to, and nothing in the folder can be changed.
pub const KEEPER_SOCKET_FOLDER: &str = "/run/os";

/// The folder in which the keeper creates the agent socket.
pub const AGENT_SOCKET_FOLDER: &str = "/agent-socket";

/// The agent socket of the keeper, in [`KEEPER_SOCKET_FOLDER`].
pub const KEEPER_SOCKET: &str = "/run/os/keeper.sock";

/// The variable with the name of the keeper's own image.
pub const KEEPER_IMAGE_VARIABLE: &str = "OSCTL_KEEPER_IMAGE";

/// The tag of the image to which a rollback has returned. The keeper sets it, and removes it when another image is
/// evolved. While the tag is set, `up` builds no other image.
pub const ROLLED_BACK_TAG: &str = "rolled-back";

/// The reason in the record of an evolve that the user cancelled; the keeper may append other causes.
pub const CANCELLED_BY_USER: &str = "the user cancelled the evolve";

/// Maximum length of a request in bytes, including its line feed.
pub const MAX_KEEPER_REQUEST_BYTES: usize = 64 << 10;
/// Limit of a line of a reply; the longest one is a history with its receipts.
pub const MAX_KEEPER_REPLY_BYTES: usize = 64 << 20;

/// Maximum number of characters of a reason.
pub const MAX_REASON_CHARS: usize = 1000;

/// `POST /evolve`, and the keeper's request for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvolveRequest {
    /// The reason, for the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Interrupt code that still runs at the end of the grace time, instead of giving up.
    #[serde(default)]
    pub force: bool,
    /// Build and test, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Replace the container even if nothing has changed, and skip the check of the syntax.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rebuild: bool,
    /// Replace the container even if nothing has changed: `osctl up` has other settings for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(skip)]
    #[schema(ignore)]
    pub replace: bool,
}

/// `POST /evolve/rollback`, and the keeper's request for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Roll back to the image that this run created; to the previous image when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<EvolveRunId>,
    /// The reason, for the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Interrupt code that still runs at the end of the grace time, instead of giving up.
    #[serde(default)]
    pub force: bool,
}

/// All requests to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum KeeperRequest {
    /// [`KeeperReply::Started`], or a refusal.
    Evolve(EvolveRequest),
    /// [`KeeperReply::Started`], or a refusal.
    Rollback(RollbackRequest),
    /// [`KeeperReply::Stopping`], or a refusal: only the host may send it.
    Stop {},
    /// [`KeeperReply::Status`].
    Status {},
    /// [`KeeperReply::History`].
    History {},
    /// [`KeeperReply::Record`].
    Show { run: EvolveRunId },
    /// [`KeeperReply::Log`] from byte `offset` on, then [`KeeperReply::Record`]. With `follow`, both are sent as they
    /// change, and the last record is of a run that has ended.
    Log {
        run: EvolveRunId,
        #[serde(default)]
        offset: u64,
        #[serde(default)]
        follow: bool,
    },
    /// [`KeeperReply::Diff`].
    Diff { run: EvolveRunId },
    /// [`KeeperReply::File`]s: the body from which the run was built or to which it rolled back, if the body is
    /// retained.
    Body { run: EvolveRunId },
}

/// One line of the keeper's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum KeeperReply {
    /// The run continues even if the client disconnects.
    Started {
        run: EvolveRunId,
    },
    /// Another run is active: 409.
    Busy {
        run: EvolveRunId,
    },
    /// The request was refused; `error.type` is one of [`refusal`].
    Refused {
        error: ApiError,
    },
    /// The active run is being cancelled; the old container keeps running.
    Stopping {
        run: EvolveRunId,
    },
    Status(EvolveStatus),
    /// The runs, newest first, each without its checks and its receipt.
    History {
        runs: Vec<EvolveRecord>,
    },
    Record(Box<EvolveRecord>),
    /// A part of a run's log.
    Log {
        /// Offset of this part, in bytes.
        offset: u64,
        text: String,
        /// Offset of the next part.
        next: u64,
    },
    /// The files of `body/` that differ from the previous body.
    Diff {
        run: EvolveRunId,
        changes: Vec<BodyChange>,
    },
    /// A part of a file of a body; the parts of one file follow each other.
    File {
        /// The path beneath `body/`.
        path: String,
        base64: String,
    },
}

/// Error types of refusals, and their HTTP statuses.
pub mod refusal {
    /// 400: the request is malformed.
    pub const KEEPER_BAD_REQUEST: &str = "bad_request";
    /// 403: the caller is not permitted to do this.
    pub const KEEPER_FORBIDDEN: &str = "forbidden";
    /// 404: the run does not exist, or can't be rolled back to.
    pub const KEEPER_NO_SUCH_RUN: &str = "no_such_run";
    /// 429: too many runs in the last hour.
    pub const KEEPER_RATE_LIMITED: &str = "rate_limited";
    /// The word of keepers before 0.1.0 for [`KEEPER_RATE_LIMITED`].
    pub const FORMER_KEEPER_RATE_LIMITED: &str = "too_often";
    /// 503: the keeper is answering another request of the same kind.
    pub const KEEPER_BUSY: &str = "busy";
    /// 503: the keeper can't start a run; the message says what is missing.
    pub const KEEPER_NOT_READY: &str = "not_ready";
}

#[cfg(test)]
mod tests {
    use super::{
        EvolveRecord, EvolveRequest, EvolveRunId, EvolveStage, KeeperReply, KeeperRequest,
        RollbackRequest,
    };

    fn ask(text: &str) -> Result<KeeperRequest, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_keeper_request_accepts_no_image_mount_command_or_environment() {
        let parsed = ask(r#"{"ask":"evolve","reason":"more","force":true}"#).unwrap();
        let expected = EvolveRequest {
            reason: Some("more".into()),
            force: true,
            ..EvolveRequest::default()
        };
        assert_eq!(parsed, KeeperRequest::Evolve(expected));
        let with = |key: &str| match ask(&format!(r#"{{"ask":"evolve","{key}":true}}"#)) {
            Ok(KeeperRequest::Evolve(request)) => (request.rebuild, request.replace),
            other => panic!("{other:?}"),
        };
        assert_eq!(with("rebuild"), (true, false));
        assert_eq!(with("replace"), (false, true));
        assert_eq!(
            ask(r#"{"ask":"status"}"#).unwrap(),
            KeeperRequest::Status {}
        );
        assert_eq!(ask(r#"{"ask":"stop"}"#).unwrap(), KeeperRequest::Stop {});
        assert_eq!(
            ask(r#"{"ask":"rollback"}"#).unwrap(),
            KeeperRequest::Rollback(RollbackRequest::default())
        );
        for more in [
            r#""image":"debian""#,
            r#""mounts":["/:/x"]"#,
            r#""command":["sh"]"#,
            r#""env":{}"#,
        ] {
            for verb in ["evolve", "rollback", "stop", "status", "history"] {
                let refused = ask(&format!(r#"{{"ask":"{verb}",{more}}}"#)).unwrap_err();
                assert!(
                    refused.contains("unknown field"),
                    "{verb} {more}: {refused}"
                );
            }
        }
        assert!(
            ask(r#"{"ask":"exec"}"#)
                .unwrap_err()
                .contains("unknown variant")
        );
    }

    #[test]
    fn a_run_names_no_path() {
        for fine in ["20261120-193600", "20240229-000000"] {
            assert_eq!(fine.parse::<EvolveRunId>().unwrap().to_string(), fine);
        }
        for bad in [
            "",
            "../../etc",
            "20261120-1936000",
            "20261120_193600",
            "2026112-0193600",
            "20261120-19360\u{661}",
        ] {
            assert!(bad.parse::<EvolveRunId>().is_err(), "{bad}");
            let text = serde_json::json!({"ask": "show", "run": bad}).to_string();
            assert!(
                ask(&text)
                    .unwrap_err()
                    .contains("is not the ID of an evolve"),
                "{bad}"
            );
        }
    }

    /// A record as the first version writes it.
    const RECORD: &str = r#"{"reply":"record","run":"20261121-100000","task":"evolve","reason":"more","by":"agent","force":false,"dry_run":false,"began":1763719200.5,"status":"rolled_back","stages":[{"stage":"building","began":1763719200.5,"seconds":12.5},{"stage":"testing","began":1763719213.0,"seconds":3.25}],"gate":"testing","why":"`kernel` is not ready","log_tail":["no module named x"],"checks":[{"name":"services","passed":false,"detail":"`kernel` is not ready","ms":12.0}],"image":null,"previous":"sha256:1","body":"sha256:2","refused_ms":null,"receipt":[]}"#;

    #[test]
    fn records_of_the_first_version_stay_readable() {
        let KeeperReply::Record(record) = serde_json::from_str(RECORD).unwrap() else {
            panic!("no record");
        };
        let EvolveRecord {
            run,
            status,
            failed_stage,
            ..
        } = record.as_ref();
        assert_eq!(run.as_str(), "20261121-100000");
        assert_eq!(
            (*status, *failed_stage),
            (EvolveStage::RolledBack, Some(EvolveStage::Testing))
        );
        assert!(status.has_ended());
        let again = serde_json::to_string(&KeeperReply::Record(record)).unwrap();
        let renamed_keys = [
            ("by", "requested_by"),
            ("began", "started"),
            ("gate", "failed_stage"),
            ("ms", "timing_ms"),
            ("previous", "previous_image"),
            ("body", "body_digest"),
        ];
        let with_todays_keys = renamed_keys
            .iter()
            .fold(RECORD.to_owned(), |text, (former, key)| {
                text.replace(&format!(r#""{former}":"#), &format!(r#""{key}":"#))
            });
        assert_eq!(again, with_todays_keys);
        let former = RECORD.replace("testing", "freezing");
        let KeeperReply::Record(record) = serde_json::from_str(&former).unwrap() else {
            panic!("no record");
        };
        assert_eq!(record.failed_stage, Some(EvolveStage::Quiescing));
        assert_eq!(record.stages[1].stage, EvolveStage::Quiescing);
    }
}
