//! Replies and refusals of the API, without an engine.

use super::KeeperServer;
use crate::keeper::KeeperSettings;
use crate::keeper::controller::RunController;
use crate::keeper::run_store::KeeperRunStore;
use crate::keeper::samples;
use crate::protocol::evolve::{
    EvolveCaller, EvolveRecord, EvolveStage, KeeperReply, MAX_KEEPER_REQUEST_BYTES, refusal,
};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// An API server with its own run store, whose controller does nothing.
struct Office {
    _folder: tempfile::TempDir,
    _owner: RunController,
    shelf: KeeperRunStore,
    desk: KeeperServer,
}

impl Office {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shelf = KeeperRunStore::open(folder.path()).unwrap();
        let settings = KeeperSettings {
            state: folder.path().into(),
            ..KeeperSettings::default()
        };
        let (owner, handle) = RunController::new(settings, shelf.clone());
        Self {
            _folder: folder,
            _owner: owner,
            desk: KeeperServer::new(shelf.clone(), handle),
            shelf,
        }
    }

    /// All replies to a request.
    async fn ask(&self, by: EvolveCaller, question: &[u8]) -> Vec<KeeperReply> {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let desk = self.desk.clone();
        let talk = tokio::spawn(async move { desk.handle_connection(theirs, by).await });
        ours.write_all(question).await.unwrap();
        ours.shutdown().await.unwrap();
        let mut text = String::new();
        ours.read_to_string(&mut text).await.unwrap();
        talk.await.unwrap().unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    async fn refused(&self, question: &[u8], kind: &str, words: &str) {
        let replies = self.ask(EvolveCaller::Agent, question).await;
        let [KeeperReply::Refused { error }] = replies.as_slice() else {
            panic!("{replies:?}");
        };
        assert_eq!(error.kind, kind, "{error:?}");
        assert!(error.message.contains(words), "{error:?}");
    }

    /// A run of which only the record is kept.
    fn run(&self, status: EvolveStage) -> EvolveRecord {
        let record = EvolveRecord {
            run: self.shelf.create_run(1e9).unwrap(),
            ..samples::sample_record(status, "new", "before")
        };
        self.shelf.save_record(&record).unwrap();
        record
    }
}

fn line(question: &serde_json::Value) -> Vec<u8> {
    format!("{question}\n").into_bytes()
}

#[tokio::test]
async fn what_has_no_meaning_or_no_leave_is_refused_with_its_reason() {
    let office = Office::new();
    let bad = refusal::KEEPER_BAD_REQUEST;
    for (question, words) in [
        (
            line(&json!({"ask": "evolve", "image": "debian"})),
            "unknown field `image`",
        ),
        (
            line(&json!({"ask": "evolve", "mounts": ["/:/x"]})),
            "unknown field `mounts`",
        ),
        (
            line(&json!({"ask": "evolve", "env": {}})),
            "unknown field `env`",
        ),
        (line(&json!({"ask": "remove"})), "unknown variant `remove`"),
        (
            line(&json!({"ask": "rollback", "run": "../x"})),
            "is not a run ID",
        ),
        (line(&json!({"ask": "show"})), "missing field `run`"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "is malformed"),
        (b"{\"ask\": \"sta".to_vec(), "is malformed"),
        (b"\xff\n".to_vec(), "is malformed"),
        (
            vec![b'x'; 2 * MAX_KEEPER_REQUEST_BYTES],
            "longer than 65536 bytes",
        ),
        (
            line(&json!({"ask": "evolve", "reason": "x".repeat(1001)})),
            "the reason is longer than 1000 characters",
        ),
        (
            line(&json!({"ask": "rollback", "reason": "x".repeat(1001)})),
            "the reason is longer than 1000 characters",
        ),
    ] {
        office.refused(&question, bad, words).await;
    }
    let stop = line(&json!({"ask": "stop"}));
    office
        .refused(&stop, refusal::KEEPER_FORBIDDEN, "only the host can stop")
        .await;
}

#[tokio::test]
async fn a_request_for_an_unknown_run_is_refused() {
    let office = Office::new();
    for ask in ["show", "log", "diff", "body"] {
        let question = line(&json!({"ask": ask, "run": "20200101-000000"}));
        office
            .refused(&question, refusal::KEEPER_NO_SUCH_RUN, "does not exist")
            .await;
    }
    let run = office.run(EvolveStage::Failed).run;
    let question = line(&json!({"ask": "diff", "run": run}));
    office
        .refused(
            &question,
            refusal::KEEPER_NO_SUCH_RUN,
            "did not read a body",
        )
        .await;
    let shown = office
        .ask(
            EvolveCaller::Agent,
            &line(&json!({"ask": "show", "run": run})),
        )
        .await;
    let [KeeperReply::Record(record)] = shown.as_slice() else {
        panic!("{shown:?}");
    };
    assert_eq!((&record.run, record.status), (&run, EvolveStage::Failed));
}

/// A request for a body reads archives of up to 64 MiB, and the agent may send 32 requests at a time.
#[tokio::test]
async fn one_question_of_the_agent_at_a_time_holds_a_body_and_others_are_refused_as_busy() {
    let mut office = Office::new();
    office.desk.body_questions.timeout = Duration::ZERO;
    let run = office.run(EvolveStage::Failed).run;
    let turns = &office.desk.body_questions;
    let turn = turns.take_turn(EvolveCaller::Agent).await.unwrap().unwrap();
    for ask in ["diff", "body"] {
        let question = line(&json!({"ask": ask, "run": run}));
        office
            .refused(&question, refusal::KEEPER_BUSY, "is busy")
            .await;
        // The host has its own permit.
        let replies = office.ask(EvolveCaller::Host, &question).await;
        let [KeeperReply::Refused { error }] = replies.as_slice() else {
            panic!("{replies:?}");
        };
        assert_eq!(error.kind, refusal::KEEPER_NO_SUCH_RUN, "{error:?}");
    }
    let status = office
        .ask(EvolveCaller::Agent, &line(&json!({"ask": "status"})))
        .await;
    assert!(
        matches!(status.as_slice(), [KeeperReply::Status(_)]),
        "{status:?}"
    );
    drop(turn);
    let question = line(&json!({"ask": "diff", "run": run}));
    office
        .refused(
            &question,
            refusal::KEEPER_NO_SUCH_RUN,
            "did not read a body",
        )
        .await;
}
