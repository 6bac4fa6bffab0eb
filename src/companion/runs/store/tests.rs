//! The journal against deaths: of its process at any moment, of a disk, of a life among others.

use super::RunStore;
use super::frame::frames;
use super::record::Record;
use super::recovery::read;
use crate::companion::runs::{Lives, Run, Runs, Spill, Work};
use crate::protocol::kernel::{
    Execute, Happened, KernelReport, KernelState, Reply, RunStatus, Shown, Stream,
};
use crate::protocol::shell::Command as Shell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const REPORT: KernelReport = KernelReport {
    restored: false,
    restored_from: None,
    origin: None,
    generation: 3,
    state: KernelState::Kept,
};

/// By which a test knows that it is the process that is killed, and where it writes.
const CHILD: &str = "OSCTL_TEST_JOURNAL";

fn life(folder: &Path, name: &str) -> (RunStore, Runs<Execute>, Lives) {
    let lives = Lives::new(folder.join("runs"), name.into());
    let store = RunStore::open(&lives);
    (store.clone(), Runs::open("run", store), lives)
}

fn named(id: &str, code: &str) -> Execute {
    Execute {
        id: Some(id.into()),
        ..Execute::new(code)
    }
}

fn begin(runs: &Runs<Execute>, id: &str) -> Arc<Run<Execute>> {
    let (run, is_new) = runs.begin(named(id, &format!("print('{id}')"))).unwrap();
    assert!(is_new);
    run
}

fn shown(text: &str) -> Happened<Reply> {
    let data = [("text/plain".to_owned(), text.into())];
    Happened::Result(Shown {
        data: Arc::new(data.into_iter().collect()),
        ..Shown::default()
    })
}

fn reply(runs: &Runs<Execute>, id: &str) -> Reply {
    runs.find(id)
        .unwrap_or_else(|| panic!("`{id}` is gone"))
        .reply(REPORT)
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
async fn a_run_is_found_again_with_its_very_end() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, _) = life(folder.path(), "1");
    let run = begin(&runs, "a");
    run.started(7);
    run.write(Stream::Stdout, b"one\n");
    run.write(Stream::Stderr, "zw\u{f6}lf\n".as_bytes());
    run.add(shown("2"));
    run.finish(RunStatus::Failed, REPORT);
    run.finished().await;
    let before = run.reply(REPORT);
    assert_eq!(before.durable, Some(true));
    // As after a kill, nothing is closed.
    std::mem::forget(store);
    let (_, runs, _) = life(folder.path(), "2");
    let after = reply(&runs, "a");
    assert_eq!(after.timing_ms, before.timing_ms);
    assert_eq!(after, before);
    let (again, is_new) = runs.begin(named("a", "print('a')")).unwrap();
    assert!(!is_new && again.id == "a");
    assert!(runs.begin(named("a", "print('b')")).is_err());
}

#[tokio::test]
async fn a_run_without_an_end_is_lost_once_and_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let (_, runs, _) = life(folder.path(), "1");
    let run = begin(&runs, "a");
    run.write(Stream::Stdout, b"so far");
    run.recorded().await.unwrap();
    let mut told = Vec::new();
    for name in ["2", "3"] {
        let (store, runs, lives) = life(folder.path(), name);
        assert!(store.settle().await);
        lives.begin();
        let reply = reply(&runs, "a");
        assert_eq!((reply.status, &*reply.stdout), (RunStatus::Lost, "so far"));
        let error = reply.error.clone().unwrap();
        assert!(error.message.contains("is not executed again"), "{error:?}");
        let (_, is_new) = runs.begin(named("a", "print('a')")).unwrap();
        assert!(!is_new);
        told.push(reply);
    }
    assert_eq!(told[0], told[1]);
}

#[tokio::test]
async fn events_have_the_numbers_that_followers_have_seen() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, _) = life(folder.path(), "1");
    let run = begin(&runs, "a");
    let mut seen = Vec::new();
    let mut follower = run.follow(0);
    for number in 0..20 {
        run.write(Stream::Stdout, format!("{number}\n").as_bytes());
        if number % 3 == 0 {
            seen.extend(follower.next(|| REPORT).await);
        }
        if number % 5 == 0 {
            run.add(shown("2"));
        }
    }
    seen.extend(follower.next(|| REPORT).await);
    assert!(seen.len() > 8);
    store.settle().await;
    let (_, runs, _) = life(folder.path(), "2");
    let again = runs.find("a").unwrap().follow(0).rest(|| REPORT).await;
    assert_eq!(again[..seen.len()], seen[..]);
}

#[tokio::test]
async fn output_beyond_the_journal_is_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (_, runs, lives) = life(folder.path(), "1");
    let run = begin(&runs, "a");
    let text: Vec<u8> = (0..3_000_000).map(|n| b'a' + (n % 26) as u8).collect();
    let mut spill = Spill::default();
    for piece in text.chunks(100_000) {
        let rest = run.write(Stream::Stdout, piece);
        if rest > 0 {
            let piece = piece[piece.len() - rest..].to_vec();
            spill.write(&lives.own(), &run, Stream::Stdout, piece).await;
        }
    }
    drop(spill);
    // What is on its way is waited for.
    let page = run.page(Stream::Stdout, 1_999_990, Some(20)).await.unwrap();
    assert_eq!(page.text.as_bytes(), &text[1_999_990..2_000_010]);
    run.finish(RunStatus::Completed, REPORT);
    run.finished().await;
    let before = run.reply(REPORT);
    runs.leave();
    drop((run, runs));
    for name in ["2", "3"] {
        let (store, runs, lives) = life(folder.path(), name);
        assert!(store.settle().await);
        lives.begin();
        let run = runs.find("a").unwrap();
        let page = run.page(Stream::Stdout, 1_999_990, Some(20)).await.unwrap();
        assert_eq!(page.text.as_bytes(), &text[1_999_990..2_000_010]);
        let after = run.reply(REPORT);
        assert_eq!(
            (after.stdout == before.stdout, after.status),
            (true, before.status)
        );
        runs.leave();
    }
}

#[tokio::test]
async fn a_journal_that_is_cut_at_any_byte_holds_what_came_before() {
    let folder = tempfile::tempdir().unwrap();
    let (_, runs, lives) = life(folder.path(), "1");
    for id in ["a", "b", "c"] {
        let run = begin(&runs, id);
        run.write(Stream::Stdout, id.as_bytes());
        run.finish(RunStatus::Completed, REPORT);
        run.finished().await;
    }
    let [segment] = &segments(&lives.own())[..] else {
        panic!("one segment");
    };
    let bytes = fs::read(segment).unwrap();
    let length: u64 = frames(&bytes).map(|frame| frame.length()).sum();
    let cut = folder.path().join("cut");
    fs::create_dir(&cut).unwrap();
    let mut counts = Vec::new();
    for at in 0..=length as usize {
        fs::write(cut.join("journal-0000000001"), &bytes[..at]).unwrap();
        let found = read(std::slice::from_ref(&cut));
        let ids: Vec<&str> = found.iter().map(|one| &*one.begin.id).collect();
        assert_eq!(ids, ["a", "b", "c"][..ids.len()]);
        let ended = |one: &&super::Found| matches!(one.records.last(), Some(Record::End(_)));
        // Each but the last has its end.
        let ends = found.iter().filter(ended).count();
        assert!(ends + 1 >= found.len());
        counts.push((found.len(), ends));
    }
    assert!(counts.is_sorted());
    assert_eq!(counts.last(), Some(&(3, 3)));
}

#[tokio::test]
async fn a_life_that_is_killed_while_it_begins_hides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_, runs, lives) = life(folder.path(), "1");
    let run = begin(&runs, "ended");
    run.write(Stream::Stdout, b"one");
    run.add(shown("2"));
    run.finish(RunStatus::Completed, REPORT);
    run.finished().await;
    begin(&runs, "lost").recorded().await.unwrap();
    let (store, _, next) = life(folder.path(), "2");
    assert!(store.settle().await);
    let [segment] = &segments(&next.own())[..] else {
        panic!("one segment");
    };
    let bytes = fs::read(segment).unwrap();
    let length: u64 = frames(&bytes).map(|frame| frame.length()).sum();
    let cut = folder.path().join("cut");
    fs::create_dir(&cut).unwrap();
    for at in 0..=length as usize {
        fs::write(cut.join("journal-0000000001"), &bytes[..at]).unwrap();
        let orders = [[lives.own(), cut.clone()], [cut.clone(), lives.own()]];
        for folders in orders {
            let found = read(&folders);
            let ids: Vec<&str> = found.iter().map(|one| &*one.begin.id).collect();
            assert_eq!(ids, ["ended", "lost"], "{at}");
            assert_eq!(found[0].records.len(), 3, "{at}");
        }
    }
}

#[tokio::test]
async fn many_small_runs_grow_neither_disk_nor_memory() {
    const RUNS: usize = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, lives) = life(folder.path(), "1");
    let stays = begin(&runs, "stays");
    for number in 0..RUNS {
        let run = begin(&runs, &format!("run-{number}"));
        runs.admitted();
        run.write(Stream::Stdout, b"hello\n");
        run.finish(RunStatus::Completed, REPORT);
        if number % 500 == 0 {
            run.finished().await;
        }
    }
    assert!(store.settle().await);
    // Segments are removed after the batch that makes them superfluous.
    begin(&runs, "last").recorded().await.unwrap();
    let bytes = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let on_disk: u64 = segments(&lives.own()).iter().map(bytes).sum();
    assert!(on_disk < 10 << 20, "{on_disk}");
    assert_eq!(stays.status(), RunStatus::Running);
    let (_, runs, _) = life(folder.path(), "2");
    assert_eq!(reply(&runs, "stays").status, RunStatus::Lost);
    assert_eq!(reply(&runs, &format!("run-{}", RUNS - 1)).stdout, "hello\n");
    assert!(runs.find("run-0").is_none());
    assert!(runs.all().len() < 400);
}

#[tokio::test]
async fn what_must_not_be_on_disk_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, lives) = life(folder.path(), "1");
    let private = [(true, true), (false, false)];
    for (number, (silent, store_history)) in private.into_iter().enumerate() {
        let request = Execute {
            silent,
            store_history,
            ..named(&format!("private-{number}"), "password = 'hunter-code'")
        };
        let (run, _) = runs.begin(request).unwrap();
        run.write(Stream::Stdout, b"hunter-printed");
        run.add(shown("hunter-result"));
        run.finish(RunStatus::Completed, REPORT);
        run.finished().await;
    }
    let commands: Runs<Shell> = Runs::open("sh", store.clone());
    let command = Shell {
        id: Some("fed".into()),
        stdin: Some("hunter-stdin".into()),
        ..Shell::new("cat >/dev/null\necho hunter-second-line")
    };
    let (run, _) = commands.begin(command.clone()).unwrap();
    run.recorded().await.unwrap();
    assert!(store.settle().await);
    for segment in segments(&lives.own()) {
        let bytes = fs::read(segment).unwrap();
        let found = bytes.windows(7).any(|window| window == b"hunter-");
        assert!(!found);
    }
    let (store, runs, _) = life(folder.path(), "2");
    let reply = reply(&runs, "private-0");
    assert_eq!(reply.status, RunStatus::Completed);
    // It says that something was written.
    assert_eq!(reply.truncated.unwrap()["stdout"].total, 14);
    let commands: Runs<Shell> = Runs::open("sh", store);
    let (again, is_new) = commands.begin(command).unwrap();
    assert!(!is_new && again.status() == RunStatus::Lost);
    assert_eq!(again.work.text(), "cat >/dev/null");
}

#[tokio::test]
async fn a_life_that_waits_goes_on_with_what_another_one_has_executed() {
    let folder = tempfile::tempdir().unwrap();
    let (store, waits, lives) = life(folder.path(), "1");
    let end = async |run: Arc<Run<Execute>>| {
        run.finish(RunStatus::Completed, REPORT);
        run.finished().await;
    };
    end(begin(&waits, "before")).await;
    lives.wait().unwrap();
    let (other_store, other, other_lives) = life(folder.path(), "2");
    assert!(other_store.settle().await);
    other_lives.begin();
    assert_eq!(reply(&other, "before").status, RunStatus::Completed);
    end(begin(&other, "meanwhile")).await;
    store.recover();
    waits.adopt();
    assert!(store.settle().await);
    lives.go_on(true);
    assert_eq!(reply(&waits, "meanwhile").status, RunStatus::Completed);
    assert_eq!(waits.all().len(), 2);
    let (_, last, _) = life(folder.path(), "3");
    let mut ids: Vec<String> = last.all().iter().map(|run| run.id.clone()).collect();
    ids.sort();
    assert_eq!(ids, ["before", "meanwhile"]);
}

#[tokio::test]
async fn a_run_that_was_refused_never_was() {
    let folder = tempfile::tempdir().unwrap();
    let (store, runs, _) = life(folder.path(), "1");
    let run = begin(&runs, "a");
    // A request that comes again meanwhile.
    let again = runs.known(&run.work);
    let refuse = async {
        runs.forget(&run);
        run.refused(REPORT);
    };
    assert!(tokio::join!(again, refuse).0.unwrap().is_none());
    assert!(!run.is_durable());
    assert!(store.settle().await);
    let (_, runs, _) = life(folder.path(), "2");
    assert!(runs.find("a").is_none());
}

/// This very test in a process of its own, started as `wrapper` says, with `folder` to write to.
fn child(test: &str, wrapper: &[&str], folder: &Path) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(PathBuf::from).chain([exe]);
    let mut command = Command::new(words.next().unwrap());
    let name = format!("{}::{test}", module_path!().trim_start_matches("osctl::"));
    command.args(words).args([&name, "--exact", "--nocapture"]);
    command.env(CHILD, folder).stdout(Stdio::piped());
    command
}

#[tokio::test]
async fn what_a_killed_process_has_acknowledged_is_found() {
    if let Some(folder) = std::env::var_os(CHILD) {
        let (_, runs, _) = life(Path::new(&folder), "killed");
        let mut parent = UnixStream::connect(Path::new(&folder).join("socket")).unwrap();
        let mut tell = |line: String| parent.write_all(line.as_bytes()).unwrap();
        for number in 0.. {
            let run = begin(&runs, &format!("run-{number}"));
            run.recorded().await.unwrap();
            tell(format!("begun {number}\n"));
            run.write(Stream::Stdout, b"text");
            run.finish(RunStatus::Completed, REPORT);
            run.finished().await;
            tell(format!("ended {number}\n"));
        }
    }
    for kills in 1..=5 {
        let folder = tempfile::tempdir().unwrap();
        let test = "what_a_killed_process_has_acknowledged_is_found";
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let mut child = child(test, &[], folder.path()).spawn().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stream = loop {
            if let Ok((stream, _)) = listener.accept() {
                break stream;
            }
            assert!(
                child.try_wait().unwrap().is_none(),
                "it never told anything"
            );
            std::thread::sleep(std::time::Duration::from_millis(2));
        };
        stream.set_nonblocking(false).unwrap();
        let lines = BufReader::new(stream).lines();
        let mut acknowledged = [None; 2];
        for line in lines.map_while(Result::ok) {
            let number = |word| {
                line.strip_prefix(word)
                    .and_then(|n| n.parse::<usize>().ok())
            };
            acknowledged[0] = number("begun ").or(acknowledged[0]);
            acknowledged[1] = number("ended ").or(acknowledged[1]);
            if acknowledged[1] == Some(20 * kills) {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let [Some(begun), Some(ended)] = acknowledged else {
            panic!("{acknowledged:?}");
        };
        let (_, runs, _) = life(folder.path(), "after");
        for number in 0..=begun {
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
async fn a_full_disk_is_told_and_ends_nothing() {
    let Some(folder) = std::env::var_os(CHILD) else {
        let folder = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=2m tmpfs \"$0\" && exec \"$@\"";
        let path = folder.path().display().to_string();
        let wrapper = ["unshare", "-m", "sh", "-c", script, &path];
        let test = "a_full_disk_is_told_and_ends_nothing";
        let output = child(test, &wrapper, folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    };
    let folder = Path::new(&folder);
    let (store, runs, lives) = life(folder, "1");
    let first = begin(&runs, "first");
    first.recorded().await.unwrap();
    // What is left of the disk, and of the room that the journal has reserved.
    let filler = folder.join("filler");
    let _ = fs::write(&filler, vec![1; 4 << 20]);
    let fill = begin(&runs, "fill");
    fill.write(Stream::Stdout, &vec![b'x'; 500 << 10]);
    fill.write(Stream::Stderr, &vec![b'x'; 500 << 10]);
    fill.add(shown(&"x".repeat(600 << 10)));
    assert!(!store.settle().await);
    let must = Execute {
        durable: Some(true),
        ..named("must", "1")
    };
    let mut is_full = false;
    for number in 0..10_000 {
        let run = begin(&runs, &format!("run-{number}"));
        run.recorded().await.unwrap();
        run.finish(RunStatus::Completed, REPORT);
        run.finished().await;
        assert_eq!(run.reply(REPORT).status, RunStatus::Completed);
        is_full = run.reply(REPORT).durable == Some(false);
        if is_full {
            break;
        }
    }
    assert!(is_full);
    let (run, _) = runs.begin(must.clone()).unwrap();
    assert!(run.recorded().await.is_err());
    runs.forget(&run);
    // There is room again.
    fs::remove_file(filler).unwrap();
    let (run, _) = runs.begin(must).unwrap();
    run.recorded().await.unwrap();
    run.finish(RunStatus::Completed, REPORT);
    run.finished().await;
    assert_eq!(run.reply(REPORT).durable, Some(true));
    assert!(segments(&lives.own()).len() < 4);
    let (_, runs, _) = life(folder, "2");
    assert_eq!(reply(&runs, "must").status, RunStatus::Completed);
    assert_eq!(reply(&runs, "first").status, RunStatus::Lost);
}
