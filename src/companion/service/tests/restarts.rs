//! Tests of ends and restarts of services.

use super::harness::{ONE_CLOSABLE_SERVICE, ONE_SERVICE, ServiceHarness};
use crate::companion::service::ServiceNeed;
use crate::companion::service::fake_processes::{
    FakeService, expect_started, next_started, refuse_starts,
};
use crate::companion::tests::clock::advance;
use nix::libc::ENOENT;
use std::io::ErrorKind;
use std::time::Duration;

/// How a service ends.
#[derive(Debug, Clone, Copy)]
enum ServiceEnd {
    Code(u8),
    SupervisorKilled,
    NotStarted,
}

impl ServiceEnd {
    const ALL: [(Self, &str); 5] = [
        (Self::Code(0), "ended with exit code 0"),
        (Self::Code(3), "ended with exit code 3"),
        (Self::Code(139), "ended by signal 11"),
        (
            Self::SupervisorKilled,
            "ended, because its supervisor was killed",
        ),
        (
            Self::NotStarted,
            "can't be started: No such file or directory (os error 2)",
        ),
    ];

    async fn play(self, service: &mut FakeService) {
        match self {
            Self::Code(code) => service.exit(code).await,
            Self::SupervisorKilled => service.kill_supervisor().await,
            Self::NotStarted => service.fail_start(ENOENT).await,
        }
    }
}

/// What the service did before its end, and the delay until it restarts.
#[derive(Debug, Clone, Copy)]
enum ServiceRun {
    NeverReady,
    Short,
    Stable,
}

impl ServiceRun {
    const ALL: [(Self, u64); 3] = [
        (Self::NeverReady, 200),
        (Self::Short, 50),
        (Self::Stable, 50),
    ];
}

#[tokio::test(start_paused = true)]
async fn each_end_of_a_service_is_described_and_followed_by_a_restart() {
    for (end, how) in ServiceEnd::ALL {
        for (run, delay) in ServiceRun::ALL {
            let (harness, mut service) = ServiceHarness::start_one(ONE_SERVICE).await;
            if !matches!(run, ServiceRun::NeverReady) {
                service.become_ready().await;
            }
            if matches!(run, ServiceRun::Stable) {
                advance(Duration::from_secs(5)).await;
            }
            end.play(&mut service).await;
            let states = format!("screen: restarting soon: {how}");
            assert_eq!(harness.states(), states, "{run:?}");
            advance(Duration::from_millis(delay - 1)).await;
            assert!(next_started().await.is_none(), "{end:?} {run:?}");
            advance(Duration::from_millis(1)).await;
            let service = expect_started("screen").await;
            assert_eq!(service.failures, 1, "{end:?} {run:?}");
            assert_eq!(harness.states(), format!("screen: restarting: {how}"));
            service.become_ready().await;
            assert_eq!(harness.states(), "screen: ready");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_closes_a_service_only_with_a_clean_end_of_a_ready_service() {
    for (end, how) in ServiceEnd::ALL {
        for (run, _) in ServiceRun::ALL {
            let (harness, mut service) = ServiceHarness::start_one(ONE_CLOSABLE_SERVICE).await;
            if !matches!(run, ServiceRun::NeverReady) {
                service.become_ready().await;
            }
            end.play(&mut service).await;
            let states = match (end, run) {
                (ServiceEnd::Code(0), ServiceRun::Short | ServiceRun::Stable) => {
                    "screen: closed".to_owned()
                }
                _ => format!("screen: restarting soon: {how}"),
            };
            assert_eq!(harness.states(), states, "{run:?}");
        }
    }
}

/// The delays before the next starts, in milliseconds, and whether each start becomes ready.
async fn check_delays(is_ready: bool, delays: &[u64]) {
    let (_harness, mut service) = ServiceHarness::start_one(ONE_SERVICE).await;
    for (failures, delay) in (1..).zip(delays) {
        if is_ready {
            service.become_ready().await;
        }
        service.exit(1).await;
        advance(Duration::from_millis(delay - 1)).await;
        assert!(next_started().await.is_none(), "before {delay} ms");
        advance(Duration::from_millis(1)).await;
        service = expect_started("screen").await;
        assert_eq!(service.failures, failures);
    }
}

#[tokio::test(start_paused = true)]
async fn the_delay_doubles_with_each_short_run_up_to_a_maximum() {
    check_delays(true, &[50, 100, 200, 400, 800, 1000, 1000]).await;
    check_delays(false, &[200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_lasts_resets_the_delay() {
    let (_harness, mut service) = ServiceHarness::start_one(ONE_SERVICE).await;
    for uptime in [0, 0, 0, 5] {
        service.become_ready().await;
        advance(Duration::from_secs(uptime)).await;
        service.exit(1).await;
        advance(Duration::from_secs(1)).await;
        service = expect_started("screen").await;
    }
    assert_eq!(service.failures, 1);
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_cannot_be_started_is_tried_again() {
    let harness = ServiceHarness::start(ONE_SERVICE);
    refuse_starts(Some(ErrorKind::OutOfMemory));
    harness.set_need(ServiceNeed::Display, true).await;
    let failed = "screen: restarting soon: can't be started: out of memory";
    for delay in [200, 400, 800] {
        assert_eq!(harness.states(), failed);
        advance(Duration::from_millis(delay)).await;
    }
    assert_eq!(harness.states(), failed);
    refuse_starts(None);
    advance(Duration::from_millis(1600)).await;
    let service = expect_started("screen").await;
    assert_eq!(service.failures, 4);
    service.become_ready().await;
    assert_eq!(harness.states(), "screen: ready");
}

#[tokio::test(start_paused = true)]
async fn files_of_an_earlier_run_are_removed_before_each_start() {
    let folder = tempfile::tempdir().unwrap();
    let lock = folder.path().join("lock");
    let text = format!(
        "services: [{{name: screen, need: display, command: [x], ready: display, clean: ['{}']}}]",
        lock.display()
    );
    std::fs::write(&lock, "").unwrap();
    let (_harness, mut service) = ServiceHarness::start_one(&text).await;
    assert!(!lock.exists());
    std::fs::write(&lock, "").unwrap();
    service.exit(1).await;
    assert!(lock.exists());
    advance(Duration::from_millis(200)).await;
    let _service = expect_started("screen").await;
    assert!(!lock.exists());
}
