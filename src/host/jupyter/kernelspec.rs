//! Kernelspecs, by which Jupyter offers sessions as kernels. The metadata marks osctl's kernelspecs; osctl touches no
//! others.
//!
//! Files are read through no link and up to a size limit: an agent may write in a folder that the user names.

use crate::archive::Folder;
use crate::atomic_write::{Durability, atomic_write};
use crate::error::{Error, Result};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The file in each kernelspec's folder.
const KERNELSPEC_FILE: &str = "kernel.json";
/// The picture that launchers show for the kernel.
const KERNELSPEC_LOGO: (&str, &str) = (
    "logo-svg.svg",
    include_str!("../../../assets/jupyter/logo-svg.svg"),
);
/// Limit of `kernel.json` in bytes.
const MAX_KERNELSPEC_BYTES: u64 = 1 << 20;
/// Limit of kernelspecs in one folder.
const MAX_KERNELSPECS: usize = 10_000;

/// A kernelspec of osctl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Kernelspec {
    /// The name for Jupyter's commands; also the name of its folder.
    pub(crate) name: String,
    /// The name that front ends show.
    pub(crate) display_name: String,
    /// The command that starts the kernel; `{connection_file}` is replaced by the path of Jupyter's file.
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    #[serde(flatten)]
    pub(crate) opens: KernelspecTarget,
}

/// The instance and session that the kernelspec opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelspecTarget {
    pub(crate) instance: String,
    pub(crate) session: String,
}

#[derive(Debug, Deserialize)]
struct KernelspecFile {
    display_name: String,
    argv: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    metadata: KernelspecMetadata,
}

#[derive(Debug, Deserialize)]
struct KernelspecMetadata {
    osctl: KernelspecTarget,
}

impl Kernelspec {
    /// Writes the kernelspec into Jupyter's data folder, and returns its path.
    ///
    /// # Errors
    /// When the name is not valid, or belongs to another program's kernel.
    pub(crate) fn write(&self, data: &Path) -> Result<PathBuf> {
        let folder = self.available_folder(data)?;
        fs::create_dir_all(&folder).map_err(|error| {
            let message = format!("`{}` can't be created: {error}", folder.display());
            Error::precondition(
                message,
                "choose another place: `osctl jupyter install --prefix DIR`",
            )
        })?;
        let text = format!("{:#}\n", self.to_json());
        for (name, text) in [(KERNELSPEC_FILE, &*text), KERNELSPEC_LOGO] {
            let path = folder.join(name);
            atomic_write(&path, text.as_bytes(), Durability::DataSynced)
                .with_context(|| format!("writing `{}`", path.display()))?;
        }
        Ok(folder)
    }

    fn to_json(&self) -> Value {
        json!({
            "argv": self.argv,
            "display_name": self.display_name,
            "language": "python",
            "interrupt_mode": "message",
            "env": self.env,
            "metadata": {"debugger": false, "osctl": self.opens},
        })
    }

    fn available_folder(&self, data: &Path) -> Result<PathBuf> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.chars().all(fits) {
            let message = format!("`{}` is not a valid kernelspec name", self.name);
            let hint = "use letters, digits, `-`, `_` and `.`: `osctl jupyter install --name NAME`";
            return Err(Error::usage(message, hint).into());
        }
        let folder = kernels_folder(data).join(&self.name);
        let own = Folder::open(&kernels_folder(data)).ok();
        let own = own.and_then(|kernels| read_kernelspec(&kernels, self.name.as_ref()));
        match folder.exists() && own.is_none() {
            true => Err(foreign_error(&folder)),
            false => Ok(folder),
        }
    }

    /// The kernelspecs of osctl in Jupyter's data folder, by name.
    pub(crate) fn list_all(data: &Path) -> Result<Vec<Self>> {
        let kernels = match Folder::open(&kernels_folder(data)) {
            Ok(kernels) => kernels,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e).context("reading the kernelspecs"),
        };
        let names = kernels.names_up_to(MAX_KERNELSPECS)?;
        Ok(names
            .iter()
            .filter_map(|name| read_kernelspec(&kernels, name))
            .collect())
    }

    /// Removes the kernelspec with this name, and returns whether there was one.
    ///
    /// # Errors
    /// When the kernelspec belongs to another program.
    pub(crate) fn remove(data: &Path, name: &str) -> Result<bool> {
        let found = Self::list_all(data)?
            .into_iter()
            .find(|spec| spec.name == name);
        let folder = kernels_folder(data).join(name);
        match found {
            Some(_) => fs::remove_dir_all(&folder)
                .with_context(|| format!("removing `{}`", folder.display()))
                .map(|()| true),
            None if folder.exists() => Err(foreign_error(&folder)),
            None => Ok(false),
        }
    }
}

fn kernels_folder(data: &Path) -> PathBuf {
    data.join("kernels")
}

fn read_kernelspec(kernels: &Folder, name: &OsStr) -> Option<Kernelspec> {
    let folder = kernels.open_folder(name).ok()?;
    let text = folder
        .read_file(KERNELSPEC_FILE.as_ref(), MAX_KERNELSPEC_BYTES)
        .ok()??;
    let read: KernelspecFile = serde_json::from_slice(&text).ok()?;
    Some(Kernelspec {
        name: name.to_str()?.into(),
        display_name: read.display_name,
        argv: read.argv,
        env: read.env,
        opens: read.metadata.osctl,
    })
}

fn foreign_error(folder: &Path) -> anyhow::Error {
    let message = format!(
        "the kernelspec in `{}` does not belong to osctl; it was not changed",
        folder.display()
    );
    let hint = "choose another name with `--name NAME`, or remove it yourself";
    Error::precondition(message, hint).into()
}

/// The user's data folder of Jupyter.
pub(crate) fn data_folder(home: &Path) -> PathBuf {
    let given = |name: &str| {
        env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    if let Some(folder) = given("JUPYTER_DATA_DIR") {
        return folder;
    }
    match env::consts::OS {
        "macos" => home.join("Library/Jupyter"),
        "windows" => {
            let app_data = given("APPDATA").unwrap_or_else(|| home.join("AppData/Roaming"));
            app_data.join("jupyter")
        }
        _ => {
            let share = given("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local/share"));
            share.join("jupyter")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Kernelspec, KernelspecTarget};
    use std::fs;

    fn spec(name: &str) -> Kernelspec {
        Kernelspec {
            name: name.into(),
            display_name: "os-host (default)".into(),
            argv: vec!["osctl".into()],
            env: [("HOST_HOME".into(), "/home".into())].into(),
            opens: KernelspecTarget {
                instance: "default".into(),
                session: "default".into(),
            },
        }
    }

    #[test]
    fn a_written_kernelspec_is_found_and_removed() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(Kernelspec::list_all(data.path()).unwrap(), []);
        spec("osctl").write(data.path()).unwrap();
        let rewritten = spec("osctl").write(data.path()).unwrap();
        let names = fs::read_dir(&rewritten).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["kernel.json", "logo-svg.svg"]);
        assert_eq!(Kernelspec::list_all(data.path()).unwrap(), [spec("osctl")]);
        assert!(Kernelspec::remove(data.path(), "osctl").unwrap());
        assert!(!Kernelspec::remove(data.path(), "osctl").unwrap());
    }

    #[cfg(unix)]
    #[test]
    fn a_kernelspec_that_is_a_link_or_too_large_is_not_read() {
        let data = tempfile::tempdir().unwrap();
        let own = spec("osctl").write(data.path()).unwrap();
        let text = fs::read_to_string(own.join("kernel.json")).unwrap();
        let kernels = data.path().join("kernels");
        std::os::unix::fs::symlink(&own, kernels.join("folder")).unwrap();
        for name in ["file", "huge"] {
            fs::create_dir(kernels.join(name)).unwrap();
        }
        let link = kernels.join("file/kernel.json");
        std::os::unix::fs::symlink(own.join("kernel.json"), link).unwrap();
        let huge = text + &" ".repeat(2 << 20);
        fs::write(kernels.join("huge/kernel.json"), huge).unwrap();
        assert_eq!(Kernelspec::list_all(data.path()).unwrap(), [spec("osctl")]);
        for name in ["folder", "file", "huge"] {
            assert!(spec(name).write(data.path()).is_err(), "{name}");
        }
    }

    #[test]
    fn the_kernels_of_others_are_not_touched() {
        let data = tempfile::tempdir().unwrap();
        let theirs = data.path().join("kernels/python3");
        fs::create_dir_all(&theirs).unwrap();
        fs::write(
            theirs.join("kernel.json"),
            r#"{"argv": [], "display_name": "x"}"#,
        )
        .unwrap();
        for refused in [
            spec("python3").write(data.path()).map(drop),
            Kernelspec::remove(data.path(), "python3").map(drop),
            spec("../x").write(data.path()).map(drop),
        ] {
            let message = refused.unwrap_err().to_string();
            assert!(
                message.contains("does not belong to osctl") || message.contains("not a valid"),
                "{message}"
            );
        }
        assert_eq!(Kernelspec::list_all(data.path()).unwrap(), []);
        assert!(theirs.join("kernel.json").exists());
    }
}
