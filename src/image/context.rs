//! The build context: a body, the binary and the host's certificates as one archive.

use super::{Body, Companion, DIGEST_LABEL};
use crate::error::Result;
use crate::protocol::hex::hex;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;

/// Where the parts that are not the body's lie in the context.
const OURS: &str = ".osctl";

/// A certificate authority that the host trusts beyond the usual ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) name: String,
    pub(crate) pem: Vec<u8>,
}

/// All that an image is made of. The same recipe gives the same digest.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) body: Body,
    pub(crate) companion: Companion,
    pub(crate) certificates: Vec<Certificate>,
    /// Build arguments that shape the image; proxies are not among them.
    pub(crate) args: BTreeMap<String, String>,
}

impl Recipe {
    /// Over every name, mode and content, and over the arguments.
    pub(crate) fn digest(&self) -> String {
        let mut all = Sha256::new();
        for (path, content) in self.entries() {
            all.update(path.as_bytes());
            all.update([0]);
            all.update(Body::mode(content).to_le_bytes());
            all.update(Sha256::digest(content));
        }
        for (key, value) in &self.args {
            all.update(format!("\0{key}={value}"));
        }
        let digest = hex(all.finalize());
        format!("sha256:{digest}")
    }

    /// The labels that state what the image is.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (DIGEST_LABEL.into(), self.digest()),
            ("osctl.version".into(), env!("CARGO_PKG_VERSION").into()),
        ])
    }

    /// The context as a tar archive, with `dockerfile` in the place of the body's own.
    ///
    /// # Errors
    /// When a path does not fit into an archive.
    pub(crate) fn archive(&self, dockerfile: &str) -> Result<Bytes> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, content) in self.entries() {
            let content = match path.as_str() {
                "Dockerfile" => dockerfile.as_bytes(),
                _ => content,
            };
            // No times and no owners, so that the same content is the same archive.
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(Body::mode(content));
            if content.starts_with(b"\x7fELF") {
                header.set_mode(0o755);
            }
            archive.append_data(&mut header, &path, content)?;
        }
        Ok(archive.into_inner()?.into())
    }

    fn entries(&self) -> impl Iterator<Item = (String, &Vec<u8>)> {
        let body = self
            .body
            .files
            .iter()
            .map(|(path, content)| (path.clone(), content));
        let binary = std::iter::once((format!("{OURS}/osctl"), &self.companion.content));
        let certificates = self
            .certificates
            .iter()
            .map(|c| (format!("{OURS}/ca/{}", c.name), &c.pem));
        body.chain(binary).chain(certificates)
    }
}

/// The context of an image of nothing but the binary, and the digest of what it is made of.
///
/// # Errors
/// When the archive can't be made.
pub(crate) fn bare(companion: &Companion) -> Result<(String, Bytes)> {
    const DOCKERFILE: &[u8] =
        b"FROM scratch\nCOPY osctl /osctl\nENTRYPOINT [\"/osctl\", \"keeper\"]\n";
    let mut all = Sha256::new();
    all.update(DOCKERFILE);
    all.update(&companion.content);
    let files = [
        ("Dockerfile", 0o644, DOCKERFILE),
        ("osctl", 0o755, &companion.content),
    ];
    Ok((hex(all.finalize()), plain(&files)?))
}

/// An archive of one file.
///
/// # Errors
/// When the archive can't be made.
pub(crate) fn single(name: &str, mode: u32, content: &[u8]) -> Result<Bytes> {
    plain(&[(name, mode, content)])
}

/// The content of an archive of one file, as of [`single`].
///
/// # Errors
/// When it is no archive.
pub(crate) fn content(archive: &[u8]) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    for file in tar::Archive::new(archive).entries()?.take(1) {
        file?.read_to_end(&mut content)?;
    }
    Ok(content)
}

fn plain(files: &[(&str, u32, &[u8])]) -> Result<Bytes> {
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
    use super::{Certificate, Recipe};
    use crate::image::{Body, Companion};
    use std::io::Read;

    fn recipe() -> Recipe {
        Recipe {
            body: Body::embedded(),
            companion: Companion {
                content: b"\x7fELF binary".to_vec(),
            },
            certificates: vec![Certificate {
                name: "README".into(),
                pem: b"x".to_vec(),
            }],
            args: [("BASE".to_string(), "debian".to_string())].into(),
        }
    }

    #[test]
    fn the_digest_changes_with_every_part_and_with_nothing_else() {
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

    #[test]
    fn the_archive_holds_the_body_the_binary_and_the_certificates() {
        let bytes = recipe().archive("FROM x").unwrap();
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
