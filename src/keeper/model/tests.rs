//! Tests that the current order of steps keeps its invariants, and that each other order violates one.

use super::{SwapModel, SwapState, SwapViolation, first, left_aside, renamed};
use crate::model_checker::{assert_finds, assert_holds};

#[test]
fn one_container_runs_after_any_crash() {
    let search = assert_holds(&SwapModel::default(), first());
    assert!(search.len() > 1000, "{} states", search.len());
    assert_holds(&SwapModel::default(), left_aside());
    assert_holds(&SwapModel::default(), renamed());
}

#[test]
fn every_other_order_of_a_swap_violates_an_invariant() {
    let finds = |name: &str, first: SwapState, violation, change: &dyn Fn(&mut SwapModel)| {
        let mut order = SwapModel::default();
        change(&mut order);
        assert_finds(name, &order, first, violation);
    };
    finds(
        "write the end before the swap",
        first(),
        SwapViolation::NoneRuns,
        &|order| order.writes_the_end_before_the_swap = true,
    );
    finds(
        "add no record of the current container",
        first(),
        SwapViolation::HistoryNamesAnother,
        &|order| order.adds_no_record_of_the_present = true,
    );
    finds(
        "let the engine restart the old container",
        first(),
        SwapViolation::TwoRun,
        &|order| order.keeps_the_restart_policy = true,
    );
    finds(
        "pause before the restart policy",
        first(),
        SwapViolation::TwoRun,
        &|order| order.pauses_before_the_restart_policy = true,
    );
    finds(
        "do not start an ended container",
        first(),
        SwapViolation::NoneRuns,
        &|order| order.starts_no_ended_container = true,
    );
    finds(
        "accept requests before the journal",
        first(),
        SwapViolation::WorkIsLost,
        &|order| order.opens_before_the_journal = true,
    );
    finds(
        "start the new container before the pause",
        first(),
        SwapViolation::TwoRun,
        &|order| order.starts_the_new_before_the_pause = true,
    );
    finds(
        "let only the keeper open admission",
        first(),
        SwapViolation::AdmissionIsClosed,
        &|order| order.opens_by_the_keeper_only = true,
    );
    finds(
        "let only the container open admission",
        first(),
        SwapViolation::ClosedAfterTheEnd,
        &|order| order.opens_by_the_container_only = true,
    );
    finds(
        "swap a container that has resumed",
        first(),
        SwapViolation::WorkIsLost,
        &|order| order.swaps_a_resumed_container = true,
    );
    finds(
        "rename the container set aside before its start",
        left_aside(),
        SwapViolation::NoneRuns,
        &|order| order.renames_before_the_start = true,
    );
    finds(
        "let `up` find containers by their names",
        renamed(),
        SwapViolation::NoneRuns,
        &|order| order.up_finds_containers_by_name = true,
    );
}
