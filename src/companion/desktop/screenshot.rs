//! What is on the screen, as a file for those who asked.

use super::{Desktop, DesktopRefusal, ScreenRegion};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::spawn_blocking;

/// A picture as PNG, and what it is of.
#[derive(Debug)]
pub(crate) struct PngScreenshot {
    pub(crate) file: Vec<u8>,
    /// Its own size.
    pub(crate) size: (u32, u32),
    /// The screen's size.
    pub(crate) screen: (u16, u16),
    taken: SystemTime,
}

impl PngScreenshot {
    /// Milliseconds since 1970.
    pub(crate) fn taken_ms(&self) -> u64 {
        let taken = self.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(taken.as_millis()).unwrap_or_default()
    }
}

impl Desktop {
    /// What is on the screen at this moment, drawn larger or smaller.
    ///
    /// # Errors
    /// Why there is no picture.
    pub(crate) async fn take_screenshot(
        &self,
        region: Option<ScreenRegion>,
        scale: f64,
    ) -> Result<PngScreenshot, DesktopRefusal> {
        let picture = self.capture_screen(region).await?;
        // Seldom more than a few milliseconds, which others need not wait.
        let drawn = spawn_blocking(move || {
            let (screen, taken) = (picture.screen, picture.taken);
            let picture = picture.scaled(scale)?;
            Ok(PngScreenshot {
                file: picture.encode_png()?,
                size: (picture.width, picture.height),
                screen,
                taken,
            })
        });
        let failed = |error| DesktopRefusal::Unready(format!("the picture can't be made: {error}"));
        drawn.await.map_err(failed)?
    }
}
