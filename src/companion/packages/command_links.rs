//! Links in `/usr/local/bin` to the commands of requested packages, which installers write to folders of their own.

use super::{PackageResult, file_refusal};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

const COMMANDS_FOLDER: &str = "/usr/local/bin";

/// Folders of commands that a link does not replace and does not precede in `PATH`.
const SYSTEM_FOLDERS: [&str; 6] = [
    "/usr/local/sbin",
    COMMANDS_FOLDER,
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Links to the commands in `binaries`; the links to others of its commands are removed.
pub(super) fn link_commands(binaries: &Path, names: &[String]) -> PackageResult<()> {
    let system = SYSTEM_FOLDERS.map(Path::new);
    link_commands_into(Path::new(COMMANDS_FOLDER), &system, binaries, names)
}

fn link_commands_into(
    commands: &Path,
    system: &[&Path],
    binaries: &Path,
    names: &[String],
) -> PackageResult<()> {
    let entries = fs::read_dir(commands).map_err(file_refusal(commands))?;
    for entry in entries.filter_map(Result::ok) {
        let is_ours = fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(binaries));
        if is_ours {
            fs::remove_file(entry.path()).map_err(file_refusal(&entry.path()))?;
        }
    }
    for name in names.iter().filter(|name| is_plain_name(name)) {
        let exists = |folder: &&Path| folder.join(name).symlink_metadata().is_ok();
        if system.iter().any(exists) {
            continue;
        }
        let link = commands.join(name);
        match symlink(binaries.join(name), &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(file_refusal(&link)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Names come from packages.
fn is_plain_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::link_commands_into;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn commands_are_linked_and_never_hide_one_of_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let [commands, system, binaries] =
            ["commands", "system", "binaries"].map(|name| folder.path().join(name));
        for folder in [&commands, &system, &binaries] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(system.join("python3"), "").unwrap();
        fs::write(commands.join("pip"), "").unwrap();
        symlink("/elsewhere/x", commands.join("x")).unwrap();
        let link = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            link_commands_into(&commands, &[&system, &commands], &binaries, &names).unwrap();
            let entries = fs::read_dir(&commands).unwrap();
            let entries = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut entries: Vec<String> = entries.collect();
            entries.sort();
            entries
        };
        let names = ["pytest", "python3", "pip", "../y", "", ".h", "a/b"];
        assert_eq!(link(&names), ["pip", "pytest", "x"]);
        let target = fs::read_link(commands.join("pytest")).unwrap();
        assert_eq!(target, binaries.join("pytest"));
        assert_eq!(link(&["py.test"]), ["pip", "py.test", "x"]);
        assert_eq!(link(&[]), ["pip", "x"]);
    }
}
