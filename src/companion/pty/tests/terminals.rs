//! All terminals: their number, how a client finds its terminal again, and how long an ended one is kept.

use super::fake_shell::{FakeShell, next_shell};
use super::harness::{TerminalHarness, TestClient, attach_request};
use crate::companion::pty::{PtyAttachRequest, PtyRefusal};
use crate::companion::tests::clock::{advance, settle};
use std::time::Duration;

async fn open_terminals<const N: usize>(
    harness: &TerminalHarness,
    clients: [&str; N],
) -> Vec<(TestClient, FakeShell)> {
    let mut opened = Vec::new();
    for client in clients {
        let client = harness.open(attach_request(client)).await.unwrap();
        opened.push((client, next_shell()));
    }
    opened
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_its_request_again_gets_the_same_terminal() {
    let harness = TerminalHarness::start();
    let first = harness.open(attach_request("a")).await.unwrap();
    let again = harness.open(attach_request("a")).await.unwrap();
    let other = harness.open(attach_request("b")).await.unwrap();
    let id = |client: &TestClient| client.connection.terminal_id().to_owned();
    assert_eq!(id(&first), id(&again));
    assert_ne!(id(&first), id(&other));
    // Clients without a name always open a new terminal.
    let nameless = || PtyAttachRequest {
        client: None,
        ..attach_request("")
    };
    let third = harness.open(nameless()).await.unwrap();
    assert_eq!(harness.terminals.list_terminals().len(), 3);
    let refused = harness.open(nameless()).await;
    assert_eq!(refused.err(), Some(PtyRefusal::TooManyTerminals(3)));
    assert_eq!(harness.terminals.live_sessions().len(), 1);
    drop((first, again, other, third));
}

#[tokio::test(start_paused = true)]
async fn an_ended_terminal_makes_place_and_is_found_for_a_while() {
    let harness = TerminalHarness::start();
    let mut opened = open_terminals(&harness, ["a", "b", "c"]).await;
    let full = harness.open(attach_request("d")).await;
    assert_eq!(full.err(), Some(PtyRefusal::TooManyTerminals(3)));
    let (mut client, mut shell) = opened.remove(0);
    shell.exit(4).await;
    let exit = client.read_exit().await;
    let _fourth = open_terminals(&harness, ["d"]).await;
    let id = client.connection.terminal_id().to_owned();
    client.lose_connection().await;
    // A client that lost its connection still reads the end.
    advance(Duration::from_millis(119_999)).await;
    let found = harness.attach_to(Some(&id), attach_request("a")).await;
    assert_eq!(found.unwrap().read_exit().await, exit);
    advance(Duration::from_millis(1)).await;
    let gone = harness.attach_to(Some(&id), attach_request("a")).await;
    assert_eq!(gone.err(), Some(PtyRefusal::NoTerminal(id)));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_ended_terminals_is_limited() {
    let harness = TerminalHarness::start();
    let mut ids = Vec::new();
    for number in 0..20 {
        let name = format!("c{number}");
        let mut client = harness.open(attach_request(&name)).await.unwrap();
        let mut shell = next_shell();
        shell.exit(0).await;
        client.read_exit().await;
        ids.push(client.connection.terminal_id().to_owned());
    }
    settle().await;
    let kept = harness.terminals.list_terminals();
    let kept: Vec<&str> = kept.iter().map(|terminal| terminal.id()).collect();
    assert_eq!(kept, ids[4..]);
}

#[tokio::test(start_paused = true)]
async fn each_invalid_request_is_refused() {
    let harness = TerminalHarness::start();
    let named = harness.open(attach_request("a/b")).await.err();
    assert!(matches!(named, Some(PtyRefusal::Invalid(_))), "{named:?}");
    let missing = harness.attach_to(Some("0"), attach_request("a")).await;
    assert_eq!(missing.err(), Some(PtyRefusal::NoTerminal("0".into())));
    let missing = harness.terminals.end_terminal("0").await;
    assert_eq!(missing, Err(PtyRefusal::NoTerminal("0".into())));
    assert!(harness.terminals.list_terminals().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_terminal_has_a_maximum_of_clients() {
    let (harness, _shell, writer) = TerminalHarness::start_with_writer().await;
    let id = writer.connection.terminal_id().to_owned();
    let mut clients = vec![writer];
    for number in 1..32 {
        let request = attach_request(&format!("c{number}"));
        clients.push(harness.attach_to(Some(&id), request).await.unwrap());
    }
    let refused = harness.attach_to(Some(&id), attach_request("d")).await;
    assert_eq!(refused.err(), Some(PtyRefusal::TooManyClients));
    clients.pop().unwrap().leave().await;
    let admitted = harness.attach_to(Some(&id), attach_request("d")).await;
    assert!(admitted.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_companion_that_ends_ends_all_terminals_and_opens_none() {
    let harness = TerminalHarness::start();
    let mut opened = open_terminals(&harness, ["a", "b"]).await;
    let terminals = harness.terminals.clone();
    let shutdown = tokio::spawn(async move { terminals.shutdown().await });
    settle().await;
    let refused = harness.open(attach_request("c")).await;
    assert_eq!(refused.err(), Some(PtyRefusal::ShuttingDown));
    for (client, shell) in &mut opened {
        assert!(!shutdown.is_finished());
        shell.supervisor.expect_shut_down().await;
        shell.exit(129).await;
        client.read_exit().await;
    }
    shutdown.await.unwrap();
}
