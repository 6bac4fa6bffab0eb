//! Attacks by names: an agent, who is root in the container, plants links, pipes and files where the user's
//! commands read and write on the host.

use crate::commands::Ran;
use crate::cp::{folders, refused};
use crate::harness::{Engine, Home, shared};
use crate::protected_folders::{PNG, listing, showing, victim};
use crate::trials;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

trials![
    a_copy_from_inside_writes_through_no_link_that_the_agent_planted,
    a_copy_to_inside_reads_through_no_link_that_the_agent_planted,
    figures_are_written_through_no_link_and_only_pictures_are_saved,
    a_screenshot_is_written_through_no_link_that_the_agent_planted,
    init_follows_no_link_and_waits_for_no_pipe,
    a_project_configuration_that_is_a_link_is_not_read,
    a_companion_that_the_agent_can_write_is_refused,
    a_program_that_the_agent_can_write_is_refused,
    a_configuration_that_the_agent_can_write_is_refused_or_ignored,
    a_mount_that_the_agent_can_redirect_is_refused,
    a_kernelspec_that_the_agent_planted_is_neither_read_nor_removed,
    a_dockerfile_with_a_planted_instruction_is_not_built,
];

#[track_caller]
fn assert_link_refused(ran: &Ran, link: &Path) {
    assert_eq!(ran.code, 2, "{ran:?}");
    let said = format!("error: `{}` is a link out of", link.display());
    assert!(ran.stderr.starts_with(&said), "{ran:?}");
    assert!(ran.stderr.contains("\nhint: "), "{ran:?}");
}

fn a_copy_from_inside_writes_through_no_link_that_the_agent_planted() {
    let (home, here, inside) = folders("planted-out");
    let victim = victim(home, "out");
    fs::write(inside.join("report.txt"), "AGENT").unwrap();
    fs::create_dir(inside.join("results")).unwrap();
    fs::write(inside.join("results/secret"), "AGENT").unwrap();
    symlink(victim.join("secret"), here.join("report.txt")).unwrap();
    symlink(victim.join("folder"), here.join("results")).unwrap();
    symlink(victim.join("absent"), here.join("absent")).unwrap();
    let before = listing(&victim);
    let from = |name: &str| format!("os:/root/host/planted-out/{name}");
    // With a name that the agent knows, in a folder that the user names.
    home.ok(["cp", &from("report.txt"), "planted-out"]);
    let report = here.join("report.txt");
    assert!(!report.is_symlink(), "the command did not replace the link");
    assert_eq!(fs::read_to_string(&report).unwrap(), "AGENT");
    let ran = home.run(["cp", &from("results"), "planted-out"]);
    refused(
        &ran,
        2,
        "`planted-out/results` is a link or a file, not a folder",
    );
    // With a name that the user names.
    for (source, name) in [
        ("report.txt", "absent"),
        ("report.txt", "results"),
        ("report.txt", "results/new"),
        ("results/.", "results"),
        ("results", "results/new"),
    ] {
        let ran = home.run(["cp", &from(source), &format!("planted-out/{name}")]);
        let link = here.join(name.split('/').next().unwrap());
        assert_link_refused(&ran, &link);
    }
    assert_eq!(listing(&victim), before);
}

fn a_copy_to_inside_reads_through_no_link_that_the_agent_planted() {
    let (home, here, inside) = folders("planted-in");
    let victim = victim(home, "in");
    symlink(victim.join("secret"), here.join("train.py")).unwrap();
    symlink(&victim, here.join("dataset")).unwrap();
    for source in ["train.py", "dataset", "dataset/.", "dataset/secret"] {
        let ran = home.run([
            "cp",
            &format!("planted-in/{source}"),
            "os:/root/host/planted-in/",
        ]);
        assert_link_refused(&ran, &here.join(source.split('/').next().unwrap()));
    }
    let ran = home.run(["exec", "-f", "planted-in/train.py"]);
    assert_link_refused(&ran, &here.join("train.py"));
    // The pipe has no writer, and the file is too large.
    nix::unistd::mkfifo(&here.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let ran = home.run(["exec", "-f", "planted-in/pipe"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("not a file"),
        "{ran:?}"
    );
    let huge = fs::File::create(here.join("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let ran = home.run(["exec", "-f", "planted-in/huge"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("file too large"),
        "{ran:?}"
    );
    assert_eq!(fs::read_dir(inside).unwrap().count(), 0);
    // A file that the shell opened belongs to the user.
    let mut command = home.command(["exec", "-f", "/dev/stdin"]);
    fs::write(here.join("code.py"), "print('given')").unwrap();
    command.stdin(fs::File::open(here.join("code.py")).unwrap());
    let ran = Ran::from(command.output().unwrap());
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "given\n"), "{ran:?}");
}

fn figures_are_written_through_no_link_and_only_pictures_are_saved() {
    let (home, here, _) = folders("planted-figures");
    let victim = victim(home, "figures");
    symlink(victim.join(".bash_aliases"), here.join("figure-1.png")).unwrap();
    symlink(victim.join("secret"), here.join("figure-2.png")).unwrap();
    symlink(&victim, here.join("out")).unwrap();
    let before = listing(&victim);
    let exec = |out: &str, bytes: &str| home.run(["exec", "--out", out, &showing(bytes)]);
    let ran = exec("planted-figures", PNG);
    assert_eq!(listing(&victim), before, "{ran:?}");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(here.join("figure-1.png").is_symlink());
    let figure = fs::read(here.join("figure-3.png")).unwrap();
    assert!(figure.starts_with(b"\x89PNG"), "{ran:?}");
    exec("planted-figures", "b'touch /tmp/x\\n'");
    assert!(!here.join("figure-4.png").exists(), "no picture");
    for out in ["planted-figures/out", "planted-figures/out/new"] {
        assert_link_refused(&exec(out, PNG), &here.join("out"));
    }
    assert_eq!(listing(&victim), before);
}

fn a_screenshot_is_written_through_no_link_that_the_agent_planted() {
    let (home, here, _) = folders("planted-screen");
    let victim = victim(home, "screen");
    symlink(victim.join("secret"), here.join("screen.png")).unwrap();
    symlink(&victim, here.join("screens")).unwrap();
    let before = listing(&victim);
    for (name, link) in [("screen.png", "screen.png"), ("screens/new.png", "screens")] {
        let ran = home.run(["--quiet", "screenshot", &format!("planted-screen/{name}")]);
        assert_link_refused(&ran, &here.join(link));
    }
    assert_eq!(listing(&victim), before);
}

fn init_follows_no_link_and_waits_for_no_pipe() {
    let (home, here, _) = folders("planted-init");
    let victim = victim(home, "init");
    let before = listing(&victim);
    let init = || home.run(["init", "--full", "--update", "planted-init"]);
    symlink(&victim, here.join("body")).unwrap();
    refused(
        &init(),
        2,
        "`planted-init/body` is a link or a file, not a folder",
    );
    fs::remove_file(here.join("body")).unwrap();
    assert_eq!(init().code, 0);
    let body = here.join("body");
    let origin = body.join(".osctl-origin.json");
    for name in [".osctl-origin.json", "Dockerfile"] {
        let content = fs::read(body.join(name)).unwrap();
        fs::remove_file(body.join(name)).unwrap();
        nix::unistd::mkfifo(&body.join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let ran = init();
        let said = format!("`{name}` is not a regular file");
        assert!(ran.code != 0 && ran.stderr.contains(&said), "{ran:?}");
        fs::remove_file(body.join(name)).unwrap();
        let huge = fs::File::create(body.join(name)).unwrap();
        huge.set_len(1 << 40).unwrap();
        let ran = init();
        assert!(ran.code != 0 && ran.stderr.contains("too large"), "{ran:?}");
        fs::write(body.join(name), content).unwrap();
    }
    assert!(origin.is_file() && init().code == 0);
    fs::remove_dir_all(body.join("kernel")).unwrap();
    symlink(&victim, body.join("kernel")).unwrap();
    let ran = init();
    assert!(ran.code != 0 && ran.stderr.contains("is a link"), "{ran:?}");
    assert_eq!(listing(&victim), before);
}

fn a_project_configuration_that_is_a_link_is_not_read() {
    let home = Home::new("planted-config");
    let other = home.folder.join("other.yaml");
    fs::write(
        &other,
        "servers: {theirs: {url: 'http://x', headers: {Authorization: SECRET}}}",
    )
    .unwrap();
    symlink(&other, home.project.join("osctl.yaml")).unwrap();
    let ran = home.run(["up", "--yes", "--project", "."]);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(
        ran.stderr
            .contains("osctl.yaml` can't be used: the file is a link"),
        "{ran:?}"
    );
    assert!(!home.data().join("mcp/servers.json").exists());
}

/// Runs `up`, which must fail before a build.
fn up_is_refused(home: &Home, args: &[&str], sentence: &str) {
    let ran = home.run([&["--quiet", "up", "--yes", "--auto-ports"], args].concat());
    refused(&ran, 2, sentence);
}

fn a_companion_that_the_agent_can_write_is_refused() {
    let home = Home::new("planted-companion");
    let project = home.project.display();
    fs::copy(
        env!("CARGO_BIN_EXE_osctl"),
        home.project.join("osctl-linux"),
    )
    .unwrap();
    let link = home.folder.join("by-link");
    symlink("project/osctl-linux", &link).unwrap();
    let link = link.to_str().unwrap();
    for (path, shown) in [("./osctl-linux", "./osctl-linux"), (link, link)] {
        let sentence = format!("`{shown}` is not trusted: the agent can write in `{project}`");
        up_is_refused(&home, &["--companion", path], &sentence);
        let ran = home.run(["--quiet", "build", "--yes", "--companion", path]);
        refused(&ran, 2, &sentence);
    }
}

fn a_program_that_the_agent_can_write_is_refused() {
    let home = Home::new("planted-program");
    let program = home.project.join("target/debug/osctl");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_osctl"), &program).unwrap();
    let own = home.command(["--quiet", "up", "--yes"]);
    let mut command = Command::new(&program);
    command.args(own.get_args()).current_dir(&home.project);
    command.env("HOST_HOME", &home.folder);
    let ran = Ran::from(command.output().unwrap());
    let (program, project) = (program.display(), home.project.display());
    let sentence = format!("`{program}` is not trusted: the agent can write in `{project}`");
    refused(&ran, 2, &sentence);
    assert!(ran.stderr.contains("`cargo install --path .`"), "{ran:?}");
}

fn a_configuration_that_the_agent_can_write_is_refused_or_ignored() {
    let home = Home::new("planted-own-config");
    fs::write(home.project.join("mine.yaml"), "docker_socket: true").unwrap();
    let project = home.project.display();
    let sentence =
        format!("`{project}/mine.yaml` is not trusted: the agent can write in `{project}`");
    up_is_refused(&home, &["--config", "mine.yaml"], &sentence);
    // What changes the instance or other programs is refused; everything else works without the file.
    let shared = shared();
    let planted = shared.project.join("planted.yaml");
    fs::write(&planted, "bind: 10.1.1.1").unwrap();
    let project = shared.project.display();
    let sentence =
        format!("`{project}/planted.yaml` is not trusted: the agent can write in `{project}`");
    let run = |words: &[&str]| shared.run([&["--config", "planted.yaml"], words].concat());
    for words in [
        &["up", "--yes"][..],
        &["build"],
        &["evolve"],
        &["mcp", "connect", "cursor", "--yes", "--no-verify"],
        &["jupyter", "install", "--prefix", "/nonexistent"],
        &["config", "init"],
        &["config", "edit"],
    ] {
        refused(&run(words), 2, &sentence);
    }
    for words in [
        &["exec", "6*7"][..],
        &["status"],
        &["interrupt"],
        &["sessions"],
        &["config", "show"],
    ] {
        let ran = run(words);
        let warned = format!("warning: the configuration file is ignored: {sentence}; ");
        let times = ran.stderr.matches(&warned).count();
        assert!(ran.code == 0 && times == 1, "{words:?}: {ran:?}");
        assert!(!ran.stdout.contains("10.1.1.1"), "{ran:?}");
    }
}

fn a_mount_that_the_agent_can_redirect_is_refused() {
    let home = Home::new("planted-mount");
    let big = home.folder.join("big");
    fs::create_dir(&big).unwrap();
    let data = home.project.join("data");
    symlink(&big, &data).unwrap();
    let why = format!(
        "an agent can write in `{}`, and replace a part of the path with a link",
        home.project.display()
    );
    for path in [data.clone(), data.join("deep")] {
        home.write_config(&format!("mounts: ['{}:/mnt/data']", path.display()));
        let sentence = format!("`{}` can't be mounted: {why}", path.display());
        up_is_refused(&home, &[], &sentence);
    }
    // Another instance mounts this folder by its own configuration, so its agent can write there.
    let other = home.folder.join(".local/state/osctl/other");
    fs::create_dir_all(&other).unwrap();
    let record = serde_json::json!({
        "project": home.folder.join("others"),
        "engine": "docker",
        "ports": {"kernel": 1, "mcp": 2, "vnc": 3},
    });
    fs::write(other.join("instance.json"), record.to_string()).unwrap();
    fs::write(
        other.join("mounts.json"),
        serde_json::json!([big]).to_string(),
    )
    .unwrap();
    home.write_config(&format!("mounts: ['{}/deep:/mnt/data']", big.display()));
    let sentence = format!(
        "`{}/deep` can't be mounted: an agent can write in `{}`, and replace a part of the path with a link",
        big.display(),
        big.display()
    );
    up_is_refused(&home, &[], &sentence);
    fs::create_dir(big.join("project")).unwrap();
    home.write_config("");
    let nested = big.join("project");
    let ran = home.run(["up", "--yes", "--project", nested.to_str().unwrap()]);
    assert!(
        ran.code == 2 && ran.stderr.contains("can't be the project"),
        "{ran:?}"
    );
    // For a read-only mount of another instance, no folder above it may be a project or a mount.
    let source = big.join("project");
    let mount = serde_json::json!([{"host": source, "container": "/m", "read_only": true}]);
    fs::write(other.join("mounts.json"), mount.to_string()).unwrap();
    let why = format!(
        "another instance mounts `{}`, and the agent could replace a part of that path with a link",
        source.display()
    );
    let sentence = format!("`{}` can't be the project: {why}", big.display());
    up_is_refused(&home, &["--project", big.to_str().unwrap()], &sentence);
    home.write_config(&format!("mounts: ['{}:/mnt/data']", big.display()));
    let sentence = format!("`{}` can't be mounted: {why}", big.display());
    up_is_refused(&home, &[], &sentence);
    // An unreadable record does not count as a record without mounts.
    home.write_config("");
    fs::write(other.join("mounts.json"), "[").unwrap();
    let hint = "hint: remove the instance's containers (`docker rm -f os-host-other os-keeper-other`) and the file";
    for verb in ["up", "build"] {
        let ran = home.run(["--quiet", verb, "--yes"]);
        let said = format!("`{}` can't be read: ", other.join("mounts.json").display());
        assert!(
            ran.code == 4 && ran.stderr.contains(&said) && ran.stderr.contains(hint),
            "{ran:?}"
        );
    }
    fs::write(other.join("mounts.json"), "[]").unwrap();
    fs::write(other.join("instance.json"), "{").unwrap();
    let ran = home.run(["--quiet", "up", "--yes"]);
    assert!(
        ran.code == 4
            && ran.stderr.contains("instance.json` can't be read: ")
            && ran.stderr.contains(hint),
        "{ran:?}"
    );
    // The usual configuration is where no project and no mount can be, and stays valid.
    home.write_config("limits:\n  memory: 3g\n");
    let ran = home.ok(["--json", "config", "show"]);
    assert!(
        ran.stdout.contains("\"3g\"") && ran.stderr.is_empty(),
        "{ran:?}"
    );
}

fn a_kernelspec_that_the_agent_planted_is_neither_read_nor_removed() {
    let home = shared();
    let victim = victim(home, "kernelspec");
    let theirs = victim.to_str().unwrap();
    home.ok(["jupyter", "install", "--name", "x", "--prefix", theirs]);
    let spec = victim.join("share/jupyter/kernels/x");
    // A prefix in the project: named by the file, by the folder, and by a folder above both.
    let planted = home.project.join("planted-prefix/share/jupyter/kernels");
    fs::create_dir_all(planted.join("y")).unwrap();
    symlink(spec.join("kernel.json"), planted.join("y/kernel.json")).unwrap();
    symlink(&spec, planted.join("x")).unwrap();
    let above = home.project.join("planted-above");
    fs::create_dir(&above).unwrap();
    symlink(victim.join("share"), above.join("share")).unwrap();
    let before = listing(&victim);
    let listed = home.json(["jupyter", "list", "--prefix", "planted-prefix"]);
    assert_eq!(listed["kernelspecs"], serde_json::json!([]));
    for (prefix, name) in [
        ("planted-prefix", "x"),
        ("planted-prefix", "y"),
        ("planted-above", "x"),
    ] {
        let ran = home.run(["jupyter", "uninstall", "--name", name, "--prefix", prefix]);
        let sentence = format!(
            "`{prefix}/share/jupyter/kernels` is not trusted: the agent can write in `{}`",
            home.project.display()
        );
        refused(&ran, 2, &sentence);
    }
    assert_eq!(listing(&victim), before);
    fs::remove_dir_all(home.project.join("planted-prefix")).unwrap();
    fs::remove_dir_all(above).unwrap();
}

fn a_dockerfile_with_a_planted_instruction_is_not_built() {
    let home = Home::new("planted-dockerfile");
    home.ok(["init", "--full"]);
    let file = home.project.join("body/Dockerfile");
    let whole = fs::read_to_string(&file).unwrap();
    for (line, why) in [
        ("WORKDIR /proc/self/fd/8", "a folder of the kernel"),
        ("RUN --network=host true", "`RUN --network`"),
        ("COPY --from=debian / /x", "`COPY --from=debian`"),
    ] {
        fs::write(&file, format!("{whole}\n{line}\n")).unwrap();
        for verb in [&["up", "--auto-ports"][..], &["build"]] {
            let ran = home.run([&["--quiet"], verb, &["--yes"]].concat());
            let is_named = ran.stderr.contains(why) && ran.stderr.contains("Dockerfile");
            assert!(ran.code != 0 && is_named, "{verb:?}: {line}: {ran:?}");
        }
    }
    let image = format!("/images/os-{}/json", home.instance);
    assert_eq!(Engine.get(&image).status, 404);
}
