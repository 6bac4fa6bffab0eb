//! The desktop as evolving sees it: the browser closed properly, and each service proved.

use super::{Desktop, DesktopUse};
use crate::companion::service::ServiceNeed;
use std::time::Duration;
use tokio::time::timeout;

impl Desktop {
    /// Whether a browser runs, or is to.
    pub(crate) fn is_browsing(&self) -> bool {
        let services = self.services();
        services.is_ok_and(|services| services.is_needed(ServiceNeed::Browser))
    }

    /// # Errors
    /// Why there is no desktop here.
    pub(crate) fn check_available(&self) -> Result<(), super::DesktopRefusal> {
        self.services().map(drop)
    }

    /// Whether there is to be a desktop here.
    pub(crate) fn has_one(&self) -> bool {
        self.0.settings.has_one()
    }

    /// Ends the browser, which writes its profile, and waits until it has. `false`: it does not end.
    pub(crate) async fn quiesce_browser(&self, patience: Duration) -> bool {
        let Ok(services) = self.services() else {
            return true;
        };
        services.set_need(ServiceNeed::Browser, false);
        timeout(patience, services.wait_stopped(ServiceNeed::Browser))
            .await
            .is_ok()
    }

    /// The services that there are, by name.
    ///
    /// # Errors
    /// Why there is no desktop, and whether that is as it should be.
    pub(crate) fn service_names(&self) -> Result<Vec<String>, (String, bool)> {
        let services = self.services();
        let services = services.map_err(|why| (why.to_string(), !self.has_one()))?;
        Ok(services
            .list_services()
            .into_iter()
            .map(|view| view.name)
            .collect())
    }

    /// Starts what that service is for, unless it runs, and waits until it is ready. It ends again
    /// when nobody has needed it for a while.
    ///
    /// # Errors
    /// Why it is not ready, in words.
    pub(crate) async fn check_service(&self, name: &str) -> Result<String, String> {
        let services = self.services().map_err(|why| why.to_string())?;
        // However short the time is after which what nobody looks at ends.
        let _looked_at = self.acquire_lease(DesktopUse::Screen);
        let need = services.need_of(name).ok_or("it is not declared")?;
        services.set_need(ServiceNeed::Display, true);
        if need == ServiceNeed::Browser && services.has_finished(need) {
            services.reset_finished(need).await;
        }
        services.set_need(need, true);
        // Of one that fails, the others of its kind are no fault.
        services.wait_service_ready(name).await?;
        Ok("ready".into())
    }
}
