//! The project: the folder that the container sees as `/repo`.

use super::agent_folders::{
    agent_writable_folders, canonicalize_existing, find_mount_beneath, is_shared_folder,
};
use super::folders::Folders;
use super::instance::{Instance, InstanceRecord};
use super::mount_safety::foreign_mount_reason;
use crate::error::{Error, Result};
use crate::protocol::quote::quote_word;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The project of `up` and `build`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProjectChoice<'a> {
    /// The folder of `--project`.
    pub(crate) named: Option<&'a Path>,
    /// Whether the instance may get another project than the recorded one.
    pub(crate) may_move: bool,
}

/// `HOST_PWD`, else the working directory.
///
/// # Errors
/// When the working directory does not exist.
pub(crate) fn current_folder() -> Result<PathBuf> {
    match env::var_os("HOST_PWD").filter(|folder| !folder.is_empty()) {
        Some(folder) => Ok(std::path::absolute(folder)?),
        None => env::current_dir().map_err(|error| {
            let message = format!("the current folder can't be used: {error}");
            Error::usage(message, "run the command in another folder").into()
        }),
    }
}

/// The named folder, else the current one. Beneath the recorded folder, the recorded one.
///
/// # Errors
/// When the folder cannot be a project, or the instance has another project and must keep it.
pub(crate) fn find_project(
    choice: ProjectChoice<'_>,
    record: Option<&InstanceRecord>,
    instance: &Instance,
    folders: &Folders,
    engine_socket: Option<&Path>,
) -> Result<PathBuf> {
    let wanted = match choice.named {
        Some(path) => path.to_owned(),
        None => current_folder()?,
    };
    let wanted = fs::canonicalize(&wanted).map_err(|e| match e.kind() {
        ErrorKind::NotFound => missing_project_error(&wanted),
        _ => Error::InvalidProject {
            project: wanted.clone(),
            why: e.to_string(),
        },
    })?;
    let project = match record {
        Some(record) => {
            let recorded = canonicalize_existing(&record.project);
            let is_beneath = choice.named.is_none() && wanted.starts_with(&recorded);
            match is_beneath || wanted == recorded {
                true => record.project.clone(),
                false if choice.may_move => wanted,
                false => {
                    return Err(Error::ProjectMismatch {
                        instance: instance.name.clone(),
                        project: record.project.clone(),
                    }
                    .into());
                }
            }
        }
        None => wanted,
    };
    check_project(&project, instance, folders, engine_socket)?;
    Ok(project)
}

/// The error for a project folder that does not exist.
pub(crate) fn missing_project_error(project: &Path) -> Error {
    let name = quote_word(project.as_os_str().as_encoded_bytes(), false);
    Error::usage(
        format!("the project folder `{}` does not exist", project.display()),
        format!("`mkdir -p {name}` creates the folder"),
    )
}

/// System folders: no project is in them.
const SYSTEM_TREES: &[&str] = &[
    "/Applications",
    "/Library",
    "/System",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/private/etc",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib/docker",
    "/var/spool",
];

/// Folders in system folders where people keep sources.
const SOURCE_FOLDERS: &[&str] = &["/usr/local/src", "/usr/src"];

/// Shared folders: a project may be in one of them, but cannot be one of them.
const SHARED_FOLDERS: &[&str] = &[
    "/Users",
    "/Volumes",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/private",
    "/private/tmp",
    "/private/var",
    "/root",
    "/run",
    "/srv",
    "/tmp",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/tmp",
];

/// Folders of a home whose contents are secret or are executed.
const SECRET_FOLDERS: &[&str] = &[
    ".aws",
    ".azure",
    ".config",
    ".docker",
    ".gnupg",
    ".kube",
    ".mozilla",
    ".password-store",
    ".ssh",
];

/// Why an agent that writes in the folder would control the machine or read the user's secrets. `path` are the folders
/// of `PATH`.
fn unsafe_folder_reason(project: &Path, home: &Path, path: &[PathBuf]) -> Option<String> {
    let is_beneath = |folders: &[&str]| folders.iter().any(|folder| project.starts_with(folder));
    let is_source = SOURCE_FOLDERS
        .iter()
        .any(|folder| project.starts_with(folder) && project != Path::new(folder));
    let is_shared = SHARED_FOLDERS
        .iter()
        .any(|folder| project == Path::new(folder));
    if (is_beneath(SYSTEM_TREES) && !is_source) || is_shared {
        return Some("it is a system folder".into());
    }
    if path
        .iter()
        .any(|folder| canonicalize_existing(folder) == project)
    {
        return Some(
            "it is on the `PATH`: the agent could replace the programs that you run".into(),
        );
    }
    let beneath_home = project.strip_prefix(home).ok()?;
    let first = beneath_home.iter().next()?.to_string_lossy();
    let is_itself = beneath_home.components().count() == 1;
    if (first.starts_with('.') && is_itself) || SECRET_FOLDERS.contains(&&*first) {
        return Some(format!(
            "`~/{first}` holds settings and secrets of other programs"
        ));
    }
    None
}

fn check_project(
    project: &Path,
    instance: &Instance,
    folders: &Folders,
    engine_socket: Option<&Path>,
) -> Result<()> {
    let unfit = |why: String| {
        Err(Error::InvalidProject {
            project: project.into(),
            why,
        }
        .into())
    };
    if !project.is_dir() {
        return unfit("it is not a folder".into());
    }
    if project.parent().is_none() {
        return unfit("the agent would see and write the whole machine".into());
    }
    let home = canonicalize_existing(&folders.home);
    if project == home || home.starts_with(project) {
        return unfit("the agent would see and write the whole home folder".into());
    }
    let socket = engine_socket
        .and_then(Path::parent)
        .map(canonicalize_existing);
    let ours = [
        (
            "osctl's configuration",
            canonicalize_existing(&folders.config),
        ),
        ("osctl's state", canonicalize_existing(&folders.state)),
    ];
    for (what, folder) in ours
        .into_iter()
        .chain(socket.map(|s| ("the engine's socket", s)))
    {
        if folder.starts_with(project) || project.starts_with(&folder) {
            return unfit(format!(
                "{what} is in `{}`, and the agent must not reach it",
                folder.display()
            ));
        }
    }
    for folder in agent_writable_folders(instance, folders)? {
        // Two instances may share a project, but one project may not contain the other.
        let is_nested = folder.starts_with(project) || project.starts_with(&folder);
        if is_nested && folder != project {
            return unfit(format!(
                "an agent writes in `{}`, and could replace one of the nested folders with a link",
                folder.display()
            ));
        }
        if folder == project && !is_shared_folder(&folder, folders)? {
            return unfit("osctl stores an instance's files there".into());
        }
    }
    if let Some(source) = find_mount_beneath(project, instance, folders)? {
        return unfit(foreign_mount_reason(&source));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = env::split_paths(&path).collect();
    if let Some(why) = unsafe_folder_reason(project, &home, &path) {
        return unfit(why);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ProjectChoice, check_project, find_project, unsafe_folder_reason};
    use crate::config::{Config, EngineChoice};
    use crate::error::Error;
    use crate::host::applied_settings::AppliedSettings;
    use crate::host::folders::Folders;
    use crate::host::instance::{Instance, InstanceRecord};
    use std::fs;
    use std::path::Path;

    fn home() -> (tempfile::TempDir, Folders) {
        let home = tempfile::tempdir().unwrap();
        let at = fs::canonicalize(home.path()).unwrap();
        for folder in [
            "project/deep",
            ".config/osctl",
            ".local/state/osctl/default",
            "run",
        ] {
            fs::create_dir_all(at.join(folder)).unwrap();
        }
        let folders = Folders {
            config: at.join(".config/osctl"),
            state: at.join(".local/state/osctl"),
            home: at,
        };
        (home, folders)
    }

    #[test]
    fn folders_that_would_expose_the_machine_are_refused() {
        let (_keep, folders) = home();
        let socket = folders.home.join("run/docker.sock");
        let refused = |path: &Path| {
            check_project(path, &instance(&folders), &folders, Some(&socket))
                .unwrap_err()
                .to_string()
        };
        assert!(refused(Path::new("/")).contains("whole machine"));
        assert!(refused(&folders.home).contains("home folder"));
        assert!(refused(folders.home.parent().unwrap()).contains("home folder"));
        assert!(refused(&folders.config).contains("configuration"));
        assert!(refused(&folders.home.join(".config")).contains("configuration"));
        assert!(refused(&folders.state.join("default")).contains("state"));
        assert!(refused(&folders.home.join("run")).contains("socket"));
        let fit = folders.home.join("project");
        check_project(&fit, &instance(&folders), &folders, Some(&socket)).unwrap();
    }

    #[test]
    fn folders_of_which_an_agent_can_make_a_link_are_refused() {
        let (_keep, folders) = home();
        let own = instance(&folders);
        let refused = |path: &Path| {
            fs::create_dir_all(path).unwrap();
            check_project(path, &own, &folders, None)
                .unwrap_err()
                .to_string()
        };
        for beneath in [own.files_folder(), own.data_folder()] {
            assert!(refused(&beneath.join("mine")).contains("an agent writes"));
            assert!(refused(&beneath).contains("osctl stores"));
        }
        assert!(refused(&folders.home.join("projects")).contains("an agent writes"));
        check_project(&folders.home.join("project"), &own, &folders, None).unwrap();
        // Another instance, and its project.
        let other = Instance::new("other", &folders).unwrap();
        let record = InstanceRecord {
            project: folders.home.join("project"),
            engine: EngineChoice::Docker,
            ports: Config::default().ports,
            criu: false,
            remote: None,
            applied: AppliedSettings::default(),
        };
        fs::create_dir_all(folders.state.join("other")).unwrap();
        let text = serde_json::to_vec(&record).unwrap();
        fs::write(folders.state.join("other/instance.json"), text).unwrap();
        assert!(refused(&other.data_folder().join("mine")).contains("an agent writes"));
        assert!(refused(&folders.home.join("project/deep")).contains("an agent writes"));
        check_project(&folders.home.join("project"), &own, &folders, None).unwrap();
    }

    #[test]
    fn a_folder_of_the_system_or_of_secrets_is_refused_as_the_project() {
        let home = Path::new("/home/u");
        let path = ["/home/u/bin".into(), "/opt/tool/bin".into()];
        let is_refused =
            |project: &str| unsafe_folder_reason(Path::new(project), home, &path).is_some();
        for project in [
            "/etc",
            "/etc/cron.d",
            "/usr",
            "/usr/local/bin",
            "/usr/src",
            "/bin",
            "/boot",
            "/var",
            "/var/spool/cron",
            "/tmp",
            "/opt",
            "/home",
            "/home/u/bin",
            "/opt/tool/bin",
            "/home/u/.ssh",
            "/home/u/.config",
            "/home/u/.config/autostart",
            "/home/u/.gnupg",
            "/home/u/.aws",
            "/home/u/.cache",
            "/home/u/.local",
        ] {
            assert!(is_refused(project), "{project}");
        }
        for project in [
            "/home/u/app",
            "/srv/app",
            "/opt/app",
            "/var/www/app",
            "/usr/src/app",
            "/home/u/.worktrees/app",
            "/home/u/app/.venv",
            "/tmp/app",
            "/var/lib/ci/workspace",
            "/workspace",
            "/etcetera",
        ] {
            assert!(!is_refused(project), "{project}");
        }
    }

    #[test]
    fn system_folders_are_refused_as_the_project() {
        let (_keep, folders) = home();
        let ssh = folders.home.join(".ssh");
        fs::create_dir_all(&ssh).unwrap();
        for folder in [&ssh, Path::new("/etc"), Path::new("/usr/bin")] {
            let error = check_project(folder, &instance(&folders), &folders, None).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("can't be the project"), "{error}");
        }
    }

    fn instance(folders: &Folders) -> Instance {
        Instance::new("default", folders).unwrap()
    }

    fn find(
        named: Option<&Path>,
        record: Option<&InstanceRecord>,
        may_move: bool,
        folders: &Folders,
    ) -> crate::error::Result<std::path::PathBuf> {
        let choice = ProjectChoice { named, may_move };
        find_project(choice, record, &instance(folders), folders, None)
    }

    #[test]
    fn a_missing_project_is_named_with_the_command_that_creates_it() {
        let (_keep, folders) = home();
        let missing = folders.home.join("no such");
        let error = find(Some(&missing), None, false, &folders).unwrap_err();
        let Some(Error::Usage { message, hint }) = error.downcast_ref() else {
            panic!("{error}");
        };
        assert!(message.contains("does not exist"), "{message}");
        let expected = format!("`mkdir -p '{}'` creates the folder", missing.display());
        assert_eq!(*hint, expected);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_refused_folder_is_refused_too() {
        let (_keep, folders) = home();
        let link = folders.home.join("project/link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        let error = find(Some(&link), None, false, &folders).unwrap_err();
        assert!(error.to_string().contains("whole machine"), "{error}");
    }

    #[test]
    fn an_instance_gets_another_project_only_by_a_move() {
        let (_keep, folders) = home();
        let record = InstanceRecord {
            project: folders.home.join("other"),
            engine: EngineChoice::Docker,
            ports: Config::default().ports,
            criu: false,
            remote: None,
            applied: AppliedSettings::default(),
        };
        let project = folders.home.join("project");
        for named in [None, Some(project.as_path())] {
            let error = find(named, Some(&record), false, &folders).unwrap_err();
            let error: &Error = error.downcast_ref().unwrap();
            assert!(matches!(error, Error::ProjectMismatch { .. }), "{error}");
            assert!(error.hint().unwrap().contains("`osctl up --move`"));
        }
        let moved = find(Some(&project), Some(&record), true, &folders);
        assert_eq!(moved.unwrap(), project);
    }

    #[cfg(unix)]
    #[test]
    fn a_project_is_the_same_by_a_link_to_it() {
        let (_keep, folders) = home();
        let link = folders.home.join("link");
        std::os::unix::fs::symlink(folders.home.join("project"), &link).unwrap();
        let record = InstanceRecord {
            project: link.clone(),
            engine: EngineChoice::Docker,
            ports: Config::default().ports,
            criu: false,
            remote: None,
            applied: AppliedSettings::default(),
        };
        for named in [&link, &folders.home.join("project")] {
            let found = find(Some(named), Some(&record), false, &folders);
            assert_eq!(found.unwrap(), link);
        }
    }
}
