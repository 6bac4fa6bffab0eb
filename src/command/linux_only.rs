//! The verbs that run only inside the container.

use crate::error::Error;

/// The error of a verb that runs only inside the container.
pub(super) fn linux_only() -> anyhow::Error {
    let hint = "`osctl up --companion PATH` puts a Linux binary into the container";
    Error::precondition("this verb runs only in the container, on Linux", hint).into()
}
