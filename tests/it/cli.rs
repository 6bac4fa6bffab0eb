//! The command line where no instance is needed.

use crate::commands::Ran;
use crate::harness::Home;
use crate::trials;
use std::fs;
use std::process::Command;

trials![
    the_help_lists_the_visible_verbs,
    a_mistyped_verb_is_a_usage_error_with_the_nearest_one,
    a_word_of_another_program_names_the_command,
    a_mistyped_option_before_the_code_is_not_code,
    an_instance_that_was_never_up_is_not_running,
    an_unreachable_engine_is_named,
    without_yes_nothing_is_installed,
    init_writes_the_body_and_never_overwrites,
    a_project_that_exposes_the_machine_is_refused,
    the_configuration_is_shown_with_its_sources_and_never_its_secrets,
    an_unknown_key_ends_every_verb_that_reads_the_configuration,
    a_file_that_is_missing_is_a_usage_error,
    failures_are_documents_with_json,
    the_companion_refuses_to_run_outside,
];

fn the_help_lists_the_visible_verbs() {
    let ran = Home::new("cli-help").run(["--help"]);
    for verb in [
        "up",
        "down",
        "restart",
        "status",
        "logs",
        "ls",
        "build",
        "exec",
        "jupyter",
        "reset",
        "init",
        "doctor",
        "config",
        "completions",
    ] {
        assert!(ran.stdout.contains(&format!("  {verb} ")), "{verb}");
    }
    for hidden in ["companion", "reaper"] {
        assert!(!ran.stdout.contains(&format!("  {hidden} ")), "{hidden}");
    }
}

fn a_mistyped_verb_is_a_usage_error_with_the_nearest_one() {
    let ran = Home::new("cli-typo").run(["exce", "1"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("exec"), "{ran:?}");
}

fn a_word_of_another_program_names_the_command() {
    let home = Home::new("cli-words");
    let ran = home.run(["stop"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("hint: `osctl down`"), "{ran:?}");
    let ran = home.run(["delete"]);
    assert!(!ran.stderr.contains("reset"), "{ran:?}");
    // Hidden verbs are not suggested.
    let ran = home.run(["verfy"]);
    assert!(ran.code == 2 && !ran.stderr.contains("'verify'"), "{ran:?}");
    assert_eq!(home.ok(["version"]).stdout, home.ok(["-V"]).stdout);
    for list in [home.ok(["ps"]), home.ok(["ls"])] {
        assert_eq!(list.stdout, "");
        assert!(list.stderr.starts_with("no instances; "), "{list:?}");
    }
}

fn a_mistyped_option_before_the_code_is_not_code() {
    let home = Home::new("cli-options");
    for words in [
        &["exec", "--sesion", "a", "1"][..],
        &["exec", "--sesion=a", "1"],
        &["shell", "--sesion", "a", "ls"],
    ] {
        let ran = home.run(words.to_vec());
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains("'--session'"), "{ran:?}");
    }
    // Code may begin with a hyphen: the instance is missing, not the code.
    for words in [
        &["exec", "-1"][..],
        &["exec", "--", "-x"],
        &["shell", "ls", "--sesion"],
    ] {
        let ran = home.run(words.to_vec());
        assert_eq!(ran.code, 3, "{ran:?}");
    }
}

fn an_instance_that_was_never_up_is_not_running() {
    let home = Home::new("cli-absent");
    for args in [
        vec!["exec", "1"],
        vec!["status"],
        vec!["logs"],
        vec!["reset"],
        vec!["restart"],
        vec!["down"],
    ] {
        let ran = home.run(&args);
        assert_eq!(ran.code, 3, "{args:?}: {ran:?}");
        if args == ["down"] {
            assert!(ran.stderr.contains("there is nothing to stop"), "{ran:?}");
            assert!(!ran.stderr.contains("starts it"), "{ran:?}");
            continue;
        }
        assert!(
            ran.stderr
                .contains(&format!("`{}` is not running", home.container())),
            "{ran:?}"
        );
        assert!(
            ran.stderr.contains(&format!(
                "hint: `osctl --instance {} up` starts it",
                home.instance
            )),
            "{ran:?}"
        );
    }
}

fn an_unreachable_engine_is_named() {
    let mut home = Home::new("cli-engine");
    home.env.insert(
        "DOCKER_HOST".into(),
        "unix:///nonexistent/docker.sock".into(),
    );
    let ran = home.run(["up", "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr.contains("unix:///nonexistent/docker.sock"),
        "{ran:?}"
    );
    assert!(!home.state().exists(), "a refused `up` leaves a folder");
}

/// In a root folder of its own, where no engine and no package manager can be seen.
fn without_yes_nothing_is_installed() {
    let home = Home::new("cli-noengine");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command
        .arg("mount -t tmpfs none /run && mkdir -p /run/none && PATH=/usr/bin:/bin exec \"$@\"")
        .arg("sh");
    let inner = home.command(["up"]);
    command.arg(inner.get_program()).args(inner.get_args());
    command
        .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .env_remove("DOCKER_HOST");
    command
        .env("DOCKER_CONFIG", "/run/none")
        .env("XDG_RUNTIME_DIR", "/run/none")
        .current_dir(&home.project);
    let ran = Ran::from(command.stdin(std::process::Stdio::null()).output().unwrap());
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr.contains("no container engine answers"),
        "{ran:?}"
    );
    assert!(
        ran.stderr
            .contains(&format!("`osctl --instance {} up --yes`", home.instance)),
        "{ran:?}"
    );
}

fn init_writes_the_body_and_never_overwrites() {
    let home = Home::new("cli-init");
    for args in [
        &["init", "no such"][..],
        &["up", "--engine", "embedded", "--project", "no such"],
    ] {
        let ran = home.run(args);
        assert_eq!(ran.code, 2, "{ran:?}");
        let hint = "hint: `mkdir -p 'no such'` creates the folder";
        assert!(ran.stderr.contains(hint), "{ran:?}");
    }
    assert!(!home.project.join("no such").exists());
    let ran = home.ok(["init"]);
    assert!(ran.stderr.lines().count() < 10, "{ran:?}");
    assert!(ran.stderr.contains("next: edit"), "{ran:?}");
    assert!(!home.project.join("body/kernel").exists());
    let dockerfile = home.project.join("body/Dockerfile");
    assert!(dockerfile.is_file());
    let ran = home.run(["init"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("init --update`"), "{ran:?}");
    let edited = fs::read_to_string(&dockerfile).unwrap() + "# mine\n";
    fs::write(&dockerfile, &edited).unwrap();
    home.ok(["init", "--update"]);
    assert_eq!(fs::read_to_string(&dockerfile).unwrap(), edited);
    assert!(!home.project.join("body/kernel").exists());
    fs::remove_dir_all(home.project.join("body")).unwrap();
    home.ok(["init", "--full"]);
    assert!(home.project.join("body/kernel/main.py").is_file());
}

fn a_project_that_exposes_the_machine_is_refused() {
    let home = Home::new("cli-project");
    let state = home.folder.join(".local/state/osctl");
    let config = home.folder.join(".config");
    let secrets = home.folder.join(".ssh");
    for folder in [&state, &config, &secrets] {
        fs::create_dir_all(folder).unwrap();
    }
    for folder in [
        "/",
        home.folder.to_str().unwrap(),
        state.to_str().unwrap(),
        config.to_str().unwrap(),
        secrets.to_str().unwrap(),
        "/etc",
        "/usr/bin",
    ] {
        let ran = home.run(["up", "--engine", "embedded", "--project", folder]);
        assert_eq!(ran.code, 2, "{folder}: {ran:?}");
        assert!(
            ran.stderr.contains("can't be the project") && ran.stderr.contains("--project"),
            "{ran:?}"
        );
    }
}

fn the_configuration_is_shown_with_its_sources_and_never_its_secrets() {
    let mut home = Home::new("cli-config");
    home.write_config("limits:\n  memory: 3g\nenv:\n  API_KEY: very-secret\n");
    home.env.insert("OSCTL_PORTS_KERNEL".into(), "9090".into());
    let ran = home.ok(["config", "show"]);
    let line = |key: &str| {
        ran.stdout
            .lines()
            .find(|l| l.starts_with(key))
            .unwrap_or_default()
            .to_owned()
    };
    assert!(line("limits.memory").contains("3g") && line("limits.memory").contains("osctl.yaml"));
    assert!(
        line("ports.kernel").contains("9090")
            && line("ports.kernel").contains("OSCTL_PORTS_KERNEL")
    );
    assert!(line("bind").contains("default"));
    let mut wrong = home.command(["config"]);
    let wrong = Ran::from(wrong.env("OSCTL_LIMITS_MEMORY", "4x").output().unwrap());
    let hint = "`export OSCTL_LIMITS_MEMORY=4g` sets a valid value";
    assert!(wrong.code == 2 && wrong.stderr.contains(hint), "{wrong:?}");
    assert!(line("env").contains("API_KEY") && !ran.stdout.contains("very-secret"));
    let document = Ran::from(home.command(["--json", "config", "show"]).output().unwrap());
    assert!(!document.stdout.contains("very-secret"), "{document:?}");
    // A named file must exist, except where it is created.
    let ran = home.run(["--config", "own.yaml", "config"]);
    let named = "own.yaml` does not exist; `--config` names it\n";
    assert!(ran.code == 2 && ran.stderr.contains(named), "{ran:?}");
    let own = home.folder.join("own.yaml");
    home.env
        .insert("OSCTL_CONFIG".into(), own.display().to_string());
    let named = "own.yaml` does not exist; `OSCTL_CONFIG` names it";
    for (verb, code) in [("config", 2), ("up", 2), ("ls", 0)] {
        let ran = home.run([verb]);
        assert!(ran.code == code && ran.stderr.contains(named), "{ran:?}");
    }
    home.ok(["config", "init"]);
    home.ok(["ls"]);
}

fn an_unknown_key_ends_every_verb_that_reads_the_configuration() {
    let home = Home::new("cli-key");
    home.write_config("limts:\n  memory: 3g\n");
    for args in [vec!["up"], vec!["config", "show"]] {
        let ran = home.run(&args);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(
            ran.stderr.contains("`limts.memory`")
                && ran.stderr.contains("did you mean `limits.memory`?"),
            "{ran:?}"
        );
    }
    // One finding names the key and what follows.
    let ran = home.run(["doctor"]);
    let findings: Vec<_> = ran.stdout.lines().collect();
    let of_config = findings
        .iter()
        .filter(|line| line.contains(" configuration "));
    let of_config: Vec<_> = of_config.collect();
    let is_whole = |line: &str| line.contains("limts.memory") && line.contains("default settings");
    assert!(of_config.len() == 1 && is_whole(of_config[0]), "{ran:?}");
}

fn a_file_that_is_missing_is_a_usage_error() {
    let ran = crate::harness::shared().run(["exec", "-f", "missing.py"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("cannot read `missing.py`"), "{ran:?}");
}

fn failures_are_documents_with_json() {
    let document = Home::new("cli-json").json(["status"]);
    assert_eq!(document["status"], "failed");
    assert!(
        document["error"]["hint"].as_str().unwrap().contains("up"),
        "{document}"
    );
}

fn the_companion_refuses_to_run_outside() {
    let ran = Home::new("cli-companion").run(["companion"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("inside the container"), "{ran:?}");
}
