//! A process that is killed, and a disk that is full.

use super::{RUN_STORE_TEST_REPORT, begin, display_event, named, open_companion, reply, segments};
use crate::protocol::kernel::{Execute, OutputStream, RunStatus};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable that marks the process to kill, and contains its folder.
const CHILD: &str = "OSCTL_TEST_JOURNAL";

/// Runs this test in a separate process, started as `wrapper` says, with `folder` to write to.
fn child(test: &str, wrapper: &[&str], folder: &Path) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut arguments = wrapper.iter().map(PathBuf::from).chain([exe]);
    let mut command = Command::new(arguments.next().unwrap());
    let name = format!("{}::{test}", module_path!().trim_start_matches("osctl::"));
    command
        .args(arguments)
        .args([&name, "--exact", "--nocapture"]);
    command.env(CHILD, folder).stdout(Stdio::piped());
    command
}

#[tokio::test]
async fn acknowledged_runs_of_a_killed_process_are_found() {
    if let Some(folder) = std::env::var_os(CHILD) {
        let (_, runs, _) = open_companion(Path::new(&folder), "killed");
        let mut parent = UnixStream::connect(Path::new(&folder).join("socket")).unwrap();
        let mut report = |line: String| parent.write_all(line.as_bytes()).unwrap();
        for number in 0.. {
            let run = begin(&runs, &format!("run-{number}"));
            run.wait_recorded().await.unwrap();
            report(format!("begun {number}\n"));
            run.write_output(OutputStream::Stdout, b"text");
            run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
            run.wait_finished().await;
            report(format!("ended {number}\n"));
        }
    }
    for kills in 1..=5 {
        let folder = tempfile::tempdir().unwrap();
        let test = "acknowledged_runs_of_a_killed_process_are_found";
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let mut child = child(test, &[], folder.path()).spawn().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stream = loop {
            if let Ok((stream, _)) = listener.accept() {
                break stream;
            }
            assert!(
                child.try_wait().unwrap().is_none(),
                "the process acknowledged nothing"
            );
            std::thread::sleep(std::time::Duration::from_millis(2));
        };
        stream.set_nonblocking(false).unwrap();
        let lines = BufReader::new(stream).lines();
        let mut acknowledged = [None; 2];
        for line in lines.map_while(Result::ok) {
            let number = |prefix| {
                line.strip_prefix(prefix)
                    .and_then(|n| n.parse::<usize>().ok())
            };
            acknowledged[0] = number("begun ").or(acknowledged[0]);
            acknowledged[1] = number("ended ").or(acknowledged[1]);
            if acknowledged[1] == Some(20 * kills) {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let [Some(started), Some(ended)] = acknowledged else {
            panic!("{acknowledged:?}");
        };
        let (_, runs, _) = open_companion(folder.path(), "after");
        for number in 0..=started {
            let reply = reply(&runs, &format!("run-{number}"));
            match number <= ended {
                true => assert_eq!(
                    (reply.status, &*reply.stdout),
                    (RunStatus::Completed, "text")
                ),
                false => assert!(matches!(
                    reply.status,
                    RunStatus::Lost | RunStatus::Completed
                )),
            }
        }
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_and_ends_nothing() {
    let Some(folder) = std::env::var_os(CHILD) else {
        let folder = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=2m tmpfs \"$0\" && exec \"$@\"";
        let path = folder.path().display().to_string();
        let wrapper = ["unshare", "-m", "sh", "-c", script, &path];
        let test = "a_full_disk_is_reported_and_ends_nothing";
        let output = child(test, &wrapper, folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    };
    let folder = Path::new(&folder);
    let (store, runs, retained_runs) = open_companion(folder, "1");
    let first = begin(&runs, "first");
    first.wait_recorded().await.unwrap();
    // Fills the disk, and the space that the journal has reserved.
    let filler = folder.join("filler");
    let _ = fs::write(&filler, vec![1; 4 << 20]);
    let fill = begin(&runs, "fill");
    fill.write_output(OutputStream::Stdout, &vec![b'x'; 500 << 10]);
    fill.write_output(OutputStream::Stderr, &vec![b'x'; 500 << 10]);
    fill.add_event(display_event(&"x".repeat(600 << 10)));
    assert!(!store.wait_synced().await);
    let request = Execute {
        durable: Some(true),
        ..named("must", "1")
    };
    let mut is_full = false;
    for number in 0..10_000 {
        let run = begin(&runs, &format!("run-{number}"));
        run.wait_recorded().await.unwrap();
        run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
        run.wait_finished().await;
        assert_eq!(
            run.build_reply(RUN_STORE_TEST_REPORT).status,
            RunStatus::Completed
        );
        is_full = run.build_reply(RUN_STORE_TEST_REPORT).durable == Some(false);
        if is_full {
            break;
        }
    }
    assert!(is_full);
    let (run, _) = runs.begin_run(request.clone()).unwrap();
    assert!(run.wait_recorded().await.is_err());
    runs.forget_run(&run);
    // The disk has room again.
    fs::remove_file(filler).unwrap();
    let (run, _) = runs.begin_run(request).unwrap();
    run.wait_recorded().await.unwrap();
    run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
    run.wait_finished().await;
    assert_eq!(run.build_reply(RUN_STORE_TEST_REPORT).durable, Some(true));
    assert!(segments(&retained_runs.own_folder()).len() < 4);
    let (_, runs, _) = open_companion(folder, "2");
    assert_eq!(reply(&runs, "must").status, RunStatus::Completed);
    assert_eq!(reply(&runs, "first").status, RunStatus::Lost);
}
