use super::{KernelSessions, KernelSettings, SessionLimits, is_session_name};
use crate::companion::cryo::StoredGenerations;
use crate::companion::environment::EnvironmentHandle;
use crate::companion::kernel::{KernelCheckpoint, KernelQuery, KernelRefusal, SessionRestoring};
use crate::companion::runs::RunStore;
use crate::protocol::kernel::{DEFAULT_SESSION, Execute};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SESSION_TEST_DELAY: Duration = Duration::from_secs(3600);

/// Settings with which no kernel can start.
fn without_python(folder: &Path) -> KernelSettings {
    KernelSettings {
        python: folder.join("no-python"),
        program: folder.join("kernel"),
        start_folder: folder.into(),
        socket_folder: folder.join("run"),
        record_folder: folder.join("data"),
        restore_source: Arc::new(StoredGenerations::new(folder.join("cryo"))),
        output_folder: folder.join("runs"),
        cgroup_folder: folder.to_owned(),
        run_store: RunStore::disabled(),
        limits: SessionLimits {
            max_sessions: 8,
            max_memory_bytes: None,
            idle_timeout: SESSION_TEST_DELAY,
            probe_interval: SESSION_TEST_DELAY,
        },
        environment: EnvironmentHandle::open(folder),
    }
}

#[tokio::test]
async fn a_session_with_a_new_request_is_not_released() {
    let folder = tempfile::tempdir().unwrap();
    let (sessions, _owner) = KernelSessions::start(without_python(folder.path()), BTreeMap::new());
    let (_, kernel) = sessions.create_session(Some("a".into())).await.unwrap();
    // The state before does not count.
    assert!(!kernel.release_if_idle(SESSION_TEST_DELAY).await);
    sessions
        .release_idle_session("a", &kernel, SESSION_TEST_DELAY)
        .await;
    assert!(sessions.find_kernel("a").is_ok());
    sessions
        .release_idle_session("a", &kernel, Duration::ZERO)
        .await;
    assert!(sessions.find_kernel("a").is_err());
}

#[tokio::test]
async fn a_deleted_session_is_missing_and_not_shutting_down() {
    let folder = tempfile::tempdir().unwrap();
    let (sessions, _owner) = KernelSessions::start(without_python(folder.path()), BTreeMap::new());
    let (_, kernel) = sessions.create_session(Some("a".into())).await.unwrap();
    let gone = KernelRefusal::NoSession("a".into());
    // The query comes after the release in the mailbox.
    let released = kernel.release_if_idle(Duration::ZERO);
    let (released, answer) = tokio::join!(released, kernel.query(KernelQuery::Probe));
    assert!(released);
    assert_eq!(answer, Err(gone.clone()));
    sessions.delete_session("a").await.unwrap();
    // A caller with an older handle gets the same refusal as a new caller.
    assert_eq!(
        sessions.refusal_if_deleted("a", KernelRefusal::ShuttingDown),
        gone
    );
    let (_, stays) = sessions.create_session(Some("a".into())).await.unwrap();
    assert_eq!(
        sessions.refusal_if_deleted("a", KernelRefusal::ShuttingDown),
        KernelRefusal::ShuttingDown
    );
    drop(stays);
}

#[tokio::test]
async fn a_session_in_a_checkpoint_stays_there_until_it_is_reset() {
    let folder = tempfile::tempdir().unwrap();
    let marker_path = |session: &str| folder.path().join(format!("{session}.json"));
    let restoring = [DEFAULT_SESSION, "second"].map(|session| {
        fs::write(marker_path(session), "{}").unwrap();
        let checkpoint = KernelCheckpoint {
            id: format!("/data/criu/{session}/1"),
            marker: Some(marker_path(session)),
        };
        (
            session.to_owned(),
            SessionRestoring::Checkpointed(checkpoint),
        )
    });
    let restoring = BTreeMap::from(restoring);
    let (sessions, _owner) = KernelSessions::start(without_python(folder.path()), restoring);
    for session in [DEFAULT_SESSION, "second"] {
        let request = Execute {
            session: session.into(),
            ..Execute::new("1")
        };
        let refused = sessions.execute(request).await.unwrap_err();
        let checkpoint = format!("/data/criu/{session}/1");
        let session = session.to_owned();
        let expected = KernelRefusal::Checkpointed {
            session,
            checkpoint,
        };
        assert_eq!(refused, expected);
    }
    // The session uses no memory, so it is not released, and a companion shutdown does not discard it.
    let kernel = sessions.find_kernel("second").unwrap();
    assert!(!kernel.release_if_idle(Duration::ZERO).await && kernel.view().ready);
    kernel.drain_runs(Duration::ZERO).await;
    assert!(marker_path("second").exists());
    sessions.delete_session("second").await.unwrap();
    assert!(!marker_path("second").exists() && marker_path(DEFAULT_SESSION).exists());
    sessions.shutdown_all(Duration::ZERO).await;
    assert!(marker_path(DEFAULT_SESSION).exists());
}

#[test]
fn names_fit_into_paths_and_file_names() {
    assert!(is_session_name("agent-1.a_B"));
    for name in ["", ".", "..", "-a", "a/b", "ä", "a b", &"x".repeat(65)] {
        assert!(!is_session_name(name), "{name}");
    }
}
