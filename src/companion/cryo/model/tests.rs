//! Tests that the current order of steps keeps its invariants, and that each other order violates one.

use super::{
    CryoModelOrder, CryoModelViolation, EMPTY_CRYO_MODEL, state_of_earlier_version, state_with_runs,
};
use crate::model_checker::{assert_finds, assert_holds};

#[test]
fn store_invariants_survive_crashes() {
    let search = assert_holds(&CryoModelOrder::default(), EMPTY_CRYO_MODEL);
    assert!(search.len() > 1000, "{} states", search.len());
    assert_holds(&CryoModelOrder::default(), state_of_earlier_version());
    assert_holds(&CryoModelOrder::default(), state_with_runs());
}

#[test]
fn wrong_store_orders_break_invariants() {
    let today = CryoModelOrder::default();
    let highest = CryoModelOrder {
        number_is_the_highest_folder: true,
        ..today
    };
    for (name, order, first, violation) in [
        (
            "the number is the highest folder plus one",
            highest,
            EMPTY_CRYO_MODEL,
            CryoModelViolation::NumberAllocatedTwice,
        ),
        (
            "the same, with an acknowledged generation",
            highest,
            EMPTY_CRYO_MODEL,
            CryoModelViolation::ContentChanged,
        ),
        (
            "use the number before its sync",
            CryoModelOrder {
                uses_the_number_before_its_sync: true,
                ..today
            },
            EMPTY_CRYO_MODEL,
            CryoModelViolation::NumberAllocatedTwice,
        ),
        (
            "take no lock",
            CryoModelOrder {
                takes_no_lock: true,
                ..today
            },
            EMPTY_CRYO_MODEL,
            CryoModelViolation::NumberAllocatedTwice,
        ),
        (
            "acknowledge before the sync",
            CryoModelOrder {
                acknowledges_before_the_sync: true,
                ..today
            },
            EMPTY_CRYO_MODEL,
            CryoModelViolation::AcknowledgedGenerationLost,
        ),
        (
            "remove without holding the number",
            CryoModelOrder {
                removes_without_reservation: true,
                ..today
            },
            state_of_earlier_version(),
            CryoModelViolation::NumberAllocatedTwice,
        ),
        (
            "hold the number by a record that is not synced",
            CryoModelOrder {
                reserves_without_sync: true,
                ..today
            },
            state_of_earlier_version(),
            CryoModelViolation::NumberAllocatedTwice,
        ),
        (
            "report no runs after the store",
            CryoModelOrder {
                reports_no_runs: true,
                ..today
            },
            state_with_runs(),
            CryoModelViolation::RunsUnreported,
        ),
        (
            "execute a run before it is counted",
            CryoModelOrder {
                executes_before_the_count: true,
                ..today
            },
            state_with_runs(),
            CryoModelViolation::RunsUnreported,
        ),
    ] {
        assert_finds(name, &order, first, violation);
    }
}
