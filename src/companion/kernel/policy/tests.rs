use super::{
    KERNEL_HELLO_TIMEOUT, KERNEL_INTERRUPT_TIMEOUT, KERNEL_PROBE_TIMEOUT, KERNEL_RESTART_BACKOFF,
    KernelPolicyAction, KernelPolicyEvent, KernelPolicyState,
};

fn apply_events(events: &[KernelPolicyEvent]) -> (KernelPolicyState, Vec<KernelPolicyAction>) {
    events.iter().fold(
        (KernelPolicyState::INITIAL_STATE, vec![]),
        |(state, _), event| state.next_state(*event),
    )
}

#[test]
fn work_that_ends_leaves_an_idle_kernel() {
    assert_eq!(
        apply_events(&[
            KernelPolicyEvent::Ready,
            KernelPolicyEvent::JobStarted,
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
        KernelPolicyEvent::JobStarted,
        KernelPolicyEvent::Stop,
    ];
    assert_eq!(
        apply_events(&events),
        (
            KernelPolicyState::Stopping {
                interrupt_attempts: 1
            },
            vec![
                KernelPolicyAction::Interrupt,
                KernelPolicyAction::StartTimer(KERNEL_INTERRUPT_TIMEOUT)
            ]
        )
    );
    events.push(KernelPolicyEvent::TimerFired);
    assert_eq!(
        apply_events(&events),
        (
            KernelPolicyState::Stopping {
                interrupt_attempts: 2
            },
            vec![
                KernelPolicyAction::Interrupt,
                KernelPolicyAction::StartTimer(KERNEL_INTERRUPT_TIMEOUT)
            ]
        )
    );
    events.push(KernelPolicyEvent::TimerFired);
    assert_eq!(
        apply_events(&events),
        (
            KernelPolicyState::Killed { failed_starts: 0 },
            vec![
                KernelPolicyAction::Kill,
                KernelPolicyAction::StartTimer(KERNEL_INTERRUPT_TIMEOUT)
            ]
        )
    );
    events.extend([KernelPolicyEvent::Done, KernelPolicyEvent::Exited]);
    assert_eq!(
        apply_events(&events),
        (
            KernelPolicyState::INITIAL_STATE,
            vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT)
            ]
        )
    );
}

#[test]
fn code_that_stopped_counts_as_stopped_after_a_probe_is_answered() {
    let mut events = vec![
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::JobStarted,
        KernelPolicyEvent::Stop,
        KernelPolicyEvent::Done,
    ];
    assert_eq!(
        apply_events(&events),
        (
            KernelPolicyState::Probing,
            vec![
                KernelPolicyAction::Probe,
                KernelPolicyAction::StartTimer(super::KERNEL_PROBE_TIMEOUT)
            ]
        )
    );
    events.push(KernelPolicyEvent::TimerFired);
    assert_eq!(
        apply_events(&events).0,
        KernelPolicyState::Killed { failed_starts: 0 }
    );
    *events.last_mut().unwrap() = KernelPolicyEvent::Done;
    assert_eq!(
        apply_events(&events),
        (KernelPolicyState::Idle, vec![KernelPolicyAction::StopTimer])
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
        apply_events(&events),
        (KernelPolicyState::Idle, vec![KernelPolicyAction::StopTimer])
    );
    *events.last_mut().unwrap() = KernelPolicyEvent::TimerFired;
    assert_eq!(
        apply_events(&events).0,
        KernelPolicyState::Killed { failed_starts: 0 }
    );
    let busy = [
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::JobStarted,
        KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
    ];
    assert_eq!(apply_events(&busy), (KernelPolicyState::Busy, vec![]));
}

#[test]
fn checkpointed_kernel_needs_request() {
    let detached = [
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::JobStarted,
        KernelPolicyEvent::Detached,
    ];
    for event in [
        KernelPolicyEvent::Stop,
        KernelPolicyEvent::TimerFired,
        KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
        KernelPolicyEvent::Restart,
    ] {
        assert_eq!(
            apply_events(&[&detached[..], &[event]].concat()).0,
            KernelPolicyState::Detached
        );
    }
    let reattached = apply_events(&[&detached[..], &[KernelPolicyEvent::Reattach]].concat());
    assert_eq!(
        reattached,
        (
            KernelPolicyState::INITIAL_STATE,
            vec![KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT)]
        )
    );
    let checkpointed = [
        &detached[..],
        &[
            KernelPolicyEvent::Checkpointed,
            KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
        ],
    ]
    .concat();
    assert_eq!(
        apply_events(&checkpointed),
        (KernelPolicyState::Checkpointed, vec![])
    );
    let restored = apply_events(&[&checkpointed[..], &[KernelPolicyEvent::Restore]].concat());
    assert_eq!(
        restored,
        (
            KernelPolicyState::INITIAL_STATE,
            vec![KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT)]
        )
    );
    let restarted = apply_events(&[&checkpointed[..], &[KernelPolicyEvent::Restart]].concat());
    assert_eq!(
        restarted,
        (
            KernelPolicyState::INITIAL_STATE,
            vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT)
            ]
        )
    );
}

#[test]
fn a_second_stop_does_not_restart_the_grace() {
    let events = [
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::JobStarted,
        KernelPolicyEvent::Stop,
        KernelPolicyEvent::Stop,
    ];
    assert_eq!(
        apply_events(&events),
        (
            KernelPolicyState::Stopping {
                interrupt_attempts: 1
            },
            vec![]
        )
    );
}

#[test]
fn a_kernel_that_never_starts_is_retried_with_growing_delays() {
    let mut state = KernelPolicyState::INITIAL_STATE;
    let mut delays = Vec::new();
    for _ in 0..12 {
        let (next, actions) = state.next_state(KernelPolicyEvent::Exited);
        state = next;
        if let [KernelPolicyAction::StartTimer(delay)] = actions[..] {
            delays.push(delay);
            state = state.next_state(KernelPolicyEvent::TimerFired).0;
        }
    }
    assert!(delays.is_sorted() && delays.len() == 10);
    assert_eq!(delays.last(), Some(&KERNEL_RESTART_BACKOFF.max));
}

#[test]
fn ready_kernel_resets_failed_starts() {
    let events = [
        KernelPolicyEvent::Exited,
        KernelPolicyEvent::Exited,
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Exited,
    ];
    assert_eq!(
        apply_events(&events),
        (
            KernelPolicyState::INITIAL_STATE,
            vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT)
            ]
        )
    );
}

#[test]
fn every_exit_leads_to_start_or_delay() {
    let all = [
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::JobStarted,
        KernelPolicyEvent::Done,
        KernelPolicyEvent::Stop,
        KernelPolicyEvent::Check(KERNEL_PROBE_TIMEOUT),
        KernelPolicyEvent::Exited,
        KernelPolicyEvent::TimerFired,
        KernelPolicyEvent::Broken,
    ];
    for first in all {
        for second in all {
            for third in all {
                let (state, _) = apply_events(&[first, second, third]);
                let (after, actions) = state.next_state(KernelPolicyEvent::Exited);
                let is_waiting = matches!(state, KernelPolicyState::WaitingToRestart { .. });
                assert!(
                    is_waiting
                        || actions.iter().any(|a| matches!(
                            a,
                            KernelPolicyAction::Spawn | KernelPolicyAction::StartTimer(_)
                        )),
                    "{state:?}"
                );
                assert!(
                    matches!(
                        after,
                        KernelPolicyState::Starting { .. }
                            | KernelPolicyState::WaitingToRestart { .. }
                    ),
                    "{state:?}"
                );
            }
        }
    }
}

#[test]
fn a_kernel_has_failed_to_start_when_its_immediate_restarts_have_failed_until_it_is_ready() {
    let mut state = KernelPolicyState::INITIAL_STATE;
    let mut seen = Vec::new();
    for event in [
        KernelPolicyEvent::Exited,
        KernelPolicyEvent::Exited,
        KernelPolicyEvent::Exited,
        KernelPolicyEvent::TimerFired,
        KernelPolicyEvent::Ready,
        KernelPolicyEvent::Exited,
    ] {
        state = state.next_state(event).0;
        seen.push(state.has_failed_to_start());
    }
    assert_eq!(seen, [false, false, true, true, false, false]);
}
