//! The instance that a command uses: the named one, else the one of the current folder.
//!
//! ```text
//! --instance, OSCTL_INSTANCE ─▶ that instance
//! up, build                  ─▶ the instance of the project, which may be new
//! other verbs                ─▶ the instance of the current folder or of a folder above it
//!                               ─▶ the only instance ─▶ an error that lists the instances
//! verbs that change the project, its image or saved state do not take the only instance of another folder
//! ```
//!
//! A new instance is `default` if no instance has this name, else it has the name of its folder. This module creates
//! nothing: `up` records the project.

use super::agent_folders::canonicalize_existing;
use super::folders::Folders;
use super::instance::{DEFAULT_INSTANCE, Instance, is_reserved};
use super::project::current_folder;
use crate::error::{Error, Result};
use crate::protocol::proof::sha256_fingerprint;
use std::path::{Path, PathBuf};

/// Maximum characters of a name that is made from a folder's name, without the suffix.
const MAX_FOLDER_NAME_CHARS: usize = 30;

/// Characters of the suffix that separates folders of the same name.
const NAME_SUFFIX_CHARS: usize = 5;

/// The instances among which a command chooses if none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstanceScope<'a> {
    /// The instance of this project, which may be new. `None` is the current folder.
    Project(Option<&'a Path>),
    /// An existing instance.
    Existing,
    /// The existing instance of the current folder or of a folder above it.
    OfFolder,
    /// An existing instance. Of several, the default one: earlier versions wrote no name into the configuration of MCP
    /// clients.
    ExistingOrDefault,
    /// An existing instance, else the one that `up` would create in the current folder.
    Optional,
}

/// An instance with its project, unless its record can't be read.
#[derive(Debug)]
struct KnownInstance {
    name: String,
    project: Option<PathBuf>,
}

/// The chosen name, and whether osctl chooses the same instance again in the current folder.
#[derive(Debug, PartialEq, Eq)]
struct ChosenName {
    name: String,
    is_implied: bool,
}

/// The instance that the command uses.
///
/// # Errors
/// When the name is invalid, several instances are possible, or the state folder can't be read.
pub(crate) fn find_instance(
    named: Option<&str>,
    scope: InstanceScope<'_>,
    folders: &Folders,
) -> Result<Instance> {
    if let Some(name) = named.filter(|name| *name != DEFAULT_INSTANCE) {
        return Instance::new(name, folders);
    }
    let known = list_known(folders)?;
    // `find_project` reports a working directory that does not exist.
    let current = current_folder().unwrap_or_else(|_| "/".into());
    let current = canonicalize_existing(&current);
    if named.is_some() {
        let implied = choose_name(&known, &current, InstanceScope::Existing);
        let is_implied = implied.is_ok_and(|chosen| chosen.name == DEFAULT_INSTANCE);
        return Ok(Instance::new(DEFAULT_INSTANCE, folders)?.with_name_in_hints(!is_implied));
    }
    let chosen = choose_name(&known, &current, scope)?;
    let instance = Instance::new(&chosen.name, folders)?;
    Ok(instance.with_name_in_hints(!chosen.is_implied))
}

fn list_known(folders: &Folders) -> Result<Vec<KnownInstance>> {
    let all = Instance::list_all(folders)?.into_iter();
    let known = all.map(|instance| {
        // The command that uses the instance reports a record that can't be read.
        let record = instance.read_record().ok().flatten();
        KnownInstance {
            project: record.map(|record| canonicalize_existing(&record.project)),
            name: instance.name,
        }
    });
    Ok(known.collect())
}

fn choose_name(
    known: &[KnownInstance],
    current: &Path,
    scope: InstanceScope<'_>,
) -> Result<ChosenName, Error> {
    let all: Vec<_> = known.iter().collect();
    let (folder, own) = match scope {
        InstanceScope::Project(Some(project)) => {
            let project = canonicalize_existing(&current.join(project));
            let own = instances_of(known, &project);
            (project, own)
        }
        _ => current
            .ancestors()
            .map(|folder| (folder.to_owned(), instances_of(known, folder)))
            .find(|(_, own)| !own.is_empty())
            .unwrap_or_else(|| (current.to_owned(), Vec::new())),
    };
    let new = || ChosenName {
        name: make_name(known, &folder),
        is_implied: current.starts_with(&folder),
    };
    let existing = |name: &str| ChosenName {
        name: name.into(),
        is_implied: own.len() == 1 && current.starts_with(&folder),
    };
    let candidates = match (own.is_empty(), scope) {
        (true, InstanceScope::Project(_)) => return Ok(new()),
        (true, _) => all,
        (false, _) => own.clone(),
    };
    match (&*candidates, scope) {
        ([], _) => Ok(new()),
        ([_], InstanceScope::OfFolder) if own.is_empty() => {
            Err(ambiguity_error(&candidates, false))
        }
        ([only], _) => Ok(existing(&only.name)),
        ([first, ..], InstanceScope::Optional) => Ok(match own.is_empty() {
            true => new(),
            false => existing(&first.name),
        }),
        (several, InstanceScope::ExistingOrDefault)
            if several
                .iter()
                .any(|instance| instance.name == DEFAULT_INSTANCE) =>
        {
            Ok(existing(DEFAULT_INSTANCE))
        }
        (several, _) => Err(ambiguity_error(several, !own.is_empty())),
    }
}

/// The instances with exactly this project.
fn instances_of<'a>(known: &'a [KnownInstance], project: &Path) -> Vec<&'a KnownInstance> {
    let is_own = |instance: &&KnownInstance| instance.project.as_deref() == Some(project);
    known.iter().filter(is_own).collect()
}

/// The error for several possible instances, all of the current folder or none; or for the only one, of another folder.
fn ambiguity_error(several: &[&KnownInstance], are_of_folder: bool) -> Error {
    let names = several.iter().map(|instance| match &instance.project {
        Some(project) => format!("`{}` (`{}`)", instance.name, project.display()),
        None => format!("`{}`", instance.name),
    });
    let names: Vec<String> = names.collect();
    let names = names.join(", ");
    let message = match (are_of_folder, several.len()) {
        (true, _) => format!("several instances have this project: {names}"),
        (false, 1) => format!("the current folder belongs to no instance; the only one is {names}"),
        (false, _) => {
            format!("the current folder belongs to no instance; the instances are {names}")
        }
    };
    let name = several
        .first()
        .map_or(DEFAULT_INSTANCE, |first| &first.name);
    Error::usage(
        message,
        format!(
            "name the instance, such as `osctl --instance {name} …`, or run the command in its folder"
        ),
    )
}

/// The name of a new instance of this project: the same for the same folder until another instance takes the name.
fn make_name(known: &[KnownInstance], project: &Path) -> String {
    let is_free = |name: &str| known.iter().all(|instance| instance.name != name);
    if is_free(DEFAULT_INSTANCE) {
        return DEFAULT_INSTANCE.into();
    }
    let name = name_from_folder(project);
    if is_free(&name) && !is_reserved(&name) {
        return name;
    }
    let digest = sha256_fingerprint(&project.to_string_lossy());
    format!("{name}-{}", &digest[..NAME_SUFFIX_CHARS])
}

/// The folder's name as the name of an instance: letters in lower case, other characters as one `-`.
fn name_from_folder(folder: &Path) -> String {
    let text = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut name = String::new();
    for letter in text.to_lowercase().chars() {
        match letter {
            'a'..='z' | '0'..='9' => name.push(letter),
            // The name of an image has no other separators, and none at its ends.
            _ if name.is_empty() || name.ends_with(['-', '_']) => {}
            '_' => name.push('_'),
            _ => name.push('-'),
        }
    }
    name.truncate(MAX_FOLDER_NAME_CHARS);
    match name.trim_end_matches(['-', '_']) {
        "" => "project".into(),
        name => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{ChosenName, InstanceScope, KnownInstance, choose_name, find_instance, make_name};
    use super::{MAX_FOLDER_NAME_CHARS, name_from_folder};
    use crate::config::is_instance_name;
    use crate::host::folders::Folders;
    use std::path::Path;

    fn known(all: &[(&str, &str)]) -> Vec<KnownInstance> {
        let known = all.iter().map(|(name, project)| KnownInstance {
            name: (*name).into(),
            project: (!project.is_empty()).then(|| project.into()),
        });
        known.collect()
    }

    /// The name in `folder`, with `!` if hints must name the instance; or the message and the hint.
    fn choose(all: &[(&str, &str)], folder: &str, scope: InstanceScope<'_>) -> String {
        match choose_name(&known(all), Path::new(folder), scope) {
            Ok(ChosenName { name, is_implied }) => name + if is_implied { "" } else { "!" },
            Err(error) => format!("{error} | {}", error.hint().unwrap()),
        }
    }

    const EXISTING: InstanceScope<'_> = InstanceScope::Existing;
    const PROJECT: InstanceScope<'_> = InstanceScope::Project(None);
    const TWO: &[(&str, &str)] = &[("app", "/w/app"), ("default", "/w/osctl")];

    #[test]
    fn the_instance_of_the_current_folder_is_chosen() {
        for scope in [
            EXISTING,
            PROJECT,
            InstanceScope::Optional,
            InstanceScope::OfFolder,
        ] {
            assert_eq!(choose(TWO, "/w/app", scope), "app");
            assert_eq!(choose(TWO, "/w/osctl/src/deep", scope), "default");
        }
        let nested = [("outer", "/w"), ("inner", "/w/app")];
        assert_eq!(choose(&nested, "/w/app/src", EXISTING), "inner");
        assert_eq!(choose(&nested, "/w/apple", EXISTING), "outer");
    }

    #[test]
    fn elsewhere_the_only_instance_is_chosen_and_several_are_listed() {
        assert_eq!(choose(&[("blue", "/w/blue")], "/tmp", EXISTING), "blue!");
        assert_eq!(choose(&[("default", "")], "/tmp", EXISTING), "default!");
        assert_eq!(
            choose(TWO, "/tmp", EXISTING),
            "the current folder belongs to no instance; the instances are `app` (`/w/app`), `default` (`/w/osctl`) | name the instance, such as `osctl --instance app …`, or run the command in its folder"
        );
        assert_eq!(
            choose(TWO, "/tmp", InstanceScope::ExistingOrDefault),
            "default!"
        );
        assert_eq!(
            choose(&[("blue", "/w/blue")], "/tmp", InstanceScope::OfFolder),
            "the current folder belongs to no instance; the only one is `blue` (`/w/blue`) | name the instance, such as `osctl --instance blue …`, or run the command in its folder"
        );
        assert_eq!(choose(&[], "/tmp", InstanceScope::OfFolder), "default");
        assert_eq!(choose(TWO, "/w/x", InstanceScope::Optional), "x");
        assert_eq!(choose(&[], "/w/x", EXISTING), "default");
        let shared = [("a", "/w"), ("b", "/w")];
        for scope in [EXISTING, PROJECT, InstanceScope::ExistingOrDefault] {
            let text = choose(&shared, "/w", scope);
            assert!(text.starts_with("several instances have this project"));
        }
    }

    #[test]
    fn up_takes_a_new_instance_for_a_new_project() {
        assert_eq!(choose(&[], "/w/app", PROJECT), "default");
        assert_eq!(choose(&[("blue", "/w/b")], "/w/app", PROJECT), "default");
        assert_eq!(choose(TWO, "/w/my app", PROJECT), "my-app");
        let named = InstanceScope::Project(Some(Path::new("/w/app")));
        assert_eq!(choose(TWO, "/w/osctl", named), "app!");
        assert_eq!(choose(TWO, "/w/app/src", named), "app");
        let other = InstanceScope::Project(Some(Path::new("other")));
        assert_eq!(choose(TWO, "/w", other), "other!");
        // A folder in a project is a project of its own if `--project` names it.
        let beneath = InstanceScope::Project(Some(Path::new("src")));
        assert_eq!(choose(TWO, "/w/app", beneath), "src!");
    }

    #[test]
    fn folders_of_the_same_name_have_instances_of_different_names() {
        let all = known(TWO);
        let first = make_name(&all, Path::new("/x/app"));
        assert_eq!(first, make_name(&all, Path::new("/x/app")));
        assert!(first.starts_with("app-") && first != make_name(&all, Path::new("/y/app")));
        for reserved in ["/w/keeper", "/w/tmp", "/w/default"] {
            let name = make_name(&all, Path::new(reserved));
            assert!(name.contains('-') && is_instance_name(&name), "{name}");
        }
    }

    #[test]
    fn every_folder_name_gives_an_instance_name() {
        for (folder, name) in [
            ("/w/app", "app"),
            ("/w/My App (2)", "my-app-2"),
            ("/w/.dot_file__x", "dot_file_x"),
            ("/w/ünïcode", "n-code"),
            ("/w/__", "project"),
            ("/w/日本", "project"),
            ("/", "project"),
        ] {
            assert_eq!(name_from_folder(Path::new(folder)), name);
        }
        let long = name_from_folder(Path::new(&"a-".repeat(60)));
        assert!(long.len() < MAX_FOLDER_NAME_CHARS && is_instance_name(&long));
    }

    #[test]
    fn hints_name_the_instance_where_a_command_would_use_another_one() {
        let home = tempfile::tempdir().unwrap();
        let folders = Folders::beneath(home.path());
        let named = |name: &str| find_instance(Some(name), EXISTING, &folders).unwrap();
        assert_eq!(
            named("blue").osctl_command("up"),
            "osctl --instance blue up"
        );
        assert_eq!(named("default").osctl_command("up"), "osctl up");
        let other = folders.state.join("other");
        std::fs::create_dir_all(&other).unwrap();
        std::fs::write(other.join("instance.json"), "{}").unwrap();
        let command = named("default").osctl_command("up");
        assert_eq!(command, "osctl --instance default up");
        assert!(find_instance(Some("A"), EXISTING, &folders).is_err());
    }
}
