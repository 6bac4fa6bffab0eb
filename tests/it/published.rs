//! The published image that replaces the Dockerfile's stage `ground`.
//!
//! A small image replaces the published image: osctl compares the body, and the last stage needs only a few paths.

use crate::commands::Followed;
use crate::evolve::{base, write};
use crate::harness::{Engine, EngineAt, Home};
use crate::second_engine::{shell, unpack, until};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

trials![
    a_published_image_is_pulled_by_digest_and_is_the_base_of_the_build,
    with_a_false_or_missing_registry_the_image_is_built,
    no_image_is_pulled_that_the_configuration_or_the_builder_excludes,
    a_dockerfile_with_its_own_ground_is_built_by_both_builders,
    only_the_users_configuration_chooses_the_published_image_and_only_by_digest,
];

/// A registry on loopback, which ends when dropped.
#[derive(Debug)]
struct Registry {
    process: Child,
    address: String,
    log: PathBuf,
}

impl Registry {
    fn start(store: &Path) -> Self {
        let program = unpack("docker-registry", "usr/bin/docker-registry");
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap().to_string();
        drop(port);
        let named = |what: &str| store.with_extension(format!("{}.{what}", &address[10..]));
        let (config, log) = (named("json"), named("log"));
        let settings = json!({
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": store}},
            "http": {"addr": address},
        });
        fs::write(&config, settings.to_string()).unwrap();
        let output = fs::File::create(&log).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command.arg("serve").arg(&config);
        let process = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        until("the registry", || TcpStream::connect(&address).is_ok());
        Self {
            process,
            address,
            log,
        }
    }

    /// The number of requests for a manifest.
    fn pulls(&self) -> usize {
        let log = fs::read_to_string(&self.log).unwrap();
        let is_pull = |line: &&str| line.contains(r#""GET /v2/"#) && line.contains("/manifests/");
        log.lines().filter(is_pull).count()
    }

    fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The substitute of the published image, which only the store of a registry has.
#[derive(Debug)]
struct Published {
    store: PathBuf,
    repository: String,
    digest: String,
}

impl Published {
    fn reference(&self, registry: &Registry) -> String {
        let (address, name) = (&registry.address, &self.repository);
        format!("{address}/{name}@{}", self.digest)
    }
}

/// A Dockerfile on the small base. The certificates must come from the last stage.
const STAND_IN: &str = "ARG BASE\nFROM ${BASE}\n\
                        RUN rm -r /usr/local/share/ca-certificates /etc/ssl/certs/* && echo published > /published\n";

fn published() -> &'static Published {
    static PUBLISHED: OnceLock<Published> = OnceLock::new();
    PUBLISHED.get_or_init(|| {
        let home = Home::new("it-published-stand-in");
        home.ok(["init", "--full"]);
        home.write_config(&format!("base: {}\n", base()));
        write(&home, "Dockerfile", STAND_IN);
        home.ok(["build"]);
        let store = home.folder.join("store");
        fs::create_dir(&store).unwrap();
        let registry = Registry::start(&store);
        let (image, repository) = (format!("os-{}:latest", home.instance), home.instance);
        let name = format!("{}/{repository}", registry.address);
        let tag = format!("/images/{image}/tag?repo={name}&tag=1");
        assert_eq!(Engine.send("POST", &tag, &Value::Null).status, 201);
        let engine = EngineAt("/var/run/docker.sock".into());
        // The registry needs no login.
        let kind = "application/json\r\nX-Registry-Auth: e30=";
        let pushed = engine.send_bytes("POST", &format!("/images/{name}/push?tag=1"), kind, b"");
        let told = String::from_utf8(pushed.body).unwrap();
        let lines = told.lines().map(|l| serde_json::from_str(l).unwrap());
        let digest = lines.into_iter().find_map(|line: Value| {
            let digest = line["aux"]["Digest"].as_str()?;
            Some(digest.to_owned())
        });
        for name in [format!("{name}:1"), image] {
            remove_image(&name);
        }
        Published {
            store,
            repository,
            digest: digest.unwrap_or_else(|| panic!("{told}")),
        }
    })
}

fn remove_image(name: &str) {
    Engine.send("DELETE", &format!("/images/{name}"), &Value::Null);
}

/// A user's home with the usual body, except its MCP servers, and the published image.
fn usual_home(name: &str, image: &str) -> Home {
    let home = Home::new(name);
    home.ok(["init", "--full"]);
    write(&home, "mcp.json", r#"{"mcpServers": {}}"#);
    home.write_config(&format!(
        "image: {image}\ndesktop:\n  run: \"off\"\nevolve:\n  start: 20\n  grace: 2\n  watch_period: 2\n"
    ));
    home
}

/// The engine's image with that name.
fn inspect(name: &str) -> Option<Value> {
    let found = Engine.get(&format!("/images/{name}/json"));
    (found.status == 200).then(|| found.json())
}

fn a_published_image_is_pulled_by_digest_and_is_the_base_of_the_build() {
    let published = published();
    let mut registry = Registry::start(&published.store);
    let reference = published.reference(&registry);
    let home = usual_home("it-published", &format!("{{from: \"{reference}\"}}"));
    let up = home.ok(["up", "--yes", "--auto-ports"]);
    assert!(
        up.stderr.contains(&format!("pulling {reference}")),
        "{up:?}"
    );
    assert!(!up.stderr.contains("warning"), "{up:?}");
    assert!(registry.pulls() > 0);
    // The container is made from the image of that digest, and works.
    let kept = format!("osctl-ground:{}", &published.digest[7..23]);
    let image = inspect(&kept).unwrap();
    assert_eq!(image["RepoDigests"], json!([reference]));
    let ground = |home: &Home| home.ok(["shell", "cat /published"]).stdout;
    assert_eq!(ground(&home), "published\n");
    assert_eq!(home.ok(["exec", "print(6*7)"]).stdout, "42\n");
    // The published image has no certificates: the last stage adds the host's, and with them the usual ones.
    home.ok(["shell", "test -f /usr/local/share/ca-certificates/README"]);
    let own = "test -n \"$(find /usr/local/share/ca-certificates -name '*.crt')\"";
    let has_own = home.run(["shell", own]).code == 0;
    let here = Command::new("sh").args(["-c", own]).status().unwrap();
    assert!(has_own || !here.success());
    let trusted = home.run(["shell", "test -s /etc/ssl/certs/ca-certificates.crt"]);
    assert_eq!(trusted.code == 0, has_own);
    // osctl needs no registry from here on.
    registry.stop();
    let of_the_user = "osctl-ground:0000000000000000";
    let tag = format!(
        "/images/{}/tag?repo=osctl-ground&tag=0000000000000000",
        base()
    );
    assert_eq!(Engine.send("POST", &tag, &Value::Null).status, 201);
    home.ok(["build", "--force"]);
    assert!(
        inspect(of_the_user).is_some(),
        "osctl removed an image that it did not pull"
    );
    Engine.send("DELETE", &format!("/images/{of_the_user}"), &Value::Null);
    write(&home, "kernel/more.py", "\"\"\"More.\"\"\"\n");
    let record = home.json(["evolve"]);
    assert_eq!(record["status"], "succeeded", "{record}");
    assert_eq!(ground(&home), "published\n");
    // If the body differs in what the published image contains, the host and the keeper build it.
    write(&home, "requirements/uv.txt", "what is no requirement\n");
    let record = home.json(["evolve"]);
    assert_eq!(record["failed_stage"], "building", "{record}");
    let log = home.ok(["evolve", "logs", record["id"].as_str().unwrap()]);
    assert!(log.stdout.contains("Invalid requirement"), "{log:?}");
    let built = home.run(["-v", "build"]);
    assert_eq!(built.code, 4, "{built:?}");
    assert!(built.stderr.contains("Invalid requirement"), "{built:?}");
    home.down();
    assert_eq!(inspect(&kept), None, "the unused image is not removed");
    assert_eq!(inspect(&reference), None, "the unused image is not removed");
}

/// A copy of the registry's store in which the manifest has other content.
fn tampered(published: &Published) -> PathBuf {
    let store = published.store.with_file_name("tampered");
    let copy = format!("cp -al {} {}", published.store.display(), store.display());
    shell(&copy, Path::new("/"));
    let hex = &published.digest[7..];
    let blobs = store.join("docker/registry/v2/blobs/sha256");
    let manifest = blobs.join(&hex[..2]).join(hex).join("data");
    let text = fs::read(&manifest).unwrap();
    // The file in the other store is a hard link to the same file.
    fs::remove_file(&manifest).unwrap();
    fs::write(manifest, [&text[..], b"\n"].concat()).unwrap();
    store
}

fn with_a_false_or_missing_registry_the_image_is_built() {
    let published = published();
    let lies = Registry::start(&tampered(published));
    let mut gone = Registry::start(&published.store);
    gone.stop();
    for (registry, why) in [(&lies, "digest"), (&gone, "refused")] {
        let reference = published.reference(registry);
        let image = format!("{{from: \"{reference}\"}}");
        let home = usual_home("it-published-not", &image);
        let mut build = Followed::start(home.command(["build", "--yes"]));
        assert!(build.wait_for("warning"), "{:?}", build.seen);
        let warning = build.seen.last().unwrap().clone();
        for words in [&reference, "can't pull", "locally", why] {
            assert!(warning.contains(words), "`{words}`: {warning}");
        }
        // Other trials show that the build succeeds.
        assert!(build.wait_for("building the image"), "{:?}", build.seen);
        build.signal("INT");
        assert_eq!(build.end().0, 5);
        assert_eq!(inspect(&reference), None);
        home.down();
    }
    assert!(lies.pulls() > 0);
}

fn no_image_is_pulled_that_the_configuration_or_the_builder_excludes() {
    let published = published();
    let registry = Registry::start(&published.store);
    let from = format!("from: \"{}\"", published.reference(&registry));
    let base = base();
    for (image, buildkit) in [
        (format!("{{{from}, pull: off}}"), "1"),
        (format!("{{{from}}}\nbuild_tools: false"), "1"),
        (format!("{{{from}}}\nbase: {base}"), "1"),
        // The classic builder builds all stages, also those that are not needed.
        (format!("{{{from}}}"), "0"),
    ] {
        let mut home = usual_home("it-published-no", &image);
        home.env.insert("DOCKER_BUILDKIT".into(), buildkit.into());
        let mut build = Followed::start(home.command(["build", "--yes"]));
        assert!(build.wait_for("building the image"), "{:?}", build.seen);
        let seen = build.seen.concat();
        assert!(!seen.contains("warning"), "{image}: {seen}");
        assert!(!seen.contains("published"), "{image}: {seen}");
        build.signal("INT");
        assert_eq!(build.end().0, 5, "{image}");
        home.down();
    }
    assert_eq!(registry.pulls(), 0);
}

fn a_dockerfile_with_its_own_ground_is_built_by_both_builders() {
    let published = published();
    let registry = Registry::start(&published.store);
    let image = format!("{{from: \"{}\"}}", published.reference(&registry));
    let dockerfile = "ARG BASE\nARG GROUND=other\nFROM ${BASE} AS ground\nRUN echo mine > /published\n\
                      FROM ${GROUND} AS host\nRUN grep -qx mine /published\n";
    for buildkit in ["1", "0"] {
        let mut home = usual_home("it-published-own", &image);
        home.env.insert("DOCKER_BUILDKIT".into(), buildkit.into());
        write(&home, "Dockerfile", dockerfile);
        home.ok(["build", "--yes"]);
        remove_image(&format!("os-{}:latest", home.instance));
        home.down();
    }
    assert_eq!(registry.pulls(), 0);
}

fn only_the_users_configuration_chooses_the_published_image_and_only_by_digest() {
    for from in ["osctl/ground:1", "osctl/ground@sha256:0123"] {
        let home = usual_home("it-published-words", &format!("{{from: \"{from}\"}}"));
        for args in [&["config", "show"][..], &["build"]] {
            let told = home.run(args);
            assert_eq!(told.code, 2, "{told:?}");
            for words in [
                "`image.from`",
                from,
                "NAME@sha256:",
                "\nhint: ",
                "config edit",
            ] {
                assert!(told.stderr.contains(words), "`{words}`: {told:?}");
            }
        }
    }
    let home = usual_home("it-published-words", "{pull: true}");
    for (text, key) in [
        ("image: {pull: false}", "image.pull"),
        ("image: {from: x}", "image.from"),
    ] {
        fs::write(home.project.join("osctl.yaml"), text).unwrap();
        let told = home.run(["build"]);
        assert_eq!(told.code, 2, "{told:?}");
        let words = format!("a project can't set `{key}`");
        assert!(told.stderr.contains(&words), "{told:?}");
    }
    let shown = home.ok(["config", "show"]);
    assert!(shown.stdout.contains("image.pull"), "{shown:?}");
}
