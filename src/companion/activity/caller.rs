//! The client of a request, by the name that it gives itself.

use crate::companion::admission::ListenerKind;
use crate::protocol::activity::{CLI_AGENT, NOTEBOOK_AGENT};
use crate::protocol::activity_text::client_name;
use std::sync::Arc;

/// The client's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::companion) struct Caller(pub(in crate::companion) Arc<str>);

impl Caller {
    /// From the header `User-Agent`. Code of a kernel uses the private socket and sends no header.
    pub(in crate::companion) fn from_user_agent(
        agent: Option<&str>,
        listener: ListenerKind,
    ) -> Self {
        let product = agent.unwrap_or_default().split(['/', ' ']).next();
        let name = match product.unwrap_or_default() {
            "" if listener == ListenerKind::Inside => "kernel".into(),
            "" => "unknown".into(),
            "Mozilla" => "browser".into(),
            product @ (CLI_AGENT | NOTEBOOK_AGENT) => product.into(),
            product => client_name(product),
        };
        Self(name.into())
    }
}

#[cfg(test)]
mod tests {
    use super::Caller;
    use crate::companion::admission::ListenerKind as L;

    #[test]
    fn a_client_is_named_by_its_product() {
        for (agent, listener, expected) in [
            (Some("osctl/0.1.0"), L::Outside, "osctl"),
            (Some("notebook/0.1.0"), L::Outside, "notebook"),
            (Some("Mozilla/5.0 (X11; Linux)"), L::Outside, "browser"),
            (Some("curl/8.5.0"), L::Outside, "curl"),
            (Some("python-requests"), L::Inside, "python-requests"),
            (Some("\x1b]0;x"), L::Outside, "\\u{1b}]0;x"),
            (Some(""), L::Outside, "unknown"),
            (None, L::Outside, "unknown"),
            (None, L::Inside, "kernel"),
        ] {
            let caller = Caller::from_user_agent(agent, listener);
            assert_eq!(&*caller.0, expected);
        }
    }
}
