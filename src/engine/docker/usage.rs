//! The start time and the memory of a running container.

use super::{Docker, with_query_timeout};
use crate::engine::ContainerUsage;
use bollard::models::ContainerMemoryStats;
use bollard::query_parameters::StatsOptionsBuilder;
use futures_util::TryStreamExt;

impl Docker {
    /// The start and the memory of a running container, as far as the engine reports them.
    pub(crate) async fn container_usage(&self, name: &str) -> ContainerUsage {
        let once = StatsOptionsBuilder::new()
            .stream(false)
            .one_shot(true)
            .build();
        let mut stats = std::pin::pin!(self.api.stats(name, Some(once)));
        let inspected = self.api.inspect_container(name, None);
        let (inspected, stats) = tokio::join!(
            with_query_timeout("inspecting the container", inspected),
            with_query_timeout("measuring the container", stats.try_next()),
        );
        let state = inspected.ok().and_then(|found| found.ok()?.state);
        let memory = stats.ok().and_then(|stats| stats.ok()??.memory_stats);
        ContainerUsage {
            started_at: state.and_then(|state| state.started_at),
            memory: memory.as_ref().and_then(used_memory),
        }
    }
}

/// The memory in use without files that the kernel can drop, as `docker stats` counts it.
fn used_memory(stats: &ContainerMemoryStats) -> Option<u64> {
    let detail = stats.stats.as_ref();
    let droppable = ["total_inactive_file", "inactive_file"]
        .iter()
        .find_map(|key| detail?.get(*key));
    let droppable = droppable.copied().unwrap_or_default();
    Some(stats.usage?.saturating_sub(droppable))
}

#[cfg(test)]
mod tests {
    use super::used_memory;
    use bollard::models::ContainerMemoryStats;

    #[test]
    fn droppable_files_do_not_count_as_memory() {
        let stats = |key: &str| ContainerMemoryStats {
            usage: Some(100),
            stats: Some([(key.to_owned(), 30)].into()),
            ..ContainerMemoryStats::default()
        };
        assert_eq!(used_memory(&stats("inactive_file")), Some(70));
        assert_eq!(used_memory(&stats("total_inactive_file")), Some(70));
        assert_eq!(used_memory(&stats("file")), Some(100));
        assert_eq!(used_memory(&ContainerMemoryStats::default()), None);
    }
}
