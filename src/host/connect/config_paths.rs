//! Locations of a person's configuration files, by platform.

use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub(crate) struct ClientConfigPaths {
    home: PathBuf,
    platform: &'static str,
    lookup_variable: fn(&str) -> Option<PathBuf>,
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
        }
    }

    pub(super) fn in_home(&self, path: &str) -> PathBuf {
        self.home.join(path)
    }

    /// `path` in the folder that the variable names, otherwise `default_path` in the home folder.
    pub(super) fn in_variable_folder(
        &self,
        variable: &str,
        path: &str,
        default_path: &str,
    ) -> PathBuf {
        match (self.lookup_variable)(variable) {
            Some(folder) => folder.join(path),
            None => self.in_home(default_path),
        }
    }

    /// `~/.config`, also on macOS, where command-line programs use it as well.
    pub(super) fn in_config(&self, path: &str) -> PathBuf {
        self.in_variable_folder("XDG_CONFIG_HOME", path, &format!(".config/{path}"))
    }

    /// The configuration folder of desktop programs.
    pub(super) fn in_application_data(&self, path: &str) -> PathBuf {
        match self.platform {
            "macos" => self.home.join("Library/Application Support").join(path),
            "windows" => self.in_roaming_data(path),
            _ => self.in_config(path),
        }
    }

    /// `unix`, or `windows` on Windows.
    pub(super) fn unless_windows(&self, unix: PathBuf, windows: &str) -> PathBuf {
        match self.platform {
            "windows" => self.in_roaming_data(windows),
            _ => unix,
        }
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
        }
    }
}
