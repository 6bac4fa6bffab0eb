//! Who reads pages of the web: each in a tab of its own, of which one is kept for whoever comes next.

use super::page::{self, Fault, Page};
use super::{CDP_PORT, Desktop, Refusal, cdp, lock};
use crate::companion::display;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many pages are read at once; each is a process of the browser.
const MOST: usize = 4;

/// A tab in which somebody works, or that does not answer, is followed by another one.
const ATTEMPTS: usize = 2;

#[derive(Debug)]
pub(super) struct Reading {
    places: Semaphore,
    kept: Mutex<Option<String>>,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            places: Semaphore::new(MOST),
            kept: Mutex::default(),
        }
    }
}

/// A tab while somebody reads in it. It is there for the next one, however that ends.
struct Taken<'a> {
    reading: &'a Reading,
    id: Option<String>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else {
            return;
        };
        let mut kept = lock(&self.reading.kept);
        match &*kept {
            None => *kept = Some(id),
            Some(_) => drop(tokio::spawn(async move { cdp::close(CDP_PORT, &id).await })),
        }
    }
}

impl Desktop {
    /// A page as a person sees it, in a tab of the one browser that is kept for this.
    ///
    /// # Errors
    /// When it is none of the web, or the browser does not get there.
    pub(crate) async fn read_page(&self, url: &str, patience: Duration) -> Result<Page, Refusal> {
        if !page::is_of_the_web(url) {
            let why = format!("`{url}` is no page of the web: begin with `http://` or `https://`");
            return Err(Refusal::Display(display::Refusal::Invalid(why)));
        }
        let reading = &self.0.reading;
        let Ok(Ok(_place)) = timeout(patience, reading.places.acquire()).await else {
            let why = format!("{MOST} pages are being read already, and none has come to its end");
            return Err(Refusal::Unready(why));
        };
        let _stay = self.attached();
        self.browser().await?;
        let failed = |why: anyhow::Error| Refusal::Unready(format!("the browser: {why:#}"));
        let mut last = anyhow::anyhow!("somebody works in each of its tabs");
        for _ in 0..ATTEMPTS {
            let mut tab = Taken {
                reading,
                id: lock(&reading.kept).take(),
            };
            let id = match &tab.id {
                Some(id) if cdp::has(CDP_PORT, id).await => id.clone(),
                _ => cdp::open(CDP_PORT, "about:blank").await.map_err(failed)?,
            };
            tab.id = Some(id.clone());
            let read = page::read(CDP_PORT, &id, url, patience).await;
            self.touch();
            last = match read {
                Ok(page) => return Ok(page),
                Err(Fault::Refused(why)) => return Err(failed(anyhow::Error::msg(why))),
                Err(Fault::Kept) => {
                    tab.id = None;
                    continue;
                }
                Err(Fault::Dumb(why)) => why,
                Err(Fault::Broken(why)) => {
                    tab.id = None;
                    cdp::close(CDP_PORT, &id).await;
                    return Err(failed(why));
                }
            };
            tab.id = None;
            cdp::close(CDP_PORT, &id).await;
        }
        Err(failed(last))
    }
}
