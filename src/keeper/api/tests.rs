//! Replies and refusals of the API, without an engine.

use super::KeeperServer;
use crate::keeper::KeeperSettings;
use crate::keeper::controller::RunController;
use crate::keeper::run_store::KeeperRunStore;
use crate::keeper::test_samples;
use crate::protocol::evolve::{
    EvolveCaller, EvolveRecord, EvolveStage, KeeperReply, MAX_KEEPER_REQUEST_BYTES, refusal,
};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// An API server with its own run store, whose controller does nothing.
struct KeeperApiFixture {
    _folder: tempfile::TempDir,
    _controller: RunController,
    run_store: KeeperRunStore,
    server: KeeperServer,
}

impl KeeperApiFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        let settings = KeeperSettings {
            state_folder: folder.path().into(),
            ..KeeperSettings::default()
        };
        let (owner, handle) = RunController::new(settings, run_store.clone());
        Self {
            _folder: folder,
            _controller: owner,
            server: KeeperServer::new(run_store.clone(), handle),
            run_store,
        }
    }

    /// All replies to a request.
    async fn send_request(&self, by: EvolveCaller, request: &[u8]) -> Vec<KeeperReply> {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let server = self.server.clone();
        let connection = tokio::spawn(async move { server.handle_connection(theirs, by).await });
        ours.write_all(request).await.unwrap();
        ours.shutdown().await.unwrap();
        let mut text = String::new();
        ours.read_to_string(&mut text).await.unwrap();
        connection.await.unwrap().unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    async fn assert_refused(&self, request: &[u8], kind: &str, words: &str) {
        let replies = self.send_request(EvolveCaller::Agent, request).await;
        let [KeeperReply::Refused { error }] = replies.as_slice() else {
            panic!("{replies:?}");
        };
        assert_eq!(error.kind, kind, "{error:?}");
        assert!(error.message.contains(words), "{error:?}");
    }

    /// A run of which only the record is kept.
    fn run(&self, status: EvolveStage) -> EvolveRecord {
        let record = EvolveRecord {
            run: self.run_store.create_run(1e9).unwrap(),
            ..test_samples::sample_record(status, "new", "before")
        };
        self.run_store.save_record(&record).unwrap();
        record
    }
}

fn request_line(request: &serde_json::Value) -> Vec<u8> {
    format!("{request}\n").into_bytes()
}

#[tokio::test]
async fn malformed_and_forbidden_requests_are_refused_with_a_reason() {
    let fixture = KeeperApiFixture::new();
    let bad = refusal::KEEPER_BAD_REQUEST;
    for (request, words) in [
        (
            request_line(&json!({"ask": "evolve", "image": "debian"})),
            "unknown field `image`",
        ),
        (
            request_line(&json!({"ask": "evolve", "mounts": ["/:/x"]})),
            "unknown field `mounts`",
        ),
        (
            request_line(&json!({"ask": "evolve", "env": {}})),
            "unknown field `env`",
        ),
        (
            request_line(&json!({"ask": "remove"})),
            "unknown variant `remove`",
        ),
        (
            request_line(&json!({"ask": "rollback", "run": "../x"})),
            "is not the ID of an evolve",
        ),
        (request_line(&json!({"ask": "show"})), "missing field `run`"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "is malformed"),
        (b"{\"ask\": \"sta".to_vec(), "is malformed"),
        (b"\xff\n".to_vec(), "is malformed"),
        (
            vec![b'x'; 2 * MAX_KEEPER_REQUEST_BYTES],
            "longer than 65536 bytes",
        ),
        (
            request_line(&json!({"ask": "evolve", "reason": "x".repeat(1001)})),
            "the reason is longer than 1000 characters",
        ),
        (
            request_line(&json!({"ask": "rollback", "reason": "x".repeat(1001)})),
            "the reason is longer than 1000 characters",
        ),
    ] {
        fixture.assert_refused(&request, bad, words).await;
    }
    let stop = request_line(&json!({"ask": "stop"}));
    fixture
        .assert_refused(&stop, refusal::KEEPER_FORBIDDEN, "only the host can stop")
        .await;
}

#[tokio::test]
async fn a_request_for_an_unknown_run_is_refused() {
    let fixture = KeeperApiFixture::new();
    for ask in ["show", "log", "diff", "body"] {
        let request = request_line(&json!({"ask": ask, "run": "20200101-000000"}));
        fixture
            .assert_refused(&request, refusal::KEEPER_NO_SUCH_RUN, "does not exist")
            .await;
    }
    let run = fixture.run(EvolveStage::Failed).run;
    let request = request_line(&json!({"ask": "diff", "run": run}));
    fixture
        .assert_refused(&request, refusal::KEEPER_NO_SUCH_RUN, "did not read a body")
        .await;
    let shown = fixture
        .send_request(
            EvolveCaller::Agent,
            &request_line(&json!({"ask": "show", "run": run})),
        )
        .await;
    let [KeeperReply::Record(record)] = shown.as_slice() else {
        panic!("{shown:?}");
    };
    assert_eq!((&record.run, record.status), (&run, EvolveStage::Failed));
}

/// A request for a body reads archives of up to 64 MiB, and the agent may send 32 requests at a time.
#[tokio::test]
async fn a_second_body_request_of_the_agent_is_refused_as_busy() {
    let mut fixture = KeeperApiFixture::new();
    fixture.server.body_limits.timeout = Duration::ZERO;
    let run = fixture.run(EvolveStage::Failed).run;
    let limits = &fixture.server.body_limits;
    let permit = limits
        .acquire_permit(EvolveCaller::Agent)
        .await
        .unwrap()
        .unwrap();
    for ask in ["diff", "body"] {
        let request = request_line(&json!({"ask": ask, "run": run}));
        fixture
            .assert_refused(&request, refusal::KEEPER_BUSY, "is busy")
            .await;
        // The host has its own permit.
        let replies = fixture.send_request(EvolveCaller::Host, &request).await;
        let [KeeperReply::Refused { error }] = replies.as_slice() else {
            panic!("{replies:?}");
        };
        assert_eq!(error.kind, refusal::KEEPER_NO_SUCH_RUN, "{error:?}");
    }
    let status = fixture
        .send_request(
            EvolveCaller::Agent,
            &request_line(&json!({"ask": "status"})),
        )
        .await;
    assert!(
        matches!(status.as_slice(), [KeeperReply::Status(_)]),
        "{status:?}"
    );
    drop(permit);
    let request = request_line(&json!({"ask": "diff", "run": run}));
    fixture
        .assert_refused(&request, refusal::KEEPER_NO_SUCH_RUN, "did not read a body")
        .await;
}
