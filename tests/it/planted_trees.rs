//! Random trees that an agent plants where the user's commands read and write.

use crate::harness::{Home, provide, shared};
use crate::memory::run_within_bounds;
use crate::mutations::for_each;
use crate::protected_folders::{Listing, PNG, has_secret, listing, showing, victim};
use crate::proxies::by_port;
use crate::trials;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use proptest::prelude::*;
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

trials![no_file_outside_the_named_folder_is_touched_whatever_is_planted];

/// The number of random trees for each command.
const TREE_COUNT: u32 = 10;

/// A file that an agent plants, by its name in a destination.
#[derive(Debug, Clone)]
enum Planted {
    File,
    Folder,
    Pipe,
    Device,
    Link(&'static str),
    HardLink,
}

fn planted() -> impl Strategy<Value = Vec<(&'static str, Planted)>> {
    let name = proptest::sample::select(vec![
        "t",
        "f",
        "t/f",
        "t/t",
        "figure-1.png",
        "body",
        "body/kernel",
        "body/Dockerfile",
        "osctl.yaml",
        "out",
        "mcp",
        "mcp/servers.json",
    ]);
    let target = proptest::sample::select(vec![
        "VICTIM",
        "VICTIM/secret",
        "VICTIM/absent",
        "VICTIM/folder",
        "..",
        "../..",
        "t",
        "f",
        "t/../..",
    ]);
    let what = prop_oneof![
        Just(Planted::File),
        Just(Planted::Folder),
        Just(Planted::Pipe),
        Just(Planted::Device),
        Just(Planted::HardLink),
        target.prop_map(Planted::Link),
    ];
    proptest::collection::vec((name, what), 1..9)
}

fn plant(here: &Path, victim: &Path, what: &[(&str, Planted)]) {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    for (name, planted) in what {
        let path = here.join(name);
        // An entry that conflicts with an earlier entry is not planted.
        let _ = match planted {
            Planted::File => fs::File::create_new(&path).map(drop),
            Planted::Folder => fs::create_dir(&path),
            Planted::Pipe => nix::unistd::mkfifo(&path, Mode::S_IRWXU).map_err(Into::into),
            Planted::Device => {
                mknod(&path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).map_err(Into::into)
            }
            Planted::HardLink => fs::hard_link(here.join("f"), &path),
            Planted::Link(target) => {
                symlink(target.replace("VICTIM", victim.to_str().unwrap()), &path)
            }
        };
    }
}

/// The files outside the three folders that the agent writes, and outside osctl's own state.
fn outside(home: &Home) -> Vec<(PathBuf, Listing)> {
    let own = [".local", "projects", "project", "strace"];
    let data = home.data();
    let entries = fs::read_dir(&home.folder).unwrap();
    let entries = entries.map(|entry| entry.unwrap().path());
    let is_own = |path: &PathBuf| *path == data || own.iter().any(|own| path.ends_with(own));
    let mut found: Vec<_> = entries.filter(|path| !is_own(path)).collect();
    found.sort();
    let listed = |path: PathBuf| {
        let listed = if path.is_dir() {
            listing(&path)
        } else {
            Listing::new()
        };
        (path, listed)
    };
    found.into_iter().map(listed).collect()
}

/// Swaps names that a command may read with links, until the command has ended.
fn race(here: &Path, stop: &AtomicBool) -> u64 {
    let mut swaps = 0;
    while !stop.load(Ordering::Relaxed) {
        for (name, other) in RACED {
            let exchanged = renameat2(
                AT_FDCWD,
                &here.join(name),
                AT_FDCWD,
                &here.join(other),
                RenameFlags::RENAME_EXCHANGE,
            );
            swaps += u64::from(exchanged.is_ok());
        }
    }
    swaps
}

/// The names, and the links that they are swapped with.
const RACED: [(&str, &str); 6] = [
    ("t", ".raced-folder"),
    ("t/f", ".raced-secret"),
    ("f", ".raced-file"),
    ("body", ".raced-body"),
    ("out", ".raced-out"),
    ("osctl.yaml", ".raced-config"),
];

/// Removes the entries of a folder.
fn empty(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_folder = path.is_dir() && !path.is_symlink();
        let removed = if is_folder {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.unwrap();
    }
}

/// The home of the shared instance with separate folders, and one whose engine builds nothing.
fn homes() -> (Home, Home) {
    let shared = shared();
    let port = shared.api().address.rsplit(':').next().unwrap().parse();
    let home = by_port(shared, "trees", port.unwrap());
    let (_, engine) = crate::fake_engine::engine("trees-engine");
    let mut builder = home.clone();
    builder.env.clone_from(&engine.env);
    (home, builder)
}

fn no_file_outside_the_named_folder_is_touched_whatever_is_planted() {
    let (home, builder) = homes();
    let here = &home.project;
    let victim = victim(&home, "random");
    let inside = shared().files().join("planted-random");
    let _ = fs::remove_dir_all(&inside);
    fs::create_dir_all(inside.join("t/t")).unwrap();
    fs::create_dir_all(inside.join("to")).unwrap();
    for name in ["f", "t/f", "t/t/f"] {
        fs::write(inside.join(name), "AGENT").unwrap();
    }
    let figure = showing(PNG);
    let calls: [&[&str]; 19] = [
        &["cp", "os:/root/host/planted-random/t", "."],
        &["cp", "os:/root/host/planted-random/f", "."],
        &["cp", "os:/root/host/planted-random/f", "t/f"],
        &["cp", "os:/root/host/planted-random/t/.", "t"],
        &["cp", "t/f", "os:/root/host/planted-random/to/"],
        &["cp", "f", "os:/root/host/planted-random/to/"],
        &["cp", "t", "os:/root/host/planted-random/to/"],
        &["exec", "-f", "f"],
        &["exec", "-f", "t/f"],
        &["exec", "--out", "t", &figure],
        &["exec", "--out", "out/new", &figure],
        &["--quiet", "screenshot", "f"],
        &["--quiet", "screenshot", "t/f"],
        &["init"],
        &["init", "--update"],
        &["config", "show"],
        &["status"],
        &["doctor"],
        &["build", "--yes"],
    ];
    let swaps = Cell::new(0);
    let round = Cell::new(0);
    let log = home.folder.join("strace");
    // Where nothing is planted, all commands work, except the build.
    empty(here);
    fs::create_dir(here.join("t")).unwrap();
    fs::write(here.join("t/f"), "AGENT").unwrap();
    fs::write(here.join("f"), "AGENT").unwrap();
    for args in calls {
        let home = if args[0] == "build" { &builder } else { &home };
        let ran = run_within_bounds(home.command(args));
        let works = match args[0] {
            "doctor" => [0, 1].contains(&ran.code),
            "build" => ran.code == 4 && ran.stderr.contains("image"),
            "exec" if args[1] == "-f" => ran.stderr.contains("name 'AGENT' is not defined"),
            _ => ran.code == 0,
        };
        assert!(works, "{args:?}: {ran:?}");
    }
    let trees = (planted(), planted(), any::<bool>());
    for_each(TREE_COUNT, trees, |(what, in_data, is_raced)| {
        for folder in [here, &home.data(), &home.files(), &inside.join("to")] {
            empty(folder);
        }
        plant(here, &victim, &what);
        plant(&home.data(), &victim, &in_data);
        plant(&home.files(), &victim, &in_data);
        for (_, other) in RACED {
            let target = if other == ".raced-folder" {
                "folder"
            } else {
                "secret"
            };
            symlink(victim.join(target), here.join(other)).unwrap();
        }
        let before = outside(&home);
        for (index, args) in calls.iter().enumerate() {
            let home = if args[0] == "build" { &builder } else { &home };
            let mut command = home.command(*args);
            let is_traced = index % TREE_COUNT as usize == round.get() % TREE_COUNT as usize;
            if is_traced {
                command = traced(&command, &log);
            }
            let stop = AtomicBool::new(!is_raced);
            let ran = std::thread::scope(|scope| {
                let racer = scope.spawn(|| race(here, &stop));
                let ran = run_within_bounds(command);
                stop.store(true, Ordering::Relaxed);
                swaps.set(swaps.get() + racer.join().unwrap());
                ran
            });
            // Refused or done; never an internal error of osctl.
            assert!((0..=5).contains(&ran.code), "{args:?}: {ran:?}");
            assert!(!format!("{ran:?}").contains("SECRET"), "{args:?}: {ran:?}");
            assert_eq!(outside(home), before, "{args:?}: {ran:?}");
            assert!(!has_secret(&inside), "{args:?}: {ran:?}");
            if is_traced {
                check_trace(&log, &victim, home);
            }
        }
        round.set(round.get() + 1);
    });
    assert!(swaps.get() > 10_000, "{} swaps", swaps.get());
}

/// The command under `strace`, which writes the system calls that name or open files.
fn traced(command: &Command, log: &Path) -> Command {
    provide("strace", &["strace"]);
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-y", "-e", "trace=file", "-o"]);
    traced.arg(log).arg(command.get_program());
    traced.args(command.get_args());
    traced.envs(
        command
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    traced.current_dir(command.get_current_dir().unwrap());
    traced.stdin(std::process::Stdio::null());
    traced
}

/// Checks that no system call opened a file of the victim, or opened another file outside to write.
fn check_trace(log: &Path, victim: &Path, home: &Home) {
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("openat("), "{log}");
    let state = home.folder.join(".local/state/osctl");
    let own = [&home.project, &home.data(), &home.files(), &state];
    for line in log.lines().filter(|line| !line.contains(" = -1 ")) {
        let (call, result) = line.rsplit_once(" = ").unwrap_or((line, ""));
        // With -y a descriptor is followed by the path that it stands for.
        let opened = result
            .split_once('<')
            .map_or("", |(_, path)| path.trim_end_matches('>'));
        let opened = Path::new(opened);
        assert!(!opened.starts_with(victim), "{line}");
        let is_written = ["O_WRONLY", "O_RDWR", "O_CREAT"]
            .iter()
            .any(|flag| call.contains(flag));
        let is_own = own.iter().any(|own| opened.starts_with(own));
        let is_system = ["/dev", "/proc", "/tmp", ""].iter().any(|folder| {
            opened.starts_with(folder) && (!folder.is_empty() || opened.as_os_str().is_empty())
        });
        assert!(!is_written || is_own || is_system, "{line}");
        let names = [
            "mkdir", "rename", "unlink", "link", "symlink", "chmod", "fchmodat",
        ];
        let changes = names.iter().any(|name| {
            call.split(['(', ' '])
                .any(|word| word.trim_end_matches("at").trim_end_matches("at2") == *name)
        });
        assert!(
            !changes || !call.contains(victim.to_str().unwrap()),
            "{line}"
        );
    }
}
