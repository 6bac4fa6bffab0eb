//! Screenshots as PNG files.

use super::{Desktop, DesktopRefusal, ScreenRegion};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::spawn_blocking;

/// A screenshot as PNG, with its sizes and time.
#[derive(Debug)]
pub(crate) struct PngScreenshot {
    pub(crate) file: Vec<u8>,
    /// The picture's own size.
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
    /// Captures the current content of the screen, scaled.
    ///
    /// # Errors
    /// Why there is no picture.
    pub(crate) async fn take_screenshot(
        &self,
        region: Option<ScreenRegion>,
        scale: f64,
    ) -> Result<PngScreenshot, DesktopRefusal> {
        let picture = self.capture_screen(region).await?;
        // Usually takes a few milliseconds; a blocking thread keeps other tasks from waiting for it.
        let encoded = spawn_blocking(move || {
            let (screen, taken) = (picture.screen_size, picture.captured_at);
            let picture = picture.scaled(scale)?;
            Ok(PngScreenshot {
                file: picture.encode_png()?,
                size: (picture.width, picture.height),
                screen,
                taken,
            })
        });
        let failed =
            |error| DesktopRefusal::NotReady(format!("the picture can't be created: {error}"));
        encoded.await.map_err(failed)?
    }
}
