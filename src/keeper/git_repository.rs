//! Check whether runs can become commits in the project's git repository. The commits are written inside `os-host`,
//! which sees only the project. If `os-host` can't see the repository, the run says so and makes no commit.

use crate::error::Result;
use crate::protocol::evolve::repository::{MAX_GIT_FILE_BYTES, gitdir_line, resolve_gitdir};
use nix::fcntl::OFlag;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Why runs can't become commits; `None` if they can, or if there is no repository. `above` is a folder above the
/// project where a repository begins.
pub(super) fn find_commit_obstacle(project: &Path, above: Option<&Path>) -> Option<String> {
    let place = project.join(".git");
    let Ok(found) = fs::symlink_metadata(&place) else {
        let above = above?.display();
        return Some(format!(
            "the git repository begins above the project, in `{above}`, which is not mounted in the container"
        ));
    };
    if found.is_dir() {
        return None;
    }
    let text = match found.is_symlink() {
        true => fs::read_link(&place)
            .map(|to| gitdir_line(&to))
            .map_err(Into::into),
        false => read_git_file(&place),
    };
    match text.map(|text| resolve_gitdir(project, &text)) {
        Ok(Ok(_)) => None,
        Ok(Err(there)) => Some(format!(
            "`.git` points to `{there}`, which is not mounted in the container"
        )),
        Err(error) => Some(format!(
            "`.git` is not a folder and can't be read: {error:#}"
        )),
    }
}

/// Reads without following links and without blocking: the agent may have put any file there, such as a FIFO without
/// a writer or a device without an end.
fn read_git_file(place: &Path) -> Result<String> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags.bits()).open(place)?;
    anyhow::ensure!(file.metadata()?.is_file(), "it is not a regular file");
    let mut text = String::new();
    file.take(MAX_GIT_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::find_commit_obstacle;
    use nix::sys::stat::Mode;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    #[test]
    fn a_git_folder_that_is_not_visible_inside_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (project, git) = (folder.path(), folder.path().join(".git"));
        let above = Some(Path::new("/home/me"));
        assert_eq!(find_commit_obstacle(project, None), None);
        assert!(
            find_commit_obstacle(project, above)
                .unwrap()
                .contains("in `/home/me`")
        );
        fs::write(&git, "gitdir: /main/.git/worktrees/x\n").unwrap();
        let why = find_commit_obstacle(project, above).unwrap();
        assert!(why.contains("points to `/main/.git/worktrees/x`"), "{why}");
        fs::write(&git, "gitdir: .meta\n").unwrap();
        assert_eq!(find_commit_obstacle(project, None), None);
        fs::remove_file(&git).unwrap();
        // The link to the device is not followed, and the FIFO does not block.
        symlink("/dev/zero", &git).unwrap();
        assert!(
            find_commit_obstacle(project, None)
                .unwrap()
                .contains("points to `/dev/zero`")
        );
        fs::remove_file(&git).unwrap();
        nix::unistd::mkfifo(&git, Mode::S_IRWXU).unwrap();
        assert!(
            find_commit_obstacle(project, None)
                .unwrap()
                .contains("it is not a regular file")
        );
        fs::remove_file(&git).unwrap();
        fs::create_dir(&git).unwrap();
        assert_eq!(find_commit_obstacle(project, None), None);
    }
}
