//! Unit tests of the embedded engine.

use super::{EmbeddedEngine, EmbeddedLogTail, PREPARE_LOCK_NAME};
use crate::engine::EngineProgress;
use std::fs::{self, OpenOptions};
use std::io::Write;

struct EmbeddedTestProgress;

impl EngineProgress for EmbeddedTestProgress {
    fn report_step(&self, _what: &str) {}
    fn report_amount(&self, _what: &str, _done: u64, _total: Option<u64>) {}
    fn log(&self, _line: &str) {}
}

#[test]
fn a_log_tail_returns_each_whole_line_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("companion.log");
    let mut tail = EmbeddedLogTail::new(path.clone());
    assert!(tail.read_new_lines().unwrap().is_empty());
    let write = |bytes: &[u8]| {
        let mut log = OpenOptions::new().create(true).append(true).open(&path);
        log.as_mut().unwrap().write_all(bytes).unwrap();
    };
    write(b"one\ntw\xe9 ");
    assert_eq!(tail.read_new_lines().unwrap(), ["one"]);
    assert!(tail.read_new_lines().unwrap().is_empty());
    write(b"\xc3");
    assert!(tail.read_new_lines().unwrap().is_empty());
    write(b"\xa4\nlast");
    assert_eq!(tail.read_new_lines().unwrap(), ["tw\u{fffd} \u{e4}"]);
    fs::write(&path, "new\n").unwrap();
    assert_eq!(tail.read_new_lines().unwrap(), ["new"]);
    write(b"end");
    assert!(tail.read_new_lines().unwrap().is_empty());
    assert_eq!(tail.take_unfinished_line().as_deref(), Some("end"));
}

#[tokio::test]
async fn a_renamed_container_is_found_by_its_label_until_it_is_removed() {
    let state = tempfile::tempdir().unwrap();
    let embedded = EmbeddedEngine::new(state.path());
    let owner = ("osctl.instance", "default");
    assert!(embedded.list_labelled_containers(owner).unwrap().is_empty());
    let spec = r#"{"name":"os-host","hostname":"x","image":"i","network":null,"mounts":[],"ports":[],"env":{},
        "limits":{"pids":1,"shm":1},"workload":{"uid":0,"gid":0},"capabilities":[],"security":[],
        "labels":{"osctl.instance":"default"},"health_check":[],"stop_timeout":1,"read_only":false}"#;
    for folder in ["body-1", "os-host"] {
        fs::create_dir_all(embedded.root.join(folder)).unwrap();
    }
    fs::write(embedded.root.join("os-host/spec.json"), spec).unwrap();
    fs::write(embedded.root.join(PREPARE_LOCK_NAME), "").unwrap();
    embedded.rename("os-host", "os-host.old").unwrap();
    assert_eq!(
        embedded.list_labelled_containers(owner).unwrap(),
        ["os-host.old"]
    );
    assert_eq!(
        embedded.inspect("os-host.old").unwrap().unwrap().id,
        "os-host.old"
    );
    embedded.remove("os-host.old").await.unwrap();
    assert!(embedded.list_labelled_containers(owner).unwrap().is_empty());
}

#[tokio::test]
async fn unused_bodies_and_environments_are_removed() {
    let state = tempfile::tempdir().unwrap();
    let embedded = EmbeddedEngine::new(state.path());
    for folder in ["body-1", "venv-1", "os-host"] {
        fs::create_dir_all(embedded.root.join(folder)).unwrap();
    }
    let spec = embedded.root.join("os-host/spec.json");
    fs::write(&spec, "{}").unwrap();
    embedded.remove_bodies(&EmbeddedTestProgress).await.unwrap();
    assert!(embedded.root.join("venv-1").exists());
    fs::remove_file(&spec).unwrap();
    embedded.remove_bodies(&EmbeddedTestProgress).await.unwrap();
    for (folder, stays) in [("body-1", false), ("venv-1", false), ("os-host", true)] {
        assert_eq!(embedded.root.join(folder).exists(), stays, "{folder}");
    }
}
