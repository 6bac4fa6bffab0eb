//! The variables of containers and images.

use super::{Docker, answer, is_status, lost};
use crate::error::Result;
use std::collections::BTreeMap;

impl Docker {
    /// The environment that a container was made with.
    ///
    /// # Errors
    /// When the engine does not answer, or there is none.
    pub(crate) async fn environment(&self, name: &str) -> Result<BTreeMap<String, String>> {
        let doing = "looking at the container";
        let found = answer(doing, self.api.inspect_container(name, None)).await?;
        let found = found.map_err(|e| lost(doing, e))?;
        let all = found.config.and_then(|c| c.env).unwrap_or_default();
        Ok(pairs(&all))
    }

    /// The environment that an image gives its containers; none where there is no such image.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn image_environment(&self, image: &str) -> Result<BTreeMap<String, String>> {
        let doing = "looking at the image";
        let all = match answer(doing, self.api.inspect_image(image)).await? {
            Ok(found) => found.config.and_then(|c| c.env).unwrap_or_default(),
            Err(e) if is_status(&e, 404) => Vec::new(),
            Err(e) => return Err(lost(doing, e)),
        };
        Ok(pairs(&all))
    }
}

/// Of texts `NAME=VALUE`.
fn pairs(all: &[String]) -> BTreeMap<String, String> {
    let pairs = all.iter().filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}
