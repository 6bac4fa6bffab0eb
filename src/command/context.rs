//! The context of every host command: the instance, its configuration, its engine, its companion.

use crate::config::{EngineChoice, ResolvedConfig};
use crate::engine::{Docker, EmbeddedEngine, Engine, EngineAddress, EngineProgress};
use crate::error::{Error, Result};
use crate::host::agent_folders::canonicalize_existing;
use crate::host::client::{CompanionClient, not_running_error};
use crate::host::engine_diagnosis::explain_by_engine;
use crate::host::folders::Folders;
use crate::host::instance::{Instance, InstanceRecord};
use crate::host::mount_safety::check_config_file;
use crate::host::path_resolver::PathResolver;
use crate::host::provision::{self, EngineFix, InstallConsent};
use crate::protocol::quote::quote_word;
use crate::ui::{Ui, WorkSpinner};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

/// What names the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConfigFileSource {
    /// `--config`.
    Flag,
    /// `OSCTL_CONFIG`.
    Variable,
    /// The record of the instance, or nothing: the default file.
    Record,
}

#[derive(Debug)]
pub(crate) struct CommandContext {
    pub(crate) ui: Ui,
    pub(crate) folders: Folders,
    pub(crate) instance: Instance,
    pub(super) config_file: PathBuf,
    pub(super) config_file_source: ConfigFileSource,
    /// Warnings that were printed, which are not repeated; `None` if the command must not print warnings.
    warned: Option<Mutex<BTreeSet<String>>>,
}

impl CommandContext {
    /// Selects the configuration file: the given one, else the one recorded for the instance, else the default one.
    ///
    /// # Errors
    /// When the given path can't be made absolute.
    pub(crate) fn new(
        ui: Ui,
        folders: Folders,
        instance: Instance,
        config: Option<&Path>,
    ) -> Result<Self> {
        let (config_file, config_file_source) = match config {
            Some(given) => {
                let variable = env::var_os("OSCTL_CONFIG");
                let source = match variable.is_some_and(|value| given == Path::new(&value)) {
                    true => ConfigFileSource::Variable,
                    false => ConfigFileSource::Flag,
                };
                (absolute_path(given, &folders)?, source)
            }
            // If the record can't be read, the command that needs it reports the error.
            None => {
                let record = instance.read_record().ok().flatten();
                let recorded = record.and_then(|record| record.applied.config_file);
                let file = recorded.unwrap_or_else(|| folders.config_file());
                (file, ConfigFileSource::Record)
            }
        };
        Ok(Self {
            ui,
            instance,
            config_file,
            config_file_source,
            folders,
            warned: Some(Mutex::default()),
        })
    }

    /// Resolves paths that the user names, which may contain links created by agents.
    pub(crate) fn path_resolver(&self) -> Result<PathResolver> {
        PathResolver::new(&self.instance, &self.folders)
    }

    /// The same context without warnings.
    pub(super) fn without_warnings(self) -> Self {
        Self {
            warned: None,
            ..self
        }
    }

    /// The configuration file if it is not the default one.
    pub(super) fn own_config_file(&self) -> Option<&Path> {
        (self.config_file != self.folders.config_file()).then_some(&self.config_file)
    }

    /// The configuration file if it may be read; the error says why not. The default file may be read even if the
    /// agents' folders are unknown, unless its path contains links, because no project and no mount contains its
    /// folder.
    ///
    /// # Errors
    /// When an agent can write the file, or the folders of the agents are unknown.
    pub(super) fn trusted_config_file(&self) -> Result<&Path> {
        let is_without_links = canonicalize_existing(&self.config_file) == self.config_file;
        match self.path_resolver() {
            // The record of an instance can't be read.
            Err(_) if self.own_config_file().is_none() && is_without_links => {}
            resolver => check_config_file(&self.config_file, &resolver?)?,
        }
        Ok(&self.config_file)
    }

    /// The configuration for commands that can work without the project's file and the configuration file. A project's
    /// file that is invalid, and a configuration file that is missing or that an agent can write, are ignored with a
    /// warning. `flags` are dotted keys with their values.
    ///
    /// # Errors
    /// When the user's own file, a variable or a flag is invalid.
    pub(crate) fn lenient_config(
        &self,
        project: Option<&Path>,
        flags: Vec<(&str, Value)>,
    ) -> Result<ResolvedConfig> {
        let (resolved, error) = self.load_config(project, flags)?;
        if let Some(error) = error {
            self.warn_once(describe_ignored(&error));
        }
        Ok(resolved)
    }

    /// Like [`CommandContext::lenient_config`], and returns the error of the project's file. The caller reports this
    /// error; later calls do not repeat it as a warning.
    ///
    /// # Errors
    /// As [`CommandContext::lenient_config`].
    pub(super) fn config_with_error(
        &self,
        project: Option<&Path>,
        flags: Vec<(&str, Value)>,
    ) -> Result<(ResolvedConfig, Option<Error>)> {
        let (resolved, error) = self.load_config(project, flags)?;
        if let (Some(warned), Some(error)) = (&self.warned, &error) {
            warned.lock().insert(describe_ignored(error));
        }
        Ok((resolved, error))
    }

    fn load_config(
        &self,
        project: Option<&Path>,
        flags: Vec<(&str, Value)>,
    ) -> Result<(ResolvedConfig, Option<Error>)> {
        if let Err(error) = self.check_config_exists() {
            let hint = error.hint().unwrap_or_default();
            self.warn_once(format!("{error}; {hint}"));
        }
        let file = self.trusted_config_file();
        let file = file
            .inspect_err(|error| self.warn_once(describe_unread_config(error)))
            .ok();
        let name = &self.instance.name;
        let (resolved, error) =
            ResolvedConfig::load_ignoring_bad_project(file, project, name, flags)?;
        self.warn_of(&resolved);
        Ok((resolved, error))
    }

    /// The configuration for commands that create an image or a container.
    ///
    /// # Errors
    /// As [`CommandContext::lenient_config`], and when the project's file is invalid, or the configuration file is
    /// missing or an agent can write it.
    pub(crate) fn complete_config(
        &self,
        project: Option<&Path>,
        flags: Vec<(&str, Value)>,
    ) -> Result<ResolvedConfig> {
        self.check_config_exists()?;
        let (file, name) = (self.trusted_config_file()?, &self.instance.name);
        let resolved = ResolvedConfig::load(file, project, name, flags)?;
        self.warn_of(&resolved);
        Ok(resolved)
    }

    /// Checks a file that was named or recorded; the default file may be missing.
    ///
    /// # Errors
    /// When the file does not exist.
    pub(super) fn check_config_exists(&self) -> std::result::Result<(), Error> {
        let Some(file) = self.own_config_file().filter(|file| !file.exists()) else {
            return Ok(());
        };
        let name = quote_word(file.as_os_str().as_encoded_bytes(), false);
        let create = format!("create the file: `osctl --config {name} config init`");
        let (named_by, hint) = match self.config_file_source {
            ConfigFileSource::Flag => {
                let hint = format!("correct the name, or {create}");
                ("; `--config` names it", hint)
            }
            ConfigFileSource::Variable => {
                let hint = format!("`unset OSCTL_CONFIG`, correct the name, or {create}");
                ("; `OSCTL_CONFIG` names it", hint)
            }
            ConfigFileSource::Record => {
                let usual = self.folders.config_file();
                let up = format!("--config {} up", usual.display());
                let up = self.instance.osctl_command(&up);
                let hint = format!("restore the file, or run `{up}` to use the default file");
                ("", hint)
            }
        };
        let message = format!(
            "the configuration file `{}` does not exist{named_by}",
            file.display()
        );
        Err(Error::usage(message, hint))
    }

    fn warn_of(&self, resolved: &ResolvedConfig) {
        for warning in &resolved.warnings {
            self.warn_once(warning.clone());
        }
    }

    fn warn_once(&self, warning: String) {
        let Some(warned) = &self.warned else {
            return;
        };
        let mut warned = warned.lock();
        if !warned.contains(&warning) {
            self.ui.print_warning(&warning);
            warned.insert(warning);
        }
    }

    /// The record that the first `up` wrote.
    ///
    /// # Errors
    /// When `up` never created the instance.
    pub(crate) fn require_record(&self) -> Result<InstanceRecord> {
        self.instance
            .read_record()?
            .ok_or_else(|| self.never_up_error())
    }

    /// The error for an instance that was never up; its name may be mistyped if there are others.
    fn never_up_error(&self) -> anyhow::Error {
        let instance = &self.instance;
        let others = Instance::list_all(&self.folders).unwrap_or_default();
        if others.is_empty() {
            return not_running_error(instance);
        }
        let names: Vec<String> = others
            .iter()
            .map(|other| format!("`{}`", other.name))
            .collect();
        let (container, up) = (instance.container_name(), instance.osctl_command("up"));
        let hint = format!(
            "the instances are {}; `{up}` creates `{}`",
            names.join(", "),
            instance.name
        );
        Error::NeverUp { container, hint }.into()
    }

    /// Connects to the chosen engine, which must answer. An existing instance stays on its engine.
    pub(crate) async fn connect_engine(&self, choice: EngineChoice) -> Result<Engine> {
        let record = self.instance.read_record()?;
        if let (EngineChoice::Docker, Some(record)) = (choice, &record) {
            self.check_chosen(record)?;
            // Use the user's current certificates.
            return match (
                EngineAddress::find_chosen(&self.folders.home)?,
                &record.remote,
            ) {
                (Some(chosen), Some(_)) => Ok(Engine::Docker(Docker::connect_to(&chosen).await?)),
                _ => self.engine_of(record, choice).await,
            };
        }
        self.find_engine(choice).await
    }

    /// Like [`CommandContext::connect_engine`]; an engine that does not answer is installed or started if `may_install`
    /// permits it.
    pub(crate) async fn provided_engine(
        &self,
        choice: EngineChoice,
        may_install: InstallConsent<'_>,
        progress: &dyn EngineProgress,
    ) -> Result<Engine> {
        let missing = match self.connect_engine(choice).await {
            Err(error) if matches!(error.downcast_ref(), Some(Error::NoEngine { .. })) => error,
            found => return found,
        };
        let fix = EngineFix::detect();
        if fix == EngineFix::None || !may_install(fix.consent_question())? {
            return Err(missing);
        }
        let docker = provision::provision_engine(fix, &self.folders, progress).await?;
        Ok(Engine::Docker(docker))
    }

    /// Whether missing software may be installed: with `yes` without a question; never if the user can't be asked.
    pub(crate) fn may_install(
        &self,
        question: &str,
        yes: bool,
        work: &WorkSpinner,
    ) -> Result<bool> {
        match yes {
            false if self.ui.can_prompt() => work.suspend(|| self.ui.confirm(question, "--yes")),
            yes => Ok(yes),
        }
    }

    /// Connects to the engine of an instance.
    pub(crate) async fn engine_of(
        &self,
        record: &InstanceRecord,
        choice: EngineChoice,
    ) -> Result<Engine> {
        match &record.remote {
            Some(remote) => Ok(Engine::Docker(Docker::connect_to(&remote.address).await?)),
            None => {
                self.check_chosen(record)?;
                self.find_engine(choice).await
            }
        }
    }

    async fn find_engine(&self, choice: EngineChoice) -> Result<Engine> {
        Ok(match choice {
            EngineChoice::Docker => {
                Engine::Docker(Docker::find(&self.folders.home, EngineFix::detect().hint()).await?)
            }
            EngineChoice::Embedded => Engine::Embedded(EmbeddedEngine::new(&self.folders.state)),
        })
    }

    /// Checks that the chosen engine is the one of the instance, if one of the two is on another machine.
    ///
    /// # Errors
    /// When the user has chosen another engine.
    fn check_chosen(&self, record: &InstanceRecord) -> Result<()> {
        let Some(chosen) = EngineAddress::find_chosen(&self.folders.home)? else {
            return Ok(());
        };
        let own = match &record.remote {
            Some(remote) if remote.address.url == chosen.url => return Ok(()),
            Some(remote) => format!("the engine `{}`", remote.address),
            None if chosen.remote_host().is_none() => return Ok(()),
            None => "this machine".into(),
        };
        let message = format!(
            "instance `{}` runs on {own}, but the selected engine is `{chosen}`",
            self.instance.name
        );
        let hint = "run `unset DOCKER_HOST` and `docker context use default`, or choose another `--instance`";
        Err(Error::precondition(message, hint).into())
    }

    /// A client of the companion's API.
    pub(crate) fn companion_client(&self) -> Result<CompanionClient> {
        let record = self.require_record()?;
        let config = self
            .lenient_config(Some(&record.project), Vec::new())?
            .config;
        let bind = record.bind_address(config.bind);
        CompanionClient::new(&self.instance, &record, bind)
    }

    /// Returns the cause as the engine reports it, or the same error if the engine does not answer.
    pub(crate) async fn explain_error(&self, error: anyhow::Error) -> anyhow::Error {
        let engine = match self.require_record() {
            Ok(record) => self.connect_engine(record.engine).await,
            Err(error) => Err(error),
        };
        match engine {
            Ok(engine) => explain_by_engine(error, &self.instance, &engine).await,
            // Report the original error, not why the engine was not reached.
            Err(_) => error,
        }
    }
}

/// Makes the path independent of the working directory. Only the folder is resolved: the file itself may be a link that
/// changes.
fn absolute_path(file: &Path, folders: &Folders) -> Result<PathBuf> {
    let path = std::path::absolute(file)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(path);
    };
    Ok(match folder.canonicalize() {
        Ok(folder) if path != folders.config_file() => folder.join(name),
        _ => path,
    })
}

fn describe_ignored(error: &Error) -> String {
    let hint = error.hint().unwrap_or_default();
    format!("{error}; osctl ignores the whole file; {hint}")
}

/// Why the configuration file is ignored.
fn describe_unread_config(error: &anyhow::Error) -> String {
    let hint = error.downcast_ref().and_then(Error::hint);
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("the configuration file is ignored: {error:#}{hint}")
}
