//! Retention policy: selects the generations to remove, as a pure function.
//!
//! Three kinds of generations stay under each name, regardless of size and age: the newest that can be reloaded, the
//! newest that a caller requested (snapshots must not displace it), and those that are pinned. Of the others, the
//! policy removes those beyond the maximum number, those beyond the maximum age, and then the oldest of all names until
//! the total is within the budget.

use std::time::Duration;

/// Limits of the stored generations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CryoLimits {
    /// Maximum number of generations under one name.
    pub(crate) max_generations: usize,
    pub(crate) max_age: Duration,
    /// Maximum bytes of all names.
    pub(crate) max_total_bytes: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct RetentionCandidate {
    pub(super) name: String,
    pub(super) generation: u64,
    /// In seconds since 1970.
    pub(super) created: f64,
    pub(super) size_bytes: u64,
    pub(super) is_intact: bool,
    /// Whether a caller requested the store, not a schedule or a shutdown.
    pub(super) is_requested: bool,
    /// Whether the generation is in use now.
    pub(super) is_pinned: bool,
}

/// Selects the generations to remove at `now`.
pub(super) fn superseded_generations(
    all: &[RetentionCandidate],
    limits: CryoLimits,
    now: f64,
) -> Vec<(String, u64)> {
    let mut rest: Vec<&RetentionCandidate> = all.iter().collect();
    rest.sort_by_key(|candidate| std::cmp::Reverse(candidate.generation));
    let newer = |candidate: &RetentionCandidate, of: &[&RetentionCandidate]| {
        let same = of.iter().filter(|other| other.name == candidate.name);
        let newer = same.filter(|other| other.generation > candidate.generation && other.is_intact);
        let newer: Vec<&&RetentionCandidate> = newer.collect();
        let is_last_requested =
            candidate.is_requested && candidate.is_intact && !newer.iter().any(|n| n.is_requested);
        if is_last_requested || candidate.is_pinned {
            0
        } else {
            newer.len()
        }
    };
    let ranks: Vec<usize> = rest
        .iter()
        .map(|candidate| newer(candidate, &rest))
        .collect();
    let mut removed = Vec::new();
    let mut retained = Vec::new();
    for (candidate, rank) in rest.into_iter().zip(ranks) {
        let is_old = now - candidate.created > limits.max_age.as_secs_f64();
        if rank > 0 && (rank >= limits.max_generations || is_old) {
            removed.push((candidate.name.clone(), candidate.generation));
        } else {
            retained.push((candidate, rank));
        }
    }
    let mut size: u64 = retained
        .iter()
        .map(|(candidate, _)| candidate.size_bytes)
        .sum();
    retained.sort_by(|(a, _), (b, _)| a.created.total_cmp(&b.created));
    for (candidate, rank) in retained {
        if size > limits.max_total_bytes && rank > 0 {
            size -= candidate.size_bytes;
            removed.push((candidate.name.clone(), candidate.generation));
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::{CryoLimits, RetentionCandidate, superseded_generations};
    use std::time::Duration;

    const CRYO_TEST_LIMITS: CryoLimits = CryoLimits {
        max_generations: 3,
        max_age: Duration::from_secs(100),
        max_total_bytes: 1000,
    };

    fn candidate(name: &str, generation: u64, created: f64, size: u64) -> RetentionCandidate {
        let name = name.into();
        RetentionCandidate {
            name,
            generation,
            created,
            size_bytes: size,
            is_intact: true,
            is_requested: false,
            is_pinned: false,
        }
    }

    #[test]
    fn the_newest_stay_by_number_for_each_name() {
        let mut all: Vec<RetentionCandidate> =
            (1..=5).map(|n| candidate("a", n, 990.0, 1)).collect();
        all.push(candidate("b", 1, 990.0, 1));
        let gone = superseded_generations(&all, CRYO_TEST_LIMITS, 1000.0);
        assert_eq!(gone, [("a".into(), 2), ("a".into(), 1)]);
    }

    #[test]
    fn the_newest_requested_generation_is_not_displaced() {
        let mut all: Vec<RetentionCandidate> =
            (1..=5).map(|n| candidate("a", n, 1.0, 900)).collect();
        for requested in &mut all[..2] {
            requested.is_requested = true;
        }
        let gone = superseded_generations(&all, CRYO_TEST_LIMITS, 1000.0);
        let numbers: Vec<u64> = gone.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [4, 3, 1]);
    }

    #[test]
    fn pinned_generations_stay_with_all_later_ones() {
        let mut all: Vec<RetentionCandidate> =
            (1..=5).map(|n| candidate("a", n, 1.0, 900)).collect();
        all[1].is_pinned = true;
        let gone = superseded_generations(&all, CRYO_TEST_LIMITS, 1000.0);
        let numbers: Vec<u64> = gone.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [4, 3, 1]);
    }

    #[test]
    fn the_age_limit_removes_all_but_the_newest() {
        let all = [candidate("a", 1, 1.0, 1), candidate("a", 2, 2.0, 1)];
        assert_eq!(
            superseded_generations(&all, CRYO_TEST_LIMITS, 1000.0),
            [("a".into(), 1)]
        );
    }

    #[test]
    fn the_budget_removes_the_oldest_and_never_the_newest_of_a_name() {
        let all = [
            candidate("a", 1, 1.0, 400),
            candidate("a", 2, 5.0, 400),
            candidate("b", 1, 2.0, 400),
            candidate("b", 2, 6.0, 900),
        ];
        let gone = superseded_generations(&all, CRYO_TEST_LIMITS, 10.0);
        assert_eq!(gone, [("a".into(), 1), ("b".into(), 1)]);
    }

    #[test]
    fn damaged_generations_displace_no_others() {
        let mut newest = candidate("a", 4, 4.0, 1);
        newest.is_intact = false;
        let limits = CryoLimits {
            max_generations: 1,
            ..CRYO_TEST_LIMITS
        };
        let all = [candidate("a", 3, 3.0, 1), newest];
        assert_eq!(superseded_generations(&all, limits, 10.0), []);
    }
}
