//! A check of the body that fails: the record explains the failure with the lines of the script.

use super::harness::{KeeperHarness, OLD_IMAGE, prints};
use crate::protocol::evolve::EvolveStage;
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn the_record_has_the_lines_of_a_failed_script_and_no_others() {
    let harness = KeeperHarness::start().await;
    harness.engine.at("exec os-host.trial selftest", |_| {
        let check = |name: &str, passed: bool, detail: &str| json!({"name": name, "passed": passed, "detail": detail, "timing_ms": 1.0});
        let detail = "exit code 1: Traceback:\n  File \"x\"\nValueError: no";
        let checks = [
            check("exec", true, "1 + 1 is 2"),
            check("selftest.d/10-mine", false, detail),
        ];
        prints(&json!({"passed": false, "checks": checks}))
    });
    let record = harness.evolve().await;
    assert_eq!(record.failed_stage, Some(EvolveStage::Testing));
    let why = record.why.unwrap();
    assert!(
        why.contains("selftest.d/10-mine: exit code 1: ValueError: no"),
        "{why}"
    );
    let lines = ["exit code 1: Traceback:", "  File \"x\"", "ValueError: no"];
    assert_eq!(record.log_tail, lines);
    harness.assert_one_runs(OLD_IMAGE, "a script of the body fails");
}

#[tokio::test(start_paused = true)]
async fn the_record_of_another_failed_check_has_no_lines_of_the_log() {
    let harness = KeeperHarness::start().await;
    harness.engine.at("exec os-host.trial selftest", |_| {
        let detail = "the server `a` failed: it exited with code 1";
        let check = json!({"name": "mcp:a", "passed": false, "detail": detail, "timing_ms": 1.0});
        prints(&json!({"passed": false, "checks": [check]}))
    });
    let record = harness.evolve().await;
    let why = "mcp:a: the server `a` failed: it exited with code 1";
    assert_eq!(record.why.as_deref(), Some(why));
    assert!(record.log_tail.is_empty(), "{:?}", record.log_tail);
}
