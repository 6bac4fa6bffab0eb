//! `image`: the published image of the Dockerfile's stage `ground`.

use super::Config;
use serde::{Deserialize, Serialize};

/// Whether to pull the published image, and which one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedImage {
    /// Pull the image instead of building its content.
    pub(crate) pull: bool,
    /// The image by its digest; if null, nothing is pulled.
    pub(crate) from: Option<String>,
}

impl Default for PublishedImage {
    /// The image of the release that compiled this binary; a build from source has none.
    fn default() -> Self {
        let released = option_env!("OSCTL_IMAGE").filter(|reference| !reference.is_empty());
        Self {
            pull: true,
            from: released.map(str::to_owned),
        }
    }
}

impl Config {
    /// The published image on which bodies may be built. It is used only if the keys that shape it have their default
    /// values.
    pub(crate) fn published_image(&self) -> Option<&str> {
        let usual = Self::default();
        let is_usual = self.base == usual.base && self.build_tools == usual.build_tools;
        let from = self.image.from.as_deref();
        from.filter(|_| self.image.pull && is_usual)
    }
}

/// Whether the text is `NAME@sha256:` with 64 hexadecimal digits, and the name has no tag.
pub(super) fn is_reference_by_digest(text: &str) -> bool {
    let Some((name, digest)) = text.split_once("@sha256:") else {
        return false;
    };
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    let path = name.rsplit('/').next().unwrap_or(name);
    digest.len() == 64
        && digest.chars().all(is_hex)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_of_name)
        && !path.is_empty()
        && !path.contains(':')
}

#[cfg(test)]
mod tests {
    use super::is_reference_by_digest;
    use crate::config::Config;

    #[test]
    fn a_published_image_is_named_by_its_digest_alone() {
        let digest = "0123456789abcdef".repeat(4);
        for name in ["x", "osctl/ground", "127.0.0.1:5000/a/b", "Host.example/x"] {
            let text = format!("{name}@sha256:{digest}");
            assert!(is_reference_by_digest(&text), "{text}");
        }
        for text in [
            "",
            "osctl/ground",
            "osctl/ground:1",
            &format!("@sha256:{digest}"),
            &format!("sha256:{digest}"),
            &format!("host:5000@sha256:{digest}"),
            &format!("x:1@sha256:{digest}"),
            &format!("a/@sha256:{digest}"),
            &format!("-x@sha256:{digest}"),
            &format!("a b@sha256:{digest}"),
            &format!("x@sha256:{}", &digest[1..]),
            &format!("x@sha256:{digest}0"),
            &format!("x@sha256:{}", digest.to_uppercase()),
            &format!("x@sha512:{digest}"),
            &format!("x@sha256:{digest}@sha256:{digest}"),
        ] {
            assert!(!is_reference_by_digest(text), "{text}");
        }
    }

    #[test]
    fn a_published_image_is_for_the_usual_base_and_tools_alone() {
        let mut config = Config::default();
        config.image.from = Some("x@sha256:0".into());
        assert_eq!(config.published_image(), Some("x@sha256:0"));
        let changes: [fn(&mut Config); 4] = [
            |config| config.image.pull = false,
            |config| config.image.from = None,
            |config| config.base = "debian:sid".into(),
            |config| config.build_tools = false,
        ];
        for change in changes {
            let mut changed = config.clone();
            change(&mut changed);
            assert_eq!(changed.published_image(), None, "{:?}", changed.image);
        }
    }
}
