//! The Linux binary that runs in the container: this executable, the binary in a package for another system, or the
//! binary given with `--companion`.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const LINUX_BINARY_HINT: &str = "run `osctl up --companion PATH` with a Linux binary of osctl (to build one on Linux: \
                                 `cargo build --release`)";

/// A static Linux executable.
#[derive(Debug, Clone)]
pub(crate) struct CompanionBinary {
    pub(crate) content: Vec<u8>,
}

impl CompanionBinary {
    /// Loads the binary at `given`, or the default one.
    ///
    /// # Errors
    /// When the file is not a static Linux executable for `architecture` (Docker's name).
    pub(crate) fn load(given: Option<&Path>, architecture: &str) -> Result<Self> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => default_binary_path(env::consts::OS, &env::current_exe()?, architecture)?,
        };
        let content = fs::read(&path).map_err(|e| {
            Error::precondition(
                format!("`{}` can't be read: {e}", path.display()),
                LINUX_BINARY_HINT,
            )
        })?;
        check_elf(&content, architecture).map_err(|why| {
            Error::precondition(
                format!("`{}` can't run in the container: {why}", path.display()),
                LINUX_BINARY_HINT,
            )
        })?;
        Ok(Self { content })
    }

    /// The paths of the binaries that are used by default, beside the running executable.
    ///
    /// # Errors
    /// When the path of the executable can't be determined.
    pub(crate) fn packaged_paths() -> io::Result<Vec<PathBuf>> {
        if env::consts::OS == "linux" {
            return Ok(Vec::new());
        }
        let executable = env::current_exe()?;
        let paths =
            ["amd64", "arm64"].map(|architecture| packaged_binary_path(&executable, architecture));
        Ok(paths.into_iter().flatten().collect())
    }
}

/// This executable on Linux; on another system, the binary in its package.
fn default_binary_path(system: &str, executable: &Path, architecture: &str) -> Result<PathBuf> {
    // Readable even if a newer build has replaced the file.
    if system == "linux" {
        return Ok("/proc/self/exe".into());
    }
    let packaged = packaged_binary_path(executable, architecture);
    if let Some(path) = packaged.filter(|path| path.is_file()) {
        return Ok(path);
    }
    let message =
        format!("the container needs a Linux binary of osctl; this binary is for {system}");
    Err(Error::precondition(message, LINUX_BINARY_HINT).into())
}

/// Where a package for another system keeps the Linux binary: in `libexec` beside the `bin` of the executable.
fn packaged_binary_path(executable: &Path, architecture: &str) -> Option<PathBuf> {
    // A package manager may put a link on the `PATH`.
    let executable = fs::canonicalize(executable).ok()?;
    let prefix = executable.parent()?.parent()?;
    Some(prefix.join(format!("libexec/osctl-linux-{architecture}")))
}

/// Reads the parts of the ELF format that determine where a binary runs.
fn check_elf(elf: &[u8], architecture: &str) -> std::result::Result<(), String> {
    const ELF_PT_INTERP: u32 = 3;
    if elf.get(..5) != Some(b"\x7fELF\x02") {
        return Err("it is not a 64-bit Linux executable".into());
    }
    let half = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
    let machine = match half(18) {
        Some(62) => "amd64",
        Some(183) => "arm64",
        _ => "unknown",
    };
    if machine != architecture {
        return Err(format!(
            "it is built for {machine}, and the engine runs {architecture}"
        ));
    }
    let headers = elf
        .get(32..40)
        .and_then(|b| Some(u64::from_le_bytes(b.try_into().ok()?) as usize));
    let shape = headers.zip(half(54)).zip(half(56));
    let Some(((start, size), count)) = shape else {
        return Err("it is truncated".into());
    };
    let mut kinds = (0..usize::from(count)).map(|n| {
        let at = start + n * usize::from(size);
        elf.get(at..at + 4)
            .and_then(|b| Some(u32::from_le_bytes(b.try_into().ok()?)))
    });
    if kinds.any(|kind| kind == Some(ELF_PT_INTERP)) {
        return Err("it is linked dynamically and would depend on the image's libraries".into());
    }
    Ok(())
}

/// The smallest file that counts as a static executable of this machine.
#[cfg(test)]
pub(crate) fn sample_executable() -> Vec<u8> {
    let mut elf = b"\x7fELF\x02".to_vec();
    elf.resize(64, 0);
    elf[18] = match cfg!(target_arch = "aarch64") {
        true => 183,
        false => 62,
    };
    elf
}

#[cfg(test)]
mod tests {
    use super::{check_elf, default_binary_path};
    use crate::error::Error;
    use std::fs;
    use std::path::Path;

    #[test]
    fn other_systems_get_a_hint_about_the_linux_binary() {
        let nowhere = Path::new("/nonexistent/bin/osctl");
        assert!(default_binary_path("linux", nowhere, "amd64").is_ok());
        for system in ["macos", "windows"] {
            let error = default_binary_path(system, nowhere, "amd64").unwrap_err();
            assert!(
                error.to_string().contains(&format!("for {system}")),
                "{error}"
            );
            let hint = error.downcast_ref().and_then(Error::hint);
            assert!(hint.is_some_and(|h| h.contains("osctl up --companion PATH")));
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_package_for_another_system_brings_the_linux_binary() {
        let prefix = tempfile::tempdir().unwrap();
        let prefix = prefix.path().canonicalize().unwrap();
        for folder in ["bin", "libexec", "elsewhere"] {
            fs::create_dir(prefix.join(folder)).unwrap();
        }
        for file in ["bin/osctl", "libexec/osctl-linux-arm64"] {
            fs::write(prefix.join(file), "").unwrap();
        }
        let link = prefix.join("elsewhere/osctl");
        std::os::unix::fs::symlink(prefix.join("bin/osctl"), &link).unwrap();
        for executable in [prefix.join("bin/osctl"), link] {
            let found = default_binary_path("macos", &executable, "arm64").unwrap();
            assert_eq!(found, prefix.join("libexec/osctl-linux-arm64"));
            assert!(default_binary_path("macos", &executable, "amd64").is_err());
        }
    }

    #[test]
    fn a_binary_for_another_system_is_refused_with_the_reason() {
        assert!(
            check_elf(b"#!/bin/sh\n", "amd64")
                .unwrap_err()
                .contains("not a 64-bit Linux")
        );
        let mut elf = vec![0u8; 64];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        elf[18] = 183;
        assert!(check_elf(&elf, "amd64").unwrap_err().contains("arm64"));
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn this_build_is_static_and_the_system_shell_is_not() {
        check_elf(&fs::read("/proc/self/exe").unwrap(), "amd64").unwrap();
        assert!(
            check_elf(&fs::read("/bin/bash").unwrap(), "amd64")
                .unwrap_err()
                .contains("dynamically")
        );
    }
}
