//! Clients that read or type at another pace than the shell.

use super::harness::{TerminalHarness, attach_request, view_request};
use crate::companion::pty::PtyDisconnectReason;
use crate::companion::pty::flow_control::FLOW_WINDOW_BYTES;
use crate::companion::tests::clock::{advance, settle, wait_until};
use std::time::Duration;

/// Bytes of typed input that may wait.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// More output than a terminal retains.
const OVERRUN_BYTES: u64 = (1 << 20) + (64 << 10);

#[tokio::test(start_paused = true)]
async fn a_flood_waits_for_its_writer_and_loses_nothing() {
    let (harness, shell, mut writer) = TerminalHarness::start_with_writer().await;
    let terminal = harness.terminal();
    let mut written = 0;
    wait_until(|| {
        written += shell.flood();
        terminal.output_length() >= FLOW_WINDOW_BYTES
    })
    .await;
    let held = terminal.output_length();
    // The device is full, and the owner reads nothing.
    written += shell.flood();
    advance(Duration::from_millis(14_999)).await;
    assert_eq!(terminal.output_length(), held);
    writer.read_length(written).await;
    assert_eq!(terminal.output_length(), written as u64);
    assert_eq!(writer.lost_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_reads_nothing_delays_the_shell_for_a_limited_time() {
    let (harness, shell, mut writer) = TerminalHarness::start_with_writer().await;
    let terminal = harness.terminal();
    wait_until(|| {
        shell.flood();
        terminal.output_length() >= FLOW_WINDOW_BYTES
    })
    .await;
    advance(Duration::from_secs(15)).await;
    wait_until(|| {
        shell.flood();
        terminal.output_length() > OVERRUN_BYTES
    })
    .await;
    shell.print_when_free("end").await;
    writer.read_until("end").await;
    assert!(writer.lost_bytes > 0);
}

#[tokio::test(start_paused = true)]
async fn a_viewer_that_reads_nothing_delays_no_client() {
    let (harness, shell, mut writer) = TerminalHarness::start_with_writer().await;
    let mut viewer = harness.attach(view_request("b")).await;
    while harness.terminal().output_length() < OVERRUN_BYTES {
        shell.flood();
        shell.print_when_free("part").await;
        writer.read_until("part").await;
        writer.output.clear();
    }
    assert_eq!(writer.lost_bytes, 0);
    shell.print_when_free("end").await;
    viewer.read_until("end").await;
    assert!(viewer.lost_bytes > 0);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_types_faster_than_the_shell_reads_is_disconnected() {
    let (harness, shell, writer) = TerminalHarness::start_with_writer().await;
    writer.type_keys(&"y".repeat(MAX_WAITING_BYTES)).await;
    assert_eq!(writer.status().disconnect_reason, None);
    writer.type_keys(&"z".repeat(MAX_WAITING_BYTES)).await;
    let reason = writer.status().disconnect_reason;
    assert_eq!(reason, Some(PtyDisconnectReason::TooFast));
    // The place of the writer is free.
    let next = harness.attach(attach_request("b")).await;
    assert!(next.is_writer());
    // What was accepted arrives, in its order.
    let input = shell.read_input(MAX_WAITING_BYTES).await;
    assert_eq!(input, "y".repeat(MAX_WAITING_BYTES));
    settle().await;
    next.type_keys("b").await;
    assert_eq!(shell.read_input(1).await, "b");
}
