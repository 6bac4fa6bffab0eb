//! What the agent writes in the project, and what one shell sets or leaves out, does not limit the user.

use crate::commands::{Ran, on_terminal};
use crate::evolve::small;
use crate::harness::{Home, shared};
use crate::instance::container_id;
use crate::trials;
use serde_json::Value;
use std::fs;

trials![
    a_project_file_of_the_agent_disables_no_command,
    a_project_file_that_expands_costs_no_memory,
    a_variable_that_looks_like_a_key_is_reported,
    an_instance_keeps_its_configuration_and_its_variables,
    a_plain_up_removes_no_variable_of_the_named_file,
];

/// What the agent can write, and the warning.
const BAD_FILES: &[(&str, &str)] = &[
    ("limits: {memory: 1g}", "`limits.memory`"),
    ("docker_socket: true", "`docker_socket`"),
    ("body: [", "osctl.yaml"),
    ("bdy: x", "`bdy` is unknown"),
    ("desktop: {depth: 7}", "`desktop.depth`"),
    ("servers: {a: &x {command: y}, b: *x}", "anchors"),
];

/// Writes the file as the agent, which is root inside and has the project at `/repo`.
#[track_caller]
fn write_from_inside(home: &Home, text: &str) {
    let text = serde_json::to_string(text).unwrap();
    let code = format!("import os, pathlib\npathlib.Path('/repo/osctl.yaml').write_text({text})");
    let reply = home.api().exec(&code);
    assert_eq!(reply["status"], "completed", "{reply}");
}

/// The command works and prints one warning, with the file, the key and the fix.
#[track_caller]
fn assert_warned(home: &Home, ran: &Ran, key: &str) {
    let file = home.project.join("osctl.yaml").display().to_string();
    let warnings: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.contains(&file))
        .collect();
    let [warning] = warnings[..] else {
        panic!("expected one warning: {ran:?}");
    };
    assert!(
        warning.starts_with("warning") && warning.contains(key) && warning.contains("remove"),
        "{ran:?}"
    );
}

fn a_project_file_of_the_agent_disables_no_command() {
    let home = shared();
    let before = container_id(home);
    for (text, key) in BAD_FILES {
        write_from_inside(home, text);
        assert_warned(home, &home.ok(["exec", "1"]), key);
    }
    for words in [
        &["status"][..],
        &["interrupt"],
        &["config", "show"],
        &["runs"],
        &["mcp", "list"],
        &["sessions"],
    ] {
        let mut command = home.command(words);
        // The record names the project, from every folder.
        let ran = Ran::from(command.current_dir("/").output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_warned(home, &ran, "anchors");
    }
    home.ok(["logs", "-n", "1"]);
    let found = home.json(["doctor"]);
    let finding = |what: &str| {
        let all = found["findings"].as_array().unwrap().iter();
        let mut of = all.filter(|finding| finding["name"] == what);
        of.next().cloned().unwrap_or_default()
    };
    assert_eq!(finding("configuration")["verdict"], "ok", "{found:#}");
    let problem = finding("project file");
    assert_eq!(problem["verdict"], "warning", "{found:#}");
    assert!(
        problem["hint"].as_str().unwrap().contains("remove"),
        "{problem}"
    );
    // With a broken file of the user, `doctor` continues with the default settings.
    let own = home.folder.join("broken.yaml");
    fs::write(&own, "bdy: x\n").unwrap();
    let found = home.json(["--config", own.to_str().unwrap(), "doctor"]);
    let findings = found["findings"].as_array().unwrap();
    for (check, verdict, detail) in [
        ("configuration", "broken", "`bdy`"),
        ("configuration", "broken", "were not checked"),
        ("engine", "ok", ""),
        ("companion", "ok", "healthy"),
    ] {
        let has = |finding: &&Value| {
            finding["name"] == check
                && finding["verdict"] == verdict
                && finding["detail"].as_str().unwrap().contains(detail)
        };
        assert!(findings.iter().any(|one| has(&one)), "{check}: {found:#}");
    }
    fs::remove_file(&own).unwrap();
    for words in [&["up"][..], &["build"], &["evolve"]] {
        let ran = home.run(words);
        assert!(
            ran.code == 2
                && ran.stderr.contains("error: the project's file")
                && ran.stderr.contains("remove"),
            "{ran:?}"
        );
    }
    assert_eq!(container_id(home), before);
    // osctl reads neither a link nor a device.
    let file = home.project.join("osctl.yaml");
    for target in ["/dev/zero", "/dev/tty", "/etc"] {
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(target, &file).unwrap();
        assert_warned(home, &home.ok(["exec", "1"]), "osctl.yaml");
    }
    fs::remove_file(&file).unwrap();
    let ran = home.ok(["exec", "1"]);
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
}

fn a_project_file_that_expands_costs_no_memory() {
    let mut home = Home::new("it-bomb");
    // An earlier version needed 19.8 GB for this file.
    home.wrapper = ["prlimit", "--as=4294967296", "--"]
        .map(str::to_owned)
        .to_vec();
    let list = "x,".repeat(100_000);
    let bomb = |items: usize, aliases: usize| {
        format!(
            "b: &b [{}x]\nc: [{}]\n",
            &list[..2 * items],
            "*b,".repeat(aliases)
        )
    };
    for text in [bomb(100_000, 60_000), bomb(10_000, 10_000)] {
        fs::write(home.project.join("osctl.yaml"), text).unwrap();
        let ran = home.ok(["config", "show"]);
        assert_warned(&home, &ran, "osctl.yaml");
    }
}

fn a_variable_that_looks_like_a_key_is_reported() {
    let mut home = Home::new("it-misspelt");
    home.env.insert("OSCTL_LIMITS_MEMRY".into(), "4g".into());
    home.env.insert("OSCTL_OF_ANOTHER_TOOL".into(), "1".into());
    let ran = home.ok(["config", "show"]);
    assert!(
        ran.stderr.contains("`OSCTL_LIMITS_MEMRY` is ignored")
            && ran.stderr.contains("`OSCTL_LIMITS_MEMORY`"),
        "{ran:?}"
    );
    assert!(!ran.stderr.contains("ANOTHER"), "{ran:?}");
}

/// The container's variables with these names, in one line.
#[track_caller]
fn variables(home: &Home) -> String {
    let code = "import os; ' '.join(f'{k}={os.environ.get(k)}' for k in ('STRIPE_KEY', 'OPENAI_API_KEY', 'GIVEN'))";
    home.api().exec(code)["result"].as_str().unwrap().to_owned()
}

#[track_caller]
fn assert_refused(home: &Home, lines: &[&str]) {
    let before = container_id(home);
    let ran = home.run(["up"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    for line in lines.iter().chain(&["add `--yes`"]) {
        assert!(ran.stderr.contains(line), "{line}: {ran:?}");
    }
    assert_eq!(container_id(home), before);
}

fn an_instance_keeps_its_configuration_and_its_variables() {
    let mut home = small("it-control");
    home.env
        .insert("OPENAI_API_KEY".into(), "sk-of-the-shell".into());
    let proxy = "http://u:proxy-secret@127.0.0.1:9";
    home.env.insert("HTTPS_PROXY".into(), proxy.into());
    let usual = home.folder.join(".config/osctl/osctl.yaml");
    let small = fs::read_to_string(&usual).unwrap();
    fs::remove_file(&usual).unwrap();
    let own = fs::canonicalize(&home.folder).unwrap().join("own.yaml");
    let configure = |more: &str| fs::write(&own, format!("{small}{more}")).unwrap();
    let shared = home.folder.join("shared");
    fs::create_dir_all(shared.join("deep")).unwrap();
    let mounts = format!("mounts: ['{}/deep:/mnt/deep:ro']\n", shared.display());
    configure(&format!(
        "env: {{STRIPE_KEY: sk-of-stripe}}\nlimits: {{memory: 1g}}\n{mounts}"
    ));
    // Only the first command resolves the path against its folder.
    let ran = home.ok(["--config", "../own.yaml", "up", "--yes", "--auto-ports"]);
    assert_eq!(
        variables(&home),
        "'STRIPE_KEY=sk-of-stripe OPENAI_API_KEY=None GIVEN=None'"
    );
    assert!(
        ran.stderr
            .contains("OPENAI_API_KEY is set in this shell and is not passed")
            && ran.stderr.contains("up --env OPENAI_API_KEY"),
        "{ran:?}"
    );
    // A proxy passes without its password, also to the keeper, which builds with it.
    let warned = "`HTTPS_PROXY` is passed without its user and password";
    assert_eq!(ran.stderr.matches(warned).count(), 1, "{ran:?}");
    let proxies = |home: &Home| {
        let code = "import os; os.environ['HTTPS_PROXY'] + ' ' + os.environ['https_proxy']";
        home.api().exec(code)["result"].as_str().unwrap().to_owned()
    };
    assert_eq!(proxies(&home), "'http://127.0.0.1:9 http://127.0.0.1:9'");
    let record = fs::read_to_string(home.state().join("instance.json")).unwrap();
    assert!(!record.contains("sk-of"), "{record}");
    let first = container_id(&home);
    let ran = home.ok(["up"]);
    assert!(ran.stdout.contains("is up to date"), "{ran:?}");
    assert_eq!(container_id(&home), first);

    // The agent of a second instance gets no folder above a mount of the first instance.
    let second = Home {
        instance: format!("{}-2", home.instance),
        ..home.clone()
    };
    let ran = second.run(["up", "--yes", "--project", shared.to_str().unwrap()]);
    assert!(
        ran.code == 2 && ran.stderr.contains("another instance mounts"),
        "{ran:?}"
    );

    // `up` lists changed and removed settings and asks.
    configure("limits: {memory: 2g}\n");
    assert_refused(&home, &["env: -STRIPE_KEY", "limits.memory: 1g -> 2g"]);
    // `up` also lists a variable that an earlier version did not record.
    let file = home.state().join("instance.json");
    let mut former: Value = serde_json::from_str(&record).unwrap();
    former["applied"]
        .as_object_mut()
        .unwrap()
        .remove("settings");
    fs::write(&file, former.to_string()).unwrap();
    assert_refused(&home, &["its settings: env: -STRIPE_KEY\n"]);
    fs::write(&file, &record).unwrap();
    let ran = on_terminal(&home.command(["up"]), "n");
    assert!(
        ran.code == 4
            && ran.stdout.contains("env: -STRIPE_KEY")
            && ran.stdout.contains("was not replaced"),
        "{ran:?}"
    );
    assert_eq!(container_id(&home), first);
    configure("limits: {memory: 2g}\npass_env: [HTTPS_PROXY]\n");
    let ran = home.run(["up", "--env", "OF_NO_SHELL"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("`OF_NO_SHELL` is not set"),
        "{ran:?}"
    );
    let ran = home.ok(["up", "--yes", "--env", "OPENAI_API_KEY", "-e", "GIVEN=a=b"]);
    assert!(
        ran.stderr
            .contains("passing into the container: GIVEN, HTTPS_PROXY, NO_PROXY, OPENAI_API_KEY\n")
            && ran.stderr.contains("env: -STRIPE_KEY")
            && !ran.stderr.contains("sk-of")
            && !ran.stderr.contains(warned),
        "{ran:?}"
    );
    assert_eq!(proxies(&home), format!("'{proxy} {proxy}'"));
    let passed = "'STRIPE_KEY=None OPENAI_API_KEY=sk-of-the-shell GIVEN=a=b'";
    assert_eq!(variables(&home), passed);

    // A missing file stops only `up`.
    let away = home.folder.join("away.yaml");
    fs::rename(&own, &away).unwrap();
    let gone = format!("the configuration file `{}` does not exist", own.display());
    let ran = home.ok(["exec", "1"]);
    assert_eq!(ran.stderr.matches(&gone).count(), 1, "{ran:?}");
    let ran = home.run(["up"]);
    assert!(
        ran.code == 2 && ran.stderr.contains(&gone) && ran.stderr.contains("--config"),
        "{ran:?}"
    );
    fs::rename(&away, &own).unwrap();

    // A shell without the variables changes nothing.
    home.env.clear();
    let ran = home.ok(["up"]);
    assert!(ran.stdout.contains("is up to date"), "{ran:?}");
    assert_eq!(variables(&home), passed);

    // The agent can't prevent `down`.
    write_from_inside(&home, "docker_socket: true");
    fs::write(home.project.join("mine.yaml"), "bind: [").unwrap();
    let ran = home.ok(["--config", "mine.yaml", "down"]);
    assert_warned(&home, &ran, "`docker_socket`");
    assert!(
        ran.stderr.contains("the configuration file is ignored: "),
        "{ran:?}"
    );
    home.down();
}

fn a_plain_up_removes_no_variable_of_the_named_file() {
    let home = small("it-own-file");
    let usual = home.folder.join(".config/osctl/osctl.yaml");
    let own = home.folder.join("own.yaml");
    let text = fs::read_to_string(usual).unwrap();
    fs::write(&own, format!("{text}env: {{STRIPE_KEY: sk-of-stripe}}\n")).unwrap();
    let own = own.to_str().unwrap();
    home.ok(["--config", own, "up", "--yes", "--auto-ports"]);
    home.run(["up"]);
    assert!(variables(&home).contains("STRIPE_KEY=sk-of-stripe"));
    home.down();
}
