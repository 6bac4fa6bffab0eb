//! How a terminal ends: each exit of its shell, each request, and output after the end.

use super::fake_shell::FakeShell;
use super::harness::{TEST_IDLE_TIMEOUT, TerminalHarness, attach_request, view_request};
use crate::companion::pty::{PtyExit, PtyTerminal};
use crate::companion::tests::clock::{advance, settle, wait_event, wait_until};
use crate::protocol::pty::TerminalEndReason;
use crate::supervise::{SupervisorEvent, SupervisorRequest};
use nix::libc::ENOENT;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How a shell ends.
#[derive(Debug, Clone, Copy)]
enum ShellEnd {
    Code(u8),
    SupervisorKilled,
    NotStarted,
}

impl ShellEnd {
    const ALL: [(Self, u8, &str); 4] = [
        (Self::Code(0), 0, ""),
        (Self::Code(129), 129, ""),
        (Self::SupervisorKilled, 137, ""),
        (
            Self::NotStarted,
            127,
            "the shell can't be started: No such file or directory (os error 2)\r\n",
        ),
    ];

    async fn play(self, shell: &mut FakeShell) {
        shell.close_terminal();
        match self {
            Self::Code(code) => shell.supervisor.exit(code).await,
            Self::SupervisorKilled => shell.supervisor.end().await,
            Self::NotStarted => {
                let failed = SupervisorEvent::NotStarted(ENOENT);
                shell.supervisor.report(failed).await;
                shell.supervisor.end().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_end_of_a_shell_is_read_after_its_output() {
    for (end, code, text) in ShellEnd::ALL {
        let (harness, mut shell, mut client) = TerminalHarness::start_with_writer().await;
        shell.print("last words");
        end.play(&mut shell).await;
        let exit = client.read_exit().await;
        let reason = TerminalEndReason::Exited;
        assert_eq!(exit, PtyExit { code, reason }, "{end:?}");
        // The texts of shell and companion are in either order.
        assert!(client.output.contains("last words"), "{end:?}");
        assert!(client.output.contains(text), "{end:?}: {}", client.output);
        assert_eq!(harness.terminal().exit_status(), Some(exit));
        // A client that attaches later reads the same.
        let mut later = harness.attach(view_request("b")).await;
        assert_eq!(later.read_exit().await, exit);
    }
}

#[tokio::test(start_paused = true)]
async fn output_of_processes_that_outlive_the_shell_is_read_until_they_close_the_terminal() {
    let (harness, mut shell, mut client) = TerminalHarness::start_with_writer().await;
    shell.supervisor.exit(0).await;
    shell.print("after the end");
    client.read_until("after the end").await;
    advance(Duration::from_millis(19_999)).await;
    assert_eq!(harness.terminal().exit_status(), None);
    shell.close_terminal();
    assert_eq!(client.read_exit().await.code, 0);
}

#[tokio::test(start_paused = true)]
async fn a_terminal_that_stays_open_after_the_end_of_its_shell_is_closed() {
    let (harness, mut shell, mut client) = TerminalHarness::start_with_writer().await;
    shell.supervisor.exit(3).await;
    assert_eq!(harness.terminal().exit_status(), None);
    advance(Duration::from_secs(20)).await;
    shell.wait_hung_up().await;
    assert_eq!(client.read_exit().await.code, 3);
}

/// Why a terminal ends.
#[derive(Debug, Clone, Copy)]
enum EndCause {
    Ended,
    Stopped,
    Idle,
}

impl EndCause {
    const ALL: [(Self, TerminalEndReason); 3] = [
        (Self::Ended, TerminalEndReason::Ended),
        (Self::Stopped, TerminalEndReason::Stopped),
        (Self::Idle, TerminalEndReason::Idle),
    ];

    fn request(self, harness: &TerminalHarness) -> JoinHandle<()> {
        let (terminals, id) = (
            harness.terminals.clone(),
            harness.terminal().id().to_owned(),
        );
        tokio::spawn(async move {
            match self {
                Self::Ended => drop(terminals.end_terminal(&id).await),
                Self::Stopped => terminals.shutdown().await,
                Self::Idle => {}
            }
        })
    }

    /// A terminal without clients that gets the request.
    async fn play(self) -> (TerminalHarness, FakeShell, JoinHandle<()>) {
        let (harness, shell, client) = TerminalHarness::start_with_writer().await;
        client.leave().await;
        let request = self.request(&harness);
        if matches!(self, Self::Idle) {
            advance(TEST_IDLE_TIMEOUT - Duration::from_millis(1)).await;
            assert!(!shell.is_hung_up());
            advance(Duration::from_millis(1)).await;
        }
        settle().await;
        (harness, shell, request)
    }
}

/// Checks that the device was closed and the shell asked to end.
async fn expect_hang_up(shell: &mut FakeShell) {
    shell.wait_hung_up().await;
    let request = shell.supervisor.next_request().await;
    let grace = Duration::from_secs(2);
    assert_eq!(request, Some(SupervisorRequest::ShutDown(grace)));
}

async fn wait_exit(terminal: &PtyTerminal) -> PtyExit {
    wait_event(terminal.output.wait_for_exit()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_cause_hangs_up_the_shell_and_names_the_reason() {
    for (cause, reason) in EndCause::ALL {
        let (harness, mut shell, request) = cause.play().await;
        expect_hang_up(&mut shell).await;
        let terminal = harness.terminal();
        assert_eq!(terminal.exit_status(), None, "{cause:?}");
        shell.exit(129).await;
        let code = 129;
        assert_eq!(wait_exit(&terminal).await, PtyExit { code, reason });
        wait_event(request).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_shell_that_does_not_end_after_the_hang_up_loses_its_supervisor() {
    for (cause, reason) in EndCause::ALL {
        let (harness, mut shell, request) = cause.play().await;
        expect_hang_up(&mut shell).await;
        advance(Duration::from_millis(4999)).await;
        assert!(shell.supervisor.is_running(), "{cause:?}");
        advance(Duration::from_millis(1)).await;
        shell.supervisor.wait_killed().await;
        shell.supervisor.end().await;
        let code = 137;
        let exit = wait_exit(&harness.terminal()).await;
        assert_eq!(exit, PtyExit { code, reason }, "{cause:?}");
        wait_event(request).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminal_that_has_ended_ignores_a_later_request() {
    let (harness, mut shell, mut client) = TerminalHarness::start_with_writer().await;
    shell.exit(0).await;
    let exit = client.read_exit().await;
    let id = harness.terminal().id().to_owned();
    assert_eq!(harness.terminals.end_terminal(&id).await, Ok(exit));
    assert_eq!(exit.reason, TerminalEndReason::Exited);
    // The owner still answers.
    client.take_writer().await;
    client.resize(50, 20).await;
    client.type_keys("nothing reads this").await;
}

#[tokio::test(start_paused = true)]
async fn a_connected_client_keeps_the_terminal_and_its_end_begins_the_idle_time() {
    let (_harness, shell, client) = TerminalHarness::start_with_writer().await;
    advance(TEST_IDLE_TIMEOUT * 3).await;
    assert_eq!(client.status().disconnect_reason, None);
    client.lose_connection().await;
    advance(TEST_IDLE_TIMEOUT - Duration::from_millis(1)).await;
    assert!(!shell.is_hung_up());
    advance(Duration::from_millis(1)).await;
    shell.wait_hung_up().await;
}

#[tokio::test(start_paused = true)]
async fn output_and_a_new_client_prolong_the_idle_time() {
    let (harness, shell, client) = TerminalHarness::start_with_writer().await;
    client.leave().await;
    let almost = TEST_IDLE_TIMEOUT - Duration::from_millis(1);
    advance(almost).await;
    shell.print("output");
    wait_until(|| harness.terminal().output_length() == 6).await;
    advance(almost).await;
    assert!(!shell.is_hung_up());
    let client = harness.attach(attach_request("b")).await;
    advance(almost).await;
    client.leave().await;
    advance(almost).await;
    assert!(!shell.is_hung_up());
    advance(Duration::from_millis(1)).await;
    shell.wait_hung_up().await;
}

#[tokio::test(start_paused = true)]
async fn a_terminal_that_its_processes_have_closed_ends_with_them() {
    let (harness, mut shell, mut client) = TerminalHarness::start_with_writer().await;
    shell.close_terminal();
    settle().await;
    // A process without a terminal may still run.
    assert_eq!(harness.terminal().exit_status(), None);
    shell.supervisor.exit(7).await;
    assert_eq!(client.read_exit().await.code, 7);
}

#[tokio::test(start_paused = true)]
async fn a_terminal_that_its_processes_have_closed_ends_on_request() {
    for (cause, reason) in EndCause::ALL {
        let (harness, mut shell, client) = TerminalHarness::start_with_writer().await;
        client.leave().await;
        shell.close_terminal();
        settle().await;
        let request = cause.request(&harness);
        if matches!(cause, EndCause::Idle) {
            advance(TEST_IDLE_TIMEOUT).await;
        }
        shell.supervisor.expect_shut_down().await;
        shell.supervisor.exit(129).await;
        let exit = wait_exit(&harness.terminal()).await;
        assert_eq!(exit, PtyExit { code: 129, reason }, "{cause:?}");
        wait_event(request).await.unwrap();
    }
}
