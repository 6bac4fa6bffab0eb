//! The whole story, with the whole body: code asks for a new one, comes back in it with all that it
//! had, uses what is new, and asks again.

use crate::desktop_memory;
use crate::harness::{Api, Home, TEST_TIMEOUT};
use crate::pages::{page, serve_again};
use crate::trials;
use serde_json::{Value, json};
use std::fs;

trials![code_asks_for_a_new_body_and_goes_on_in_it];

const STATE: &str = "
import pandas
base = 40
def answer(more):
    return base + more
frame = pandas.DataFrame({'a': [1, 2]})
";

fn greet(home: &Home, word: &str) {
    let text =
        format!("def run(arguments, shell):\n    return ['{word}', shell.user_ns['base']]\n");
    fs::write(home.project.join("body/kernel/extensions/greet.py"), text).unwrap();
}

/// Asks from a cell, and waits until the run has ended well.
#[track_caller]
fn evolve(home: &Home, reason: &str) -> Value {
    let asked = home
        .api()
        .exec(&format!("run = runtime.evolve({reason:?}); run"));
    assert_eq!(asked["error"], Value::Null, "{asked}");
    let run = asked["result"]
        .as_str()
        .unwrap()
        .trim_matches('\'')
        .to_owned();
    // As long as a person's evolve may take.
    let begun = home.api();
    begun.until_within(5 * TEST_TIMEOUT, "the end of the run", |_| {
        let record = home.json(["evolve", "history"])["runs"][0].clone();
        assert_eq!(record["run"], run.as_str());
        assert!(
            !["failed", "rolled_back"].contains(&record["status"].as_str().unwrap()),
            "{record:#}"
        );
        (record["status"] == "succeeded").then_some(())
    });
    // The list leaves out what is long.
    home.api().get(&format!("/evolve/runs/{run}")).json()
}

#[track_caller]
fn shell(api: &Api, command: &str, session: &str) -> String {
    let request = json!({"command": command, "session": session});
    let reply = api.done("/shell", &request);
    assert_eq!(reply["returncode"], 0, "{reply}");
    reply["stdout"].as_str().unwrap().into()
}

fn code_asks_for_a_new_body_and_goes_on_in_it() {
    let home = Home::new("it-evolve-mind");
    home.ok(["init"]);
    home.up();
    let api = home.api();
    shell(
        &api,
        "cd /repo && git init -q -b main && git add body && git -c user.name=a -c user.email=a@b commit -qm mine && chown -R 1234:1234 .git",
        "default",
    );
    let before = api.exec(STATE)["kernel"]["generation"].as_u64().unwrap();
    api.done("/sessions", &json!({"name": "second"}));
    api.exec_with(json!({"code": "there = 'too'", "session": "second"}));
    shell(
        &api,
        "mkdir -p /data/place && cd /data/place && export MINE=1 && f() { echo $MINE $1; }",
        "default",
    );
    assert_eq!(api.post("/display/browser", &json!({})).status, 200);
    // Something in its profile, which the page itself does not bring back.
    let keeps = page(&home, "keeps");
    let (code, said) = desktop_memory::read(&home, &keeps);
    assert!(code == 0 && said.contains("a stranger"), "{code} {said}");
    desktop_memory::until_kept(&api, &keeps);

    let dockerfile = home.project.join("body/Dockerfile");
    let text = fs::read_to_string(&dockerfile).unwrap();
    fs::write(&dockerfile, text + "RUN install-debs jq\n").unwrap();
    let servers = home.project.join("body/mcp.json");
    let mut known: Value = serde_json::from_slice(&fs::read(&servers).unwrap()).unwrap();
    known["mcpServers"]["second"] = known["mcpServers"]["filesystem"].clone();
    fs::write(&servers, known.to_string()).unwrap();
    greet(&home, "hello");
    let record = evolve(&home, "I need jq");
    assert_eq!(record["by"], "agent", "{record:#}");
    assert_eq!(record["receipt"][0]["by"], "objects", "{record:#}");

    let api = home.api();
    let after = api.exec("answer(2), list(frame.a), runtime.evolution(run).status");
    assert_eq!(after["result"], "(42, [1, 2], 'succeeded')", "{after}");
    assert_eq!(after["kernel"]["state"], "restored", "{after}");
    assert!(after["kernel"]["generation"].as_u64().unwrap() > before);
    let there = api.exec_with(json!({"code": "there", "session": "second"}));
    assert_eq!(there["result"], "'too'");
    assert_eq!(shell(&api, "f x; pwd", "default"), "1 x\n/data/place\n");
    assert_eq!(api.get("/display/browser").json()["running"], true);
    // The server of that page has ended with the old container.
    serve_again(&home, &keeps);
    let (code, said) = desktop_memory::read(&home, &keeps);
    assert!(code == 0 && said.contains("has been here"), "{code} {said}");
    // What is new is used.
    assert_eq!(shell(&api, "echo '{\"a\":6}' | jq .a", "default"), "6\n");
    assert_eq!(
        api.done("/x/greet", &json!({}))["value"],
        json!(["hello", 40])
    );
    assert!(
        home.ok(["mcp", "tools", "second"])
            .stdout
            .contains("read_text_file")
    );

    // The repository's owner has a commit, and everything else as it was.
    let log = "git -C /repo log --format=%B osctl/evolve 2>/dev/null || true";
    api.until("a commit of the run", |api| {
        shell(api, log, "default")
            .contains("I need jq")
            .then_some(())
    });
    // It tells the body as it was built.
    let built = "git -C /repo show osctl/evolve:body/kernel/extensions/greet.py";
    assert!(shell(&api, built, "default").contains("hello"));
    // A run that fails before anything in here hears of it is told, too.
    let whole = fs::read_to_string(&dockerfile).unwrap();
    fs::write(&dockerfile, format!("{whole}FROM debian\n")).unwrap();
    let ran = home.run(["evolve", "--reason", "too much"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    fs::write(&dockerfile, whole).unwrap();
    api.until("a commit of the run that failed", |api| {
        let log = shell(api, log, "default");
        (log.contains("Evolve: failed") && log.contains("too much")).then_some(())
    });
    let tried = "git -C /repo show osctl/evolve:body/Dockerfile | tail -n 1";
    assert_eq!(shell(&api, tried, "default"), "FROM debian\n");
    let foreign = shell(
        &api,
        "find /repo/.git -not -user 1234; git -C /repo branch --show-current",
        "default",
    );
    assert_eq!(foreign, "main\n");

    // And once more in the same life.
    greet(&home, "again");
    evolve(&home, "another word");
    let api = home.api();
    assert_eq!(api.exec("base = 1; answer(2)")["result"], "3");
    assert_eq!(
        api.done("/x/greet", &json!({}))["value"],
        json!(["again", 1])
    );
    assert_eq!(shell(&api, "f y", "default"), "1 y\n");
    home.down();
}
