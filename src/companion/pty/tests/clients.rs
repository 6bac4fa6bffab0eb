//! Tests of the clients of a terminal: the writer, and the output of each.

use super::harness::{TerminalHarness, TestClient, attach_request, view_request};
use crate::companion::pty::{PtyAttachRequest, PtyDisconnectReason, TerminalSize};
use crate::companion::tests::clock::{advance, settle, wait_until};
use std::time::Duration;

/// What became of the first writer when another client attaches.
#[derive(Debug, Clone, Copy)]
enum FormerWriter {
    Connected,
    Left,
    /// Lost its connection this many seconds ago.
    Lost(u64),
}

#[tokio::test(start_paused = true)]
async fn a_client_that_attaches_writes_if_the_place_is_free_or_taken() {
    use FormerWriter::{Connected, Left, Lost};
    let take = |client| PtyAttachRequest {
        take_writer: true,
        ..attach_request(client)
    };
    let take_view = || PtyAttachRequest {
        take_writer: true,
        ..view_request("b")
    };
    for (former, request, writes) in [
        (Connected, attach_request("b"), false),
        (Connected, take("b"), true),
        (Connected, take_view(), false),
        (Connected, attach_request("a"), true),
        (Connected, view_request("a"), false),
        (Left, attach_request("b"), true),
        (Left, view_request("b"), false),
        (Lost(0), attach_request("b"), false),
        (Lost(0), attach_request("a"), true),
        (Lost(29), attach_request("b"), false),
        (Lost(29), take("b"), true),
        (Lost(30), attach_request("b"), true),
    ] {
        let (harness, _shell, a) = TerminalHarness::start_with_writer().await;
        assert!(a.is_writer());
        let what = format!("{former:?} {request:?}");
        let mut connected = None;
        match former {
            Connected => connected = Some(a),
            Left => a.leave().await,
            Lost(seconds) => {
                a.lose_connection().await;
                advance(Duration::from_secs(seconds)).await;
            }
        }
        let is_same = request.client.as_deref() == Some("a");
        let client = harness.attach(request).await;
        assert_eq!(client.is_writer(), writes, "{what}");
        if let Some(a) = connected.filter(|_| !is_same) {
            assert_eq!(a.is_writer(), !writes, "{what}");
        }
        assert_eq!(
            harness.terminal().view().has_writer,
            writes || matches!(former, Connected) && !is_same,
            "{what}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_viewer_that_takes_over_types_and_the_former_writer_does_not() {
    let (harness, shell, a) = TerminalHarness::start_with_writer().await;
    let b = harness.attach(view_request("b")).await;
    a.type_keys("from a").await;
    b.type_keys("ignored").await;
    assert_eq!(shell.read_input(6).await, "from a");
    assert_eq!((b.status().ignored_bytes, b.status().typed_bytes), (7, 0));
    b.take_writer().await;
    assert_eq!((a.is_writer(), b.is_writer()), (false, true));
    a.type_keys("too late").await;
    b.type_keys("from b").await;
    assert_eq!(shell.read_input(6).await, "from b");
    assert_eq!(a.status().ignored_bytes, 8);
    wait_until(|| b.status().typed_bytes == 6).await;
    assert_eq!(a.status().typed_bytes, 6);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_connects_again_replaces_its_connection() {
    let (harness, shell, a) = TerminalHarness::start_with_writer().await;
    a.type_keys("abc").await;
    assert_eq!(shell.read_input(3).await, "abc");
    let again = harness.attach(attach_request("a")).await;
    let reason = a.status().disconnect_reason;
    assert_eq!(reason, Some(PtyDisconnectReason::Replaced));
    assert!(again.is_writer());
    // The client sends only what has not arrived.
    assert_eq!(again.connection.typed_bytes, Some(3));
    // The end of the former connection does not detach the client.
    a.lose_connection().await;
    assert!(again.is_writer());
    assert_eq!(harness.terminal().view().client_count, 1);
    again.type_keys("d").await;
    assert_eq!(shell.read_input(1).await, "d");
}

#[tokio::test(start_paused = true)]
async fn only_the_writer_sets_the_size() {
    let (harness, shell, a) = TerminalHarness::start_with_writer().await;
    let b = harness.attach(view_request("b")).await;
    let size = |cols, rows| TerminalSize { cols, rows };
    for (client, cols, rows, expected) in [
        (&a, 100, 40, size(100, 40)),
        (&b, 20, 10, size(100, 40)),
        (&a, 0, 10, size(100, 40)),
        (&a, 10, 0, size(100, 40)),
        (&a, u16::MAX, 1, size(u16::MAX, 1)),
        (&a, 90, 30, size(90, 30)),
    ] {
        client.resize(cols, rows).await;
        assert_eq!(shell.size(), expected, "{cols}x{rows}");
        assert_eq!((a.status().size, b.status().size), (expected, expected));
        assert_eq!(harness.terminal().view().size, expected);
    }
    // A client that attaches as the writer brings its size, and a viewer does not.
    let request = |client, size| PtyAttachRequest {
        size,
        ..attach_request(client)
    };
    let _viewer = harness.attach(request("c", size(5, 5))).await;
    assert_eq!(shell.size(), size(90, 30));
    let taken = PtyAttachRequest {
        take_writer: true,
        ..request("d", size(60, 20))
    };
    let _writer = harness.attach(taken).await;
    assert_eq!(shell.size(), size(60, 20));
}

#[tokio::test(start_paused = true)]
async fn a_later_client_gets_the_screen_and_a_returning_client_the_missed_output() {
    let (harness, shell, mut a) = TerminalHarness::start_with_writer().await;
    shell.print("first line\r\n");
    a.read_until("first line\r\n").await;
    let offset = a.connection.view.offset();
    a.lose_connection().await;
    shell.print("second line\r\n");
    wait_until(|| harness.terminal().output_length() == 25).await;
    let returned = PtyAttachRequest {
        from_offset: Some(offset),
        ..attach_request("a")
    };
    let mut a = harness.attach(returned).await;
    assert_eq!((a.is_writer(), &a.connection.screen), (true, &None));
    a.read_until("second line\r\n").await;
    assert_eq!(a.output, "second line\r\n");
    let mut later = harness.attach(view_request("b")).await;
    let screen = later.connection.screen.clone().unwrap();
    assert!(screen.contains("first line") && screen.contains("second line"));
    shell.print("third");
    later.read_until("third").await;
    assert_eq!(later.output, "third");
}

#[tokio::test(start_paused = true)]
async fn the_first_client_of_a_terminal_reads_all_its_output() {
    let (_harness, shell, mut a) = TerminalHarness::start_with_writer().await;
    shell.print("$ ");
    a.read_until("$ ").await;
    assert_eq!((&*a.output, a.connection.screen), ("$ ", None));
}

#[tokio::test(start_paused = true)]
async fn a_terminal_without_clients_keeps_the_output_of_its_shell() {
    let (harness, shell, a) = TerminalHarness::start_with_writer().await;
    a.leave().await;
    shell.print("alone");
    wait_until(|| harness.terminal().output_length() == 5).await;
    let view = harness.terminal().view();
    assert_eq!((view.client_count, view.has_writer), (0, false));
    let from_begin = PtyAttachRequest {
        from_offset: Some(0),
        ..attach_request("b")
    };
    let mut b = harness.attach(from_begin).await;
    b.read_until("alone").await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_leave_are_not_counted() {
    let (harness, _shell, a) = TerminalHarness::start_with_writer().await;
    let nameless = PtyAttachRequest {
        client: None,
        ..view_request("")
    };
    let clients: Vec<TestClient> = vec![
        harness.attach(view_request("b")).await,
        harness.attach(nameless).await,
    ];
    assert_eq!(harness.terminal().view().client_count, 3);
    drop(clients);
    settle().await;
    assert_eq!(harness.terminal().view().client_count, 1);
    assert!(a.is_writer());
}
