//! The location of a project's git repository when `.git` is a file or a link.

use std::path::{Component, Path, PathBuf};

/// The prefix of a `.git` file.
const GITDIR_PREFIX: &str = "gitdir:";

/// Maximum size of a `.git` file.
pub const MAX_GIT_FILE_BYTES: u64 = 4096;

/// The text of a `.git` file that points to `to`.
pub fn gitdir_line(to: &Path) -> String {
    format!("{GITDIR_PREFIX} {}", to.display())
}

/// The folder to which a `.git` file with this text points, if it is in the `project`. Other folders of the host are
/// not visible inside; the repositories of worktrees and submodules are elsewhere.
///
/// # Errors
/// When the folder is outside of the project; the error is its path.
pub fn resolve_gitdir(project: &Path, text: &str) -> Result<PathBuf, String> {
    let named = text.strip_prefix(GITDIR_PREFIX).map_or("", str::trim);
    let folder = project.join(named);
    let plain = |part| !matches!(part, Component::ParentDir);
    match folder.components().all(plain) && folder.starts_with(project) && folder != project {
        true => Ok(folder),
        false => Err(named.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{gitdir_line, resolve_gitdir};
    use std::path::Path;

    #[test]
    fn only_folders_of_the_project_are_resolved() {
        let project = Path::new("/repo");
        let within = resolve_gitdir(project, "gitdir: .meta/git\n");
        assert_eq!(within.as_deref(), Ok(Path::new("/repo/.meta/git")));
        let whole = resolve_gitdir(project, "gitdir: /repo/meta.git\n");
        assert_eq!(whole.as_deref(), Ok(Path::new("/repo/meta.git")));
        let linked = resolve_gitdir(project, &gitdir_line(Path::new("meta.git")));
        assert_eq!(linked.as_deref(), Ok(Path::new("/repo/meta.git")));
        for (text, there) in [
            (
                "gitdir: /home/me/main/.git/worktrees/x\n",
                "/home/me/main/.git/worktrees/x",
            ),
            ("gitdir: ../.git/modules/x", "../.git/modules/x"),
            ("gitdir: a/../../x", "a/../../x"),
            ("gitdir: .", "."),
            ("gitdir:", ""),
            ("something else", ""),
        ] {
            assert_eq!(
                resolve_gitdir(project, text),
                Err(there.to_owned()),
                "{text}"
            );
        }
    }
}
