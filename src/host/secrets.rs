//! An instance's secrets, in files that only their owner can read: the token of the API, and the password of VNC
//! clients.

use super::folders::write_private;
use super::instance::Instance;
use crate::archive::Folder;
use crate::error::Result;
use crate::protocol::desktop::VNC_PASSWORD_FILE;
use crate::protocol::hex::hex;
use anyhow::Context;
use std::ffi::OsStr;
use std::fs;

/// The characters of a password: 64, so that all are equally likely.
const PASSWORD_LETTERS: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";

impl Instance {
    /// The token, if `up` ever ran for the instance.
    ///
    /// # Errors
    /// When the file exists and cannot be read.
    pub(crate) fn read_token(&self) -> Result<Option<String>> {
        match fs::read_to_string(self.token_file()) {
            Ok(token) => Ok(Some(token.trim().to_owned())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("reading `{}`", self.token_file().display())),
        }
    }

    /// The token, created at the first call and stored.
    ///
    /// # Errors
    /// When the state folder cannot be written.
    pub(crate) fn ensure_token(&self) -> Result<String> {
        if let Some(token) = self.read_token()?.filter(|t| !t.is_empty()) {
            return Ok(token);
        }
        let mut secret = [0u8; 32];
        getrandom::fill(&mut secret)
            .map_err(|e| anyhow::anyhow!("no random numbers available: {e}"))?;
        let token = format!("osctl_{}", hex(secret));
        write_private(&self.token_file(), token.as_bytes())?;
        Ok(token)
    }

    /// The password of VNC clients, created at the first call and stored. It is a separate secret: the protocol takes
    /// eight characters, and sends them in a form that can be guessed.
    ///
    /// # Errors
    /// When the state folder cannot be written.
    pub(crate) fn ensure_vnc_password(&self) -> Result<String> {
        let path = self.vnc_password_file();
        match fs::read_to_string(&path) {
            Ok(password) if !password.trim().is_empty() => return Ok(password.trim().to_owned()),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("reading `{}`", path.display()));
            }
            _ => {}
        }
        let mut secret = [0u8; 8];
        getrandom::fill(&mut secret)
            .map_err(|e| anyhow::anyhow!("no random numbers available: {e}"))?;
        // With 64 characters, every bit counts.
        let letter =
            |byte: u8| char::from(PASSWORD_LETTERS[usize::from(byte) % PASSWORD_LETTERS.len()]);
        let password: String = secret.into_iter().map(letter).collect();
        write_private(&path, password.as_bytes())?;
        Ok(password)
    }

    /// Writes the password where the companion reads it. In a variable, every user with access to the engine would see
    /// it.
    ///
    /// # Errors
    /// When the data folder cannot be written.
    pub(crate) fn write_vnc_password(&self, password: &str) -> Result<()> {
        fs::create_dir_all(self.data_folder())?;
        let data = Folder::open(&self.data_folder())?;
        let written = data.replace_file(OsStr::new(VNC_PASSWORD_FILE), 0o600, password.as_bytes());
        written.with_context(|| {
            format!(
                "writing `{VNC_PASSWORD_FILE}` in `{}`",
                self.data_folder().display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::host::folders::Folders;
    use crate::host::instance::Instance;
    use crate::protocol::proof::sha256_fingerprint;

    #[test]
    fn the_token_is_made_once_and_private() {
        let home = tempfile::tempdir().unwrap();
        let instance = Instance::new("default", &Folders::beneath(home.path())).unwrap();
        let token = instance.ensure_token().unwrap();
        assert_eq!(token, instance.ensure_token().unwrap());
        assert!(token.len() > 60);
        assert_ne!(sha256_fingerprint(&token), token);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(instance.token_file())
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn the_vnc_password_is_a_secret_of_its_own() {
        let home = tempfile::tempdir().unwrap();
        let instance = Instance::new("default", &Folders::beneath(home.path())).unwrap();
        let password = instance.ensure_vnc_password().unwrap();
        assert_eq!(password.len(), 8);
        assert_eq!(password, instance.ensure_vnc_password().unwrap());
        assert!(!instance.ensure_token().unwrap().contains(&password));
        instance.write_vnc_password(&password).unwrap();
        let read_password = std::fs::read_to_string(instance.data_folder().join("vnc-password"));
        assert_eq!(read_password.unwrap(), password);
    }
}
