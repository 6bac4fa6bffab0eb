//! Attacks on the resolver: the agent writes in `agent`, and not in `outside`.

use super::{PathResolver, ResolvedPath};
use crate::archive::{EntryStat, Folder};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

struct PathFixture {
    _folder: TempDir,
    root: PathBuf,
    agent: PathBuf,
    outside: PathBuf,
    resolver: PathResolver,
}

impl PathFixture {
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(keep.path()).unwrap();
        let (agent, outside) = (root.join("agent"), root.join("outside"));
        for folder in [&agent, &outside] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(outside.join("file"), "secret").unwrap();
        let resolver = PathResolver::with_agent_folders([agent.clone()]);
        Self {
            _folder: keep,
            root,
            agent,
            outside,
            resolver,
        }
    }

    fn read(&self, path: &Path) -> Result<String, String> {
        let (mut file, _) = self.resolver.open_file(path).map_err(|e| e.to_string())?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|e| e.to_string())?;
        Ok(text)
    }

    fn write(&self, path: &Path) -> Result<(), String> {
        let place = self
            .resolver
            .resolve_name(path)
            .map_err(|e| e.to_string())?;
        let written = place.folder.replace_file(&place.name, 0o666, b"written");
        written.map_err(|e| e.to_string())
    }

    fn make(&self, path: &Path) -> Result<Folder, String> {
        self.resolver.make_folder(path).map_err(|e| e.to_string())
    }
}

#[test]
fn a_link_of_an_agent_is_followed_in_its_folder_and_refused_where_it_leads_out() {
    let machine = PathFixture::new();
    let at = |name: &str| machine.agent.join(name);
    fs::create_dir(at("v2")).unwrap();
    fs::write(at("v2/f"), "own").unwrap();
    symlink("v2", at("results")).unwrap();
    symlink(at("v2"), at("absolute")).unwrap();
    symlink("results/../results/./f", at("long")).unwrap();
    for name in ["results/f", "absolute/f", "long"] {
        assert_eq!(machine.read(&at(name)).unwrap(), "own", "{name}");
        machine.write(&at(name)).unwrap();
        fs::write(at("v2/f"), "own").unwrap();
    }
    assert!(at("results").is_symlink() && at("long").is_symlink());
    let targets = [
        machine.outside.clone(),
        "../outside".into(),
        "v2/../../outside".into(),
        machine.agent.join("../outside"),
        "/".into(),
    ];
    for target in targets {
        let link = at("link");
        symlink(&target, &link).unwrap();
        for path in [link.join("file"), link.join("new"), link.clone()] {
            let why = machine.resolver.resolve(&path).unwrap_err().to_string();
            let named = format!(
                "`{}` is a link out of `{}`",
                link.display(),
                machine.agent.display()
            );
            assert!(why.starts_with(&named), "{why}");
            assert!(machine.make(&path.join("deep")).is_err());
        }
        fs::remove_file(link).unwrap();
    }
    // A dangling link, which `exists` reports as unused.
    symlink(machine.outside.join("absent"), at("dangling")).unwrap();
    assert!(machine.write(&at("dangling")).is_err());
    assert!(machine.make(&at("dangling")).is_err());
    symlink("itself", at("itself")).unwrap();
    assert!(
        machine
            .read(&at("itself"))
            .unwrap_err()
            .contains("too many links")
    );
    assert_eq!(fs::read_dir(&machine.outside).unwrap().count(), 1);
}

#[test]
fn a_link_of_the_user_is_followed_and_leads_into_an_agents_folder_too() {
    let machine = PathFixture::new();
    let at = |name: &str| machine.root.join(name);
    symlink("outside", at("mine")).unwrap();
    symlink("agent", at("work")).unwrap();
    symlink(machine.outside.join("file"), machine.agent.join("planted")).unwrap();
    assert_eq!(machine.read(&at("mine/file")).unwrap(), "secret");
    assert_eq!(machine.read(&at("agent/../mine/file")).unwrap(), "secret");
    assert!(
        machine
            .read(&at("work/planted"))
            .unwrap_err()
            .contains("is a link out of")
    );
    machine.write(&at("work/new")).unwrap();
    machine.make(&at("mine/a/b")).unwrap();
    assert!(machine.agent.join("new").is_file() && machine.outside.join("a/b").is_dir());
    let missing = machine.resolver.resolve(&at("mine/none/file")).unwrap_err();
    assert!(missing.to_string().contains("No such file"), "{missing}");
}

#[test]
fn in_an_agents_folder_only_regular_files_are_opened() {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let machine = PathFixture::new();
    let pipe = machine.agent.join("pipe");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    // If the pipe is opened as a regular file, the test hangs here.
    assert!(machine.read(&pipe).unwrap_err().contains("not a file"));
    let device = machine.agent.join("zero");
    if mknod(&device, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).is_ok() {
        assert!(machine.read(&device).unwrap_err().contains("not a file"));
    }
    File::create(machine.agent.join("huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let folder = Folder::open(&machine.agent).unwrap();
    let read = folder.read_file(OsStr::new("huge"), 1 << 20);
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
    assert!(folder.read_file(OsStr::new("pipe"), 9).unwrap().is_none());
}

#[test]
fn a_pipe_below_dev_fd_is_read() {
    let machine = PathFixture::new();
    let (reader, writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut &writer, b"piped").unwrap();
    drop(writer);
    let number = std::os::fd::AsRawFd::as_raw_fd(&reader);
    let path = format!("/dev/fd/{number}");
    assert_eq!(machine.read(Path::new(&path)).unwrap(), "piped");
}

#[test]
fn a_path_that_crosses_an_agents_folder_is_not_trusted() {
    let machine = PathFixture::new();
    let at = |name: &str| machine.root.join(name);
    symlink("../outside", machine.agent.join("data")).unwrap();
    symlink("agent/data", at("by-link")).unwrap();
    symlink("outside", at("mine")).unwrap();
    for path in [
        "agent/data",
        "agent/data/file",
        "by-link",
        "agent/absent",
        "agent/x/../y",
    ] {
        let trap = machine.resolver.resolve_trusted(&at(path)).unwrap_err();
        assert_eq!(trap.folder, machine.agent, "{path}");
    }
    for (path, real) in [
        ("mine/file", "outside/file"),
        ("agent", "agent"),
        ("agent/../mine", "outside"),
        ("mine/none/deep", "outside/none/deep"),
    ] {
        assert_eq!(
            machine.resolver.resolve_trusted(&at(path)).unwrap(),
            at(real),
            "{path}"
        );
    }
}

/// A file's mode, inode, times and contents by its path.
type OutsideListing = BTreeMap<PathBuf, (u32, u64, i64, i64, i64, Vec<u8>)>;

/// All entries outside, with the data that reveals a write, a change of permissions, or a read.
fn listing(folder: &Path) -> OutsideListing {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            found.extend(listing(&path));
        }
        let content = match about.is_file() {
            true => fs::read(&path).unwrap(),
            false => Vec::new(),
        };
        let times = (about.mtime_nsec(), about.ctime(), about.ctime_nsec());
        let value = (
            about.mode(),
            about.ino(),
            times.0,
            times.1,
            times.2,
            content,
        );
        found.insert(path, value);
    }
    found
}

#[test]
fn ten_thousand_replaced_names_cause_no_access_outside() {
    let machine = PathFixture::new();
    let at = |name: &str| machine.agent.join(name);
    fs::create_dir_all(at("deep/in")).unwrap();
    fs::write(at("deep/in/file"), "own").unwrap();
    fs::create_dir(machine.outside.join("in")).unwrap();
    fs::write(machine.outside.join("in/file"), "secret").unwrap();
    let before = listing(&machine.outside);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // First a folder, then a link, then a file.
                let _ = fs::rename(at("deep"), at("aside"));
                let _ = symlink(&machine.outside, at("deep"));
                let _ = fs::remove_file(at("deep"));
                let _ = fs::rename(at("aside"), at("deep"));
                let _ = fs::remove_file(at("deep/in/file"));
                let _ = symlink(machine.outside.join("file"), at("deep/in/file"));
            }
        });
        for round in 0..10_000 {
            let path = at("deep/in/file");
            match round % 3 {
                0 => {
                    let _ = machine.write(&path);
                }
                1 => assert_ne!(machine.read(&path), Ok("secret".to_owned())),
                _ => {
                    let _ = machine.make(&at("deep/in"));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(listing(&machine.outside), before);
}

/// One entry that an agent plants.
#[derive(Debug, Clone)]
enum PlantedEntry {
    File,
    Folder,
    Pipe,
    HardLink(usize),
    Link(String),
    Renamed(usize),
}

fn names() -> impl Strategy<Value = String> {
    proptest::sample::select(vec!["a", "b", "a/b", "b/a", "a/b/c"]).prop_map(str::to_owned)
}

fn targets() -> impl Strategy<Value = String> {
    let parts =
        proptest::sample::select(vec!["..", "a", "b", "c", "outside", "agent", "file", "."]);
    let relative = proptest::collection::vec(parts, 1..5).prop_map(|parts| parts.join("/"));
    prop_oneof![
        relative.clone(),
        relative.prop_map(|rest| format!("ROOT/{rest}")),
    ]
}

fn planted() -> impl Strategy<Value = PlantedEntry> {
    prop_oneof![
        1 => Just(PlantedEntry::File),
        2 => Just(PlantedEntry::Folder),
        1 => Just(PlantedEntry::Pipe),
        1 => (0..5usize).prop_map(PlantedEntry::HardLink),
        4 => targets().prop_map(PlantedEntry::Link),
        1 => (0..5usize).prop_map(PlantedEntry::Renamed),
    ]
}

fn plant(machine: &PathFixture, what: &[(String, PlantedEntry)]) {
    for (name, planted) in what {
        let path = machine.agent.join(name);
        let other = |index: &usize| what.get(*index).map(|(name, _)| machine.agent.join(name));
        // Entries that conflict with earlier ones are not planted.
        let _ = match planted {
            PlantedEntry::File => File::create_new(&path).map(drop),
            PlantedEntry::Folder => fs::create_dir(&path),
            PlantedEntry::Pipe => {
                nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).map_err(Into::into)
            }
            PlantedEntry::HardLink(index) => {
                other(index).map_or(Ok(()), |other| fs::hard_link(other, &path))
            }
            PlantedEntry::Renamed(index) => {
                other(index).map_or(Ok(()), |other| fs::rename(other, &path))
            }
            PlantedEntry::Link(target) => {
                let target = target.replace("ROOT", machine.root.to_str().unwrap());
                symlink(target, &path)
            }
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn planted_files_cause_no_access_outside_the_agents_folder(
        what in proptest::collection::vec((names(), planted()), 1..8),
        path in names(),
    ) {
        let machine = PathFixture::new();
        plant(&machine, &what);
        let before = listing(&machine.outside);
        let beside = fs::read_dir(&machine.root).unwrap().count();
        let named = machine.agent.join(&path);
        let read = machine.read(&named);
        prop_assert_ne!(read, Ok("secret".to_owned()));
        if let Ok(ResolvedPath::Folder(folder)) = machine.resolver.resolve(&named) {
            let found = folder.stat_self().unwrap().identity;
            let outside = EntryStat::stat_path(&machine.outside).unwrap().identity;
            prop_assert_ne!(found, outside);
        }
        let _ = machine.write(&named);
        if let Ok(folder) = machine.make(&named.join("made")) {
            folder.replace_file(OsStr::new("f"), 0o600, b"x").unwrap();
        }
        prop_assert_eq!(listing(&machine.outside), before);
        prop_assert_eq!(fs::read_dir(&machine.root).unwrap().count(), beside);
    }
}
