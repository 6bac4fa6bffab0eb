//! The desktop's part in evolving: closes the browser cleanly, and checks each service.

use super::{Desktop, DesktopUse};
use crate::companion::service::ServiceNeed;
use std::time::Duration;
use tokio::time::timeout;

impl Desktop {
    /// Whether a browser runs or is starting.
    pub(crate) fn is_browser_active(&self) -> bool {
        let services = self.services();
        services.is_ok_and(|services| services.is_needed(ServiceNeed::Browser))
    }

    /// # Errors
    /// Why there is no desktop here.
    pub(crate) fn check_available(&self) -> Result<(), super::DesktopRefusal> {
        self.services().map(drop)
    }

    /// Whether a desktop is configured here.
    pub(crate) fn is_configured(&self) -> bool {
        self.0.settings.is_configured()
    }

    /// Ends the browser, which writes its profile, and waits for its end. Returns `false` when the browser does not
    /// end.
    pub(crate) async fn quiesce_browser(&self, quiesce_timeout: Duration) -> bool {
        let Ok(services) = self.services() else {
            return true;
        };
        services.set_need(ServiceNeed::Browser, false);
        timeout(quiesce_timeout, services.wait_stopped(ServiceNeed::Browser))
            .await
            .is_ok()
    }

    /// The names of the services.
    ///
    /// # Errors
    /// Why there is no desktop, and whether the configuration says so.
    pub(crate) fn service_names(&self) -> Result<Vec<String>, (String, bool)> {
        let services = self.services();
        let services = services.map_err(|why| (why.to_string(), !self.is_configured()))?;
        Ok(services
            .list_services()
            .into_iter()
            .map(|view| view.name)
            .collect())
    }

    /// Starts the services that this service needs, and waits until it is ready. The services end again after the idle
    /// time.
    ///
    /// # Errors
    /// Why the service is not ready, as text.
    pub(crate) async fn check_service(&self, name: &str) -> Result<String, String> {
        let services = self.services().map_err(|why| why.to_string())?;
        // The lease keeps the services running even when the idle time is very short.
        let _looked_at = self.acquire_lease(DesktopUse::Screen);
        let need = services
            .find_need(name)
            .ok_or("the service is not declared")?;
        services.set_need(ServiceNeed::Display, true);
        if need == ServiceNeed::Browser && services.has_finished(need) {
            services.reset_finished(need).await;
        }
        services.set_need(need, true);
        // Waits for this service alone: a failure of another service of the same kind is not its fault.
        services.wait_service_ready(name).await?;
        Ok("ready".into())
    }
}
