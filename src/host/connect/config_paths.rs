//! Locations of the clients' configuration files, by platform and environment.

use std::path::{Path, PathBuf};

/// The file in a project in which Claude Code finds servers for everybody who works on the project.
pub(crate) const PROJECT_CLIENT_FILE: &str = ".mcp.json";

#[derive(Debug, Clone)]
pub(crate) struct ClientConfigPaths {
    home: PathBuf,
    platform: &'static str,
    lookup_variable: fn(&str) -> Option<PathBuf>,
    /// The file of a project in place of the user's file.
    project_file: Option<PathBuf>,
}

impl ClientConfigPaths {
    /// The locations for this platform and environment.
    pub(crate) fn for_home(home: &Path) -> Self {
        Self {
            home: home.into(),
            platform: std::env::consts::OS,
            lookup_variable: |name| {
                let value = std::env::var_os(name).map(PathBuf::from);
                // Ignore a relative path: each program would resolve it against its own working directory.
                value.filter(|path| path.is_absolute())
            },
            project_file: None,
        }
    }

    /// The file [`PROJECT_CLIENT_FILE`] of a project.
    pub(crate) fn for_project(home: &Path, project: &Path) -> Self {
        Self {
            project_file: Some(project.join(PROJECT_CLIENT_FILE)),
            ..Self::for_home(home)
        }
    }

    /// The file of a project, which agents can write.
    pub(super) fn project_file(&self) -> Option<&Path> {
        self.project_file.as_deref()
    }

    /// The folders of a client's file beneath the home folder, the innermost first; none of a project's file.
    pub(super) fn own_folders(&self, file: &Path) -> Vec<PathBuf> {
        if self.project_file.is_some() {
            return Vec::new();
        }
        let above = file.ancestors().skip(1);
        let is_beneath = |folder: &&Path| *folder != self.home && folder.starts_with(&self.home);
        above.take_while(is_beneath).map(Path::to_owned).collect()
    }

    /// Whether a folder exists and belongs to one program: the home folder belongs to all.
    pub(super) fn is_own_folder(&self, folder: &Path) -> bool {
        folder != self.home && folder.is_dir()
    }

    /// `path` in the folder that the variable names, otherwise `default_path` in the home folder.
    fn in_variable_folder(&self, variable: &str, path: &str, default_path: &str) -> PathBuf {
        match (self.lookup_variable)(variable) {
            Some(folder) => folder.join(path),
            None => self.home.join(default_path),
        }
    }

    /// `~/.config`, also on macOS, where command-line programs use it as well.
    fn in_config(&self, path: &str) -> PathBuf {
        self.in_variable_folder("XDG_CONFIG_HOME", path, &format!(".config/{path}"))
    }

    fn in_roaming_data(&self, path: &str) -> PathBuf {
        self.in_variable_folder("APPDATA", path, &format!("AppData/Roaming/{path}"))
    }

    /// The locations on the platform and with the variables that a test selects.
    #[cfg(test)]
    pub(super) fn for_test(
        home: &Path,
        platform: &'static str,
        lookup_variable: fn(&str) -> Option<PathBuf>,
    ) -> Self {
        Self {
            home: home.into(),
            platform,
            lookup_variable,
            project_file: None,
        }
    }
}

/// The folder of a client's file.
#[derive(Debug, Clone, Copy)]
enum ClientFolder {
    Home,
    Config,
    /// The configuration folder of desktop programs.
    ApplicationData,
}

/// The location of a client's file. In each path, `{name}` stands for the name of the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientFileLocation {
    folder: ClientFolder,
    path: &'static str,
    /// A file in the same folder that takes precedence, if it exists.
    preferred_path: Option<&'static str>,
    /// The path in the folder of roaming data on Windows.
    windows_path: Option<&'static str>,
    /// A variable that names another folder, and the path in it.
    relocation: Option<(&'static str, &'static str)>,
}

impl ClientFileLocation {
    const fn new(folder: ClientFolder, path: &'static str) -> Self {
        Self {
            folder,
            path,
            preferred_path: None,
            windows_path: None,
            relocation: None,
        }
    }

    pub(super) const fn in_home(path: &'static str) -> Self {
        Self::new(ClientFolder::Home, path)
    }

    pub(super) const fn in_config(path: &'static str) -> Self {
        Self::new(ClientFolder::Config, path)
    }

    pub(super) const fn in_application_data(path: &'static str) -> Self {
        Self::new(ClientFolder::ApplicationData, path)
    }

    pub(super) const fn unless_exists(mut self, preferred_path: &'static str) -> Self {
        self.preferred_path = Some(preferred_path);
        self
    }

    pub(super) const fn on_windows(mut self, path: &'static str) -> Self {
        self.windows_path = Some(path);
        self
    }

    pub(super) const fn moved_by(mut self, variable: &'static str, path: &'static str) -> Self {
        self.relocation = Some((variable, path));
        self
    }

    pub(super) fn resolve(&self, places: &ClientConfigPaths, name: &str) -> PathBuf {
        let named = |path: &str| path.replace("{name}", name);
        if let Some((variable, path)) = self.relocation
            && let Some(folder) = (places.lookup_variable)(variable)
        {
            return folder.join(named(path));
        }
        let in_folder = |path: &str| match (self.folder, places.platform) {
            (ClientFolder::Home, _) => places.home.join(path),
            (ClientFolder::ApplicationData, "macos") => {
                places.home.join("Library/Application Support").join(path)
            }
            (ClientFolder::ApplicationData, "windows") => places.in_roaming_data(path),
            (ClientFolder::Config | ClientFolder::ApplicationData, _) => places.in_config(path),
        };
        let preferred = self.preferred_path.map(in_folder);
        match (preferred.filter(|file| file.exists()), self.windows_path) {
            (Some(file), _) => file,
            (None, Some(path)) if places.platform == "windows" => places.in_roaming_data(path),
            (None, _) => in_folder(&named(self.path)),
        }
    }
}
