//! One instance: its names, its folder with its record, its lock.
//!
//! The first instance is `default`; another instance's name is appended to the name of everything it owns.

use super::applied_settings::AppliedSettings;
use super::folders::{Folders, ensure_private_folder, write_private};
use crate::config::{EngineChoice, PortsConfig, is_instance_name};
use crate::engine::{Container, Engine, EngineAddress, OWNER_LABEL, create_lock_file};
use crate::error::{Error, Result};
use crate::protocol::desktop::VNC_PASSWORD_FILE;
use crate::protocol::evolve::portless_network;
use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Label of containers and networks: the instance they belong to.
pub(crate) const INSTANCE_LABEL: &str = OWNER_LABEL;

/// The name of the first instance, which its containers and folders do not contain.
pub(crate) const DEFAULT_INSTANCE: &str = "default";

/// Reserved: an instance of this name would use the image name of the keepers.
pub(super) const KEEPER_NAME: &str = "keeper";

/// Reserved: folders of osctl beside those of the instances.
const STATE_FOLDER_NAMES: [&str; 2] = ["embedded", "tmp"];

/// The file that one osctl locks while it works on an instance.
const INSTANCE_LOCK_FILE: &str = "lock";

#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(super) folder: PathBuf,
    home: PathBuf,
    /// Whether the commands in hints name the instance. In the current folder, they would otherwise use another one.
    is_named_in_hints: bool,
}

/// The values that the first `up` fixed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    pub(crate) project: PathBuf,
    pub(crate) engine: EngineChoice,
    pub(crate) ports: PortsConfig,
    /// Whether its container may checkpoint processes.
    #[serde(default)]
    pub(crate) criu: bool,
    /// The location of its engine, if not on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<RemoteEngine>,
    /// The settings with which its container was last created.
    #[serde(default)]
    pub(crate) applied: AppliedSettings,
}

impl InstanceRecord {
    /// The address on which the container's ports are published; `configured` if an earlier version created the
    /// container.
    pub(crate) fn bind_address(&self, configured: IpAddr) -> IpAddr {
        self.applied.bind.unwrap_or(configured)
    }

    /// The engine's machine, if it is not this one.
    pub(crate) fn engine_machine(&self) -> Option<&str> {
        self.remote.as_ref()?.address.remote_host()
    }
}

/// An engine on another machine, where volumes replace this machine's folders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RemoteEngine {
    pub(crate) address: EngineAddress,
    /// Whether the project was copied there. Since the copy, the volume is the project.
    #[serde(default)]
    pub(crate) copied: bool,
}

/// Lock held while an instance is changed.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    _file: File,
}

impl Instance {
    /// # Errors
    /// When a container's name cannot contain the name.
    pub(crate) fn new(name: &str, folders: &Folders) -> Result<Self> {
        if is_reserved(name) {
            return Err(Error::usage(
                format!("the instance name `{name}` is reserved for osctl"),
                "choose another name with `--instance NAME`",
            )
            .into());
        }
        if !is_instance_name(name) {
            return Err(Error::usage(
                format!("`{name}` is not a valid instance name"),
                "use at most 40 lower-case letters, digits, `-` and `_`",
            )
            .into());
        }
        Ok(Self {
            name: name.into(),
            folder: folders.state.join(name),
            home: folders.home.clone(),
            is_named_in_hints: name != DEFAULT_INSTANCE,
        })
    }

    /// The same instance, with the commands in hints that name it or not.
    pub(crate) fn with_name_in_hints(self, is_named_in_hints: bool) -> Self {
        Self {
            is_named_in_hints,
            ..self
        }
    }

    /// The name if the commands in hints name the instance.
    pub(crate) fn hint_name(&self) -> Option<&str> {
        self.is_named_in_hints.then_some(self.name.as_str())
    }

    /// The instances for which `up` ever ran, by name.
    ///
    /// # Errors
    /// When the state folder cannot be read.
    pub(crate) fn list_all(folders: &Folders) -> Result<Vec<Self>> {
        let entries = match fs::read_dir(&folders.state) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e).context("reading the state folder"),
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry?;
            // A folder whose name is not valid for an instance belongs to another program.
            let instance = Self::new(&entry.file_name().to_string_lossy(), folders);
            all.extend(
                instance
                    .ok()
                    .filter(|i| i.folder.join("instance.json").is_file()),
            );
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn suffixed_name(&self, base: &str) -> String {
        if self.name == DEFAULT_INSTANCE {
            base.into()
        } else {
            format!("{base}-{}", self.name)
        }
    }

    pub(crate) fn container_name(&self) -> String {
        self.suffixed_name("os-host")
    }

    /// The host name in the URLs of its web pages. Browsers resolve it to loopback, and send it no cookies of other
    /// local applications, which they would send to `127.0.0.1` on any port.
    pub(crate) fn web_page_host(&self) -> String {
        format!("{}.localhost", self.container_name())
    }

    /// The name of the old container during a replacement. It has a dot, which no instance's name has.
    pub(crate) fn replaced_container_name(&self) -> String {
        format!("{}.old", self.container_name())
    }

    /// The keeper's container, which replaces the instance's container.
    pub(crate) fn keeper_container_name(&self) -> String {
        self.suffixed_name("os-keeper")
    }

    /// The volume with the keeper's state.
    pub(crate) fn keeper_state_volume(&self) -> String {
        self.suffixed_name("osctl-keeper")
    }

    /// The volume with the agent socket `keeper.sock`, at `/agent-socket` in the keeper and `/run/os` in the container.
    pub(crate) fn keeper_socket_volume(&self) -> String {
        self.suffixed_name("osctl-agent-socket")
    }

    /// All volumes of the keeper, also that of its socket before 0.1.0.
    pub(crate) fn keeper_volumes(&self) -> [String; 3] {
        [
            self.keeper_state_volume(),
            self.keeper_socket_volume(),
            self.suffixed_name("osctl-door"),
        ]
    }

    /// The volumes that replace [`Instance::files_folder`], [`Instance::data_folder`] and the project if the engine is
    /// on another machine.
    pub(crate) fn volume_names(&self) -> [String; 3] {
        ["osctl-files", "osctl-data", "osctl-project"].map(|base| self.suffixed_name(base))
    }

    pub(crate) fn network_name(&self) -> String {
        self.suffixed_name("osctl")
    }

    /// The network on which the keeper starts a container whose ports another program uses.
    pub(crate) fn portless_network(&self) -> String {
        portless_network(&self.network_name())
    }

    pub(crate) fn image_name(&self) -> String {
        self.suffixed_name("os")
    }

    /// `osctl VERB` for this instance, for use in hints.
    pub(crate) fn osctl_command(&self, verb: &str) -> String {
        match self.hint_name() {
            None => format!("osctl {verb}"),
            Some(name) => format!("osctl --instance {name} {verb}"),
        }
    }

    /// The home folder of the instance's owner.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Persistent files, `/root/host` in the container.
    pub(crate) fn files_folder(&self) -> PathBuf {
        self.home
            .join("projects")
            .join(self.suffixed_name("docker_persistence"))
    }

    /// Persistent state, `/data` in the container.
    pub(crate) fn data_folder(&self) -> PathBuf {
        self.home.join(self.suffixed_name(".mcp-state"))
    }

    /// Exists while the project is being copied to another machine.
    pub(crate) fn project_copy_marker(&self) -> PathBuf {
        self.folder.join("copying")
    }

    /// Figures for which no destination was given.
    pub(crate) fn figures_folder(&self) -> PathBuf {
        self.folder.join("figures")
    }

    /// The files from which programs run code in the project, as the last `up` found them.
    pub(crate) fn autorun_baseline(&self) -> PathBuf {
        self.folder.join("autorun.json")
    }

    /// The input history of the console.
    pub(crate) fn console_history_file(&self) -> PathBuf {
        self.folder.join("history")
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.folder.join("token")
    }

    /// The password for VNC clients.
    pub(crate) fn vnc_password_file(&self) -> PathBuf {
        self.folder.join(VNC_PASSWORD_FILE)
    }

    /// # Errors
    /// When the record exists and cannot be read.
    pub(crate) fn read_record(&self) -> Result<Option<InstanceRecord>> {
        self.read_state_file("instance.json")
    }

    /// The contents of a file of the state folder.
    pub(super) fn read_state_file<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.folder.join(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.unreadable_error(&path, &e).into()),
        };
        let record = serde_json::from_slice(&text).map_err(|e| self.unreadable_error(&path, &e))?;
        Ok(Some(record))
    }

    /// The error for a file of the state folder. While the instance's containers run, the contents that they write must
    /// not be taken for the user's.
    fn unreadable_error(&self, path: &Path, why: &dyn std::fmt::Display) -> Error {
        let hint = format!(
            "remove the instance's containers (`docker rm -f {} {}`) and the file, then run `{}`",
            self.container_name(),
            self.keeper_container_name(),
            self.osctl_command("up")
        );
        Error::precondition(format!("`{}` can't be read: {why}", path.display()), hint)
    }

    /// # Errors
    /// When the state folder cannot be written.
    pub(crate) fn save_record(&self, record: &InstanceRecord) -> Result<()> {
        write_private(
            &self.folder.join("instance.json"),
            &serde_json::to_vec_pretty(record)?,
        )
    }

    /// Copies the record, before its container is replaced. Overwrites an older copy.
    ///
    /// # Errors
    /// When the state folder cannot be written.
    pub(crate) fn back_up_record(&self) -> Result<()> {
        match self.read_record()? {
            Some(record) => write_private(
                &self.record_backup_path(),
                &serde_json::to_vec_pretty(&record)?,
            ),
            None => match fs::remove_file(self.record_backup_path()) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(e).context("deleting the saved record")
                }
                _ => Ok(()),
            },
        }
    }

    /// Makes the copied record the current one again; does nothing if there is no copy.
    ///
    /// # Errors
    /// When the state folder cannot be written.
    pub(crate) fn restore_record(&self) -> Result<()> {
        match fs::rename(self.record_backup_path(), self.folder.join("instance.json")) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(e).context("restoring the saved record")
            }
            _ => Ok(()),
        }
    }

    fn record_backup_path(&self) -> PathBuf {
        self.folder.join("replaced.json")
    }

    /// Removes all state of the instance on the host; the person's files stay.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub(crate) fn remove_host_state(&self) -> Result<()> {
        for folder in [self.data_folder(), self.folder.clone()] {
            match fs::remove_dir_all(&folder) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::precondition(
                        format!("`{}` can't be removed: {e}", folder.display()),
                        format!("`sudo rm -r {}`", folder.display()),
                    )
                    .into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The container of the instance, if it exists.
    ///
    /// # Errors
    /// When the engine does not answer, and as of [`Instance::check_owner`].
    pub(crate) async fn find_container(&self, engine: &Engine) -> Result<Option<Container>> {
        let name = self.container_name();
        let found = engine.inspect(&name).await?;
        self.check_owner(&name, found)
    }

    /// # Errors
    /// [`Error::ForeignObject`] when the container belongs to another owner.
    pub(crate) fn check_owner(
        &self,
        name: &str,
        found: Option<Container>,
    ) -> Result<Option<Container>> {
        match found {
            Some(container) if container.labels.get(INSTANCE_LABEL) != Some(&self.name) => {
                Err(Error::ForeignObject {
                    what: "container",
                    name: name.into(),
                }
                .into())
            }
            found => Ok(found),
        }
    }

    /// # Errors
    /// [`Error::Locked`] while another osctl works on it.
    pub(crate) fn lock(&self) -> Result<InstanceLock> {
        // A user who may open the file may lock it.
        for folder in self.folder.parent().into_iter().chain([&*self.folder]) {
            ensure_private_folder(folder)?;
        }
        let file = create_lock_file(&self.folder.join(INSTANCE_LOCK_FILE))?;
        match file.try_lock() {
            Ok(()) => Ok(InstanceLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Locked {
                instance: self.name.clone(),
            }
            .into()),
            Err(TryLockError::Error(e)) => Err(e.into()),
        }
    }

    /// Removes the folder if it holds only the lock: a refused `up` has created it.
    pub(crate) fn remove_unused_folder(&self, _lock: &InstanceLock) {
        let Ok(mut entries) = fs::read_dir(&self.folder) else {
            return;
        };
        let is_lock = |entry: std::io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.file_name() == INSTANCE_LOCK_FILE)
        };
        if entries.all(is_lock) {
            let _ = fs::remove_file(self.folder.join(INSTANCE_LOCK_FILE));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Whether the name belongs to osctl.
pub(super) fn is_reserved(name: &str) -> bool {
    STATE_FOLDER_NAMES.contains(&name) || name == KEEPER_NAME
}

#[cfg(test)]
mod tests;
