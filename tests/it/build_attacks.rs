//! Trials of attacks by a body that the agent wrote: the rights of an image and of a build step on a real engine.

use crate::commands::Ran;
use crate::evolve::{DOCKERFILE, base, small, write};
use crate::harness::{Engine, Home};
use crate::instance::container_id;
use crate::second_engine::until;
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

trials![
    an_image_has_no_label_that_other_tools_obey,
    no_image_has_a_working_directory_in_a_kernel_folder,
    no_container_starts_in_a_folder_that_its_image_replaced_by_a_link,
    the_classic_builder_gets_only_text_that_the_rules_checked,
    a_step_of_the_classic_builder_reaches_no_container_of_another_network,
    an_instance_uses_no_image_name_of_the_keeper,
    a_file_name_adds_no_line_to_a_difference,
];

/// A home with its own body.
fn with_body(name: &str) -> Home {
    let home = Home::new(name);
    home.ok(["init", "--full"]);
    home
}

/// Runs `osctl build` with these lines as the Dockerfile.
fn build(home: &Home, lines: &str) -> Ran {
    let text = format!("ARG BASE\nFROM ${{BASE}}\n{lines}\n");
    write(home, "Dockerfile", &text);
    home.run(["-v", "build", "--yes"])
}

/// Reads the configuration of the instance's image and removes the image; `null` without an image.
fn take_image(home: &Home) -> Value {
    let path = format!("/images/os-{}:latest", home.instance);
    let found = Engine.get(&format!("{path}/json"));
    if found.status != 200 {
        return Value::Null;
    }
    assert_eq!(Engine.send("DELETE", &path, &Value::Null).status, 200);
    found.json()["Config"].clone()
}

#[track_caller]
fn assert_rules_refused(ran: &Ran, words: &str) {
    assert!(
        ran.code == 4 && ran.stderr.contains("of the Dockerfile: ") && ran.stderr.contains(words),
        "{ran:?}"
    );
}

fn an_image_has_no_label_that_other_tools_obey() {
    let mut home = with_body("it-labels");
    // A quoted key, a second label on a line, and labels of osctl.
    for (line, key) in [
        ("LABEL traefik.enable=true", "traefik.enable"),
        (
            r#"LABEL "com.centurylinklabs.watchtower.enable"="true""#,
            "com.centurylinklabs.watchtower.enable",
        ),
        (
            "LABEL org.opencontainers.image.title=x traefik.http.routers.x.rule=y",
            "traefik.http.routers.x.rule",
        ),
        ("LABEL osctl.instance=other", "osctl.instance"),
    ] {
        for buildkit in ["1", "0"] {
            home.env.insert("DOCKER_BUILDKIT".into(), buildkit.into());
            let ran = build(&home, line);
            let labels = take_image(&home)["Labels"].clone();
            assert_eq!(labels[key], Value::Null, "{line}: {ran:?}");
            let has_title = labels["org.opencontainers.image.title"] == "x";
            assert_eq!(has_title, line.contains("title"), "{line}: {labels}");
            let is_named =
                ran.stderr.contains(key) && ran.stderr.contains("leaves out the labels ");
            assert!(ran.code == 0 && is_named, "{ran:?}");
            // The form `KEY VALUE` is always refused.
            let ran = build(&home, "LABEL ofelia.enabled true");
            assert!(take_image(&home).is_null(), "{ran:?}");
            assert_rules_refused(&ran, "`LABEL`");
        }
    }
}

fn no_image_has_a_working_directory_in_a_kernel_folder() {
    let home = with_body("it-workdir");
    for line in [
        "WORKDIR /proc/self/fd/8",
        "WORKDIR /sys/fs",
        "WORKDIR /tmp/../proc/self/fd/8",
        "ENV AWAY=/proc/self/fd/8\nWORKDIR $AWAY",
    ] {
        let ran = build(&home, line);
        let folder = take_image(&home)["WorkingDir"].clone();
        assert!(folder.is_null(), "{line}: {folder}: {ran:?}");
        assert_rules_refused(&ran, "`WORKDIR");
    }
}

fn no_container_starts_in_a_folder_that_its_image_replaced_by_a_link() {
    let home = small("it-away");
    let lines = "WORKDIR /away\nRUN cd / && rmdir /away && ln -s /proc /away\n";
    write(&home, "Dockerfile", &format!("{DOCKERFILE}{lines}"));
    home.up();
    let reply = home.api().exec("import os; os.readlink('/proc/1/cwd')");
    assert_eq!(reply["result"], "'/'", "{reply}");
    let path = format!("/containers/{}/json", container_id(&home));
    assert_eq!(Engine.get(&path).json()["Config"]["WorkingDir"], "/");
    home.down();
}

fn the_classic_builder_gets_only_text_that_the_rules_checked() {
    let mut home = with_body("it-classic-text");
    home.env.insert("DOCKER_BUILDKIT".into(), "0".into());
    // Removing a cache mount, which the classic builder does not support, must not produce a new instruction.
    let mount = "--mount=type=cache";
    let ran = build(&home, &format!("LABEL osc{mount} tl.instance=other"));
    let labels = take_image(&home)["Labels"].clone();
    assert_eq!(labels["osctl.instance"], Value::Null, "{ran:?}");
    assert_eq!(labels["tl.instance"], Value::Null, "{ran:?}");
    let ran = build(&home, &format!("RUN true <{mount} <\"USER root\""));
    take_image(&home);
    assert!(!ran.stderr.contains("<<"), "{ran:?}");
    let ran = build(&home, &format!("RUN {mount},target=/x true"));
    assert!(!take_image(&home).is_null(), "{ran:?}");
    assert!(ran.stderr.contains(" : RUN true"), "{ran:?}");
}

/// A container unrelated to osctl, on the engine's default network.
struct Neighbour(String);

impl Neighbour {
    fn start(home: &Home) -> Self {
        let neighbour = Self(format!("neighbour-of-{}", home.instance));
        let words = ["/usr/bin/python3", "-m", "http.server", "8000"];
        let made = json!({"Image": base(), "Entrypoint": words, "Cmd": []});
        let create = format!("/containers/create?name={}", neighbour.0);
        assert_eq!(Engine.send("POST", &create, &made).status, 201);
        let start = format!("/containers/{}/start", neighbour.0);
        assert_eq!(Engine.send("POST", &start, &Value::Null).status, 204);
        neighbour
    }

    /// The address of its server.
    fn address(&self) -> String {
        let found = Engine.get(&format!("/containers/{}/json", self.0)).json();
        let address = found["NetworkSettings"]["IPAddress"].as_str().unwrap();
        format!("{address}:8000")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let path = format!("/containers/{}?force=true", self.0);
        Engine.send("DELETE", &path, &Value::Null);
    }
}

/// Steps that print whether they reach the address, and their limits. An engine that creates a network for another
/// instance removes and restores its isolation rule, so a single connection may succeed.
fn probe(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap();
    // The builder takes a known step from its cache and prints no output.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let new = now.as_nanos();
    format!(
        "RUN echo {new}\n\
         RUN for attempt in 1 2 3; do timeout 5 bash -c 'echo > /dev/tcp/{host}/{port}' || {{ echo neighbour=closed; exit 0; }}; sleep 1; done; \
         echo neighbour=reached\n\
         RUN echo quota=$(cat /sys/fs/cgroup/cpu.max || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us) \
         memory=$(cat /sys/fs/cgroup/memory.max || cat /sys/fs/cgroup/memory/memory.limit_in_bytes)\n"
    )
}

fn a_step_of_the_classic_builder_reaches_no_container_of_another_network() {
    let mut home = small("it-classic-net");
    let config = home.folder.join(".config/osctl/osctl.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        format!("{text}limits: {{memory: 512m, cpus: 1.5}}\n"),
    )
    .unwrap();
    home.up();
    let neighbour = Neighbour::start(&home);
    home.env.insert("DOCKER_BUILDKIT".into(), "0".into());
    let address = neighbour.address();
    until("a connection to the neighbour", || {
        TcpStream::connect(&address).is_ok()
    });
    let dockerfile = format!("{DOCKERFILE}{}", probe(&address));
    write(&home, "Dockerfile", &dockerfile);
    let ran = home.ok(["-v", "build", "--yes"]);
    assert!(ran.stderr.contains("neighbour=closed\n"), "{ran:?}");
    let limits = [
        "quota=150000 memory=536870912",
        "quota=150000 100000 memory=536870912",
    ];
    assert!(
        limits.iter().any(|limits| ran.stderr.contains(limits)),
        "{ran:?}"
    );
    home.down();
}

fn an_instance_uses_no_image_name_of_the_keeper() {
    let mut home = with_body("it-keepers-name");
    home.instance = "keeper".into();
    let ran = build(&home, "");
    let image = take_image(&home);
    assert!(image.is_null(), "{image}: {ran:?}");
    assert_eq!(ran.code, 2, "{ran:?}");
}

fn a_file_name_adds_no_line_to_a_difference() {
    let home = small("it-names");
    home.up();
    let text = "RUN harmless\n";
    for name in [
        "note\n--- a\n+++ b/Dockerfile",
        "note\r+++ b/Dockerfile",
        "note\u{202e}elifrekcoD",
        "note\u{1b}[2J",
    ] {
        write(&home, name, text);
    }
    let run = home.json(["evolve"])["id"].as_str().unwrap().to_owned();
    let difference = home.ok(["evolve", "diff", &run]).stdout;
    let shown = home.ok(["evolve", "show", &run]);
    assert_eq!(
        difference.matches("+RUN harmless").count(),
        4,
        "{difference}"
    );
    for text in [&difference, &shown.stdout, &shown.stderr] {
        let is_mimicked = |line: &str| line == "--- a" || line.starts_with("+++ b/Dockerfile");
        assert!(!text.lines().any(is_mimicked), "{text}");
        for hidden in ['\r', '\u{202e}', '\u{1b}'] {
            assert!(!text.contains(hidden), "{text:?}");
        }
    }
    home.down();
}
