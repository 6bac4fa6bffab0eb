//! Packages of a project: `osctl add` in a running instance, the image with them, `osctl remove`.

use crate::harness::Home;
use crate::soak::print_line;
use crate::trials;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

trials![packages_reach_the_session_at_once_and_the_image_with_the_next_evolve,];

/// The state of the kernel, and of the packages in this container.
const STATE: &str = "import os; kept = 41; generation = os.getpid()";

#[track_caller]
fn shell(home: &Home, command: &str) -> String {
    let reply = home.api().done("/shell", &json!({"command": command}));
    assert_eq!(reply["returncode"], 0, "{reply}");
    reply["stdout"].as_str().unwrap().trim().into()
}

#[track_caller]
fn exec(home: &Home, code: &str) -> Value {
    let reply = home.api().exec(code);
    assert_eq!(reply["error"], Value::Null, "{reply}");
    reply["result"].clone()
}

/// The project's files, if they exist.
fn files(home: &Home) -> [Option<String>; 2] {
    ["osctl.yaml", "osctl.lock"].map(|name| fs::read_to_string(home.project.join(name)).ok())
}

fn lock(home: &Home) -> Value {
    serde_json::from_str(files(home)[1].as_ref().unwrap()).unwrap()
}

#[track_caller]
fn versions(answer: &Value, list: &str) -> Vec<(String, String)> {
    let words = |entry: &Value| {
        let word = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        (word("package"), word("version"))
    };
    answer[list].as_array().unwrap().iter().map(words).collect()
}

/// A name that does not exist: an error that names it, and nothing is changed.
#[track_caller]
fn refused(home: &Home, args: &[&str], expected: &str) {
    let (before, packages) = (files(home), installed(home));
    let ran = home.run(args);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains(expected), "{ran:?}");
    assert_eq!((files(home), installed(home)), (before, packages));
}

/// Ctrl-C when the installer says `line`: it ends, and nothing is changed.
#[track_caller]
fn interrupted(home: &Home, args: &[&str], line: &str) {
    let (before, packages) = (files(home), installed(home));
    let mut command = home.command(args);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.any(|said| said.unwrap().contains(line)));
    let pid = Pid::from_raw(child.id().cast_signed());
    kill(pid, Signal::SIGINT).unwrap();
    let rest: Vec<String> = said.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("interrupted")));
    assert_eq!((files(home), installed(home)), (before, packages));
    assert!(!shell(home, "ps -eo args").contains("uv pip"));
}

/// All packages of the container.
fn installed(home: &Home) -> String {
    let kernel = "uv pip freeze --python \"$OSCTL_PYTHON\"";
    shell(
        home,
        &format!("{kernel} && dpkg-query -W && ls /opt/osctl/packages/npm/node_modules || true"),
    )
}

fn packages_reach_the_session_at_once_and_the_image_with_the_next_evolve() {
    let home = Home::new("it-packages");
    // A small body comes before the packages.
    home.ok(["init"]);
    let dockerfile = home.project.join("body/Dockerfile");
    let steps =
        fs::read_to_string(&dockerfile).unwrap() + "RUN touch /etc/from-step\nUSER nobody\n";
    fs::write(&dockerfile, steps).unwrap();
    fs::write(
        home.project.join("body/selftest.d/mine"),
        "#!/bin/sh\ntest -e /etc/from-step\n",
    )
    .unwrap();
    let comment = "# mine\npackages:\n  # for data\n  pip: []\n";
    fs::write(home.project.join("osctl.yaml"), comment).unwrap();
    home.up();
    shell(
        &home,
        "test -x /opt/osctl/body/selftest.d/mine && test -e /etc/from-step",
    );
    exec(&home, STATE);
    // A mistyped installer is one error, with the line.
    let mistyped = "packages:\n  pips: [polars]\n";
    fs::write(home.project.join("osctl.yaml"), mistyped).unwrap();
    let ran = home.run(["add", "polars"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert_eq!(ran.stderr.matches("pips").count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("osctl.yaml:2`"), "{ran:?}");
    fs::write(home.project.join("osctl.yaml"), comment).unwrap();
    refused(
        &home,
        &["add", "osctl-no-such-package-x"],
        "pip has no package `osctl-no-such-package-x`",
    );
    refused(
        &home,
        &["add", "--apt", "osctl-no-such-package-x"],
        "apt has no package",
    );
    refused(
        &home,
        &["add", "--npm", "@osctl-x/no-such-package"],
        "npm has no package",
    );
    refused(&home, &["add", "polars==0.0.0.1"], "polars==0.0.0.1");
    refused(
        &home,
        &["add", "--", "--index-url=x"],
        "is not a package of pip",
    );
    refused(&home, &["remove", "polars"], "does not list `polars`");
    interrupted(&home, &["-v", "add", "polars"], "resolving the versions");

    let added = home.json(["add", "polars"]);
    let [(package, version)] = versions(&added, "changes").try_into().unwrap();
    assert_eq!(package, "polars");
    // The running kernel imports the package, and kept its variables.
    let imported = exec(
        &home,
        "import polars; (polars.__version__, kept, generation == os.getpid())",
    );
    assert_eq!(imported, format!("('{version}', 41, True)"));
    home.ok(["add", "pyfiglet"]);
    assert!(shell(&home, "pyfiglet --version").contains('.'));
    home.ok(["add", "--apt", "cowsay"]);
    home.ok(["add", "--npm", "semver"]);
    assert_eq!(shell(&home, "semver -r '>1' 1.0.0 2.0.0"), "2.0.0");
    assert!(shell(&home, "/usr/games/cowsay moo").contains("moo"));

    let text = files(&home)[0].clone().unwrap();
    assert!(
        text.starts_with("# mine\npackages:\n  # for data\n  pip: [polars, pyfiglet]\n"),
        "{text}"
    );
    let locked = lock(&home);
    let hash = locked["pip"]["packages"][0]["hashes"][0].as_str().unwrap();
    assert!(hash.starts_with("sha256:"), "{locked}");
    assert!(!files(&home)[1].as_ref().unwrap().contains("://"));
    let listed = versions(&home.json(["packages"]), "packages");
    let names: Vec<&str> = listed.iter().map(|(package, _)| package.as_str()).collect();
    assert_eq!(names, ["cowsay", "semver", "polars", "pyfiglet"]);
    assert!(
        listed.iter().all(|(_, version)| !version.is_empty()),
        "{listed:?}"
    );

    // The next image has the same versions, and the variables are kept.
    home.write_config("servers:\n  more: { command: cat }\n");
    let begin = Instant::now();
    let ran = home.ok(["evolve", "--reason", "packages"]);
    assert!(
        ran.stderr
            .contains("the MCP servers of the configuration: `more`"),
        "{ran:?}"
    );
    print_line(&format!(
        "an evolve with four packages took {:.1?}",
        begin.elapsed()
    ));
    let diff = home.ok(["evolve", "diff", "last"]).stdout;
    assert!(diff.contains(&format!("+polars=={version}\n")), "{diff}");
    assert!(home.ok(["mcp", "ls"]).stdout.contains("more"));
    let after = exec(
        &home,
        "(polars.__version__, kept, generation == os.getpid())",
    );
    assert_eq!(after, format!("('{version}', 41, False)"));
    assert_eq!(shell(&home, "semver -r '>1' 1.0.0 2.0.0"), "2.0.0");
    assert!(shell(&home, "pyfiglet --version").contains('.'));
    assert!(shell(&home, "/usr/games/cowsay moo").contains("moo"));
    // The image was built from the lock: nothing differs.
    assert_eq!(home.json(["build"])["built"], false);

    let removed = home.json(["remove", "polars", "pyfiglet", "semver"]);
    assert_eq!(versions(&removed, "packages").len(), 1);
    home.ok(["remove", "cowsay"]);
    shell(
        &home,
        "! \"$OSCTL_PYTHON\" -c 'import polars' 2>/dev/null && ! command -v semver pyfiglet",
    );
    assert_eq!(files(&home), [Some("# mine\n  # for data\n".into()), None]);
    assert_eq!(exec(&home, "kept"), "41");
    // The agent's own osctl changes the project, too.
    assert!(shell(&home, "osctl add --npm semver && osctl packages").contains("semver"));
    assert!(files(&home)[0].as_ref().unwrap().contains("semver"));
    home.down();
}
