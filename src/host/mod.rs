//! Outside the container: what belongs to an instance, what a machine must have, and the way in.

pub(crate) mod build;
pub(crate) mod client;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod folders;
pub(crate) mod health;
pub(crate) mod instance;
pub(crate) mod jupyter;
pub(crate) mod landing;
pub(crate) mod ports;
pub(crate) mod project;
pub(crate) mod provision;
pub(crate) mod raise;
pub(crate) mod specification;
pub(crate) mod terminal;
pub(crate) mod trust;
