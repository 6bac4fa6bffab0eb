//! What the keeper says about the image of a new container: only an evolve that keeps the image says so, because the
//! image was tested when it was built.

use super::harness::{KeeperHarness, evolve_request};
use crate::keeper::run::BuildPolicy;
use crate::keeper::run_request::RunRequest;
use crate::protocol::evolve::{EvolveRecord, EvolveStage, RunTask};

/// Runs a request to its success. Returns its record, and whether the commands of the self-test and of the verification
/// say that the image is the same.
async fn run_to_success(harness: &KeeperHarness, request: RunRequest) -> (EvolveRecord, [bool; 2]) {
    let record = harness.run(request).await;
    assert_eq!(record.status, EvolveStage::Succeeded, "{record:?}");
    let has_word = |verb: &str, word: &str| {
        let command = harness.engine.with(|objects| objects.last_command(verb));
        command.unwrap().iter().any(|part| part.contains(word))
    };
    let is_same = [
        has_word("selftest", "--same-image"),
        has_word("verify", r#""same_image":true"#),
    ];
    (record, is_same)
}

#[tokio::test(start_paused = true)]
async fn only_an_evolve_that_keeps_the_image_says_so() {
    let harness = KeeperHarness::start().await;
    let evolve = || RunRequest {
        build_policy: BuildPolicy::Always,
        ..evolve_request()
    };
    let back = |rollback_run| RunRequest {
        task: RunTask::Rollback,
        rollback_run,
        ..evolve_request()
    };
    let (first, is_same) = run_to_success(&harness, evolve()).await;
    assert_eq!(is_same, [false, false], "the image of `up` has no digest");
    let (second, is_same) = run_to_success(&harness, evolve()).await;
    assert_eq!(second.image, first.image);
    assert_eq!(is_same, [true, true], "the body is unchanged");
    harness.write_dockerfile("FROM ${BASE}\nRUN true\n");
    let (changed, is_same) = run_to_success(&harness, evolve()).await;
    assert_ne!(changed.image, first.image);
    assert_eq!(is_same, [false, false], "the body is changed");
    let (rollback, is_same) = run_to_success(&harness, back(None)).await;
    assert_eq!(rollback.image, first.image);
    assert_eq!(is_same, [false, false], "a rollback");
    let (rollback, is_same) = run_to_success(&harness, back(Some(first.run))).await;
    assert_eq!(rollback.image, rollback.previous_image);
    assert_eq!(is_same, [false, false], "a rollback to the current image");
}
