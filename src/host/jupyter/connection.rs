//! The connection file: where Jupyter expects the sockets, and the key that signs messages.

use crate::error::{Error, Result};
use serde::Deserialize;
use std::path::Path;

#[derive(Debug, Deserialize)]
pub(crate) struct ConnectionFile {
    #[serde(default = "tcp")]
    transport: String,
    ip: String,
    #[serde(default)]
    pub(super) key: String,
    #[serde(default = "sha256")]
    signature_scheme: String,
    pub(super) shell_port: u16,
    pub(super) iopub_port: u16,
    pub(super) stdin_port: u16,
    pub(super) control_port: u16,
    pub(super) hb_port: u16,
}

fn tcp() -> String {
    "tcp".into()
}

fn sha256() -> String {
    "hmac-sha256".into()
}

impl ConnectionFile {
    /// # Errors
    /// When the file cannot be read, or requires a feature that this kernel does not support.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let unfit = |why: String| {
            let message = format!("the connection file `{}` {why}", path.display());
            let hint = "Jupyter writes the file and starts the kernel; `osctl jupyter install` registers the kernel";
            anyhow::Error::from(Error::usage(message, hint))
        };
        let text = std::fs::read(path).map_err(|e| unfit(format!("can't be read: {e}")))?;
        let read: Self =
            serde_json::from_slice(&text).map_err(|e| unfit(format!("is not valid: {e}")))?;
        if read.transport != tcp() {
            return Err(unfit(format!(
                "requires the transport `{}`; osctl supports only `tcp`",
                read.transport
            )));
        }
        if !read.key.is_empty() && read.signature_scheme != sha256() {
            return Err(unfit(format!(
                "requires the signature scheme `{}`; osctl supports only `{}`",
                read.signature_scheme,
                sha256()
            )));
        }
        Ok(read)
    }

    pub(super) fn endpoint(&self, port: u16) -> String {
        match self.ip.contains(':') {
            true => format!("tcp://[{}]:{port}", self.ip),
            false => format!("tcp://{}:{port}", self.ip),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionFile;
    use serde_json::{Value, json};

    fn read(change: &str, value: Value) -> Result<ConnectionFile, String> {
        let mut file = json!({
            "transport": "tcp", "ip": "127.0.0.1", "key": "k", "signature_scheme": "hmac-sha256",
            "shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5,
            "kernel_name": "osctl",
        });
        file[change] = value;
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), file.to_string()).unwrap();
        ConnectionFile::read(path.path()).map_err(|e| e.to_string())
    }

    #[test]
    fn an_endpoint_may_be_of_either_family() {
        let v4 = read("key", "".into()).unwrap();
        assert_eq!(v4.endpoint(v4.hb_port), "tcp://127.0.0.1:5");
        let v6 = read("ip", "::1".into()).unwrap();
        assert_eq!(v6.endpoint(v6.shell_port), "tcp://[::1]:1");
    }

    #[test]
    fn unsupported_connection_settings_are_named() {
        let refused = |change, value: &str| read(change, value.into()).unwrap_err();
        assert!(refused("transport", "ipc").contains("the transport `ipc`"));
        assert!(refused("signature_scheme", "hmac-md5").contains("scheme `hmac-md5`"));
        assert!(refused("shell_port", "one").contains("is not valid"));
    }
}
