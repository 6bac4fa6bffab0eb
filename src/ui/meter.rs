//! Progress of a copy: a bar with bytes and rate on a terminal, nothing elsewhere.

use super::{SanitizedText, Ui};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Interval between redraws.
const METER_TICK_INTERVAL: Duration = Duration::from_millis(100);

/// A progress bar that disappears when dropped.
#[derive(Debug)]
pub(crate) struct ByteMeter {
    bar: Option<ProgressBar>,
    transferred_bytes: Arc<AtomicU64>,
}

impl Ui {
    /// Shows a meter of the bytes that the caller counts in `moved`.
    pub(crate) fn start_meter(self, what: &str, moved: &Arc<AtomicU64>) -> ByteMeter {
        let bar = (self.interactive && !self.quiet).then(|| {
            let bar = ProgressBar::no_length().with_style(bar_style(
                "{spinner:.cyan} {wide_msg} {binary_bytes}  {binary_bytes_per_sec}  {elapsed:.dim}",
            ));
            bar.set_message(String::from(SanitizedText::line(what)));
            bar
        });
        ByteMeter {
            bar,
            transferred_bytes: Arc::clone(moved),
        }
    }
}

impl ByteMeter {
    /// Sets the total number of bytes.
    pub(crate) fn set_total(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_style(bar_style(
                "{spinner:.cyan} {msg} {wide_bar:.cyan/dim} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta:.dim}",
            ));
            bar.set_length(bytes);
        }
    }

    /// Shows the meter while the future runs.
    pub(crate) async fn show_during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut ticks = tokio::time::interval(METER_TICK_INTERVAL);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = ticks.tick(), if self.bar.is_some() => {
                    if let Some(bar) = &self.bar {
                        bar.set_position(self.transferred_bytes.load(Ordering::Relaxed));
                        bar.tick();
                    }
                }
            }
        }
    }
}

impl Drop for ByteMeter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar_style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
