//! Races: root in the container swaps names for links out of the project while the user's commands run.

use crate::commands::Ran;
use crate::harness::{Home, shared};
use crate::protected_folders::{PNG, has_secret, listing, showing, victim};
use crate::trials;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

trials![
    a_file_that_is_raced_against_init_stays_as_it_was,
    a_copy_from_inside_that_is_raced_changes_nothing_outside,
    a_copy_to_inside_that_is_raced_copies_nothing_from_outside,
    figures_and_screenshots_that_are_raced_change_nothing_outside,
    code_that_is_raced_is_never_a_file_from_outside,
];

/// The least runs of each command in a race.
const MIN_RUNS: usize = 20;
const MIN_SWAPS: u64 = 10_000;
/// The limit of runs for a command that met only one of the two names.
const MAX_RUNS: usize = 400;

/// A program in the container that swaps names without a pause, until it is dropped.
pub(crate) struct Racer {
    child: Child,
    count: PathBuf,
    stop: PathBuf,
}

impl Racer {
    /// `swapped`: `x` a name, `t` the temporary files of a folder of the project; and the target of the links.
    pub(crate) fn start(home: &Home, name: &str, swapped: &[(&str, &str, &Path)]) -> Self {
        let count = home.files().join(format!("{name}.count"));
        let stop = home.files().join(format!("{name}.stop"));
        let _ = fs::remove_file(&stop);
        fs::write(&count, "0").unwrap();
        let inside = |path: &Path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            format!("/root/host/{name}")
        };
        let program = build(home);
        let mut command = home.command(["shell", "--", &program, &inside(&count), &inside(&stop)]);
        for (how, path, target) in swapped {
            command
                .args([how, format!("/repo/{path}").as_str()])
                .arg(target);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().unwrap();
        Self { child, count, stop }
    }

    pub(crate) fn swaps(&self) -> u64 {
        let count = fs::read_to_string(&self.count).unwrap();
        count.trim().parse().unwrap_or_default()
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        let _ = fs::write(&self.stop, "");
        let _ = self.child.wait();
    }
}

/// The path of the racer's program in the container.
fn build(home: &Home) -> String {
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| {
        fs::write(home.files().join("racer.c"), include_str!("racer.c")).unwrap();
        home.ok(["shell", "gcc -O2 -o /tmp/racer /root/host/racer.c"]);
    });
    "/tmp/racer".into()
}

/// Runs a command against a racer, until both have enough tries and the command met both names.
fn race(
    name: &str,
    swapped: &[(&str, &str, &Path)],
    victim: &Path,
    mut run: impl FnMut(&Home) -> Ran,
) {
    let home = shared();
    let before = (listing(victim), changed(victim));
    let racer = Racer::start(home, name, swapped);
    let (mut done, mut refused) = (0, 0);
    while done + refused < MIN_RUNS
        || (done == 0 || refused == 0 || racer.swaps() < MIN_SWAPS) && done + refused < MAX_RUNS
    {
        let ran = run(home);
        assert!([0, 2, 4].contains(&ran.code), "{name}: {ran:?}");
        assert!(!ran.stderr.contains("panicked"), "{name}: {ran:?}");
        assert!(!format!("{ran:?}").contains("SECRET"), "{name}: {ran:?}");
        match ran.code {
            0 => done += 1,
            _ => refused += 1,
        }
    }
    let swaps = racer.swaps();
    drop(racer);
    put_back(home, swapped);
    let told = format!("{name}: {swaps} swaps, {done} runs done, {refused} refused\n");
    std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes()).unwrap();
    assert!(swaps >= MIN_SWAPS && done > 0 && refused > 0, "{told}");
    assert_eq!((listing(victim), changed(victim)), before, "{told}");
}

/// Restores the swapped names.
fn put_back(home: &Home, swapped: &[(&str, &str, &Path)]) {
    for (_, name, _) in swapped.iter().filter(|(how, ..)| *how == "x") {
        let (path, other) = (
            home.project.join(name),
            home.project.join(format!("{name}.raced")),
        );
        if path.is_symlink() {
            fs::remove_file(&path).unwrap();
            // The other file is missing where the test has removed it.
            let _ = fs::rename(&other, &path);
        }
    }
}

/// The time of the last change of a folder's entries or rights.
fn changed(folder: &Path) -> (i64, i64) {
    use std::os::unix::fs::MetadataExt;
    let about = fs::metadata(folder).unwrap();
    (about.ctime(), about.ctime_nsec())
}

/// An empty folder of the project, and the folder of the same name in the files folder.
fn folders(name: &str) -> (PathBuf, PathBuf) {
    let (_, here, inside) = crate::cp::folders(name);
    (here, inside)
}

fn a_file_that_is_raced_against_init_stays_as_it_was() {
    let (here, _) = folders("race-init");
    let home = shared();
    let victim = victim(home, "race-init");
    home.ok(["init", "--full", "--update", "race-init"]);
    let init = |home: &Home| {
        for name in [
            "Dockerfile",
            "entrypoint.sh",
            "body.yaml",
            ".osctl-origin.json",
        ] {
            for path in [name.to_owned(), format!("{name}.raced")] {
                let path = here.join("body").join(path);
                if !path.is_symlink() {
                    let _ = fs::remove_file(path);
                }
            }
        }
        home.run(["init", "--full", "--update", "race-init"])
    };
    let secret = victim.join("secret");
    let files = [
        ("x", "race-init/body/Dockerfile", secret.as_path()),
        ("x", "race-init/body/.osctl-origin.json", &secret),
        ("t", "race-init/body", &secret),
    ];
    race("race-init-files", &files, &victim, init);
    let folder = victim.join("folder");
    race(
        "race-init-folder",
        &[("x", "race-init/body", &folder)],
        &victim,
        init,
    );
    assert!(!has_secret(&here));
}

fn a_copy_from_inside_that_is_raced_changes_nothing_outside() {
    let (here, inside) = folders("race-out");
    let victim = victim(shared(), "race-out");
    let (secret, folder) = (victim.join("secret"), victim.join("folder"));
    fs::write(inside.join("f"), "AGENT").unwrap();
    fs::create_dir_all(inside.join("t/deep")).unwrap();
    for name in ["t/secret", "t/deep/secret"] {
        fs::write(inside.join(name), "AGENT").unwrap();
    }
    fs::write(here.join("f"), "before").unwrap();
    let cp = |name: &'static str, to: &'static str| {
        move |home: &Home| home.run(["cp", &format!("os:/root/host/race-out/{name}"), to])
    };
    let file = [
        ("x", "race-out/f", secret.as_path()),
        ("t", "race-out", &secret),
    ];
    race("race-out-file", &file[..1], &victim, cp("f", "race-out/f"));
    race("race-out-temporary", &file, &victim, cp("f", "race-out/f"));
    fs::create_dir_all(here.join("t/deep")).unwrap();
    let whole = [
        ("x", "race-out/t", folder.as_path()),
        ("t", "race-out/t", &secret),
    ];
    race("race-out-folder", &whole, &victim, cp("t", "race-out"));
    let deep = [
        ("x", "race-out/t/deep", folder.as_path()),
        ("t", "race-out/t/deep", &secret),
    ];
    race("race-out-deep", &deep, &victim, cp("t", "race-out"));
}

fn a_copy_to_inside_that_is_raced_copies_nothing_from_outside() {
    let (here, inside) = folders("race-in");
    let victim = victim(shared(), "race-in");
    let (secret, folder) = (victim.join("secret"), victim.join("folder"));
    fs::write(here.join("f"), "AGENT").unwrap();
    fs::create_dir_all(here.join("t/deep")).unwrap();
    for name in ["t/secret", "t/deep/secret"] {
        fs::write(here.join(name), "AGENT").unwrap();
    }
    let cp = |name: &'static str| {
        let inside = inside.clone();
        move |home: &Home| {
            let _ = fs::remove_dir_all(inside.join("to"));
            fs::create_dir(inside.join("to")).unwrap();
            let ran = home.run([
                "cp",
                &format!("race-in/{name}"),
                "os:/root/host/race-in/to/",
            ]);
            assert!(!has_secret(&inside), "{ran:?}");
            ran
        }
    };
    race(
        "race-in-file",
        &[("x", "race-in/f", &secret)],
        &victim,
        cp("f"),
    );
    race(
        "race-in-folder",
        &[("x", "race-in/t", &folder)],
        &victim,
        cp("t"),
    );
    // A copy keeps a link in a folder as a link: this counts as a refusal.
    let linked = |home: &Home| {
        let mut ran = cp("t")(home);
        if ran.code == 0 && inside.join("to/t/secret").is_symlink() {
            ran.code = 2;
        }
        ran
    };
    race(
        "race-in-deep",
        &[("x", "race-in/t/secret", &secret)],
        &victim,
        linked,
    );
}

fn figures_and_screenshots_that_are_raced_change_nothing_outside() {
    let (here, _) = folders("race-shown");
    let victim = victim(shared(), "race-shown");
    let (secret, folder) = (victim.join("secret"), victim.join("folder"));
    fs::create_dir(here.join("out")).unwrap();
    let code = showing(PNG);
    let names = [
        ("x", "race-shown/out", folder.as_path()),
        ("t", "race-shown/out", &secret),
    ];
    let exec = |home: &Home| home.run(["exec", "--out", "race-shown/out", &code]);
    race("race-figures", &names, &victim, exec);
    let shot = |name: &'static str| move |home: &Home| home.run(["--quiet", "screenshot", name]);
    let new = shot("race-shown/out/new.png");
    race("race-screen-folder", &names[..1], &victim, new);
    fs::write(here.join("screen.png"), "before").unwrap();
    let names = [
        ("x", "race-shown/screen.png", secret.as_path()),
        ("t", "race-shown", &secret),
    ];
    race(
        "race-screen-file",
        &names[..1],
        &victim,
        shot("race-shown/screen.png"),
    );
}

fn code_that_is_raced_is_never_a_file_from_outside() {
    let (here, _) = folders("race-code");
    let victim = victim(shared(), "race-code");
    fs::write(here.join("code.py"), "print('AGENT')").unwrap();
    symlink("code.py", here.join("link.py")).unwrap();
    let secret = victim.join("secret");
    let names = [("x", "race-code/code.py", secret.as_path())];
    race("race-code", &names, &victim, |home| {
        home.run(["exec", "-f", "race-code/code.py"])
    });
    race("race-code-link", &names, &victim, |home| {
        home.run(["exec", "-f", "race-code/link.py"])
    });
}
