//! Parts that no subject of osctl owns: replacement of whole files, delays between attempts, and the form of a refused
//! HTTP request.
//!
//! This crate depends only on `osctl-protocol`.

pub mod api;
pub mod atomic_write;
pub mod backoff;
