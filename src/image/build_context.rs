//! The build context: a body, the binary and the host's certificates as one archive.

use super::{Body, CompanionBinary};
use crate::error::Result;
use crate::protocol::hex::hex;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;

/// Label of an image: the digest of its recipe.
pub(crate) const IMAGE_DIGEST_LABEL: &str = "osctl.digest";
/// Where the context holds the parts that do not belong to the body.
const CONTEXT_OSCTL_FOLDER: &str = ".osctl";
const CONTEXT_BINARY_PATH: &str = ".osctl/osctl";

/// A certificate authority that the host trusts in addition to the usual ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CaCertificate {
    pub(crate) name: String,
    pub(crate) pem: Vec<u8>,
}

/// The input of an image. The same recipe gives the same digest.
#[derive(Debug)]
pub(crate) struct ImageRecipe {
    pub(crate) body: Body,
    pub(crate) companion: CompanionBinary,
    pub(crate) certificates: Vec<CaCertificate>,
    /// Build arguments that affect the image's content; proxies are not included.
    pub(crate) args: BTreeMap<String, String>,
}

impl ImageRecipe {
    /// The digest over every name, mode and content, and over the arguments.
    pub(crate) fn digest(&self) -> String {
        let mut all = Sha256::new();
        for (path, content) in self.context_files() {
            all.update(path.as_bytes());
            all.update([0]);
            all.update(Body::file_mode(content).to_le_bytes());
            all.update(Sha256::digest(content));
        }
        for (key, value) in &self.args {
            all.update(format!("\0{key}={value}"));
        }
        let digest = hex(all.finalize());
        format!("sha256:{digest}")
    }

    /// The labels that identify the image.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (IMAGE_DIGEST_LABEL.into(), self.digest()),
            ("osctl.version".into(), env!("CARGO_PKG_VERSION").into()),
        ])
    }

    /// The context as a tar archive, with `dockerfile` in the place of the body's own. The archive leaves out the
    /// binary if `binary_image` names an image that holds only the binary, and the Dockerfile can copy the binary
    /// from there.
    ///
    /// # Errors
    /// When a path is too long for an archive.
    pub(crate) fn to_context_archive(
        &self,
        dockerfile: &str,
        binary_image: Option<&str>,
    ) -> Result<Bytes> {
        let rewritten = binary_image.and_then(|image| copy_binary_from_image(dockerfile, image));
        let mut archive = tar::Builder::new(Vec::new());
        for (path, content) in self.context_files() {
            let content = match (path.as_str(), &rewritten) {
                ("Dockerfile", text) => text.as_deref().unwrap_or(dockerfile).as_bytes(),
                (CONTEXT_BINARY_PATH, Some(_)) => continue,
                _ => content,
            };
            // No times and no owners, so that the same content gives the same archive.
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(Body::file_mode(content));
            if content.starts_with(b"\x7fELF") {
                header.set_mode(0o755);
            }
            archive.append_data(&mut header, &path, content)?;
        }
        Ok(archive.into_inner()?.into())
    }

    fn context_files(&self) -> impl Iterator<Item = (String, &Vec<u8>)> {
        let body = self
            .body
            .files
            .iter()
            .map(|(path, content)| (path.clone(), content));
        let binary = std::iter::once((CONTEXT_BINARY_PATH.to_owned(), &self.companion.content));
        let certificates = self
            .certificates
            .iter()
            .map(|c| (format!("{CONTEXT_OSCTL_FOLDER}/ca/{}", c.name), &c.pem));
        body.chain(binary).chain(certificates)
    }
}

/// Rewrites the Dockerfile to copy the binary from an image, if exactly one line copies the binary alone from the
/// context and no other line could copy it. This saves space: the builder's cache keeps each context that holds the
/// binary, 100 MB at a time.
fn copy_binary_from_image(dockerfile: &str, image: &str) -> Option<String> {
    let mut lines = Vec::new();
    let mut found = 0;
    for line in dockerfile.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        lines.push(match words[..] {
            ["COPY", CONTEXT_BINARY_PATH, target] => {
                found += 1;
                format!("COPY --from={image} /osctl {target}\n")
            }
            ["COPY" | "ADD", ref rest @ ..]
                if !rest.iter().all(|word| is_unrelated_to_binary(word)) =>
            {
                return None;
            }
            _ => format!("{line}\n"),
        });
    }
    (found == 1).then(|| lines.concat())
}

/// Whether a word of `COPY` certainly names neither the binary nor a folder that contains it. A word with unusual
/// characters might.
fn is_unrelated_to_binary(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@".contains(c);
    let of_ours = word.strip_prefix(CONTEXT_OSCTL_FOLDER).and_then(|rest| {
        let folders = ["/ca/", "/packages/"];
        folders
            .into_iter()
            .find_map(|folder| rest.strip_prefix(folder))
    });
    let word = of_ours.unwrap_or(word);
    let hidden = word.starts_with('.') || word.contains("/.") || word == "/";
    !hidden && word.chars().all(is_plain)
}

/// The context of an image that holds only the binary, and the digest of its content.
///
/// # Errors
/// When the archive can't be written.
pub(crate) fn binary_image_context(companion: &CompanionBinary) -> Result<(String, Bytes)> {
    const BINARY_IMAGE_DOCKERFILE: &[u8] =
        b"FROM scratch\nCOPY osctl /osctl\nENTRYPOINT [\"/osctl\", \"keeper\"]\n";
    let mut all = Sha256::new();
    all.update(BINARY_IMAGE_DOCKERFILE);
    all.update(&companion.content);
    let files = [
        ("Dockerfile", 0o644, BINARY_IMAGE_DOCKERFILE),
        ("osctl", 0o755, &companion.content),
    ];
    Ok((hex(all.finalize()), archive_files(&files)?))
}

/// An archive of one file.
///
/// # Errors
/// When the archive can't be written.
pub(crate) fn single_file_archive(name: &str, mode: u32, content: &[u8]) -> Result<Bytes> {
    archive_files(&[(name, mode, content)])
}

/// The content of an archive of one file, as written by [`single_file_archive`].
///
/// # Errors
/// When the bytes are not an archive.
pub(crate) fn single_file_content(archive: &[u8]) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    for file in tar::Archive::new(archive).entries()?.take(1) {
        file?.read_to_end(&mut content)?;
    }
    Ok(content)
}

fn archive_files(files: &[(&str, u32, &[u8])]) -> Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, mode, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        archive.append_data(&mut header, path, *content)?;
    }
    Ok(archive.into_inner()?.into())
}

#[cfg(test)]
mod tests {
    use super::{CaCertificate, ImageRecipe};
    use crate::image::{Body, CompanionBinary};
    use std::io::Read;

    fn recipe() -> ImageRecipe {
        ImageRecipe {
            body: Body::embedded(),
            companion: CompanionBinary {
                content: b"\x7fELF binary".to_vec(),
            },
            certificates: vec![CaCertificate {
                name: "README".into(),
                pem: b"x".to_vec(),
            }],
            args: [("BASE".to_string(), "debian".to_string())].into(),
        }
    }

    #[test]
    fn the_digest_depends_on_binary_arguments_and_body() {
        let first = recipe().digest();
        assert_eq!(first, recipe().digest());
        let mut other = recipe();
        other.companion.content.push(0);
        assert_ne!(first, other.digest());
        let mut other = recipe();
        other.args.insert("BASE".into(), "other".into());
        assert_ne!(first, other.digest());
        let mut other = recipe();
        other
            .body
            .files
            .get_mut("kernel/__main__.py")
            .unwrap()
            .push(b'\n');
        assert_ne!(first, other.digest());
    }

    fn files(archive: &[u8]) -> std::collections::BTreeMap<String, String> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            let path = entry.path().unwrap().display().to_string();
            (path, String::from_utf8_lossy(&content).into_owned())
        });
        entries.collect()
    }

    #[test]
    fn the_binary_comes_from_its_image_when_one_plain_line_copies_it() {
        let copy = "COPY .osctl/osctl /opt/osctl/bin/osctl";
        let taken =
            format!("FROM a\nCOPY --chmod=755 .osctl/ca/ /ca/\n{copy}\nCOPY --from=a /x /y\n");
        for other in [
            "COPY kernel/ /kernel/",
            "ADD a-b_c.txt /d",
            "RUN ls .osctl",
            "COPY .osctl/packages/pip/ /x/",
        ] {
            let bytes = recipe().to_context_archive(&format!("{taken}{other}"), Some("b:c"));
            let files = files(&bytes.unwrap());
            assert!(!files.contains_key(".osctl/osctl"));
            let text = taken.replace(copy, "COPY --from=b:c /osctl /opt/osctl/bin/osctl");
            assert_eq!(files["Dockerfile"], format!("{text}{other}\n"));
        }
        for other in [
            "COPY . /x",
            "COPY ./.osctl /x",
            "COPY kernel/../.osctl /x",
            "COPY / /x",
            "COPY .osctl /x",
            "COPY .osctl/ca/../osctl /x",
            "COPY .osctl/packages/../osctl /x",
            "COPY .osct?/osctl /x",
            "COPY [\".osctl/osctl\", \"/x\"]",
            "ADD .osctl/osctl /x",
            "COPY --chmod=0700 .osctl/osctl /x",
            "COPY $A /x",
            copy,
        ] {
            let text = format!("{taken}{other}\n");
            let files = files(&recipe().to_context_archive(&text, Some("b:c")).unwrap());
            assert!(files.contains_key(".osctl/osctl"), "{other}");
            assert_eq!(files["Dockerfile"], text);
        }
        let none = recipe()
            .to_context_archive("FROM a\n", Some("b:c"))
            .unwrap();
        assert_eq!(files(&none)["Dockerfile"], "FROM a\n");
    }

    #[test]
    fn the_archive_holds_the_body_the_binary_and_the_certificates() {
        let bytes = recipe().to_context_archive("FROM x", None).unwrap();
        let mut archive = tar::Archive::new(bytes.as_ref());
        let mut modes = std::collections::BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            modes.insert(
                entry.path().unwrap().display().to_string(),
                entry.header().mode().unwrap(),
            );
        }
        assert_eq!(modes[".osctl/osctl"], 0o755);
        assert_eq!(modes["entrypoint.sh"], 0o755);
        assert_eq!(modes["Dockerfile"], 0o644);
        assert!(modes.contains_key(".osctl/ca/README"));
    }
}
