//! The progress of a checkpoint or restore, in bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// Time between two samples.
const CRIU_PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct CriuProgress {
    transferred_bytes: AtomicU64,
    /// 0 where the total is unknown.
    total_bytes: AtomicU64,
}

impl CriuProgress {
    pub(super) fn add_bytes(&self, bytes: u64) {
        self.transferred_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_total(&self, total: u64) {
        self.total_bytes.store(total, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> (u64, Option<u64>) {
        let total = self.total_bytes.load(Ordering::Relaxed);
        let transferred = self.transferred_bytes.load(Ordering::Relaxed);
        (transferred, (total > 0).then_some(total))
    }

    /// Runs `work`. Until it ends, the result of `measure` is added to the bytes moved before. The progress never
    /// decreases.
    pub(super) async fn sample_during<T>(
        &self,
        measure: impl Fn() -> u64,
        work: impl Future<Output = T>,
    ) -> T {
        let before = self.transferred_bytes.load(Ordering::Relaxed);
        let sample = || {
            self.transferred_bytes
                .fetch_max(before + measure(), Ordering::Relaxed);
        };
        let done = tokio::select! {
            done = work => done,
            never = async { loop { sleep(CRIU_PROGRESS_INTERVAL).await; sample(); } } => never,
        };
        sample();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::CriuProgress;

    #[tokio::test]
    async fn each_part_begins_where_the_one_before_ended() {
        let progress = CriuProgress::default();
        progress.sample_during(|| 9, async {}).await;
        assert_eq!(progress.read(), (9, None));
        progress.sample_during(|| 3, async {}).await;
        progress.add_bytes(1);
        progress.set_total(20);
        assert_eq!(progress.read(), (13, Some(20)));
    }
}
