//! The project: the folder that the container sees as `/repo`.

use super::folders::Folders;
use super::instance::{Instance, Record};
use super::reach::{agents_folders, may_be_shared, real};
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The folder that was named, else `HOST_PWD`, else the recorded one, else the current one.
///
/// # Errors
/// When it can't be a project, or the instance belongs to another one and none was named.
pub(crate) fn find(
    given: Option<&Path>,
    record: Option<&Record>,
    instance: &str,
    folders: &Folders,
    engine_socket: Option<&Path>,
) -> Result<PathBuf> {
    let named = given.map(Path::to_owned).or_else(|| {
        env::var_os("HOST_PWD")
            .filter(|p| !p.is_empty())
            .map(PathBuf::from)
    });
    let wanted = match &named {
        Some(path) => path.clone(),
        None => env::current_dir()?,
    };
    let wanted = fs::canonicalize(&wanted).map_err(|e| Error::UnfitProject {
        project: wanted.clone(),
        why: e.to_string(),
    })?;
    let project = match record {
        Some(record) if named.is_none() && wanted.starts_with(&record.project) => {
            record.project.clone()
        }
        Some(record) if named.is_none() => {
            return Err(Error::OtherProject {
                instance: instance.into(),
                project: record.project.clone(),
            }
            .into());
        }
        _ => wanted,
    };
    let instance = Instance::new(instance, folders)?;
    check(&project, &instance, folders, engine_socket)?;
    Ok(project)
}

fn check(
    project: &Path,
    instance: &Instance,
    folders: &Folders,
    engine_socket: Option<&Path>,
) -> Result<()> {
    let unfit = |why: String| {
        Err(Error::UnfitProject {
            project: project.into(),
            why,
        }
        .into())
    };
    if !project.is_dir() {
        return unfit("it is no folder".into());
    }
    if project.parent().is_none() {
        return unfit("the agent would see and write the whole machine".into());
    }
    let home = real(&folders.home);
    if project == home || home.starts_with(project) {
        return unfit("the agent would see and write the whole home folder".into());
    }
    let socket = engine_socket.and_then(Path::parent).map(real);
    let ours = [
        ("osctl's configuration", real(&folders.config)),
        ("osctl's state", real(&folders.state)),
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
    for folder in agents_folders(instance, folders)? {
        // Two instances may share a project, but not lie in each other's.
        let is_nested = folder.starts_with(project) || project.starts_with(&folder);
        if is_nested && folder != project {
            return unfit(format!(
                "an agent writes in `{}`, and could put a link to elsewhere in the other one's place",
                folder.display()
            ));
        }
        if folder == project && !may_be_shared(&folder, folders)? {
            return unfit("osctl keeps an instance's files there".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{check, find};
    use crate::config::{Config, EngineChoice};
    use crate::error::Error;
    use crate::host::folders::Folders;
    use crate::host::instance::{Instance, Record};
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
    fn folders_that_would_hand_the_machine_over_are_refused() {
        let (_keep, folders) = home();
        let socket = folders.home.join("run/docker.sock");
        let refused = |path: &Path| {
            check(path, &instance(&folders), &folders, Some(&socket))
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
        check(&fit, &instance(&folders), &folders, Some(&socket)).unwrap();
    }

    #[test]
    fn folders_of_which_an_agent_can_make_a_link_are_refused() {
        let (_keep, folders) = home();
        let own = instance(&folders);
        let refused = |path: &Path| {
            fs::create_dir_all(path).unwrap();
            check(path, &own, &folders, None).unwrap_err().to_string()
        };
        for beneath in [own.files(), own.data()] {
            assert!(refused(&beneath.join("mine")).contains("an agent writes"));
            assert!(refused(&beneath).contains("osctl keeps"));
        }
        assert!(refused(&folders.home.join("projects")).contains("an agent writes"));
        check(&folders.home.join("project"), &own, &folders, None).unwrap();
        // Another instance's, and its project.
        let other = Instance::new("other", &folders).unwrap();
        let record = Record {
            project: folders.home.join("project"),
            engine: EngineChoice::Docker,
            ports: Config::default().ports,
            criu: false,
            remote: None,
        };
        fs::create_dir_all(folders.state.join("other")).unwrap();
        let text = serde_json::to_vec(&record).unwrap();
        fs::write(folders.state.join("other/instance.json"), text).unwrap();
        assert!(refused(&other.data().join("mine")).contains("an agent writes"));
        assert!(refused(&folders.home.join("project/deep")).contains("an agent writes"));
        check(&folders.home.join("project"), &own, &folders, None).unwrap();
    }

    fn instance(folders: &Folders) -> Instance {
        Instance::new("default", folders).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_refused_folder_is_refused_too() {
        let (_keep, folders) = home();
        let link = folders.home.join("project/link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        let error = find(Some(&link), None, "default", &folders, None).unwrap_err();
        assert!(error.to_string().contains("whole machine"), "{error}");
    }

    #[test]
    fn from_elsewhere_the_recorded_project_is_named() {
        let (_keep, folders) = home();
        let record = Record {
            project: folders.home.join("other"),
            engine: EngineChoice::Docker,
            ports: Config::default().ports,
            criu: false,
            remote: None,
        };
        let error = find(None, Some(&record), "default", &folders, None).unwrap_err();
        assert!(
            matches!(error.downcast_ref(), Some(Error::OtherProject { .. })),
            "{error}"
        );
        let named = find(
            Some(&folders.home.join("project")),
            Some(&record),
            "default",
            &folders,
            None,
        )
        .unwrap();
        assert_eq!(named, folders.home.join("project"));
    }
}
