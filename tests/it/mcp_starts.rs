//! When the hub's servers start without a call.

use crate::harness::servers;
use crate::mcp::{Client, status};
use crate::mcp_children::with_servers;
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

trials![
    an_eager_server_starts_with_the_container_or_with_its_session,
    the_lists_of_the_packaged_servers_come_with_the_image,
];

/// `body/servers/lists/` has the lists. `OSCTL_TEST_UPDATE=1` rewrites them.
fn the_lists_of_the_packaged_servers_come_with_the_image() {
    let home = servers();
    for (server, tool) in [
        ("browser-use", "browser_list_tabs"),
        ("filesystem", "list_allowed_directories"),
        ("linux", "list_processes"),
    ] {
        let client = Client::new(&format!("/servers/{server}/mcp"));
        client.tool(tool, json!({}));
        let live = client.ask("tools/list", &json!({}));
        // The hub has requested the lists itself when the server was ready, and stores them.
        let cache = home.data().join(format!("mcp/cache/{server}.json"));
        let read = |path: &Path| -> Value {
            let text = fs::read_to_string(path).unwrap_or_default();
            serde_json::from_str(&text).unwrap_or_default()
        };
        let body: Value = serde_json::from_str(include_str!("../../body/mcp.json")).unwrap();
        let packaged = Path::new("body/servers/lists").join(format!("{server}.json"));
        if std::env::var_os("OSCTL_TEST_UPDATE").is_some() {
            let mut lists = read(&cache);
            lists["digest"] = body["mcpServers"][server]["command"].clone();
            let text = serde_json::to_string_pretty(&lists).unwrap();
            fs::write(&packaged, text + "\n").unwrap();
        }
        let lists = read(&packaged);
        assert_eq!(lists["digest"], body["mcpServers"][server]["command"]);
        let listed = lists["lists"]["tools/list"][0]["result"]["tools"].clone();
        for tool in live["tools"].as_array().unwrap() {
            assert!(
                listed.as_array().unwrap().contains(tool),
                "`body/servers/lists/{server}.json` differs: {tool}"
            );
        }
        home.hub().until("the stored lists", |_| {
            let stored = read(&cache);
            let same = ["initialize_result", "lists"]
                .into_iter()
                .all(|part| stored[part] == lists[part]);
            same.then_some(())
        });
    }
}

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
