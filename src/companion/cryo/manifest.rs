//! Manifest of a generation: the fields that the companion reads. The kernel writes the manifest.
//!
//! The manifest is one JSON object whose last member seals all the text before it with SHA-256.

use crate::protocol::cryo::{CryoVerdict, ReceiptRow, StoreReason, StoredGeneration};
use crate::protocol::hex::hex;
use crate::protocol::restored::LastReload;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The newest format that this version reads; older formats stay readable.
const MAX_MANIFEST_FORMAT: u32 = 2;
const MANIFEST_SEAL_KEY: &str = ",\"seal\":\"";
/// The reason in manifests before 0.1.0 for [`StoreReason::Requested`].
const FORMER_REQUESTED_REASON: &str = "asked";

#[derive(Debug, Clone, Deserialize)]
pub(super) struct CryoManifest {
    pub(super) name: String,
    pub(super) generation: u64,
    /// Number of runs that the session had started when it was stored, if counted.
    #[serde(default)]
    pub(super) runs: Option<u64>,
    pub(super) created: f64,
    reason: String,
    pub(super) session: String,
    python: String,
    files: BTreeMap<String, u64>,
    pub(super) variables: Vec<ReceiptRow>,
    pub(super) libraries: BTreeMap<String, String>,
    pub(super) packages: BTreeMap<String, String>,
}

impl CryoManifest {
    /// Reads the manifest, and checks the sizes of the generation's files. The kernel checks their contents when it
    /// reads them.
    ///
    /// # Errors
    /// The reason why the generation can't be reloaded.
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(folder.join("manifest.json"))
            .map_err(|error| format!("its manifest can't be read: {error}"))?;
        let manifest = Self::parse(&text)?;
        for (name, size) in &manifest.files {
            match fs::metadata(folder.join(name)).map(|m| m.len()) {
                Ok(found) if found == *size => {}
                Ok(found) => return Err(format!("`{name}` has {found} bytes instead of {size}")),
                Err(error) => return Err(format!("`{name}` can't be read: {error}")),
            }
        }
        Ok(manifest)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let damaged = || "its manifest was changed or cut".to_owned();
        let (body, seal) = text.rsplit_once(MANIFEST_SEAL_KEY).ok_or_else(damaged)?;
        if seal.trim_end() != format!("{}\"}}", hex(Sha256::digest(body))) {
            return Err(damaged());
        }
        #[derive(Deserialize)]
        struct ManifestFormat {
            format: u32,
        }
        let version: ManifestFormat = serde_json::from_str(text).map_err(|_| damaged())?;
        if version.format > MAX_MANIFEST_FORMAT {
            let format = version.format;
            return Err(format!(
                "the generation has format {format}, and this version reads formats up to {MAX_MANIFEST_FORMAT}"
            ));
        }
        serde_json::from_str(text)
            .map_err(|error| format!("its manifest has invalid fields: {error}"))
    }

    /// Bytes of the generation on disk, without the manifest.
    pub(super) fn size_bytes(&self) -> u64 {
        self.files.values().sum()
    }

    /// `reload` is the record of the last reload of the generation.
    pub(super) fn to_generation(
        &self,
        generation: u64,
        reload: Option<LastReload>,
    ) -> StoredGeneration {
        let count = |verdict| {
            let rows = self.variables.iter();
            rows.filter(|row| row.verdict == verdict).count() as u64
        };
        let lost_later = reload.as_ref().map_or(0, |reload| reload.lost_count);
        StoredGeneration {
            generation,
            damage: None,
            created: self.created,
            reason: match self.reason.as_str() {
                FORMER_REQUESTED_REASON => StoreReason::Requested.as_str().into(),
                reason => reason.into(),
            },
            session: self.session.clone(),
            size_bytes: self.size_bytes(),
            python: self.python.clone(),
            variables: self.variables.len() as u64,
            altered: count(CryoVerdict::Altered),
            unverified: count(CryoVerdict::Unverified),
            lost: count(CryoVerdict::Lost) + lost_later,
            reload,
        }
    }
}

/// The text with a correct seal.
#[cfg(test)]
pub(super) fn add_seal(text: &str) -> String {
    let body = text
        .rsplit_once(MANIFEST_SEAL_KEY)
        .map_or(text, |(body, _)| body);
    format!(
        "{body}{MANIFEST_SEAL_KEY}{}\"}}\n",
        hex(Sha256::digest(body))
    )
}

#[cfg(test)]
mod tests {
    use super::{CryoManifest, add_seal};

    const CRYO_MANIFEST_SAMPLE: &str =
        include_str!("../../../tests/kernel/cryo/samples/1/1/manifest.json");

    #[test]
    fn a_manifest_of_the_first_format_is_read() {
        let manifest = CryoManifest::parse(CRYO_MANIFEST_SAMPLE).unwrap();
        assert_eq!(manifest.session, "default");
        assert!(manifest.variables.iter().any(|row| row.name == "numbers"));
        // The sample has the former word.
        assert_eq!(manifest.to_generation(1, None).reason, "requested");
    }

    #[test]
    fn verdicts_of_the_second_format_are_counted() {
        let text = CRYO_MANIFEST_SAMPLE.replace("\"format\":1", "\"format\":2");
        let text = text.replacen("\"verdict\":\"saved\"", "\"verdict\":\"altered\"", 2);
        let text = text.replacen("\"verdict\":\"saved\"", "\"verdict\":\"unverified\"", 1);
        let outline = CryoManifest::parse(&add_seal(&text))
            .unwrap()
            .to_generation(7, None);
        assert_eq!(
            (outline.altered, outline.unverified, outline.lost),
            (2, 1, 1)
        );
    }

    #[test]
    fn a_changed_or_cut_manifest_is_refused() {
        let cut = &CRYO_MANIFEST_SAMPLE[..CRYO_MANIFEST_SAMPLE.len() - 8];
        let changed = CRYO_MANIFEST_SAMPLE.replace("\"numbers\"", "\"numbery\"");
        for text in ["", "{}", cut, &changed] {
            assert!(CryoManifest::parse(text).unwrap_err().contains("manifest"));
        }
    }

    #[test]
    fn a_later_format_is_named() {
        let text = add_seal(&CRYO_MANIFEST_SAMPLE.replace("\"format\":1", "\"format\":9"));
        assert!(CryoManifest::parse(&text).unwrap_err().contains("format 9"));
    }
}
