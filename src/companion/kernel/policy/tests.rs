use super::{
    KERNEL_HELLO_TIMEOUT, KERNEL_INTERRUPT_TIMEOUT, KERNEL_PROBE_TIMEOUT, KernelPolicyAction,
    KernelPolicyEvent, KernelPolicyState, MAX_KERNEL_RESTART_DELAY,
};

fn walk(events: &[KernelPolicyEvent]) -> (KernelPolicyState, Vec<KernelPolicyAction>) {
    events.iter().fold(
        (KernelPolicyState::INITIAL_STATE, vec![]),
        |(state, _), event| state.next_state(*event),
    )
}

#[test]
fn work_that_ends_leaves_an_idle_kernel() {
    assert_eq!(
        walk(&[
            KernelPolicyEvent::Ready,
            KernelPolicyEvent::Work,
            KernelPolicyEvent::Done
        ])
        .0,
        KernelPolicyState::Idle
    );
}

#[test]
fn an_interrupt_is_repeated_once_and_then_becomes_a_kill() {
    let mut events = vec![
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Work,
        KernelPolicyEvent::Stop,
    ];
    assert_eq!(
        walk(&events),
        (
            KernelPolicyState::Stopping { strikes: 1 },
            vec![
                KernelPolicyAction::Interrupt,
                KernelPolicyAction::Arm(KERNEL_INTERRUPT_TIMEOUT)
            ]
        )
    );
    events.push(KernelPolicyEvent::TimeUp);
    assert_eq!(
        walk(&events),
        (
            KernelPolicyState::Stopping { strikes: 2 },
            vec![
                KernelPolicyAction::Interrupt,
                KernelPolicyAction::Arm(KERNEL_INTERRUPT_TIMEOUT)
            ]
        )
    );
    events.push(KernelPolicyEvent::TimeUp);
    assert_eq!(
        walk(&events),
        (
            KernelPolicyState::Killed { failed: 0 },
            vec![
                KernelPolicyAction::Kill,
                KernelPolicyAction::Arm(KERNEL_INTERRUPT_TIMEOUT)
            ]
        )
    );
    events.extend([KernelPolicyEvent::Done, KernelPolicyEvent::Died]);
    assert_eq!(
        walk(&events),
        (
            KernelPolicyState::INITIAL_STATE,
            vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::Arm(KERNEL_HELLO_TIMEOUT)
            ]
        )
    );
}

#[test]
fn code_that_stopped_counts_as_stopped_after_a_probe_is_answered() {
    let mut events = vec![
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Work,
        KernelPolicyEvent::Stop,
        KernelPolicyEvent::Done,
    ];
    assert_eq!(
        walk(&events),
        (
            KernelPolicyState::Probing,
            vec![
                KernelPolicyAction::Probe,
                KernelPolicyAction::Arm(super::KERNEL_PROBE_TIMEOUT)
            ]
        )
    );
    events.push(KernelPolicyEvent::TimeUp);
    assert_eq!(walk(&events).0, KernelPolicyState::Killed { failed: 0 });
    *events.last_mut().unwrap() = KernelPolicyEvent::Done;
    assert_eq!(
        walk(&events),
        (KernelPolicyState::Idle, vec![KernelPolicyAction::Disarm])
    );
}

#[test]
fn an_idle_kernel_that_does_not_answer_is_replaced() {
    let mut events = vec![
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
        KernelPolicyEvent::Done,
    ];
    assert_eq!(
        walk(&events),
        (KernelPolicyState::Idle, vec![KernelPolicyAction::Disarm])
    );
    *events.last_mut().unwrap() = KernelPolicyEvent::TimeUp;
    assert_eq!(walk(&events).0, KernelPolicyState::Killed { failed: 0 });
    let busy = [
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Work,
        KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
    ];
    assert_eq!(walk(&busy), (KernelPolicyState::Busy, vec![]));
}

#[test]
fn a_frozen_kernel_returns_when_it_is_requested_and_no_sooner() {
    let parted = [
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Work,
        KernelPolicyEvent::Part,
    ];
    for event in [
        KernelPolicyEvent::Stop,
        KernelPolicyEvent::TimeUp,
        KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
        KernelPolicyEvent::Restart,
    ] {
        assert_eq!(
            walk(&[&parted[..], &[event]].concat()).0,
            KernelPolicyState::Apart
        );
    }
    let rejoined = walk(&[&parted[..], &[KernelPolicyEvent::Rejoin]].concat());
    assert_eq!(
        rejoined,
        (
            KernelPolicyState::INITIAL_STATE,
            vec![KernelPolicyAction::Arm(KERNEL_HELLO_TIMEOUT)]
        )
    );
    let frozen = [
        &parted[..],
        &[
            KernelPolicyEvent::Freeze,
            KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
        ],
    ]
    .concat();
    assert_eq!(walk(&frozen), (KernelPolicyState::Frozen, vec![]));
    let thawed = walk(&[&frozen[..], &[KernelPolicyEvent::Thaw]].concat());
    assert_eq!(
        thawed,
        (
            KernelPolicyState::INITIAL_STATE,
            vec![KernelPolicyAction::Arm(KERNEL_HELLO_TIMEOUT)]
        )
    );
    let restarted = walk(&[&frozen[..], &[KernelPolicyEvent::Restart]].concat());
    assert_eq!(
        restarted,
        (
            KernelPolicyState::INITIAL_STATE,
            vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::Arm(KERNEL_HELLO_TIMEOUT)
            ]
        )
    );
}

#[test]
fn a_second_stop_does_not_restart_the_grace() {
    let events = [
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Work,
        KernelPolicyEvent::Stop,
        KernelPolicyEvent::Stop,
    ];
    assert_eq!(
        walk(&events),
        (KernelPolicyState::Stopping { strikes: 1 }, vec![])
    );
}

#[test]
fn a_kernel_that_never_starts_is_tried_ever_more_rarely() {
    let mut state = KernelPolicyState::INITIAL_STATE;
    let mut rests = Vec::new();
    for _ in 0..12 {
        let (next, actions) = state.next_state(KernelPolicyEvent::Died);
        state = next;
        if let [KernelPolicyAction::Arm(rest)] = actions[..] {
            rests.push(rest);
            state = state.next_state(KernelPolicyEvent::TimeUp).0;
        }
    }
    assert!(rests.is_sorted() && rests.len() == 10);
    assert_eq!(rests.last(), Some(&MAX_KERNEL_RESTART_DELAY));
}

#[test]
fn a_ready_kernel_has_a_clean_slate() {
    let events = [
        KernelPolicyEvent::Died,
        KernelPolicyEvent::Died,
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Died,
    ];
    assert_eq!(
        walk(&events),
        (
            KernelPolicyState::INITIAL_STATE,
            vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::Arm(KERNEL_HELLO_TIMEOUT)
            ]
        )
    );
}

#[test]
fn in_every_state_a_death_leads_to_a_start_or_a_delay() {
    let all = [
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Work,
        KernelPolicyEvent::Done,
        KernelPolicyEvent::Stop,
        KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
        KernelPolicyEvent::Died,
        KernelPolicyEvent::TimeUp,
        KernelPolicyEvent::Broken,
    ];
    for first in all {
        for second in all {
            for third in all {
                let (state, _) = walk(&[first, second, third]);
                let (after, actions) = state.next_state(KernelPolicyEvent::Died);
                let resting = matches!(state, KernelPolicyState::Resting { .. });
                assert!(
                    resting
                        || actions.iter().any(|a| matches!(
                            a,
                            KernelPolicyAction::Spawn | KernelPolicyAction::Arm(_)
                        )),
                    "{state:?}"
                );
                assert!(
                    matches!(
                        after,
                        KernelPolicyState::Starting { .. } | KernelPolicyState::Resting { .. }
                    ),
                    "{state:?}"
                );
            }
        }
    }
}
