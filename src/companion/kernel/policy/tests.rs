use super::{
    KERNEL_HELLO_TIMEOUT, KERNEL_INTERRUPT_TIMEOUT, KERNEL_PROBE_TIMEOUT, KERNEL_RESTART_BACKOFF,
    KernelPolicyAction, KernelPolicyEvent, KernelPolicyState, KillReason, ProbeCause,
    StartNamespace,
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
            KernelPolicyState::Killed {
                failed_starts: 0,
                why: KillReason::IgnoredInterrupt
            },
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
            KernelPolicyState::Probing(ProbeCause::StoppedCode),
            vec![
                KernelPolicyAction::Probe,
                KernelPolicyAction::StartTimer(super::KERNEL_PROBE_TIMEOUT)
            ]
        )
    );
    events.push(KernelPolicyEvent::TimerFired);
    assert_eq!(
        apply_events(&events).0,
        KernelPolicyState::Killed {
            failed_starts: 0,
            why: KillReason::NoProbeAnswer(ProbeCause::StoppedCode)
        }
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
        KernelPolicyState::Killed {
            failed_starts: 0,
            why: KillReason::NoProbeAnswer(ProbeCause::Idle)
        }
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
            KernelPolicyState::starting(0, StartNamespace::Same),
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
            KernelPolicyState::starting(0, StartNamespace::Restored),
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
fn each_start_names_the_namespace_of_its_process() {
    let ready = [KernelPolicyEvent::Ready, KernelPolicyEvent::JobStarted];
    let detached = [&ready[..], &[KernelPolicyEvent::Detached]].concat();
    let cases = [
        (&ready[..], KernelPolicyEvent::Exited, StartNamespace::Empty),
        (
            &ready[..],
            KernelPolicyEvent::Restore,
            StartNamespace::Restored,
        ),
        (
            &detached[..],
            KernelPolicyEvent::Reattach,
            StartNamespace::Same,
        ),
        (
            &detached[..],
            KernelPolicyEvent::Restore,
            StartNamespace::Restored,
        ),
    ];
    for (before, event, expected) in cases {
        let (state, _) = apply_events(&[before, &[event]].concat());
        assert_eq!(state, KernelPolicyState::starting(0, expected));
        // A process that ends before it is ready leaves nothing.
        let (state, _) = state.next_state(KernelPolicyEvent::Exited);
        assert_eq!(state, KernelPolicyState::starting(1, StartNamespace::Empty));
    }
}

#[test]
fn the_first_reason_of_a_kill_stays() {
    let broken = [KernelPolicyEvent::Ready, KernelPolicyEvent::Broken];
    for event in [
        KernelPolicyEvent::Restart,
        KernelPolicyEvent::Broken,
        KernelPolicyEvent::TimerFired,
        KernelPolicyEvent::Stop,
    ] {
        let (state, _) = apply_events(&[&broken[..], &[event]].concat());
        assert_eq!(state.kill_reason(), Some(KillReason::Broken));
    }
    let requested = apply_events(&[KernelPolicyEvent::Restart]).0;
    assert_eq!(requested.kill_reason(), Some(KillReason::Requested));
    let silent = apply_events(&[KernelPolicyEvent::TimerFired]).0;
    assert_eq!(silent.kill_reason(), Some(KillReason::NotStarted));
    assert!(silent.has_failed_to_start() && !requested.has_failed_to_start());
}

#[test]
fn a_restart_ends_the_wait_for_the_next_start() {
    let failed = [KernelPolicyEvent::Exited; 3];
    assert!(apply_events(&failed).0.is_waiting_to_restart());
    let (state, actions) = apply_events(&[&failed[..], &[KernelPolicyEvent::Restart]].concat());
    assert_eq!(state, KernelPolicyState::starting(3, StartNamespace::Empty));
    assert!(actions.contains(&KernelPolicyAction::Spawn));
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
        seen.push(state.has_failed_restarts());
    }
    assert_eq!(seen, [false, false, true, true, false, false]);
}
