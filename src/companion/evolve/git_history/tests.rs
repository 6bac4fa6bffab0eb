use super::{
    GIT_HISTORY_BRANCH, GitLocation, GitRepository, build_commit_message, has_new_run,
    locate_git_folder, resolve_body_folder, select_uncommitted_runs,
};
use crate::protocol::evolve::{EvolveCaller, EvolveRecord, EvolveStage, EvolveStatus, Task};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn record(run: &str, status: EvolveStage) -> EvolveRecord {
    EvolveRecord {
        run: run.parse().unwrap(),
        task: Task::Evolve,
        reason: Some("more\nOsctl-Run: 29991231-235959".into()),
        by: EvolveCaller::Agent,
        force: false,
        dry_run: false,
        began: 0.0,
        status,
        stages: Vec::new(),
        gate: None,
        why: None,
        log_tail: Vec::new(),
        checks: Vec::new(),
        image: Some("sha256:1".into()),
        previous: None,
        body: Some("sha256:b".into()),
        refused_ms: None,
        receipt: Vec::new(),
        besides: Vec::new(),
        folder: None,
        untold: None,
    }
}

/// Creates a project that belongs to another user where this process may change owners.
fn project() -> (tempfile::TempDir, u32) {
    let folder = tempfile::tempdir().unwrap();
    let uid = match nix::unistd::geteuid().is_root() {
        true => 1234,
        false => nix::unistd::geteuid().as_raw(),
    };
    fs::create_dir(folder.path().join("body")).unwrap();
    fs::write(folder.path().join("body/Dockerfile"), "FROM ${BASE}\n").unwrap();
    fs::write(folder.path().join("mine"), "committed\n").unwrap();
    let git = |words: &[&str]| run(folder.path(), words);
    git(&["init", "--quiet", "--initial-branch=main"]);
    git(&["add", "mine"]);
    git(&["commit", "--quiet", "-m", "mine"]);
    // One change in the index, and one in the checkout only.
    fs::write(folder.path().join("mine"), "staged\n").unwrap();
    git(&["add", "mine"]);
    fs::write(folder.path().join("mine"), "edited\n").unwrap();
    give(folder.path(), uid);
    (folder, uid)
}

fn give(path: &Path, uid: u32) {
    if nix::unistd::geteuid().is_root() {
        chown(path, Some(uid), Some(uid)).unwrap();
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => give(&entry.path(), uid),
            false if nix::unistd::geteuid().is_root() => {
                chown(entry.path(), Some(uid), Some(uid)).unwrap();
            }
            false => {}
        }
    }
}

fn run(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    // A status query must not write the index as this user.
    command.env("GIT_OPTIONAL_LOCKS", "0");
    command.args([
        "-c",
        "safe.directory=*",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
    ]);
    let done = command.arg("-C").arg(folder).args(words).output().unwrap();
    assert!(done.status.success(), "{words:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn owners(folder: &Path, found: &mut Vec<u32>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        found.push(entry.metadata().unwrap().uid());
        if entry.file_type().unwrap().is_dir() {
            owners(&entry.path(), found);
        }
    }
}

fn open(project: &Path) -> GitRepository {
    let GitLocation::At(git) = locate_git_folder(project) else {
        panic!("no repository in {project:?}");
    };
    GitRepository::open(git).unwrap()
}

/// Records runs whose bodies are stored: each body is one file that contains the run's name.
async fn tell(project: &Path, runs: &[EvolveRecord]) -> usize {
    let repository = open(project);
    let told = repository.list_committed_runs().await.unwrap();
    let untold = select_uncommitted_runs(runs, &told);
    for run in &untold {
        // As in the keeper's replies: a run whose body could not be read has none.
        if run.body.is_none() && run.image.is_none() {
            repository
                .commit_unchanged(&build_commit_message(run))
                .await
                .unwrap();
            continue;
        }
        let folder = resolve_body_folder(run);
        let mut body = repository.create_body_folder(folder).unwrap();
        let content = BASE64_STANDARD.encode(run.run.as_str());
        body.append_file("deep/Dockerfile", &content).unwrap();
        repository
            .commit_body(folder, &build_commit_message(run))
            .await
            .unwrap();
    }
    untold.len()
}

#[tokio::test]
async fn runs_become_commits_of_the_owner_and_nothing_else_is_touched() {
    let (folder, uid) = project();
    let git = |words: &[&str]| run(folder.path(), words);
    let before = (git(&["status", "--porcelain"]), git(&["diff", "--cached"]));
    let first = record("20261120-100000", EvolveStage::Succeeded);
    let earlier = record("20261119-100000", EvolveStage::Failed);
    let known = [first.clone(), earlier.clone()];
    assert_eq!(tell(folder.path(), &known).await, 1);
    assert_eq!(tell(folder.path(), &known).await, 0);
    // The current content of the checkout belongs to no run.
    fs::write(folder.path().join("body/more"), "x").unwrap();
    let on = record("20261120-130000", EvolveStage::Building);
    let mut second = record("20261120-110000", EvolveStage::RolledBack);
    second.image = Some("sha256:2".into());
    let mut back = record("20261120-120000", EvolveStage::Succeeded);
    (back.task, back.body) = (Task::Rollback, None);
    // A run whose body could not be read gets the body of the previous commit.
    let mut unread = record("20261120-123000", EvolveStage::Failed);
    (unread.body, unread.image, unread.gate) = (None, None, Some(EvolveStage::Building));
    let all = [on, unread, back, second, first, earlier];
    assert_eq!(tell(folder.path(), &all).await, 3);
    let subjects = git(&["log", "--format=%s|%an", GIT_HISTORY_BRANCH]);
    assert_eq!(
        subjects,
        "Evolve: failed|osctl\nEvolve: succeeded|osctl\nEvolve: rolled back|osctl\nEvolve: succeeded|osctl\n"
    );
    let verdict = git(&["log", "-1", "--format=%B", GIT_HISTORY_BRANCH]);
    assert!(
        verdict.contains("Osctl-Outcome: failed\nOsctl-Gate: building\n"),
        "{verdict}"
    );
    let files = git(&["ls-tree", "-r", "--name-only", GIT_HISTORY_BRANCH]);
    assert_eq!(files, "body/deep/Dockerfile\n");
    for (commit, made) in [
        ("", "120000"),
        ("~1", "120000"),
        ("~2", "110000"),
        ("~3", "100000"),
    ] {
        let made = format!("20261120-{made}");
        assert_eq!(
            git(&[
                "show",
                &format!("{GIT_HISTORY_BRANCH}{commit}:body/deep/Dockerfile")
            ]),
            made
        );
    }
    let message = git(&[
        "log",
        "-1",
        "--format=%B",
        &format!("{GIT_HISTORY_BRANCH}~2"),
    ]);
    assert!(
        message.contains("Osctl-Run: 20261120-110000\n"),
        "{message}"
    );
    assert!(!message.contains("Osctl-Run: 2999"), "{message}");
    // The checkout has one new untracked file and is otherwise unchanged.
    assert_eq!(git(&["status", "--porcelain"]), before.0);
    assert_eq!(git(&["diff", "--cached"]), before.1);
    assert_eq!(git(&["branch", "--show-current"]), "main\n");
    assert_eq!(fs::read(folder.path().join("mine")).unwrap(), b"edited\n");
    let mut found = Vec::new();
    owners(&folder.path().join(".git"), &mut found);
    assert!(found.iter().all(|owner| *owner == uid), "{found:?}");
}

#[tokio::test]
async fn a_body_that_lies_deeper_is_committed_where_it_lies() {
    let (folder, _) = project();
    let mut deep = record("20261120-100000", EvolveStage::Succeeded);
    deep.folder = Some("agents/mine".into());
    let mut odd = record("20261120-110000", EvolveStage::Failed);
    odd.folder = Some("../x".into());
    assert_eq!(tell(folder.path(), &[deep.clone()]).await, 1);
    let files = || {
        run(
            folder.path(),
            &["ls-tree", "-r", "--name-only", GIT_HISTORY_BRANCH],
        )
    };
    assert_eq!(files(), "agents/mine/deep/Dockerfile\n");
    assert_eq!(tell(folder.path(), &[odd, deep]).await, 1);
    assert_eq!(files(), "body/deep/Dockerfile\n");
}

#[tokio::test]
async fn a_repository_whose_folder_lies_elsewhere_in_the_project_has_the_commits() {
    let (folder, uid) = project();
    let git = folder.path().join(".git");
    fs::create_dir(folder.path().join("aside")).unwrap();
    fs::rename(&git, folder.path().join("aside/meta")).unwrap();
    fs::write(&git, "gitdir: aside/meta\n").unwrap();
    give(folder.path(), uid);
    let first = record("20261120-100000", EvolveStage::Succeeded);
    assert_eq!(tell(folder.path(), &[first]).await, 1);
    let files = run(
        folder.path(),
        &["ls-tree", "-r", "--name-only", GIT_HISTORY_BRANCH],
    );
    assert_eq!(files, "body/deep/Dockerfile\n");
    let mut found = Vec::new();
    owners(&folder.path().join("aside/meta"), &mut found);
    assert!(found.iter().all(|owner| *owner == uid), "{found:?}");
    // A worktree has its git folder outside the project.
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("tree");
    let words = [
        "worktree",
        "add",
        "--quiet",
        "-f",
        path.to_str().unwrap(),
        "main",
    ];
    run(folder.path(), &words);
    let GitLocation::Beyond(there) = locate_git_folder(&path) else {
        panic!("{:?}", locate_git_folder(&path));
    };
    assert!(there.contains("/worktrees/"), "{there}");
    assert_eq!(locate_git_folder(tree.path()), GitLocation::Nowhere);
}

#[tokio::test]
async fn what_a_repository_would_have_git_run_is_not_run() {
    let (folder, uid) = project();
    let ran = folder.path().join("ran");
    let hooks = folder.path().join(".git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    let script = format!("#!/bin/sh\necho $0 >> {}\n", ran.display());
    let hook = |path: &Path| {
        fs::write(path, &script).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let names = [
        "pre-commit",
        "post-commit",
        "reference-transaction",
        "post-index-change",
    ];
    names.iter().for_each(|name| hook(&hooks.join(name)));
    let watch = folder.path().join("watch");
    hook(&watch);
    // Check that git would run the hooks.
    run(folder.path(), &["update-ref", "refs/heads/other", "HEAD"]);
    assert!(fs::remove_file(&ran).is_ok());
    for (key, value) in [("core.fsmonitor", &watch), ("core.hooksPath", &hooks)] {
        run(folder.path(), &["config", key, value.to_str().unwrap()]);
    }
    give(folder.path(), uid);
    let first = record("20261120-100000", EvolveStage::Succeeded);
    assert_eq!(tell(folder.path(), &[first]).await, 1);
    assert!(!ran.exists(), "{:?}", fs::read_to_string(&ran));
}

#[test]
fn runs_that_begin_or_end_outside_are_news() {
    let status = |run: Option<&str>, on| EvolveStatus {
        latest_run: run.map(|run| run.parse().unwrap()),
        evolve_in_progress: on,
        ..EvolveStatus::default()
    };
    let (none, first) = (status(None, false), Some("20261120-100000"));
    assert!(!has_new_run(None, &none));
    assert!(has_new_run(None, &status(first, false)));
    assert!(!has_new_run(
        Some(&status(first, false)),
        &status(first, false)
    ));
    assert!(has_new_run(
        Some(&status(first, true)),
        &status(first, false)
    ));
    // The run has started and failed between two checks.
    let second = status(Some("20261120-110000"), false);
    assert!(has_new_run(Some(&status(first, false)), &second));
}

#[tokio::test]
async fn a_git_that_does_not_end_is_ended() {
    let (folder, _) = project();
    let slow = folder.path().join("slow");
    fs::write(&slow, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    let begin = Instant::now();
    let repository = open(folder.path());
    let repository = repository.with_program(&slow, Duration::from_millis(100));
    let refused = repository.is_checked_out().await.unwrap_err().to_string();
    assert!(refused.contains("did not end within 0.1 s"), "{refused}");
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_checked_out_branch_is_unchanged() {
    let (folder, uid) = project();
    run(
        folder.path(),
        &["checkout", "--quiet", "-f", "-b", "osctl/evolve"],
    );
    give(folder.path(), uid);
    let repository = open(folder.path());
    assert!(repository.is_checked_out().await.unwrap());
    assert_eq!(
        run(folder.path(), &["log", "--format=%s", GIT_HISTORY_BRANCH]),
        "mine\n"
    );
}
