//! The variables of `osctl env`: a private file of the instance, from which the container gets a copy.
//!
//! The companion keeps its copy in the data folder, so that a restart by the engine and an evolve find the variables,
//! and changes it by the API while it runs. The host never reads the copy: an agent can change it.

use super::client::CompanionClient;
use super::folders::write_private;
use super::instance::Instance;
use crate::archive::Folder;
use crate::error::{Error, Result};
use crate::protocol::environment::{
    ENVIRONMENT_FILE, EnvironmentNames, ReplaceEnvironment, UserEnvironment,
};
use anyhow::Context;
use reqwest::Method;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

impl Instance {
    fn environment_file(&self) -> PathBuf {
        self.folder.join(ENVIRONMENT_FILE)
    }

    /// The variables; `None` if none were ever set.
    ///
    /// # Errors
    /// When the file can't be read, or is invalid.
    pub(crate) fn read_environment(&self) -> Result<Option<UserEnvironment>> {
        let path = self.environment_file();
        let unreadable = |why: String| {
            let message = format!("`{}` can't be read: {why}", path.display());
            let set = self.osctl_command("env set");
            let hint = format!("remove the file, then set its variables again with `{set} NAME`");
            Error::precondition(message, hint)
        };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unreadable(e.to_string()).into()),
        };
        // The error of the parser could contain a value.
        let variables: UserEnvironment = serde_json::from_slice(&text)
            .map_err(|_| unreadable("it is not an object of strings".into()))?;
        variables.check().map_err(unreadable)?;
        Ok(Some(variables))
    }

    /// # Errors
    /// When the state folder can't be written.
    pub(crate) fn save_environment(&self, variables: &UserEnvironment) -> Result<()> {
        write_private(&self.environment_file(), &serde_json::to_vec(variables)?)
    }

    /// Writes the variables where the companion reads them at its start.
    ///
    /// # Errors
    /// When the data folder can't be written.
    pub(crate) fn write_companion_environment(&self, variables: &UserEnvironment) -> Result<()> {
        let (data, text) = (self.data_folder(), serde_json::to_vec(variables)?);
        let written = Folder::open(&data)
            .and_then(|folder| folder.replace_file(OsStr::new(ENVIRONMENT_FILE), 0o600, &text));
        written.with_context(|| format!("writing `{ENVIRONMENT_FILE}` in `{}`", data.display()))
    }
}

impl CompanionClient {
    /// Replaces the variables of the running container.
    pub(crate) async fn replace_environment(
        &self,
        variables: &UserEnvironment,
    ) -> Result<EnvironmentNames> {
        let variables = variables.clone();
        let request = ReplaceEnvironment { variables };
        self.call(Method::PUT, "/environment", Some(&request)).await
    }
}

#[cfg(test)]
mod tests {
    use super::ENVIRONMENT_FILE;
    use crate::host::folders::Folders;
    use crate::host::instance::Instance;
    use crate::protocol::environment::UserEnvironment;
    use std::fs;

    #[test]
    fn the_variables_are_in_a_private_file_and_no_error_shows_a_value() {
        let home = tempfile::tempdir().unwrap();
        let instance = Instance::new("default", &Folders::beneath(home.path())).unwrap();
        assert_eq!(instance.read_environment().unwrap(), None);
        let set = UserEnvironment([("A".into(), "hunter2".into())].into());
        instance.save_environment(&set).unwrap();
        assert_eq!(instance.read_environment().unwrap(), Some(set.clone()));
        let path = instance.token_file().with_file_name(ENVIRONMENT_FILE);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        for invalid in [r#"{"A":["hunter2"]}"#, r#"{"PATH":"hunter2"}"#, "hunter2"] {
            fs::write(&path, invalid).unwrap();
            let error = instance.read_environment().unwrap_err();
            assert!(
                !format!("{error:#}{error:?}").contains("hunter2"),
                "{error:?}"
            );
        }
        // The agent may have planted a link in the data folder.
        #[cfg(unix)]
        {
            let data = instance.data_folder();
            fs::create_dir_all(&data).unwrap();
            let victim = home.path().join("victim");
            fs::write(&victim, "kept").unwrap();
            std::os::unix::fs::symlink(&victim, data.join(ENVIRONMENT_FILE)).unwrap();
            instance.write_companion_environment(&set).unwrap();
            assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
            let written = fs::read_to_string(data.join(ENVIRONMENT_FILE)).unwrap();
            assert_eq!(written, r#"{"A":"hunter2"}"#);
        }
    }
}
