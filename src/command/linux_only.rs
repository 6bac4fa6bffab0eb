//! The error of verbs that run only in the container.

use crate::error::Error;

/// The error of a verb that runs only inside the container.
pub(super) fn linux_only_error() -> anyhow::Error {
    let hint = "`osctl up --companion PATH` puts a Linux binary into the container";
    Error::precondition("this verb runs only in the container, on Linux", hint).into()
}
