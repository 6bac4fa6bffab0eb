//! A body: the files that an image is made of. Here are the body that is embedded in the binary, the archives and
//! folders that hold a body, and the checks of a whole body; `project_body` reads the body of a project.

use super::body_reader::{BODY_ORIGIN_FILE, is_ignored, unfit_body_error};
use crate::archive::Folder;
use crate::error::{Error, Result};
use crate::protocol::BODY_PROTOCOL_VERSION;
use crate::protocol::hex::hex;
use crate::protocol::mcp::McpServerEntry;
use crate::protocol::packages::PackageKind;
use crate::protocol::yaml::has_anchor;
use include_dir::{Dir, include_dir};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
#[cfg(target_os = "linux")]
use std::io::Read;
use std::path::{Path, PathBuf};

static EMBEDDED_BODY: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/body");
/// The files of an extension that `osctl init` writes.
static EXTENSION_TEMPLATE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/assets/init");

/// The file that makes a body a whole one.
pub(super) const BODY_MANIFEST: &str = "body.yaml";

/// Where the build context has the installers' files.
pub(super) const CONTEXT_PACKAGES_FOLDER: &str = ".osctl/packages";

/// The MCP servers of the body.
const SERVERS_FILE: &str = "mcp.json";

/// The services of the desktop.
const SERVICES_FILE: &str = "desktop/services.yaml";

/// The maximum size of a YAML file that is parsed before a build.
const MAX_CHECKED_YAML_BYTES: usize = 1 << 20;

/// The maximum size of a file that an update reads.
const MAX_BODY_FILE_BYTES: u64 = 64 << 20;

/// The files of a body by path beneath its folder, `/`-separated.
#[derive(Debug, Clone, Default)]
pub(crate) struct Body {
    /// The folder, for messages; `None` for the embedded body.
    pub(crate) folder: Option<PathBuf>,
    /// The files for the image.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The files of the folder, if those for the image differ.
    pub(super) sources: Option<BTreeMap<String, Vec<u8>>>,
    /// Lines of the default Dockerfile before those of an extension.
    pub(super) default_lines: usize,
    /// The line of the Dockerfile at which the steps of the project's packages begin.
    pub(super) packages_line: Option<usize>,
    /// The installers whose packages have no versions in `osctl.lock`.
    pub(super) unlocked: Vec<PackageKind>,
}

/// `body.yaml`: the protocol that the body was made for.
#[derive(Debug, Deserialize)]
struct BodyManifest {
    protocol: u32,
}

/// The result of `init --update` for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BodyFileUpdate {
    /// The file was missing.
    Added,
    /// The file was not edited since `init`, and now has this version's content.
    Updated,
    /// The user edited the file, and this version's content is unchanged.
    Kept,
    /// The user and this version both changed the file: this version's content is beside it as `FILE.new`.
    Conflict,
}

impl Body {
    /// The body inside this binary.
    pub(crate) fn embedded() -> Self {
        let mut files = BTreeMap::new();
        collect_embedded(&EMBEDDED_BODY, &mut files);
        Self::from_files(files)
    }

    /// The extension that `osctl init` writes, which adds nothing to the embedded body.
    pub(crate) fn extension_template() -> Self {
        let mut files = BTreeMap::new();
        collect_embedded(&EXTENSION_TEMPLATE, &mut files);
        Self::from_files(files)
    }

    /// Whether the files are a whole body, not an extension.
    pub(crate) fn is_whole_body(files: &BTreeMap<String, Vec<u8>>) -> bool {
        files.contains_key(BODY_MANIFEST)
    }

    /// A body without a folder.
    pub(crate) fn from_files(files: BTreeMap<String, Vec<u8>>) -> Self {
        Self {
            files,
            ..Self::default()
        }
    }

    /// Whether a body's folder is a whole body, not an extension.
    pub(crate) fn is_whole(folder: &Folder) -> bool {
        folder.stat(OsStr::new(BODY_MANIFEST)).is_ok()
    }

    /// The warning about packages without versions in `osctl.lock`, if there are some.
    pub(crate) fn unlocked_packages_warning(&self) -> Option<String> {
        let kinds: Vec<&str> = self.unlocked.iter().map(|kind| kind.as_str()).collect();
        (!kinds.is_empty()).then(|| {
            format!(
                "`osctl.lock` has no versions for the packages of {} in `osctl.yaml`, so the newest ones are installed; `osctl packages lock` locks them",
                kinds.join(", ")
            )
        })
    }

    /// Whether the file, of the files for the image, names packages of the project.
    pub(crate) fn is_package_file(path: &str) -> bool {
        path.starts_with(CONTEXT_PACKAGES_FOLDER)
    }

    /// Whether the project adds packages to the image.
    pub(crate) fn has_packages(&self) -> bool {
        self.package_files().next().is_some()
    }

    fn package_files(&self) -> impl Iterator<Item = (&String, &Vec<u8>)> {
        let files = self.files.range(CONTEXT_PACKAGES_FOLDER.to_owned()..);
        files.take_while(|(path, _)| path.starts_with(CONTEXT_PACKAGES_FOLDER))
    }

    /// Checks the manifest and the files that the companion parses; `folder` is for messages.
    ///
    /// # Errors
    /// When one of them is missing or not valid, or the body has another protocol.
    pub(super) fn check_compatible(&self, folder: &Path) -> Result<()> {
        let unfit = |why: String| Error::InvalidBody {
            body: folder.to_owned(),
            why,
        };
        let manifest = self
            .files
            .get(BODY_MANIFEST)
            .ok_or_else(|| unfit(format!("`{BODY_MANIFEST}` is missing")))?;
        let manifest: BodyManifest = serde_yaml::from_slice(manifest)
            .map_err(|e| unfit(format!("`body.yaml` can't be read: {e}")))?;
        if manifest.protocol != BODY_PROTOCOL_VERSION {
            let (theirs, ours) = (manifest.protocol, BODY_PROTOCOL_VERSION);
            return Err(Error::BodyProtocolMismatch {
                body: folder.to_owned(),
                theirs,
                ours,
            }
            .into());
        }
        if let Some(servers) = self.files.get(SERVERS_FILE) {
            let parsed: Value = serde_json::from_slice(servers)
                .map_err(|e| unfit(format!("`{SERVERS_FILE}` is not valid JSON: {e}")))?;
            check_servers(&parsed).map_err(|why| unfit(format!("`{SERVERS_FILE}`: {why}")))?;
        }
        let services = self.files.get(SERVICES_FILE).map(Vec::as_slice);
        let services = services.and_then(|services| std::str::from_utf8(services).ok());
        // Aliases of anchors can expand to gigabytes.
        let may_parse = |text: &&str| text.len() <= MAX_CHECKED_YAML_BYTES && !has_anchor(text);
        if let Some(services) = services.filter(may_parse) {
            let parsed = serde_yaml::from_str::<serde::de::IgnoredAny>(services);
            parsed.map_err(|e| unfit(format!("`{SERVICES_FILE}` is not valid YAML: {e}")))?;
        }
        Ok(())
    }

    /// The files of the folder and the project's packages as a tar archive, for storage.
    ///
    /// # Errors
    /// When a path is too long for an archive.
    pub(crate) fn to_archive(&self) -> Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        let files: BTreeMap<_, _> = match &self.sources {
            Some(sources) => sources.iter().chain(self.package_files()).collect(),
            None => self.files.iter().collect(),
        };
        for (path, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(Self::file_mode(content));
            archive.append_data(&mut header, path, content.as_slice())?;
        }
        Ok(archive.into_inner()?)
    }

    /// Reads the archive that [`Body::to_archive`] wrote.
    ///
    /// # Errors
    /// When the bytes are not such an archive.
    #[cfg(target_os = "linux")]
    pub(crate) fn from_archive(archive: &[u8]) -> Result<Self> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries()? {
            let mut entry = entry?;
            let path = to_slash_path(&entry.path()?);
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            files.insert(path, content);
        }
        Ok(Self::from_files(files))
    }

    /// The mode of a file: executable if the content starts with `#!`.
    pub(crate) fn file_mode(content: &[u8]) -> u32 {
        if content.starts_with(b"#!") {
            0o755
        } else {
            0o644
        }
    }

    /// Writes the body into an empty folder, which messages call `name`.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub(crate) fn write_to_folder(&self, folder: &Folder, name: &Path) -> Result<()> {
        let folder = BodyFolder { folder, name };
        let mut origin = BTreeMap::new();
        for (path, content) in &self.files {
            folder.write_file(path, content)?;
            origin.insert(path.clone(), content_digest(content));
        }
        folder.write_file(BODY_ORIGIN_FILE, &serde_json::to_vec_pretty(&origin)?)
    }

    /// Updates a folder that [`Body::write_to_folder`] wrote to this body, and overwrites no edit. An agent may
    /// change the folder at any time.
    ///
    /// # Errors
    /// When the folder can't be read or written, or a file's path holds a link or another kind of entry.
    pub(crate) fn update_folder(
        &self,
        folder: &Folder,
        name: &Path,
    ) -> Result<BTreeMap<String, BodyFileUpdate>> {
        let folder = BodyFolder { folder, name };
        let origin = folder.read_file(BODY_ORIGIN_FILE)?;
        let mut origin: BTreeMap<String, String> = origin
            .and_then(|t| serde_json::from_slice(&t).ok())
            .unwrap_or_default();
        let mut done = BTreeMap::new();
        for (path, ours) in &self.files {
            let theirs = folder.read_file(path)?;
            let written = origin.get(path).cloned();
            let update = match &theirs {
                _ if theirs.as_ref() == Some(ours) => None,
                None => Some(BodyFileUpdate::Added),
                Some(theirs) if written == Some(content_digest(theirs)) => {
                    Some(BodyFileUpdate::Updated)
                }
                Some(_) if written == Some(content_digest(ours)) => Some(BodyFileUpdate::Kept),
                Some(_) => Some(BodyFileUpdate::Conflict),
            };
            match update {
                Some(BodyFileUpdate::Added | BodyFileUpdate::Updated) => {
                    folder.write_file(path, ours)?
                }
                Some(BodyFileUpdate::Conflict) => {
                    folder.write_file(&format!("{path}.new"), ours)?
                }
                Some(BodyFileUpdate::Kept) | None => {}
            }
            origin.insert(path.clone(), content_digest(ours));
            done.extend(update.map(|u| (path.clone(), u)));
        }
        folder.write_file(BODY_ORIGIN_FILE, &serde_json::to_vec_pretty(&origin)?)?;
        Ok(done)
    }
}

/// # Errors
/// When the hub would refuse the entry of a server because of its fields.
pub(super) fn check_servers(document: &Value) -> std::result::Result<(), String> {
    let servers = document["mcpServers"].as_object().into_iter().flatten();
    for (name, entry) in servers {
        McpServerEntry::parse_entry(entry).map_err(|why| format!("the server `{name}`: {why}"))?;
    }
    Ok(())
}

/// The open folder of a body.
struct BodyFolder<'a> {
    folder: &'a Folder,
    /// For messages.
    name: &'a Path,
}

impl BodyFolder<'_> {
    /// The content of the file; `None` if it is missing.
    fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let (names, name) = self.split_path(path);
        let mut at = self.folder.try_clone()?;
        for part in names {
            at = match at.open_folder(part) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                opened => opened.map_err(|error| self.access_error(path, error))?,
            };
        }
        match at.read_file(name, MAX_BODY_FILE_BYTES) {
            Ok(Some(content)) => Ok(Some(content)),
            Ok(None) => Err(unfit_body_error(
                self.name,
                format!("`{path}` is not a regular file"),
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.access_error(path, error)),
        }
    }

    /// Replaces the file; creates missing folders.
    fn write_file(&self, path: &str, content: &[u8]) -> Result<()> {
        let (names, name) = self.split_path(path);
        let mut at = self.folder.try_clone()?;
        for part in names {
            let opened = at.ensure_folder(part);
            at = opened.map_err(|error| self.access_error(path, error))?;
        }
        let written = at.replace_file(name, Body::file_mode(content), content);
        written.map_err(|error| self.access_error(path, error))
    }

    fn split_path<'p>(
        &self,
        path: &'p str,
    ) -> (impl Iterator<Item = &'p OsStr> + use<'p>, &'p OsStr) {
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folders = folders.split('/').filter(|part| !part.is_empty());
        (folders.map(OsStr::new), OsStr::new(name))
    }

    fn access_error(&self, path: &str, error: std::io::Error) -> anyhow::Error {
        match Folder::is_link(&error) {
            true => unfit_body_error(self.name, format!("`{path}` or a folder of it is a link")),
            false => unfit_body_error(self.name, format!("`{path}`: {error}")),
        }
    }
}

fn collect_embedded(dir: &Dir<'_>, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in dir.entries() {
        let name = entry
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        if is_ignored(&name) {
            continue;
        }
        match entry {
            include_dir::DirEntry::Dir(dir) => collect_embedded(dir, files),
            include_dir::DirEntry::File(file) => {
                files.insert(to_slash_path(file.path()), file.contents().to_vec());
            }
        }
    }
}

fn to_slash_path(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "/")
}

fn content_digest(content: &[u8]) -> String {
    hex(Sha256::digest(content))
}

#[cfg(test)]
pub(super) mod tests;
