//! Networks, and the containers on them.

use super::container::has_same_owner;
use super::container_ops::error_contains;
use super::{Docker, explain_api_error, is_status, with_query_timeout};
use crate::error::{Error, Result};
use crate::protocol::spec::ContainerSpec;
use bollard::models::{NetworkConnectRequest, NetworkCreateRequest, NetworkDisconnectRequest};
use std::collections::BTreeMap;

impl Docker {
    /// Whether a network of this name exists.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn has_network(&self, name: &str) -> Result<bool> {
        let action = "inspecting the network";
        match with_query_timeout(action, self.api.inspect_network(name, None)).await? {
            Ok(_) => Ok(true),
            Err(e) if is_status(&e, 404) => Ok(false),
            Err(e) => Err(explain_api_error(action, e)),
        }
    }

    pub(super) async fn ensure_network(&self, network: &str, spec: &ContainerSpec) -> Result<()> {
        self.ensure_labelled_network(network, &spec.labels, false)
            .await
    }

    /// Creates an internal network, which has no external access and publishes no ports, unless it exists.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn ensure_internal_network(
        &self,
        network: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<()> {
        self.ensure_labelled_network(network, labels, true).await
    }

    async fn ensure_labelled_network(
        &self,
        network: &str,
        labels: &BTreeMap<String, String>,
        internal: bool,
    ) -> Result<()> {
        let action = "inspecting the network";
        match with_query_timeout(action, self.api.inspect_network(network, None)).await? {
            Ok(found) if has_same_owner(found.labels.as_ref(), labels) => return Ok(()),
            Ok(_) => {
                let name = network.to_owned();
                return Err(Error::ForeignObject {
                    what: "network",
                    name,
                }
                .into());
            }
            Err(e) if is_status(&e, 404) => {}
            Err(e) => return Err(explain_api_error(action, e)),
        }
        let request = NetworkCreateRequest {
            name: network.to_owned(),
            driver: Some("bridge".into()),
            internal: Some(internal),
            labels: Some(labels.clone().into_iter().collect()),
            ..Default::default()
        };
        match self.api.create_network(request).await {
            Ok(_) => Ok(()),
            Err(e) if is_status(&e, 409) => Ok(()),
            Err(e) => Err(explain_api_error("creating the network", e)),
        }
    }

    /// Removes a network with this label. It is not an error if the network does not exist, has another owner, or is
    /// in use.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn remove_network(&self, name: &str, label: (&str, &str)) -> Result<()> {
        let action = "inspecting the network";
        let ours = match with_query_timeout(action, self.api.inspect_network(name, None)).await? {
            Ok(found) => {
                found
                    .labels
                    .unwrap_or_default()
                    .get(label.0)
                    .map(String::as_str)
                    == Some(label.1)
            }
            Err(_) => false,
        };
        if !ours {
            return Ok(());
        }
        match self.api.remove_network(name).await {
            Ok(()) => Ok(()),
            Err(e) if is_status(&e, 404) || is_status(&e, 403) => Ok(()),
            Err(e) => Err(explain_api_error("removing the network", e)),
        }
    }

    /// Disconnects a container from a network, which frees the ports that the container publishes.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn leave_network(&self, name: &str, network: &str) -> Result<()> {
        let request = NetworkDisconnectRequest {
            container: name.into(),
            force: Some(false),
        };
        match self.api.disconnect_network(network, request).await {
            Err(e) if is_status(&e, 404) || error_contains(&e, "not connected") => Ok(()),
            done => done
                .map_err(|e| explain_api_error("disconnecting the container from its network", e)),
        }
    }

    /// Connects a container to a network, with its ports.
    ///
    /// # Errors
    /// When the engine refuses, for example because a port is in use.
    pub(crate) async fn join_network(&self, name: &str, network: &str) -> Result<()> {
        let request = NetworkConnectRequest {
            container: name.into(),
            endpoint_config: None,
        };
        match self.api.connect_network(network, request).await {
            Err(e) if error_contains(&e, "already exists") => Ok(()),
            done => {
                done.map_err(|e| explain_api_error("connecting the container to its network", e))
            }
        }
    }
}
