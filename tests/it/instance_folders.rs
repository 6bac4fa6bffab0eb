//! Instances and folders: which instance a command uses if none is named.

use crate::commands::Ran;
use crate::harness::{Home, forget};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::Path;

trials![
    each_project_has_its_instance_and_keeps_its_ports,
    elsewhere_the_instances_are_listed,
    an_instance_has_settings_of_its_own,
];

/// The commands in one folder, without `--instance`.
pub(crate) struct Folder<'a> {
    pub(crate) home: &'a Home,
    pub(crate) path: &'a Path,
}

impl Folder<'_> {
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.home.command_without_instance(args);
        Ran::from(command.current_dir(self.path).output().unwrap())
    }

    pub(crate) fn ok(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    }

    pub(crate) fn exec(&self, code: &str) -> String {
        self.ok(&["exec", code]).stdout.trim().to_owned()
    }
}

/// Records an instance that was never up.
pub(crate) fn record(home: &Home, name: &str, project: &Path) {
    let folder = home.folder.join(".local/state/osctl").join(name);
    fs::create_dir_all(&folder).unwrap();
    let ports = json!({"kernel": 8080, "mcp": 8765, "vnc": 5900});
    let record = json!({"project": project, "engine": "docker", "ports": ports});
    fs::write(folder.join("instance.json"), record.to_string()).unwrap();
}

fn each_project_has_its_instance_and_keeps_its_ports() {
    let first = Home::new("it-folder-a");
    let [second, third] = ["b", "c"].map(|letter| Home {
        instance: first
            .instance
            .replace("folder-a", &format!("folder-{letter}")),
        ..first.clone()
    });
    let homes = [&first, &second, &third];
    // The first instance of a user is `os-host`, which is not for tests.
    record(&first, "default", &first.folder.join("moved away"));
    let projects = homes.map(|home| first.folder.join("work").join(&home.instance));
    let [a, b, c] = projects
        .each_ref()
        .map(|path| Folder { home: &first, path });
    for (home, path) in homes.into_iter().zip(&projects) {
        forget(&home.instance);
        fs::create_dir_all(path.join("deep")).unwrap();
    }
    let ran = a.ok(&["up", "--yes"]);
    for note in ["new instance `it-folder-a", "--instance default up --move`"] {
        assert!(ran.stderr.contains(note), "{ran:?}");
    }
    let code = "import os; open('made', 'w').close(); mine = 'a'; print(os.getcwd())";
    assert_eq!(a.exec(code), "/repo");
    assert_eq!(a.ok(&["shell", "pwd; ls"]).stdout, "/repo\ndeep\nmade\n");
    assert!(projects[0].join("made").exists());

    b.ok(&["up", "--yes"]);
    b.exec("mine = 'b'");
    let status = |folder: &Folder<'_>| -> Value {
        let ran = folder.run(&["--json", "status"]);
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let port = |status: &Value, name: &str| -> u16 {
        let address = status["endpoints"][name].as_str().unwrap();
        address.rsplit_once(':').unwrap().1.parse().unwrap()
    };
    // Another program has the next ports.
    let before = status(&b);
    let held = ["kernel", "mcp", "vnc"]
        .map(|name| TcpListener::bind(("127.0.0.1", port(&before, name) + 1)));
    c.ok(&["up", "--yes"]);
    let all = [&a, &b, &c].map(&status);
    for (status, home) in all.iter().zip(homes) {
        assert_eq!(status["instance"], home.instance.as_str());
        assert_eq!(status["healthy"], true);
    }
    let ports = all.iter().flat_map(|status| {
        let names = ["kernel", "mcp", "vnc"];
        names.map(|name| port(status, name))
    });
    let mut ports: Vec<u16> = ports.chain([8080, 8765, 5900]).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 12, "{ports:?}");
    drop(held);

    // Each folder, and a folder beneath it, has its own variables.
    let deep = projects[1].join("deep");
    let beneath = Folder { path: &deep, ..b };
    assert_eq!(
        (a.exec("mine"), beneath.exec("mine")),
        ("'a'".into(), "'b'".into())
    );
    let listed = b.ok(&["ls"]).stdout;
    assert!(
        listed.contains(&format!("{} *", second.instance)),
        "{listed}"
    );

    // The ports stay, and the state moves to another folder with the instance.
    a.ok(&["down"]);
    let moved = first.folder.join("work/elsewhere");
    fs::create_dir(&moved).unwrap();
    fs::write(moved.join("found"), "").unwrap();
    let there = Folder { path: &moved, ..a };
    let refused = there.run(&["--instance", &first.instance, "up"]);
    let hint = format!("`osctl --instance {} up --move`", first.instance);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains(&hint), "{refused:?}");
    there.ok(&["--instance", &first.instance, "up", "--yes", "--move"]);
    assert_eq!(
        there.exec("import os; mine, os.listdir()"),
        "('a', ['found'])"
    );
    assert_eq!(status(&there)["endpoints"], all[0]["endpoints"]);
    for home in homes {
        home.down();
    }
}

fn elsewhere_the_instances_are_listed() {
    let home = Home::new("it-folder-list");
    let [app, site, tmp] =
        ["app", "site", "other/app"].map(|name| home.folder.join("w").join(name));
    for path in [&app, &site, &tmp] {
        fs::create_dir_all(path).unwrap();
    }
    let elsewhere = Folder {
        home: &home,
        path: &tmp,
    };
    let ran = elsewhere.run(&["exec", "1"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("hint: `osctl up` starts it"), "{ran:?}");
    record(&home, "app", &app);
    // The only instance; `osctl up` would use another one here.
    let ran = elsewhere.run(&["exec", "1"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("`osctl --instance app up`"), "{ran:?}");
    // Commands that change a project do not change the only one of another folder.
    for args in [
        &["add", "six"][..],
        &["remove", "six"],
        &["packages", "lock"],
        &["evolve"],
        &["env", "set", "A=b"],
        &["reset"],
        &["down", "--purge", "--yes"],
    ] {
        let ran = elsewhere.run(args);
        assert_eq!(ran.code, 2, "{ran:?}");
        for part in ["the only one is `app` (`", "`osctl --instance app …`"] {
            assert!(ran.stderr.contains(part), "{ran:?}");
        }
    }
    let ran = elsewhere.run(&["-i", "nosuch", "status"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    let hint = "the instances are `app`; `osctl --instance nosuch up` creates `nosuch`";
    assert!(
        ran.stderr.contains("was never up") && ran.stderr.contains(hint),
        "{ran:?}"
    );
    let ran = elsewhere.ok(&["init"]);
    assert!(ran.stderr.contains("then `osctl up`; "), "{ran:?}");
    let ran = Folder {
        home: &home,
        path: &app,
    }
    .ok(&["init"]);
    assert!(ran.stderr.contains("then `osctl evolve`; "), "{ran:?}");
    record(&home, "default", &site);
    for args in [&["exec", "1"][..], &["down", "--purge", "--yes"]] {
        let ran = elsewhere.run(args);
        assert_eq!(ran.code, 2, "{ran:?}");
        for part in ["`app` (`", "`default` (`", "`osctl --instance app …`"] {
            assert!(ran.stderr.contains(part), "{ran:?}");
        }
    }
    // These commands need no instance.
    for args in [&["ls"][..], &["config", "show"], &["config", "path"]] {
        elsewhere.ok(args);
    }
    let inside = Folder {
        home: &home,
        path: &site,
    };
    let ran = inside.run(&["exec", "1"]);
    assert!(ran.stderr.contains("`os-host` is not running"), "{ran:?}");
    assert!(ran.stderr.contains("`osctl up`"), "{ran:?}");
    // A new instance has another name than that of the other folder.
    let ran = elsewhere.run(&["up", "--engine", "embedded", "--project", "/etc"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let ran = elsewhere.run(&["up", "--move", "--yes"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("--instance app"), "{ran:?}");
}

fn an_instance_has_settings_of_its_own() {
    let home = Home::new("it-folder-config");
    let general = "limits: {memory: 4g}\nenv: {A: a}\n";
    let show = || home.json(["config", "show"]);
    let value = |shown: &Value, key: &str| {
        let values = shown["values"].as_array().unwrap().iter();
        values
            .clone()
            .find(|value| value["key"] == key)
            .unwrap()
            .clone()
    };
    let instance = &home.instance;
    home.write_config(&format!(
        "{general}instances:\n  {instance}: {{limits: {{memory: 8g}}, env: {{B: b}}}}\n  other: {{criu: true}}\n"
    ));
    let shown = show();
    let memory = value(&shown, "limits.memory");
    assert_eq!(memory["value"], "8g");
    let source = memory["source"].as_str().unwrap();
    assert!(
        source.ends_with(&format!("(instances.{instance})")),
        "{source}"
    );
    assert_eq!(value(&shown, "env")["value"], json!({"A": "…", "B": "…"}));
    assert_eq!(value(&shown, "criu")["value"], false);
    home.write_config("instances: {other: {limits: {memroy: 1g}}}\n");
    let ran = home.run(["config", "show"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.stderr.contains("did you mean `limits.memory`?"),
        "{ran:?}"
    );
}
