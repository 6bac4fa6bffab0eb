//! Environment variables of containers and images.

use super::{Docker, explain_api_error, is_status, with_query_timeout};
use crate::error::Result;
use std::collections::BTreeMap;

impl Docker {
    /// The environment that a container was created with.
    ///
    /// # Errors
    /// When the engine does not answer, or the container does not exist.
    pub(crate) async fn container_environment(
        &self,
        name: &str,
    ) -> Result<BTreeMap<String, String>> {
        let action = "inspecting the container";
        let found = with_query_timeout(action, self.api.inspect_container(name, None)).await?;
        let found = found.map_err(|e| explain_api_error(action, e))?;
        let all = found.config.and_then(|c| c.env).unwrap_or_default();
        Ok(parse_env_pairs(&all))
    }

    /// The environment that an image gives its containers; empty if the image does not exist.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn image_environment(&self, image: &str) -> Result<BTreeMap<String, String>> {
        let action = "inspecting the image";
        let all = match with_query_timeout(action, self.api.inspect_image(image)).await? {
            Ok(found) => found.config.and_then(|c| c.env).unwrap_or_default(),
            Err(e) if is_status(&e, 404) => Vec::new(),
            Err(e) => return Err(explain_api_error(action, e)),
        };
        Ok(parse_env_pairs(&all))
    }
}

/// Parses texts of the form `NAME=VALUE`.
fn parse_env_pairs(all: &[String]) -> BTreeMap<String, String> {
    let pairs = all.iter().filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}
