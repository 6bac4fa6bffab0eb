//! The journal under crashes: of its process at any moment, of a disk, of one of several companions.

mod killed;

use super::RunStore;
use super::frame::parse_frames;
use super::record::StoredRunRecord;
use super::recovery::read_journals;
use super::removed_ids::RemovedIds;
use crate::companion::runs::{
    RetainedRuns, RunIdConflict, RunKind, RunRegistry, SpillFiles, TrackedRun,
};
use crate::protocol::kernel::{
    DisplayData, ExecReply, Execute, KernelReport, KernelState, OutputStream, RunEventKind,
    RunStatus,
};
use crate::protocol::shell::ShellRequest as Shell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const RUN_STORE_TEST_REPORT: KernelReport = KernelReport {
    restored: false,
    restored_from: None,
    origin: None,
    generation: 3,
    state: KernelState::Kept,
};

fn open_companion(folder: &Path, name: &str) -> (RunStore, RunRegistry<Execute>, RetainedRuns) {
    let retained_runs = RetainedRuns::new(folder.join("runs"), name.into());
    let store = RunStore::open(&retained_runs);
    (
        store.clone(),
        RunRegistry::open("run", store),
        retained_runs,
    )
}

fn named(id: &str, code: &str) -> Execute {
    Execute {
        id: Some(id.into()),
        ..Execute::new(code)
    }
}

fn begin(runs: &RunRegistry<Execute>, id: &str) -> Arc<TrackedRun<Execute>> {
    let (run, is_new) = runs
        .begin_run(named(id, &format!("print('{id}')")))
        .unwrap();
    assert!(is_new);
    run
}

fn display_event(text: &str) -> RunEventKind<ExecReply> {
    let data = [("text/plain".to_owned(), text.into())];
    RunEventKind::Result(DisplayData {
        data: Arc::new(data.into_iter().collect()),
        ..DisplayData::default()
    })
}

fn reply(runs: &RunRegistry<Execute>, id: &str) -> ExecReply {
    runs.find_run(id)
        .unwrap_or_else(|| panic!("`{id}` is gone"))
        .build_reply(RUN_STORE_TEST_REPORT)
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(segments(&path)),
            false if path.display().to_string().contains("journal-") => found.push(path),
            false => {}
        }
    }
    found
}

#[tokio::test]
async fn a_run_is_found_again_with_its_exact_end() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, _) = open_companion(folder.path(), "1");
    let run = begin(&runs, "a");
    run.mark_started(7);
    run.write_output(OutputStream::Stdout, b"one\n");
    run.write_output(OutputStream::Stderr, "zw\u{f6}lf\n".as_bytes());
    run.add_event(display_event("2"));
    run.finish(RunStatus::Failed, RUN_STORE_TEST_REPORT);
    run.wait_finished().await;
    let before = run.build_reply(RUN_STORE_TEST_REPORT);
    assert_eq!(before.durable, Some(true));
    // As after a kill, no file is closed.
    std::mem::forget(store);
    let (_, runs, _) = open_companion(folder.path(), "2");
    let after = reply(&runs, "a");
    assert_eq!(after.timing_ms, before.timing_ms);
    assert_eq!(after, before);
    let (again, is_new) = runs.begin_run(named("a", "print('a')")).unwrap();
    assert!(!is_new && again.id == "a");
    assert!(runs.begin_run(named("a", "print('b')")).is_err());
}

#[tokio::test]
async fn a_run_without_an_end_is_lost_permanently() {
    let folder = tempfile::tempdir().unwrap();
    let (_, runs, _) = open_companion(folder.path(), "1");
    let run = begin(&runs, "a");
    run.write_output(OutputStream::Stdout, b"so far");
    run.wait_recorded().await.unwrap();
    let mut replies = Vec::new();
    for name in ["2", "3"] {
        let (store, runs, retained_runs) = open_companion(folder.path(), name);
        assert!(store.wait_synced().await);
        retained_runs.remove_stale();
        let reply = reply(&runs, "a");
        assert_eq!((reply.status, &*reply.stdout), (RunStatus::Lost, "so far"));
        let error = reply.error.clone().unwrap();
        assert!(error.message.contains("is not executed again"), "{error:?}");
        let (_, is_new) = runs.begin_run(named("a", "print('a')")).unwrap();
        assert!(!is_new);
        replies.push(reply);
    }
    assert_eq!(replies[0], replies[1]);
}

#[tokio::test]
async fn recovered_events_keep_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, _) = open_companion(folder.path(), "1");
    let run = begin(&runs, "a");
    let mut seen = Vec::new();
    let mut follower = run.follow(0);
    for number in 0..20 {
        run.write_output(OutputStream::Stdout, format!("{number}\n").as_bytes());
        if number % 3 == 0 {
            seen.extend(follower.next_events(|| RUN_STORE_TEST_REPORT).await);
        }
        if number % 5 == 0 {
            run.add_event(display_event("2"));
        }
    }
    seen.extend(follower.next_events(|| RUN_STORE_TEST_REPORT).await);
    assert!(seen.len() > 8);
    store.wait_synced().await;
    let (_, runs, _) = open_companion(folder.path(), "2");
    let again = runs
        .find_run("a")
        .unwrap()
        .follow(0)
        .read_available(|| RUN_STORE_TEST_REPORT)
        .await;
    assert_eq!(again[..seen.len()], seen[..]);
}

#[tokio::test]
async fn output_beyond_the_journal_is_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (_, runs, retained_runs) = open_companion(folder.path(), "1");
    let run = begin(&runs, "a");
    let text: Vec<u8> = (0..3_000_000).map(|n| b'a' + (n % 26) as u8).collect();
    let mut spill = SpillFiles::default();
    for piece in text.chunks(100_000) {
        let rest = run.write_output(OutputStream::Stdout, piece);
        if rest > 0 {
            let piece = piece[piece.len() - rest..].to_vec();
            spill
                .write_output(
                    &retained_runs.own_folder(),
                    &run,
                    OutputStream::Stdout,
                    piece,
                )
                .await;
        }
    }
    drop(spill);
    // The page waits for output on its way to the file.
    let page = run
        .read_page(OutputStream::Stdout, 1_999_990, Some(20))
        .await
        .unwrap();
    assert_eq!(page.text.as_bytes(), &text[1_999_990..2_000_010]);
    run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
    run.wait_finished().await;
    let before = run.build_reply(RUN_STORE_TEST_REPORT);
    runs.retain_files();
    drop((run, runs));
    for name in ["2", "3"] {
        let (store, runs, retained_runs) = open_companion(folder.path(), name);
        assert!(store.wait_synced().await);
        retained_runs.remove_stale();
        let run = runs.find_run("a").unwrap();
        let page = run
            .read_page(OutputStream::Stdout, 1_999_990, Some(20))
            .await
            .unwrap();
        assert_eq!(page.text.as_bytes(), &text[1_999_990..2_000_010]);
        let after = run.build_reply(RUN_STORE_TEST_REPORT);
        assert_eq!(
            (after.stdout == before.stdout, after.status),
            (true, before.status)
        );
        runs.retain_files();
    }
}

#[tokio::test]
async fn a_journal_that_is_cut_at_any_byte_keeps_the_records_before() {
    let folder = tempfile::tempdir().unwrap();
    let (_, runs, retained_runs) = open_companion(folder.path(), "1");
    for id in ["a", "b", "c"] {
        let run = begin(&runs, id);
        run.write_output(OutputStream::Stdout, id.as_bytes());
        run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
        run.wait_finished().await;
    }
    let [segment] = &segments(&retained_runs.own_folder())[..] else {
        panic!("one segment");
    };
    let bytes = fs::read(segment).unwrap();
    let length: u64 = parse_frames(&bytes).map(|frame| frame.length()).sum();
    let cut = folder.path().join("cut");
    fs::create_dir(&cut).unwrap();
    let mut counts = Vec::new();
    for at in 0..=length as usize {
        fs::write(cut.join("journal-0000000001"), &bytes[..at]).unwrap();
        let found = read_journals(std::slice::from_ref(&cut), &mut RemovedIds::default());
        let ids: Vec<&str> = found.iter().map(|one| &*one.begin.id).collect();
        assert_eq!(ids, ["a", "b", "c"][..ids.len()]);
        let ended = |one: &&super::RecoverableRun| {
            matches!(one.records.last(), Some(StoredRunRecord::End(_)))
        };
        // Each run except the last has its end.
        let ends = found.iter().filter(ended).count();
        assert!(ends + 1 >= found.len());
        counts.push((found.len(), ends));
    }
    assert!(counts.is_sorted());
    assert_eq!(counts.last(), Some(&(3, 3)));
}

#[tokio::test]
async fn a_companion_killed_during_its_start_hides_no_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (_, runs, retained_runs) = open_companion(folder.path(), "1");
    let run = begin(&runs, "ended");
    run.write_output(OutputStream::Stdout, b"one");
    run.add_event(display_event("2"));
    run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
    run.wait_finished().await;
    begin(&runs, "lost").wait_recorded().await.unwrap();
    let (store, _, next) = open_companion(folder.path(), "2");
    assert!(store.wait_synced().await);
    let [segment] = &segments(&next.own_folder())[..] else {
        panic!("one segment");
    };
    let bytes = fs::read(segment).unwrap();
    let length: u64 = parse_frames(&bytes).map(|frame| frame.length()).sum();
    let cut = folder.path().join("cut");
    fs::create_dir(&cut).unwrap();
    for at in 0..=length as usize {
        fs::write(cut.join("journal-0000000001"), &bytes[..at]).unwrap();
        let orders = [
            [retained_runs.own_folder(), cut.clone()],
            [cut.clone(), retained_runs.own_folder()],
        ];
        for folders in orders {
            let found = read_journals(&folders, &mut RemovedIds::default());
            let ids: Vec<&str> = found.iter().map(|one| &*one.begin.id).collect();
            assert_eq!(ids, ["ended", "lost"], "{at}");
            assert_eq!(found[0].records.len(), 3, "{at}");
        }
    }
}

#[tokio::test]
async fn many_small_runs_grow_neither_disk_nor_memory() {
    const MANY_TEST_RUNS: usize = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, retained_runs) = open_companion(folder.path(), "1");
    let stays = begin(&runs, "stays");
    for number in 0..MANY_TEST_RUNS {
        let run = begin(&runs, &format!("run-{number}"));
        runs.prune_excess();
        run.write_output(OutputStream::Stdout, b"hello\n");
        run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
        if number % 500 == 0 {
            run.wait_finished().await;
        }
    }
    assert!(store.wait_synced().await);
    // Segments are removed after the batch that makes them superfluous.
    begin(&runs, "last").wait_recorded().await.unwrap();
    let bytes = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let on_disk: u64 = segments(&retained_runs.own_folder())
        .iter()
        .map(bytes)
        .sum();
    assert!(on_disk < 10 << 20, "{on_disk}");
    assert_eq!(stays.status(), RunStatus::Running);
    let (_, runs, _) = open_companion(folder.path(), "2");
    assert_eq!(reply(&runs, "stays").status, RunStatus::Lost);
    assert_eq!(
        reply(&runs, &format!("run-{}", MANY_TEST_RUNS - 1)).stdout,
        "hello\n"
    );
    assert!(runs.find_run("run-0").is_none());
    assert!(runs.list_runs().len() < 400);
    // The record of the removal has left the journal.
    let removed = RunIdConflict::Removed("run-0".into());
    let again = runs.begin_run(named("run-0", "print('run-0')"));
    assert_eq!(again.unwrap_err(), removed);
}

#[tokio::test]
async fn the_id_of_a_removed_run_is_not_executed_again() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, _) = open_companion(folder.path(), "1");
    runs.forget_run(&begin(&runs, "refused"));
    for number in 0..300 {
        let run = begin(&runs, &format!("run-{number}"));
        run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
    }
    assert!(store.wait_synced().await);
    runs.prune_excess();
    let assert_refused = |runs: &RunRegistry<Execute>| {
        for id in ["run-0", "run-43"] {
            let again = runs.begin_run(named(id, &format!("print('{id}')")));
            assert_eq!(again.unwrap_err(), RunIdConflict::Removed(id.into()));
        }
    };
    assert_refused(&runs);
    assert!(store.wait_synced().await);
    // The companions are killed, and each takes over what the last one has left.
    for name in ["2", "3"] {
        let (store, runs, retained_runs) = open_companion(folder.path(), name);
        assert!(store.wait_synced().await);
        retained_runs.remove_stale();
        assert_refused(&runs);
        assert!(runs.find_run("run-44").is_some());
        assert!(runs.find_run("refused").is_none());
    }
    let (_, runs, _) = open_companion(folder.path(), "4");
    begin(&runs, "refused");
}

#[tokio::test]
async fn private_runs_are_not_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, retained_runs) = open_companion(folder.path(), "1");
    let private = [(true, true), (false, false)];
    for (number, (silent, store_history)) in private.into_iter().enumerate() {
        let request = Execute {
            silent,
            store_history,
            ..named(&format!("private-{number}"), "password = 'hunter-code'")
        };
        let (run, _) = runs.begin_run(request).unwrap();
        run.write_output(OutputStream::Stdout, b"hunter-printed");
        run.add_event(display_event("hunter-result"));
        run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
        run.wait_finished().await;
    }
    let commands: RunRegistry<Shell> = RunRegistry::open("sh", store.clone());
    let command = Shell {
        id: Some("fed".into()),
        stdin: Some("hunter-stdin".into()),
        ..Shell::new("cat >/dev/null\necho hunter-second-line")
    };
    let (run, _) = commands.begin_run(command.clone()).unwrap();
    run.wait_recorded().await.unwrap();
    assert!(store.wait_synced().await);
    for segment in segments(&retained_runs.own_folder()) {
        let bytes = fs::read(segment).unwrap();
        let found = bytes.windows(7).any(|window| window == b"hunter-");
        assert!(!found);
    }
    let (store, runs, _) = open_companion(folder.path(), "2");
    let reply = reply(&runs, "private-0");
    assert_eq!(reply.status, RunStatus::Completed);
    // The reply reports that output was written.
    assert_eq!(reply.truncated.unwrap()["stdout"].total, 14);
    let commands: RunRegistry<Shell> = RunRegistry::open("sh", store);
    let (again, is_new) = commands.begin_run(command).unwrap();
    assert!(!is_new && again.status() == RunStatus::Lost);
    assert_eq!(again.request.text(), "cat >/dev/null");
}

#[tokio::test]
async fn a_waiting_companion_finds_the_runs_of_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let (store, waiting, retained_runs) = open_companion(folder.path(), "1");
    let end = async |run: Arc<TrackedRun<Execute>>| {
        run.finish(RunStatus::Completed, RUN_STORE_TEST_REPORT);
        run.wait_finished().await;
    };
    end(begin(&waiting, "before")).await;
    retained_runs.mark_waiting().unwrap();
    let (other_store, other, other_lives) = open_companion(folder.path(), "2");
    assert!(other_store.wait_synced().await);
    other_lives.remove_stale();
    assert_eq!(reply(&other, "before").status, RunStatus::Completed);
    end(begin(&other, "between")).await;
    store.recover_runs();
    waiting.adopt_recovered();
    assert!(store.wait_synced().await);
    retained_runs.clear_waiting(true);
    assert_eq!(reply(&waiting, "between").status, RunStatus::Completed);
    assert_eq!(waiting.list_runs().len(), 2);
    let (_, last, _) = open_companion(folder.path(), "3");
    let mut ids: Vec<String> = last.list_runs().iter().map(|run| run.id.clone()).collect();
    ids.sort();
    assert_eq!(ids, ["before", "between"]);
}

#[tokio::test]
async fn a_refused_run_can_not_be_found() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, _) = open_companion(folder.path(), "1");
    let run = begin(&runs, "a");
    // A request that is repeated before the refusal.
    let again = runs.find_same_request(&run.request);
    let refuse = async {
        runs.forget_run(&run);
        run.finish_refused(RUN_STORE_TEST_REPORT);
    };
    assert!(tokio::join!(again, refuse).0.unwrap().is_none());
    assert!(!run.is_durable());
    assert!(store.wait_synced().await);
    let (_, runs, _) = open_companion(folder.path(), "2");
    assert!(runs.find_run("a").is_none());
}
