use super::{
    GIT_HISTORY_BRANCH, GitLocation, GitRepository, build_commit_message, has_new_run,
    locate_git_folder, resolve_body_folder, select_uncommitted_runs,
};
use crate::protocol::evolve::{EvolveCaller, EvolveRecord, EvolveStage, EvolveStatus, RunTask};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn build_record(run: &str, status: EvolveStage) -> EvolveRecord {
    EvolveRecord {
        reason: Some("more\nOsctl-Run: 29991231-235959".into()),
        requested_by: EvolveCaller::Agent,
        image: Some("sha256:1".into()),
        body_digest: Some("sha256:b".into()),
        ..EvolveRecord::empty(run.parse().unwrap(), status, 0.0)
    }
}

/// Creates a project that belongs to another user where this process may change owners.
fn create_project() -> (tempfile::TempDir, u32) {
    let folder = tempfile::tempdir().unwrap();
    let uid = match nix::unistd::geteuid().is_root() {
        true => 1234,
        false => nix::unistd::geteuid().as_raw(),
    };
    fs::create_dir(folder.path().join("body")).unwrap();
    fs::write(folder.path().join("body/Dockerfile"), "FROM ${BASE}\n").unwrap();
    fs::write(folder.path().join("mine"), "committed\n").unwrap();
    let git = |arguments: &[&str]| run_git(folder.path(), arguments);
    git(&["init", "--quiet", "--initial-branch=main"]);
    git(&["add", "mine"]);
    git(&["commit", "--quiet", "-m", "mine"]);
    // One change in the index, and one in the checkout only.
    fs::write(folder.path().join("mine"), "staged\n").unwrap();
    git(&["add", "mine"]);
    fs::write(folder.path().join("mine"), "edited\n").unwrap();
    chown_recursively(folder.path(), uid);
    (folder, uid)
}

fn chown_recursively(path: &Path, uid: u32) {
    if nix::unistd::geteuid().is_root() {
        chown(path, Some(uid), Some(uid)).unwrap();
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => chown_recursively(&entry.path(), uid),
            false if nix::unistd::geteuid().is_root() => {
                chown(entry.path(), Some(uid), Some(uid)).unwrap();
            }
            false => {}
        }
    }
}

fn run_git(folder: &Path, arguments: &[&str]) -> String {
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
    let done = command
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .output()
        .unwrap();
    assert!(done.status.success(), "{arguments:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn collect_owners(folder: &Path, found: &mut Vec<u32>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        found.push(entry.metadata().unwrap().uid());
        if entry.file_type().unwrap().is_dir() {
            collect_owners(&entry.path(), found);
        }
    }
}

fn open(project: &Path) -> GitRepository {
    let GitLocation::Found(git) = locate_git_folder(project) else {
        panic!("no repository in {project:?}");
    };
    GitRepository::open(git).unwrap()
}

/// Records runs whose bodies are stored: each body is one file that contains the run's name.
async fn commit_uncommitted_runs(project: &Path, runs: &[EvolveRecord]) -> usize {
    let repository = open(project);
    let committed = repository.list_committed_runs().await.unwrap();
    let uncommitted = select_uncommitted_runs(runs, &committed);
    for run in &uncommitted {
        // As in the keeper's replies: a run whose body could not be read has none.
        if run.body_digest.is_none() && run.image.is_none() {
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
    uncommitted.len()
}

#[tokio::test]
async fn runs_become_commits_of_the_owner_and_nothing_else_is_touched() {
    let (folder, uid) = create_project();
    let git = |arguments: &[&str]| run_git(folder.path(), arguments);
    let before = (git(&["status", "--porcelain"]), git(&["diff", "--cached"]));
    let first = build_record("20261120-100000", EvolveStage::Succeeded);
    let earlier = build_record("20261119-100000", EvolveStage::Failed);
    let known = [first.clone(), earlier.clone()];
    assert_eq!(commit_uncommitted_runs(folder.path(), &known).await, 1);
    assert_eq!(commit_uncommitted_runs(folder.path(), &known).await, 0);
    // The current content of the checkout belongs to no run.
    fs::write(folder.path().join("body/more"), "x").unwrap();
    let on = build_record("20261120-130000", EvolveStage::Building);
    let mut second = build_record("20261120-110000", EvolveStage::RolledBack);
    second.image = Some("sha256:2".into());
    let mut back = build_record("20261120-120000", EvolveStage::Succeeded);
    (back.task, back.body_digest) = (RunTask::Rollback, None);
    // A run whose body could not be read gets the body of the previous commit.
    let mut unread = build_record("20261120-123000", EvolveStage::Failed);
    (unread.body_digest, unread.image, unread.failed_stage) =
        (None, None, Some(EvolveStage::Building));
    let all = [on, unread, back, second, first, earlier];
    assert_eq!(commit_uncommitted_runs(folder.path(), &all).await, 3);
    let subjects = git(&["log", "--format=%s|%an", GIT_HISTORY_BRANCH]);
    assert_eq!(
        subjects,
        "Evolve: failed|osctl\nEvolve: succeeded|osctl\nEvolve: rolled back|osctl\nEvolve: succeeded|osctl\n"
    );
    let verdict = git(&["log", "-1", "--format=%B", GIT_HISTORY_BRANCH]);
    assert!(
        verdict.contains("Osctl-Outcome: failed\nOsctl-Failed-Stage: building\n"),
        "{verdict}"
    );
    let files = git(&["ls-tree", "-r", "--name-only", GIT_HISTORY_BRANCH]);
    assert_eq!(files, "body/deep/Dockerfile\n");
    for (commit, id) in [
        ("", "120000"),
        ("~1", "120000"),
        ("~2", "110000"),
        ("~3", "100000"),
    ] {
        let id = format!("20261120-{id}");
        assert_eq!(
            git(&[
                "show",
                &format!("{GIT_HISTORY_BRANCH}{commit}:body/deep/Dockerfile")
            ]),
            id
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
    collect_owners(&folder.path().join(".git"), &mut found);
    assert!(found.iter().all(|owner| *owner == uid), "{found:?}");
}

#[tokio::test]
async fn nested_body_is_committed_in_place() {
    let (folder, _) = create_project();
    let mut deep = build_record("20261120-100000", EvolveStage::Succeeded);
    deep.body_folder = Some("agents/mine".into());
    let mut odd = build_record("20261120-110000", EvolveStage::Failed);
    odd.body_folder = Some("../x".into());
    assert_eq!(
        commit_uncommitted_runs(folder.path(), &[deep.clone()]).await,
        1
    );
    let files = || {
        run_git(
            folder.path(),
            &["ls-tree", "-r", "--name-only", GIT_HISTORY_BRANCH],
        )
    };
    assert_eq!(files(), "agents/mine/deep/Dockerfile\n");
    assert_eq!(
        commit_uncommitted_runs(folder.path(), &[odd, deep]).await,
        1
    );
    assert_eq!(files(), "body/deep/Dockerfile\n");
}

#[tokio::test]
async fn moved_git_folder_has_the_commits() {
    let (folder, uid) = create_project();
    let git = folder.path().join(".git");
    fs::create_dir(folder.path().join("aside")).unwrap();
    fs::rename(&git, folder.path().join("aside/meta")).unwrap();
    fs::write(&git, "gitdir: aside/meta\n").unwrap();
    chown_recursively(folder.path(), uid);
    let first = build_record("20261120-100000", EvolveStage::Succeeded);
    assert_eq!(commit_uncommitted_runs(folder.path(), &[first]).await, 1);
    let files = run_git(
        folder.path(),
        &["ls-tree", "-r", "--name-only", GIT_HISTORY_BRANCH],
    );
    assert_eq!(files, "body/deep/Dockerfile\n");
    let mut found = Vec::new();
    collect_owners(&folder.path().join("aside/meta"), &mut found);
    assert!(found.iter().all(|owner| *owner == uid), "{found:?}");
    // A worktree has its git folder outside the project.
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("tree");
    let arguments = [
        "worktree",
        "add",
        "--quiet",
        "-f",
        path.to_str().unwrap(),
        "main",
    ];
    run_git(folder.path(), &arguments);
    let GitLocation::Outside(target) = locate_git_folder(&path) else {
        panic!("{:?}", locate_git_folder(&path));
    };
    assert!(target.contains("/worktrees/"), "{target}");
    assert_eq!(locate_git_folder(tree.path()), GitLocation::NotFound);
}

#[tokio::test]
async fn repository_hooks_are_not_run() {
    let (folder, uid) = create_project();
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
    run_git(folder.path(), &["update-ref", "refs/heads/other", "HEAD"]);
    assert!(fs::remove_file(&ran).is_ok());
    for (key, value) in [("core.fsmonitor", &watch), ("core.hooksPath", &hooks)] {
        run_git(folder.path(), &["config", key, value.to_str().unwrap()]);
    }
    chown_recursively(folder.path(), uid);
    let first = build_record("20261120-100000", EvolveStage::Succeeded);
    assert_eq!(commit_uncommitted_runs(folder.path(), &[first]).await, 1);
    assert!(!ran.exists(), "{:?}", fs::read_to_string(&ran));
}

#[test]
fn outside_runs_are_detected() {
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
async fn hanging_git_is_killed() {
    let (folder, _) = create_project();
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
    let (folder, uid) = create_project();
    run_git(
        folder.path(),
        &["checkout", "--quiet", "-f", "-b", "osctl/evolve"],
    );
    chown_recursively(folder.path(), uid);
    let repository = open(folder.path());
    assert!(repository.is_checked_out().await.unwrap());
    assert_eq!(
        run_git(folder.path(), &["log", "--format=%s", GIT_HISTORY_BRANCH]),
        "mine\n"
    );
}
