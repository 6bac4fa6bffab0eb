//! `--json`: each answer of each verb has the shape that `docs/schema/osctl.schema.json` publishes.
//!
//! Keys that the schema does not name, and keys that are missing, are errors. A validator of JSON Schema in the image
//! checks the schema itself and the same answers.

use crate::commands::Ran;
use crate::harness::{Home, shared};
use crate::trials;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

#[path = "../../src/command/answers/tests/shape.rs"]
mod shape;

trials![answers_of_an_instance_have_the_published_shape];

/// Answers that need an instance with `--criu`.
const CHECKPOINT_ANSWERS: [&str; 4] = [
    "CheckpointsAnswer",
    "CheckpointAnswer",
    "RestoreAnswer",
    "CheckpointRemovedAnswer",
];

/// Answers of runs of the keeper, and of verbs that end an instance.
const KEEPER_ANSWERS: [&str; 8] = [
    "BuildAnswer",
    "DownAnswer",
    "EvolveDiffAnswer",
    "EvolveHistoryAnswer",
    "EvolveRunAnswer",
    "EvolveStartedAnswer",
    "EvolveStatusAnswer",
    "InitAnswer",
];

fn schema() -> Value {
    serde_json::from_str(&fs::read_to_string("docs/schema/osctl.schema.json").unwrap()).unwrap()
}

/// The answers of one instance.
#[derive(Debug)]
struct Answers<'a> {
    home: &'a Home,
    schema: Value,
    /// The type and the value of each answer.
    seen: Vec<(String, Value)>,
}

impl<'a> Answers<'a> {
    fn new(home: &'a Home) -> Self {
        Self {
            home,
            schema: schema(),
            seen: Vec::new(),
        }
    }

    /// Runs the command with `--json` and checks its answer.
    #[track_caller]
    fn check(&mut self, name: &str, args: &[&str]) -> Value {
        let ran = self.run(args);
        let value: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {ran:?}"));
        self.check_value(name, args, value)
    }

    /// Checks a stream with one answer per line.
    #[track_caller]
    fn check_lines(&mut self, name: &str, args: &[&str]) {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        for line in ran.stdout.lines() {
            let value = serde_json::from_str(line).unwrap();
            self.check_value(name, args, value);
        }
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.home.run([&["--json"], args].concat())
    }

    #[track_caller]
    fn check_value(&mut self, name: &str, args: &[&str], value: Value) -> Value {
        let definition = &self.schema["$defs"][name];
        assert!(definition.is_object(), "`{name}` is not in the schema");
        if let Err(why) = shape::check_shape(&value, definition, &self.schema) {
            panic!("{args:?}: {why}: {value:#}");
        }
        self.seen.push((name.to_owned(), value.clone()));
        value
    }

    fn names(&self) -> BTreeSet<&str> {
        self.seen.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Lets `jsonschema` in the image check the schema and all answers.
    #[track_caller]
    fn validate_inside(&self) {
        let document = json!({"schema": self.schema, "answers": self.seen});
        fs::write(self.home.files().join("answers.json"), document.to_string()).unwrap();
        let script = "import json\n\
            from jsonschema import Draft202012Validator as Validator\n\
            document = json.load(open('/root/host/answers.json'))\n\
            schema = document['schema']\n\
            Validator.check_schema(schema)\n\
            for name, answer in document['answers']:\n\
            \x20   part = {'$ref': '#/$defs/' + name, '$defs': schema['$defs']}\n\
            \x20   Validator(part).validate(answer)\n\
            print(len(document['answers']))\n";
        fs::write(self.home.files().join("validate.py"), script).unwrap();
        let python = "/opt/osctl/servers/linux/bin/python /root/host/validate.py";
        let ran = self.home.run(["shell", python]);
        assert_eq!(
            ran.stdout.trim(),
            self.seen.len().to_string(),
            "{:.4000}",
            ran.stderr
        );
    }
}

fn answers_of_an_instance_have_the_published_shape() {
    let home = shared();
    let mut all = Answers::new(home);
    check_runs(&mut all);
    check_state(&mut all);
    check_tools(&mut all);
    check_host(&mut all);
    all.validate_inside();
    let elsewhere = CHECKPOINT_ANSWERS.iter().chain(&KEEPER_ANSWERS);
    let mut names = all.names();
    names.extend(elsewhere);
    let published = all.schema["$defs"].as_object().unwrap().iter();
    let published = published.filter(|(_, part)| part.get("x-osctl-commands").is_some());
    let published: BTreeSet<&str> = published.map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, published);
}

fn check_runs(all: &mut Answers) {
    all.check("ExecAnswer", &["exec", "print('a'); 6*7"]);
    all.check("ExecAnswer", &["exec", "1/0"]);
    all.check("ExecAnswer", &["exec", "print('x' * 20_000_000)"]);
    let plot = "import matplotlib.pyplot as p; p.plot([1]); p.show()";
    all.check("ExecAnswer", &["exec", plot]);
    let started = all.check("StartedAnswer", &["exec", "--detach", "2"]);
    let id = started["id"].as_str().unwrap();
    let attached = all.check("ExecAnswer", &["attach", id]);
    assert_eq!(
        (&attached["kind"], &attached["result"]),
        (&json!("code"), &json!("2"))
    );
    all.check("ShellAnswer", &["shell", "echo out; exit 3"]);
    all.check("ShellAnswer", &["shell", "--timeout", "0.3", "sleep 60"]);
    let started = all.check("StartedAnswer", &["shell", "--detach", "sleep 60"]);
    let id = started["id"].as_str().unwrap().to_owned();
    let runs = all.check("RunsAnswer", &["runs"]);
    let listed = runs["runs"].as_array().unwrap().iter();
    let kinds: BTreeSet<_> = listed.filter_map(|run| run["kind"].as_str()).collect();
    assert_eq!(kinds, BTreeSet::from(["code", "command"]));
    let ended = all.check("InterruptAnswer", &["interrupt", &id]);
    assert_eq!(ended["command"]["id"], id, "{ended}");
    all.check("ShellAnswer", &["attach", &id]);
    let id = all.check(
        "StartedAnswer",
        &["exec", "--detach", "import time; time.sleep(60)"],
    );
    let id = id["id"].as_str().unwrap().to_owned();
    let ended = all.check("InterruptAnswer", &["interrupt", &id]);
    assert_eq!(ended["run"]["id"], id, "{ended}");
    all.check("InterruptAnswer", &["interrupt"]);
    let peer = crate::pty::Peer::open(&all.home.api(), "").ok().unwrap();
    let id = peer.hello()["id"].as_str().unwrap().to_owned();
    all.check("TerminalsAnswer", &["shell", "--list"]);
    let ended = all.check("TerminalEndedAnswer", &["shell", "--end", &id]);
    assert_eq!(ended["id"], id, "{ended}");
    all.check("FailureAnswer", &["shell", "--end", "none"]);
    all.check("SessionEntry", &["sessions", "create", "shapes"]);
    all.check("SessionsAnswer", &["sessions"]);
    all.check("SessionRemovedAnswer", &["sessions", "rm", "shapes"]);
    let failed = all.check("FailureAnswer", &["sessions", "rm", "shapes"]);
    assert_eq!(failed["status"], "failed");
    let activity = all.check("ActivitiesAnswer", &["activity", "--session", "default"]);
    let newest = activity["actions"].as_array().unwrap().last().unwrap();
    all.check_value("ActivityEntry", &["activity", "-f"], newest.clone());
    all.check("EnvironmentAnswer", &["env", "set", "SHAPE=1"]);
    all.check("EnvironmentAnswer", &["env"]);
    all.check("EnvironmentAnswer", &["env", "rm", "SHAPE"]);
    all.check("FailureAnswer", &["exec", "-f", "missing.py"]);
    all.check("FailureAnswer", &["repl"]);
}

fn check_state(all: &mut Answers) {
    let code = "x = [1]\ndef lines():\n    yield 1\ng = lines()";
    all.check("ExecAnswer", &["exec", code]);
    all.check("StoreAnswer", &["cryo", "store", "shapes", "--dry-run"]);
    all.check("StoreAnswer", &["cryo", "store", "shapes"]);
    all.check("GenerationAnswer", &["cryo", "show", "shapes"]);
    all.check("ReloadAnswer", &["cryo", "reload", "shapes"]);
    all.check("StoredStatesAnswer", &["cryo", "list"]);
    all.check("GenerationAnswer", &["cryo", "show", "shapes"]);
    all.check("ResetAnswer", &["reset"]);
    all.check("GenerationsRemovedAnswer", &["cryo", "rm", "shapes"]);
    all.check("CriuStatusAnswer", &["criu", "status"]);
    all.check("FailureAnswer", &["criu", "checkpoint"]);
    all.check("ExecAnswer", &["exec", "kept = 1"]);
    all.check("StatusAnswer", &["restart"]);
    let status = all.check("StatusAnswer", &["status"]);
    assert!(
        status["sessions"][0]["restored_from"]["created_at"].is_string(),
        "{status:#}"
    );
    all.check("SessionsAnswer", &["sessions"]);
}

fn check_tools(all: &mut Answers) {
    all.check("ServersAnswer", &["mcp", "list"]);
    all.check("ServersAnswer", &["mcp", "status"]);
    all.check("ToolsAnswer", &["mcp", "tools", "os"]);
    let called = ["mcp", "call", "os", "list_files", "path=/root"];
    let called = all.check("ToolResultAnswer", &called);
    assert_eq!(called["is_error"], false, "{called}");
    for verb in ["connect", "disconnect"] {
        let changed = all.check("ClientAnswer", &["mcp", verb, "cursor", "--yes"]);
        assert_eq!(changed["changed"], true, "{changed}");
    }
    all.check("DesktopAnswer", &["desktop"]);
    all.check("ScreenSize", &["desktop", "--resolution", "1024x768"]);
    all.check("ScreenshotAnswer", &["screenshot", "shapes.png"]);
    fs::write(all.home.project.join("shapes.txt"), "1").unwrap();
    all.check("CopyAnswer", &["cp", "shapes.txt", "os:/root/host"]);
}

fn check_host(all: &mut Answers) {
    all.check("StatusAnswer", &["up", "--yes"]);
    all.check("InstancesAnswer", &["ls"]);
    all.check("DoctorAnswer", &["doctor"]);
    all.check_lines("LogLine", &["logs", "-n", "50"]);
    all.check_lines("LogLine", &["logs", "mcp/linux"]);
    let folder = all.home.folder.join("shapes-jupyter");
    let prefix = ["--prefix", folder.to_str().unwrap()];
    for (name, verb) in [
        ("KernelspecAnswer", "install"),
        ("KernelspecsAnswer", "list"),
        ("KernelspecRemovedAnswer", "uninstall"),
    ] {
        all.check(name, &[&["jupyter", verb][..], &prefix].concat());
    }
    all.check("PackagesChangedAnswer", &["packages", "lock"]);
    all.check("PackagesAnswer", &["packages", "ls"]);
    all.check("ConfigAnswer", &["config", "show"]);
    all.check("PathAnswer", &["config", "path"]);
    let failed = all.check("FailureAnswer", &["config", "init"]);
    assert_eq!(failed["error"]["type"], "usage");
}

/// Runs of the keeper, with an instance of its own.
pub(crate) mod of_the_keeper {
    use super::{Answers, KEEPER_ANSWERS};
    use crate::evolve::{small, write};
    use crate::harness::Home;
    use crate::trials;
    use std::collections::BTreeSet;
    use std::fs;

    trials![answers_of_runs_of_the_keeper_have_the_published_shape];

    fn answers_of_runs_of_the_keeper_have_the_published_shape() {
        let empty = Home::new("it-json-init");
        let mut first = Answers::new(&empty);
        first.check("InitAnswer", &["init"]);
        first.check("PathAnswer", &["config", "init"]);
        let failed = first.check("FailureAnswer", &["status"]);
        assert_eq!(failed["error"]["type"], "not_running");

        let home = small("it-json");
        let mut all = Answers::new(&home);
        all.check("StatusAnswer", &["up", "--yes", "--auto-ports"]);
        all.check("EvolveHistoryAnswer", &["evolve", "history"]);
        all.check("EvolveStatusAnswer", &["evolve", "status"]);
        all.check("ExecAnswer", &["exec", "x = [1]"]);
        write(&home, "kernel/shapes.py", "\"\"\"New.\"\"\"\n");
        let record = all.check("EvolveRunAnswer", &["evolve", "--reason", "shapes"]);
        assert_eq!(record["status"], "succeeded", "{record:#}");
        let run = record["id"].as_str().unwrap();
        assert!(record["refused_seconds"].as_f64() > Some(0.0), "{record:#}");
        all.check("EvolveRunAnswer", &["evolve", "show", run]);
        all.check("EvolveDiffAnswer", &["evolve", "diff", run]);
        all.check_lines("LogLine", &["evolve", "logs", "-f", run]);
        let dockerfile = home.project.join("body/Dockerfile");
        let text = fs::read_to_string(dockerfile).unwrap() + "RUN sleep 120\n";
        write(&home, "Dockerfile", &text);
        all.check("EvolveStartedAnswer", &["evolve", "--detach"]);
        all.check("EvolveStatusAnswer", &["evolve", "status"]);
        all.check("EvolveHistoryAnswer", &["evolve", "history"]);
        all.check("FailureAnswer", &["evolve"]);
        let stopped = all.check("EvolveRunAnswer", &["evolve", "stop"]);
        assert_eq!(stopped["status"], "failed", "{stopped:#}");
        write(&home, "Dockerfile", crate::evolve::DOCKERFILE);
        all.check("BuildAnswer", &["build"]);
        all.check("DownAnswer", &["down", "--purge", "--yes"]);
        let mut names = first.names();
        names.extend(all.names());
        let expected = BTreeSet::from(KEEPER_ANSWERS);
        assert!(names.is_superset(&expected), "{names:?}");
    }
}

/// Checkpoints, with the instance that may make them.
pub(crate) mod of_checkpoints {
    use super::{Answers, CHECKPOINT_ANSWERS};
    use crate::trials;
    use std::collections::BTreeSet;

    trials![answers_about_checkpoints_have_the_published_shape];

    fn answers_about_checkpoints_have_the_published_shape() {
        crate::criu::restart_kernel();
        let mut all = Answers::new(crate::criu::criu_instance());
        all.check("CheckpointAnswer", &["criu", "checkpoint", "shapes"]);
        let status = all.check("CriuStatusAnswer", &["criu", "status"]);
        assert_eq!(status["checkpointed_sessions"][0], "default", "{status:#}");
        all.check("CheckpointsAnswer", &["criu", "ls"]);
        all.check("RestoreAnswer", &["criu", "restore", "shapes"]);
        all.check("CheckpointRemovedAnswer", &["criu", "rm", "shapes"]);
        assert!(all.names().is_superset(&BTreeSet::from(CHECKPOINT_ANSWERS)));
    }
}
