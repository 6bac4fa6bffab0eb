//! When the hub's servers start without a call.

use crate::harness::servers;
use crate::mcp::{Client, status};
use crate::mcp_children::with_servers;
use crate::trials;
use serde_json::{Value, json};

trials![an_eager_server_starts_with_the_container_or_with_its_session];

fn an_eager_server_starts_with_the_container_or_with_its_session() {
    let server = |shared: bool, start: &str| {
        let args = ["/repo/echo.py"];
        json!({"command": "/usr/bin/python3", "args": args, "shared": shared, "start": start})
    };
    let all = [
        ("lazy", server(true, "lazy")),
        ("eager", server(true, "eager")),
        ("lazy-own", server(false, "lazy")),
        ("eager-own", server(false, "eager")),
    ];
    with_servers(&all, || {
        let home = servers();
        let runs = |name: &str| {
            home.hub().until("its start", |api| {
                (status(api, name)["state"] == "running").then_some(())
            });
        };
        // The server starts when it is configured. From now on the hub knows each server's description, so that
        // it starts no server to learn it.
        runs("eager");
        for name in ["lazy", "lazy-own", "eager-own"] {
            Client::new(&format!("/servers/{name}/mcp")).ask("test/pid", &json!({}));
        }
        home.ok(["restart"]);
        runs("eager");
        let eager = status(&home.hub(), "eager");
        assert!(eager["pids"][0].is_u64(), "{eager}");
        let is_unstarted = |name: &str| {
            let found = status(&home.hub(), name);
            assert_eq!(found["state"], "unstarted", "{found}");
            assert_eq!(found["pids"], json!([]), "{found}");
        };
        let quiet = ["lazy", "lazy-own", "eager-own"];
        quiet.into_iter().for_each(is_unstarted);
        // Each session with a server process starts with that process.
        let sessions = [(); 2].map(|()| Client::new("/servers/eager-own/mcp"));
        home.hub().until("a child for each", |api| {
            let pids = status(api, "eager-own")["pids"].clone();
            (pids.as_array().unwrap().len() == 2).then_some(())
        });
        let _lazy = ["lazy", "lazy-own"].map(|name| Client::new(&format!("/servers/{name}/mcp")));
        ["lazy", "lazy-own"].into_iter().for_each(is_unstarted);
        // These processes answer the calls.
        let pids: Vec<Value> = sessions
            .iter()
            .map(|session| session.ask("test/pid", &json!({})))
            .collect();
        let known = status(&home.hub(), "eager-own")["pids"].clone();
        assert_eq!(known.as_array().unwrap().len(), 2, "{known}");
        assert!(
            pids.iter()
                .all(|pid| known.as_array().unwrap().contains(pid)),
            "{pids:?}: {known}"
        );
    });
}
