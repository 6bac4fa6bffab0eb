//! A trial of evolve with the full body: code requests a new body, continues in it with its state, uses the new body,
//! and requests another one.

use crate::desktop_memory;
use crate::harness::{Api, Home, TEST_TIMEOUT};
use crate::pages::{page, serve_again};
use crate::trials;
use serde_json::{Value, json};
use std::fs;

trials![
    code_requests_a_new_body_and_continues_in_it =
        "evolve::the_agent_evolves_itself_and_uses_the_new_body",
];

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

/// Requests an evolve from a cell and waits until the run has succeeded.
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
    // An evolve of the full body may take long.
    let api = home.api();
    api.until_within(5 * TEST_TIMEOUT, "the end of the run", |_| {
        let record = home.json(["evolve", "history"])["runs"][0].clone();
        assert_eq!(record["id"], run.as_str());
        assert!(
            !["failed", "rolled_back"].contains(&record["status"].as_str().unwrap()),
            "{record:#}"
        );
        (record["status"] == "succeeded").then_some(())
    });
    // The list omits long fields.
    home.api().get(&format!("/evolve/runs/{run}")).json()
}

#[track_caller]
fn shell(api: &Api, command: &str, session: &str) -> String {
    let request = json!({"command": command, "session": session});
    let reply = api.done("/shell", &request);
    assert_eq!(reply["returncode"], 0, "{reply}");
    reply["stdout"].as_str().unwrap().into()
}

fn code_requests_a_new_body_and_continues_in_it() {
    let home = Home::new("it-evolve-mind");
    home.ok(["init", "--full"]);
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
    // The page writes to the browser's profile; opening the page again does not restore the value.
    let keeps = page(&home, "keeps");
    let (code, text) = desktop_memory::read(&home, &keeps);
    assert!(code == 0 && text.contains("a stranger"), "{code} {text}");
    desktop_memory::wait_until_stored(&api, &keeps);

    let dockerfile = home.project.join("body/Dockerfile");
    let text = fs::read_to_string(&dockerfile).unwrap();
    fs::write(&dockerfile, text + "RUN install-debs jq\n").unwrap();
    let servers = home.project.join("body/mcp.json");
    let mut known: Value = serde_json::from_slice(&fs::read(&servers).unwrap()).unwrap();
    known["mcpServers"]["second"] = known["mcpServers"]["filesystem"].clone();
    fs::write(&servers, known.to_string()).unwrap();
    greet(&home, "hello");
    let record = evolve(&home, "I need jq");
    assert_eq!(record["requested_by"], "agent", "{record:#}");
    assert_eq!(record["receipt"][0]["restored_by"], "objects", "{record:#}");

    let api = home.api();
    let after = api.exec("answer(2), list(frame.a), runtime.evolution(run).status");
    assert_eq!(after["result"], "(42, [1, 2], 'succeeded')", "{after}");
    assert_eq!(after["kernel"]["state"], "restored", "{after}");
    assert!(after["kernel"]["generation"].as_u64().unwrap() > before);
    let there = api.exec_with(json!({"code": "there", "session": "second"}));
    assert_eq!(there["result"], "'too'");
    assert_eq!(shell(&api, "f x; pwd", "default"), "1 x\n/data/place\n");
    assert_eq!(api.get("/display/browser").json()["running"], true);
    // The server of the page has ended with the old container.
    serve_again(&home, &keeps);
    let (code, text) = desktop_memory::read(&home, &keeps);
    assert!(code == 0 && text.contains("has been here"), "{code} {text}");
    // The new parts of the body work.
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

    // The repository has a commit on its own branch; everything else is unchanged.
    let log = "git -C /repo log --format=%B osctl/evolve 2>/dev/null || true";
    api.until("a commit of the run", |api| {
        shell(api, log, "default")
            .contains("I need jq")
            .then_some(())
    });
    // The commit contains the body that was built.
    let built = "git -C /repo show osctl/evolve:body/kernel/extensions/greet.py";
    assert!(shell(&api, built, "default").contains("hello"));
    // A run that fails before the container takes part also becomes a commit.
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

    // Evolve a second time in the same session.
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
