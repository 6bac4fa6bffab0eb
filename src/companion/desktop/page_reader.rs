//! The pool of tabs that read web pages: each read has its own tab, and one tab is kept for the next read.

use super::page::{self, WebPage, WebPageError};
use super::{Desktop, DesktopRefusal, cdp};
use crate::companion::display;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Maximum number of pages read at the same time; each takes a process of the browser.
const MAX_PAGE_READS: usize = 4;

/// Maximum number of tabs tried, when a tab is in use by a person or does not answer.
const MAX_TAB_ATTEMPTS: usize = 2;

#[derive(Debug)]
pub(super) struct PageReader {
    read_permits: Semaphore,
    idle_tab: Mutex<Option<String>>,
}

impl Default for PageReader {
    fn default() -> Self {
        Self {
            read_permits: Semaphore::new(MAX_PAGE_READS),
            idle_tab: Mutex::default(),
        }
    }
}

/// A tab during a read. When dropped, the tab is kept for the next read, or closed.
struct TabLease<'a> {
    reader: &'a PageReader,
    cdp_port: u16,
    id: Option<String>,
}

impl Drop for TabLease<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else {
            return;
        };
        let cdp_port = self.cdp_port;
        let mut idle_tab = self.reader.idle_tab.lock();
        match &*idle_tab {
            None => *idle_tab = Some(id),
            Some(_) => drop(tokio::spawn(
                async move { cdp::close_tab(cdp_port, &id).await },
            )),
        }
    }
}

impl Desktop {
    /// Reads the visible text of a page, in a tab of the shared browser that is reserved for this.
    ///
    /// # Errors
    /// When the address is not `http` or `https`, or the browser does not reach the page.
    pub(crate) async fn read_page(
        &self,
        url: &str,
        page_timeout: Duration,
    ) -> Result<WebPage, DesktopRefusal> {
        if !page::is_web_url(url) {
            let why =
                format!("`{url}` is not a web address: it must start with `http://` or `https://`");
            return Err(DesktopRefusal::Display(display::DisplayRefusal::Invalid(
                why,
            )));
        }
        let (reader, cdp_port) = (&self.0.page_reader, self.cdp_port());
        let Ok(Ok(_place)) = timeout(page_timeout, reader.read_permits.acquire()).await else {
            let why = format!("the limit of {MAX_PAGE_READS} concurrent page reads is reached");
            return Err(DesktopRefusal::NotReady(why));
        };
        let _stay = self.lease_debugger();
        self.ensure_browser().await?;
        let failed =
            |why: anyhow::Error| DesktopRefusal::NotReady(format!("the browser failed: {why:#}"));
        let mut last = anyhow::anyhow!("every tab of the browser is in use");
        for _ in 0..MAX_TAB_ATTEMPTS {
            let mut tab = TabLease {
                reader,
                cdp_port,
                id: reader.idle_tab.lock().take(),
            };
            let id = match &tab.id {
                Some(id) if cdp::has_tab(cdp_port, id).await => id.clone(),
                _ => cdp::open_tab(cdp_port, "about:blank")
                    .await
                    .map_err(failed)?,
            };
            tab.id = Some(id.clone());
            let read = page::read_page(cdp_port, &id, url, page_timeout).await;
            self.record_use();
            last = match read {
                Ok(page) => return Ok(page),
                Err(WebPageError::Unreachable(why)) => return Err(failed(anyhow::Error::msg(why))),
                Err(WebPageError::TabInUse) => {
                    tab.id = None;
                    continue;
                }
                Err(WebPageError::NoReply(why)) => why,
                Err(WebPageError::TabFailed(why)) => {
                    tab.id = None;
                    cdp::close_tab(cdp_port, &id).await;
                    return Err(failed(why));
                }
            };
            tab.id = None;
            cdp::close_tab(cdp_port, &id).await;
        }
        Err(failed(last))
    }
}
