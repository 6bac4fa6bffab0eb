//! Tunnel to an engine on another machine through the user's own `ssh`, with the user's keys, known hosts and
//! settings. Each connection starts one `ssh`, in which `docker system dial-stdio` connects to the engine.

use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::task::AbortHandle;

/// Bytes of ssh's stderr that are kept.
const MAX_ENGINE_SSH_STDERR_BYTES: usize = 4 << 10;

/// A socket of this machine, for this process alone, that is connected to the engine.
#[derive(Debug)]
pub(super) struct EngineSshTunnel {
    folder: TempDir,
    accept_task: AbortHandle,
    stderr_text: Arc<Mutex<String>>,
}

impl EngineSshTunnel {
    /// Opens the socket, without a connection yet.
    ///
    /// # Errors
    /// When the address names no machine, or the socket can't be created.
    pub(super) fn open(url: &str) -> io::Result<Self> {
        let arguments =
            ssh_arguments(url).ok_or_else(|| io::Error::other("the address has no host name"))?;
        // Only its owner may enter the folder.
        let folder = tempfile::Builder::new().prefix("osctl-").tempdir()?;
        let listener = UnixListener::bind(socket_in_folder(folder.path()))?;
        let stderr_text = Arc::default();
        let accepts = tokio::spawn(accept_connections(
            listener,
            arguments,
            Arc::clone(&stderr_text),
        ));
        Ok(Self {
            folder,
            accept_task: accepts.abort_handle(),
            stderr_text,
        })
    }

    pub(super) fn socket_path(&self) -> PathBuf {
        socket_in_folder(self.folder.path())
    }

    /// The last line of ssh's stderr, if there is one.
    pub(super) fn last_stderr_line(&self) -> Option<String> {
        let stderr_text = self.stderr_text.lock();
        let last = stderr_text
            .lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty());
        last.map(str::to_owned)
    }
}

impl Drop for EngineSshTunnel {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

fn socket_in_folder(folder: &Path) -> PathBuf {
    folder.join("engine.sock")
}

/// The arguments for `ssh`. No part of the address can be parsed as an option.
fn ssh_arguments(url: &str) -> Option<Vec<String>> {
    let rest = url.strip_prefix("ssh://")?;
    let authority = rest.split('/').next().filter(|a| !a.is_empty())?;
    let mut arguments = vec!["-T".to_owned(), "-oConnectTimeout=8".to_owned()];
    arguments.extend(["--".to_owned(), format!("ssh://{authority}")]);
    arguments.extend(["docker", "system", "dial-stdio"].map(str::to_owned));
    Some(arguments)
}

async fn accept_connections(
    listener: UnixListener,
    arguments: Vec<String>,
    stderr_text: Arc<Mutex<String>>,
) {
    while let Ok((connection, _)) = listener.accept().await {
        let (arguments, stderr_text) = (arguments.clone(), Arc::clone(&stderr_text));
        tokio::spawn(async move {
            if let Err(error) = relay_connection(connection, &arguments, &stderr_text).await {
                *stderr_text.lock() = format!("`ssh`: {error}");
            }
        });
    }
}

/// Relays until one side closes the connection.
async fn relay_connection(
    mut connection: UnixStream,
    arguments: &[String],
    stderr_text: &Mutex<String>,
) -> io::Result<()> {
    let mut ssh = Command::new("ssh")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (stdin, stdout, stderr) = (ssh.stdin.take(), ssh.stdout.take(), ssh.stderr.take());
    let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) = (stdin, stdout, stderr) else {
        return Err(io::Error::other("it started without attached streams"));
    };
    let (mut read, mut write) = connection.split();
    let up = async {
        // A client that has disconnected sends nothing more.
        let _ = tokio::io::copy(&mut read, &mut stdin).await;
        drop(stdin);
    };
    let down = async {
        let _ = tokio::io::copy(&mut stdout, &mut write).await;
        let _ = write.shutdown().await;
    };
    let listen = async {
        let mut bytes = vec![0; MAX_ENGINE_SSH_STDERR_BYTES];
        while let Ok(read @ 1..) = stderr.read(&mut bytes).await {
            let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
            *stderr_text.lock() = text;
        }
    };
    let ended = async { tokio::join!(down, listen) };
    tokio::pin!(ended);
    let _ = tokio::select! {
        all = &mut ended => all,
        () = up => ended.await,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::ssh_arguments;

    #[test]
    fn an_address_is_one_word_and_no_option() {
        let called = ssh_arguments("ssh://ada@engine.example:2222/x").unwrap();
        let expected = [
            "-T",
            "-oConnectTimeout=8",
            "--",
            "ssh://ada@engine.example:2222",
            "docker",
            "system",
            "dial-stdio",
        ];
        assert_eq!(called, expected);
        assert_eq!(ssh_arguments("ssh:///x"), None);
    }
}
