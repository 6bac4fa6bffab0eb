//! The table of refusals: status, type word, message and hint for clients of HTTP, and the text for a model where it
//! differs from the message.

mod files;
mod sessions;
mod stored_state;
#[cfg(test)]
mod tests;

use super::desktop::DesktopRefusal;
use super::display::DisplayRefusal;
use super::evolve::EvolveRefusal;
use crate::protocol::evolve::refusal as keeper;
use axum::http::StatusCode as S;
use osctl_support::api::ApiRefusal;

impl From<EvolveRefusal> for ApiRefusal {
    fn from(refusal: EvolveRefusal) -> Self {
        use EvolveRefusal as R;
        match refusal {
            R::NoKeeper(why) => {
                let message = format!("no keeper is available: {why}");
                Self::new(S::SERVICE_UNAVAILABLE, "no_keeper", message)
                    .with_hint("`osctl up` on the host starts the keeper")
            }
            R::NoReply(why) => {
                let message = format!("no valid reply from the keeper: {why}");
                Self::new(S::SERVICE_UNAVAILABLE, "no_keeper_reply", message)
                    .with_hint("`osctl evolve status` on the host shows details")
                    .with_tool_text(format!("the keeper does not answer: {why}"))
            }
            R::Busy(run) => {
                let message = format!("evolve {run} is in progress");
                let text = format!("{message}; `evolve_status` reports its progress");
                Self::new(S::CONFLICT, "evolving", message)
                    .with_hint("`GET /evolve/status` reports its progress")
                    .with_tool_text(text)
            }
            R::Invalid(message) => Self::invalid_field(message),
            R::Keeper(error) => match error.kind.as_str() {
                keeper::KEEPER_BAD_REQUEST => Self::from_error(S::BAD_REQUEST, error),
                keeper::KEEPER_FORBIDDEN => Self::from_error(S::FORBIDDEN, error),
                keeper::KEEPER_NO_SUCH_RUN => Self::from_error(S::NOT_FOUND, error),
                keeper::KEEPER_RATE_LIMITED | keeper::FORMER_KEEPER_RATE_LIMITED => {
                    Self::from_error(S::TOO_MANY_REQUESTS, error).with_retry_after(30)
                }
                _ => Self::from_error(S::SERVICE_UNAVAILABLE, error),
            },
        }
    }
}

impl From<DesktopRefusal> for ApiRefusal {
    fn from(refusal: DesktopRefusal) -> Self {
        use DesktopRefusal as R;
        use DisplayRefusal as D;
        let message = refusal.to_string();
        let (status, kind) = match refusal {
            R::NotAvailable(_) => {
                let hint = "set `desktop.run: lazy` in osctl.yaml and run `osctl up`; only containers have a desktop";
                return Self::new(S::SERVICE_UNAVAILABLE, "no_desktop", message).with_hint(hint);
            }
            R::Display(D::Invalid(_)) => return Self::invalid_field(message),
            R::Display(D::NoWindow(_)) => {
                let text = format!("{message}; `desktop_windows` lists them");
                return Self::new(S::NOT_FOUND, "unknown_window", message)
                    .with_hint("`GET /display/windows` lists the windows")
                    .with_tool_text(text);
            }
            R::NotReady(_) => (S::SERVICE_UNAVAILABLE, "desktop_not_ready"),
            R::Display(D::Unavailable(_)) => (S::SERVICE_UNAVAILABLE, "no_screen"),
            R::Display(D::NotApplied(_)) => (S::GATEWAY_TIMEOUT, "not_done"),
        };
        Self::new(status, kind, message).with_hint("`osctl logs` shows more; try again in a moment")
    }
}
