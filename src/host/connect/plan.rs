//! The file changes that `connect` and `disconnect` make.

use super::change::{self, BackupAction, ClientFileChange};
use super::client::{ClientFileFormat, ConnectClient};
use super::config_paths::ClientConfigPaths;
use super::edit;
use super::launch_command::{self, LaunchCommand};
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A client's current file.
#[derive(Debug)]
struct ClientFile {
    file: PathBuf,
    text: Option<String>,
    format: ClientFileFormat,
    entry: Option<Value>,
}

/// Adds an entry with this name to the client's file, and keeps the rest.
///
/// # Errors
/// When the file cannot be read, or another program's entry has the name.
pub(crate) fn plan_connect(
    client: &ConnectClient,
    name: &str,
    call: &LaunchCommand,
    places: &ClientConfigPaths,
) -> Result<ClientFileChange> {
    let found = read_client_file(client, name, places)?;
    let entry = client.make_entry(name, call);
    let is_there = found.entry.is_some();
    if found.entry == Some(entry.to_value()) {
        return Ok(found.into_unchanged(BackupAction::None));
    }
    let text = found.text.as_deref().unwrap_or_default();
    let after = edit::insert_entry(found.format, text, name, &entry);
    let after = after.map_err(|why| edit_error(&found.file, &why))?;
    let backup = backup_path_of(&found.file, name);
    // A file that already has an entry is not the original from before osctl.
    // An agent could change a backup in a project.
    let is_kept = found.text.is_none() || is_there || places.project_file().is_some();
    Ok(ClientFileChange {
        backup: match is_kept {
            true => BackupAction::None,
            false => BackupAction::Create(backup),
        },
        folders: Vec::new(),
        file: found.file,
        before: found.text,
        after: Some(after),
    })
}

/// Removes the entry. If nothing else has changed since, restores the original file byte by byte.
///
/// # Errors
/// When the file cannot be read, or the entry belongs to another program.
pub(crate) fn plan_disconnect(
    client: &ConnectClient,
    name: &str,
    places: &ClientConfigPaths,
) -> Result<ClientFileChange> {
    let found = read_client_file(client, name, places)?;
    let backup = backup_path_of(&found.file, name);
    let backup_text = match places.project_file() {
        Some(_) => None,
        None => change::read_optional_file(&backup)?,
    };
    let dropped = match backup_text {
        Some(_) => BackupAction::Remove(backup),
        None => BackupAction::None,
    };
    let Some(text) = &found.text else {
        // Keep the backup: without the file, it may be the only copy.
        return Ok(found.into_unchanged(BackupAction::None));
    };
    let Some(entry) = &found.entry else {
        return Ok(found.into_unchanged(dropped));
    };
    let written = launch_command::entry_command(entry).map(|call| client.make_entry(name, &call));
    let was = |original: &str| {
        let written = written.as_ref()?;
        let form = detect_format(client, original).ok()?;
        edit::insert_entry(form, original, name, written).ok()
    };
    if let Some(original) = &backup_text
        && was(original).as_ref() == Some(text)
    {
        return Ok(ClientFileChange {
            file: found.file,
            before: found.text,
            after: backup_text,
            backup: dropped,
            folders: Vec::new(),
        });
    }
    let is_alone = backup_text.is_none() && was("").as_ref() == Some(text);
    let backup_servers = backup_text
        .as_deref()
        .map(|text| read_servers(client, text));
    // The backup of a second entry has the file that osctl created for the first one.
    let is_created = backup_servers.as_ref().is_none_or(has_only_bridges);
    let holder_stays = !is_created && backup_servers.is_some_and(|servers| !servers.is_null());
    let after = match is_alone {
        true => None,
        false => {
            let after = edit::remove_entry(found.format, text, name, holder_stays);
            Some(after.map_err(|why| edit_error(&found.file, &why))?)
        }
    };
    Ok(ClientFileChange {
        folders: places.own_folders(&found.file),
        file: found.file,
        before: found.text.clone(),
        // Remove a file that osctl created and that is empty now.
        after: after.filter(|after| !(is_created && is_empty_file(after))),
        backup: dropped,
    })
}

/// Whether the client's file has osctl's entry with this name.
pub(crate) fn is_connected(client: &ConnectClient, name: &str, places: &ClientConfigPaths) -> bool {
    read_client_file(client, name, places).is_ok_and(|found| found.entry.is_some())
}

fn read_client_file(
    client: &ConnectClient,
    name: &str,
    places: &ClientConfigPaths,
) -> Result<ClientFile> {
    let file = client.config_file(places, name);
    // An agent can write in the project: a link could lead to the user's other files.
    if places.project_file().is_some() && file.is_symlink() {
        let message = format!("`{}` is a link; it was not changed", file.display());
        let hint = "remove the link; an agent that works in the project may have made it";
        return Err(Error::precondition(message, hint).into());
    }
    let text = change::read_optional_file(&file)?;
    let read = text.as_deref().unwrap_or_default();
    let form = detect_format(client, read).map_err(|why| edit_error(&file, &why))?;
    let settings = edit::parse_settings(form, read).map_err(|why| edit_error(&file, &why))?;
    let entry = edit::find_entry(form, &settings, name).cloned();
    if entry
        .as_ref()
        .is_some_and(|entry| !launch_command::is_bridge_entry(entry))
    {
        let message = format!(
            "the server `{name}` in `{}` does not belong to osctl; it was not changed",
            file.display()
        );
        let hint = "rename that server, or remove it yourself";
        return Err(Error::precondition(message, hint).into());
    }
    Ok(ClientFile {
        file,
        text,
        format: form,
        entry,
    })
}

impl ClientFile {
    fn into_unchanged(self, backup: BackupAction) -> ClientFileChange {
        ClientFileChange {
            file: self.file,
            after: self.text.clone(),
            before: self.text,
            backup,
            folders: Vec::new(),
        }
    }
}

/// The format of a client's file, which for some clients depends on its contents.
fn detect_format(
    client: &ConnectClient,
    text: &str,
) -> Result<ClientFileFormat, edit::EditRefusal> {
    let usual = client.file_format(&Value::Null);
    Ok(client.file_format(&edit::parse_settings(usual, text)?))
}

/// The map that holds the servers in a text; null if there is none.
fn read_servers(client: &ConnectClient, text: &str) -> Value {
    let form = detect_format(client, text);
    let settings = form.and_then(|form| Ok((form, edit::parse_settings(form, text)?)));
    let servers = settings.map(|(form, settings)| edit::find_servers(form, &settings).cloned());
    servers.ok().flatten().unwrap_or_default()
}

/// Whether a map of servers has only entries of osctl.
fn has_only_bridges(servers: &Value) -> bool {
    let entries = servers.as_object().filter(|entries| !entries.is_empty());
    entries.is_some_and(|entries| entries.values().all(launch_command::is_bridge_entry))
}

/// Whether a file has no setting and no comment.
fn is_empty_file(text: &str) -> bool {
    let text: String = text.split_whitespace().collect();
    text.is_empty() || text == "{}"
}

/// The path of the backup, beside the file and named after the entry.
fn backup_path_of(file: &Path, name: &str) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(format!(".before-{name}"));
    path.into()
}

fn edit_error(file: &Path, why: &str) -> anyhow::Error {
    let message = format!("`{}` was not changed: {why}", file.display());
    Error::precondition(
        message,
        "fix the file and run the command again, or add `osctl mcp stdio` to the file by hand",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::{is_connected, plan_connect, plan_disconnect};
    use crate::host::connect::{CONNECT_CLIENTS, ClientConfigPaths, ConnectClient, LaunchCommand};
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    const NAME: &str = "osctl-NAME";

    fn bridge(narrow: &[&str]) -> LaunchCommand {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        LaunchCommand::for_bridge(
            "/usr/local/bin/osctl".into(),
            words(&["--instance", "NAME"]),
            words(narrow),
            BTreeMap::from([("HOST_HOME".into(), "/home/me".into())]),
        )
    }

    /// Connects the client, and returns the text of its file.
    fn connect(client: &ConnectClient, places: &ClientConfigPaths, narrow: &[&str]) -> String {
        let change = plan_connect(client, NAME, &bridge(narrow), places).unwrap();
        change.apply().unwrap();
        fs::read_to_string(change.file).unwrap()
    }

    fn disconnect(client: &ConnectClient, places: &ClientConfigPaths) {
        let change = plan_disconnect(client, NAME, places).unwrap();
        change.apply().unwrap();
    }

    /// `tests/clients/CLIENT/` holds a user's file (`before`), the file after `connect` (`after`), a file that
    /// `connect` creates (`new`), and one with selected servers and tools (`narrowed`).
    fn agreed_text(client: &ConnectClient, kind: &str, file: &Path) -> Option<String> {
        let folder = PathBuf::from("tests/clients").join(client.name);
        let agreed = folder.join(kind).with_extension(file.extension()?);
        fs::read_to_string(agreed).ok()
    }

    #[test]
    fn each_client_gets_the_agreed_bytes_and_disconnect_takes_them_back() {
        let narrow = [
            "--servers=filesystem,linux",
            "--tools=filesystem__read_*,linux__*",
        ];
        for client in &CONNECT_CLIENTS {
            let home = tempfile::tempdir().unwrap();
            let places = ClientConfigPaths::for_test(home.path(), "linux", |_| None);
            let file = client.config_file(&places, NAME);
            let agreed = |kind| agreed_text(client, kind, &file);
            for (kind, narrow) in [("new", &[][..]), ("narrowed", &narrow)] {
                let text = connect(client, &places, narrow);
                assert_eq!(Some(&text), agreed(kind).as_ref(), "{client:?}");
                assert_eq!(text, connect(client, &places, narrow));
            }
            assert!(is_connected(client, NAME, &places), "{client:?}");
            assert!(!is_connected(client, "osctl-other", &places), "{client:?}");
            disconnect(client, &places);
            assert!(!is_connected(client, NAME, &places), "{client:?}");
            let left = fs::read_dir(home.path()).unwrap().count();
            assert_eq!(left, 0, "{client:?} left a folder");
            let Some(before) = agreed("before") else {
                assert_eq!(client.name, "continue");
                continue;
            };
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &before).unwrap();
            assert_eq!(Some(connect(client, &places, &[])), agreed("after"));
            disconnect(client, &places);
            assert_eq!(fs::read_to_string(&file).unwrap(), before, "{client:?}");
        }
    }

    #[test]
    fn a_file_that_osctl_created_is_removed_with_its_last_entry() {
        let home = tempfile::tempdir().unwrap();
        let places = ClientConfigPaths::for_test(home.path(), "linux", |_| None);
        let cursor = ConnectClient::find("cursor").unwrap();
        let file = cursor.config_file(&places, NAME);
        let apply = |name: &str, is_connect: bool| {
            let change = match is_connect {
                true => plan_connect(cursor, name, &bridge(&[]), &places),
                false => plan_disconnect(cursor, name, &places),
            };
            change.unwrap().apply().unwrap();
        };
        apply(NAME, true);
        apply("osctl-other", true);
        apply(NAME, false);
        apply("osctl-other", false);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        // The client has formatted the file.
        apply(NAME, true);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("  ", "    ")).unwrap();
        apply(NAME, false);
        assert!(!file.exists());
        // The user's empty file stays.
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "{\"mcpServers\": {}}\n").unwrap();
        apply(NAME, true);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("  ", "    ")).unwrap();
        apply(NAME, false);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("mcpServers"), "{text}");
    }

    #[cfg(unix)]
    #[test]
    fn a_projects_file_gets_the_entry_unless_it_is_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let places = ClientConfigPaths::for_project(folder.path(), folder.path());
        let client = ConnectClient::find("claude-code").unwrap();
        let file = folder.path().join(".mcp.json");
        let before = "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"x\"}\n  }\n}\n";
        fs::write(&file, before).unwrap();
        let text = connect(client, &places, &[]);
        assert!(
            text.contains("\"a\": {\"command\": \"x\"}") && text.contains(NAME),
            "{text}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no backup");
        disconnect(client, &places);
        let after: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(
            after,
            serde_json::from_str::<serde_json::Value>(before).unwrap()
        );
        fs::remove_file(&file).unwrap();
        fs::write(folder.path().join("secret.json"), "{}").unwrap();
        std::os::unix::fs::symlink("secret.json", &file).unwrap();
        let refused = plan_connect(client, NAME, &bridge(&[]), &places).unwrap_err();
        assert!(refused.to_string().contains("is a link"), "{refused}");
        assert!(plan_disconnect(client, NAME, &places).is_err());
    }

    #[test]
    fn opencode_keeps_its_file_with_comments_and_the_servers_of_its_second_version() {
        let home = tempfile::tempdir().unwrap();
        let places = ClientConfigPaths::for_test(home.path(), "linux", |_| None);
        let opencode = ConnectClient::find("opencode").unwrap();
        let folder = home.path().join(".config/opencode");
        fs::create_dir_all(&folder).unwrap();
        let entry = "{\n        \"type\": \"local\",\n        \"command\": [\"/usr/local/bin/osctl\", \"--instance\", \"NAME\", \"mcp\", \"stdio\"],\n        \"environment\": {\n          \"HOST_HOME\": \"/home/me\"\n        }\n      }";
        let nested = format!(
            "// mine\n{{\n  \"mcp\": {{\n    \"servers\": {{\n      \"osctl-NAME\": {entry}\n    }}\n  }}\n}}\n"
        );
        let file = folder.join("opencode.jsonc");
        let before = "// mine\n{\n  \"mcp\": {\n    \"servers\": {}\n  }\n}\n";
        fs::write(&file, before).unwrap();
        assert_eq!(connect(opencode, &places, &[]), nested);
        disconnect(opencode, &places);
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        // A server of the first version that is named `servers`.
        let first = "{\"mcp\": {\"servers\": {\"type\": \"local\", \"command\": []}}}\n";
        fs::write(&file, first).unwrap();
        let text = connect(opencode, &places, &[]);
        let settings: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(settings["mcp"][NAME].is_object(), "{text}");
    }
}
