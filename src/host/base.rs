//! The images that bodies start from. osctl pulls the base, or builds it from Debian packages when no registry answers.
//! osctl pulls the published image of the Dockerfile stage `ground` by its digest, and uses it instead of that stage.

use super::folders::Folders;
use super::provision::{
    InstallConsent, InterruptPolicy, can_install, install_packages, run_with_progress,
};
use crate::engine::{Docker, EngineProgress, ProcessLock};
use crate::error::{Error, Result};
use crate::image::{GROUND_LABEL, GROUND_REPOSITORY, ground_name};
use anyhow::Context;
use futures_util::StreamExt;
use std::fs;
use std::future::ready;
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;
use tokio_util::io::ReaderStream;

/// The base under osctl's own name, so that it does not shadow the official image.
const BOOTSTRAPPED_IMAGE: &str = "osctl-base:trixie";

const DEBIAN_SUITE: &str = "trixie";
const BOOTSTRAP_PACKAGES: &[&str] = &["debootstrap", "debian-archive-keyring"];
/// The keyring that verifies every package of the base image.
const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The image to start from, if the engine already has it.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn find_base_image(docker: &Docker, wanted: &str) -> Result<Option<String>> {
    if docker.find_image(wanted).await?.is_some() {
        return Ok(Some(wanted.into()));
    }
    let is_default = wanted == crate::config::Config::default().base;
    let made = is_default && docker.find_image(BOOTSTRAPPED_IMAGE).await?.is_some();
    Ok(made.then(|| BOOTSTRAPPED_IMAGE.into()))
}

/// The image to start from: the configured one, pulled if missing, otherwise one built here.
///
/// # Errors
/// When osctl can neither pull nor build it.
pub(crate) async fn ensure_base_image(
    docker: &Docker,
    wanted: &str,
    folders: &Folders,
    may_install: InstallConsent<'_>,
    progress: &dyn EngineProgress,
) -> Result<String> {
    if let Some(known) = find_base_image(docker, wanted).await? {
        return Ok(known);
    }
    let is_default = wanted == crate::config::Config::default().base;
    progress.report_step(&format!("pulling {wanted}"));
    let Err(why) = docker.pull_image(wanted, progress).await else {
        return Ok(wanted.into());
    };
    if !is_default || !can_install() {
        let hint = format!(
            "set another base with `base:` in osctl.yaml, or load `{wanted}` with `docker load`"
        );
        return Err(Error::precondition(
            format!("can't pull the base image `{wanted}`: {why}"),
            hint,
        )
        .into());
    }
    progress.log(&format!(
        "can't pull {wanted} ({why}); building the base image from Debian packages"
    ));
    bootstrap_base_image(docker, folders, may_install, progress).await?;
    Ok(BOOTSTRAPPED_IMAGE.into())
}

/// Pulls the published image `NAME@sha256:…`, unless the engine has it. Returns why the image is not available.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn pull_published_image(
    docker: &Docker,
    reference: &str,
    progress: &dyn EngineProgress,
) -> Result<Option<String>> {
    if !docker.has_image_by_digest(reference).await? {
        progress.report_step(&format!("pulling {reference}"));
        if let Err(why) = docker.pull_image(reference, progress).await {
            return Ok(Some(why));
        }
        if !docker.has_image_by_digest(reference).await? {
            let why = "the engine has no image of that digest for its platform";
            return Ok(Some(why.into()));
        }
    }
    docker.tag_image(reference, &ground_name(reference)).await?;
    Ok(None)
}

/// Lock of builds, which need images that no container and no other image uses yet.
const IMAGES_LOCK: &str = "images.lock";

/// Prevents the removal of images that a build needs, until the lock is dropped.
///
/// # Errors
/// When the folder of temporary files cannot be written.
pub(crate) async fn lock_images_shared(
    folders: &Folders,
    progress: &dyn EngineProgress,
) -> Result<ProcessLock> {
    ProcessLock::acquire_shared(&folders.temporary_folder(), IMAGES_LOCK, progress).await
}

/// The lock for removing unused images; `None` while an image is built.
///
/// # Errors
/// When the folder of temporary files cannot be written.
pub(crate) fn try_lock_images(folders: &Folders) -> Result<Option<ProcessLock>> {
    ProcessLock::try_acquire(&folders.temporary_folder(), IMAGES_LOCK)
}

/// Removes pulled published images that no remaining image uses, except `retained`. Removes none while an image is
/// built.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn remove_unused_ground_images(
    docker: &Docker,
    folders: &Folders,
    retained: Option<String>,
) -> Result<()> {
    let Some(_lock) = try_lock_images(folders)? else {
        return Ok(());
    };
    for name in docker.list_tags(GROUND_REPOSITORY).await? {
        let is_used = docker.has_labelled_image(GROUND_LABEL, &name).await?;
        if !is_used && retained.as_ref() != Some(&name) {
            docker.remove_pulled_image(&name).await?;
        }
    }
    Ok(())
}

async fn bootstrap_base_image(
    docker: &Docker,
    folders: &Folders,
    may_install: InstallConsent<'_>,
    progress: &dyn EngineProgress,
) -> Result<()> {
    if which::which("debootstrap").is_err() || !Path::new(DEBIAN_KEYRING).exists() {
        if !may_install("No registry is reachable. Install debootstrap to build the base image?")? {
            let message = "no registry is reachable, and a local build of the base image needs `debootstrap` and Debian's keyring";
            return Err(Error::precondition(message, "`osctl up --yes` installs them").into());
        }
        progress.report_step("installing debootstrap");
        install_packages(BOOTSTRAP_PACKAGES, progress).await?;
    }
    let temporary = folders.temporary_folder();
    let _lock = ProcessLock::acquire(&temporary, "base.lock", progress).await?;
    // Another instance may have built it while this one waited for the lock.
    if docker.find_image(BOOTSTRAPPED_IMAGE).await?.is_some() {
        return Ok(());
    }
    let root = BootstrapRoot::new(&temporary)?;
    progress.report_step("building the base image with debootstrap");
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", "--force-check-gpg"]);
    command
        .arg(format!("--keyring={DEBIAN_KEYRING}"))
        .arg(DEBIAN_SUITE)
        .arg(root.path());
    run_with_progress(command, InterruptPolicy::Kill, progress).await?;
    root.remove_unneeded_files()?;
    progress.report_step("importing the base image");
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(root.path())
        .args(["--numeric-owner", "-c", "."]);
    tar.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut tar = tar.spawn().context("starting `tar`")?;
    let archive = ReaderStream::with_capacity(tar.stdout.take().context("a pipe")?, 1 << 20);
    // A read error ends the archive early; the engine and the exit code of tar both report it.
    let archive = archive
        .take_while(|chunk| ready(chunk.is_ok()))
        .filter_map(|chunk| ready(chunk.ok()));
    docker.import_image(BOOTSTRAPPED_IMAGE, archive).await?;
    anyhow::ensure!(tar.wait().await?.success(), "`tar` failed");
    Ok(())
}

/// The root folder of a base image being built. Dropping it also unmounts what an interrupted debootstrap left mounted.
#[derive(Debug)]
struct BootstrapRoot {
    folder: Option<tempfile::TempDir>,
}

impl BootstrapRoot {
    /// Creates the folder, and removes all others: the caller holds the lock.
    fn new(temporary: &Path) -> Result<Self> {
        // Folders that a killed `up` left.
        if let Ok(entries) = fs::read_dir(temporary) {
            for entry in entries
                .flatten()
                .filter(|e| e.file_name().to_string_lossy().starts_with("base-"))
            {
                remove_root_folder(&entry.path());
            }
        }
        fs::create_dir_all(temporary)?;
        Ok(Self {
            folder: Some(
                tempfile::Builder::new()
                    .prefix("base-")
                    .tempdir_in(temporary)?,
            ),
        })
    }

    fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), |f| f.path())
    }

    /// Removes the files that an image does not need, and adds the sources of security updates.
    fn remove_unneeded_files(&self) -> Result<()> {
        for beneath in [
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
            "usr/share/locale",
            "usr/share/info",
        ] {
            empty_folder(&self.path().join(beneath))?;
        }
        for file in [
            "var/cache/apt/pkgcache.bin",
            "var/cache/apt/srcpkgcache.bin",
        ] {
            let _ = fs::remove_file(self.path().join(file));
        }
        let list = self.path().join("etc/apt/sources.list");
        let main = fs::read_to_string(&list)?;
        let Some(mirror) = main.split_whitespace().find(|word| word.contains("://")) else {
            return Ok(());
        };
        let security = format!("{}-security", mirror.trim_end_matches('/'));
        let more = format!(
            "{main}deb {mirror} {DEBIAN_SUITE}-updates main\ndeb {security} {DEBIAN_SUITE}-security main\n"
        );
        fs::write(list, more)?;
        Ok(())
    }
}

impl Drop for BootstrapRoot {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            remove_root_folder(&folder.keep());
        }
    }
}

/// Removes a root folder, but never a file system that is mounted in it.
fn remove_root_folder(root: &Path) {
    for mounted in ["proc", "sys", "dev/pts", "dev"] {
        let at = root.join(mounted);
        if fs::read_to_string("/proc/self/mounts")
            .is_ok_and(|m| m.contains(&format!(" {} ", at.display())))
        {
            let done = std::process::Command::new("umount")
                .arg("-l")
                .arg(&at)
                .status();
            if !done.is_ok_and(|s| s.success()) {
                tracing::warn!(
                    path = %at.display(),
                    "osctl does not remove a root folder, because a file system in it is still mounted"
                );
                return;
            }
        }
    }
    if let Err(error) = fs::remove_dir_all(root) {
        tracing::warn!(path = %root.display(), %error, "a root folder can't be removed");
    }
}

fn empty_folder(folder: &Path) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    for entry in entries {
        let path = entry?.path();
        // Keep the licences of the included packages.
        let licence = path.join("copyright");
        if path.is_symlink() || !path.is_dir() {
            fs::remove_file(&path)?;
        } else if licence.exists() {
            for other in fs::read_dir(&path)?
                .flatten()
                .map(|e| e.path())
                .filter(|p| *p != licence)
            {
                if other.is_dir() && !other.is_symlink() {
                    fs::remove_dir_all(&other)?
                } else {
                    fs::remove_file(&other)?
                }
            }
        } else {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}
