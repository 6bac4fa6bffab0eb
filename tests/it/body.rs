//! Trials of a project's own body: osctl builds it when it changes and replaces the container when it works.

use crate::harness::{Engine, Home};
use crate::instance::container_id;
use crate::trials;
use serde_json::json;
use std::fs;

trials![
    a_changed_kernel_replaces_the_container,
    a_new_container_that_fails_is_replaced_by_the_old_one,
    the_image_is_built_alone_and_only_when_something_changed,
    the_classic_builder_builds_the_same_dockerfile,
    failed_classic_builds_leave_no_more_than_the_cache_of_the_last,
    the_output_of_a_step_does_not_choose_the_builder,
];

/// An instance like the shared one, with its own body.
fn with_own_body(name: &str) -> Home {
    let home = Home::new(name);
    home.ok(["init", "--full"]);
    home
}

fn a_changed_kernel_replaces_the_container() {
    let home = with_own_body("it-body");
    home.up();
    let api = home.api();
    api.exec("open('/data/kept', 'w').write('kept'); x = 1");
    let before = (container_id(&home), home.json(["status"])["image"].clone());
    let queries = home.project.join("body/kernel/queries.py");
    let changed = fs::read_to_string(&queries).unwrap().replace(
        "os.environ[\"OSCTL_SESSION\"]",
        "os.environ[\"EVOLVED\"] = os.environ[\"OSCTL_SESSION\"]",
    );
    fs::write(&queries, changed).unwrap();
    let ran = home.ok(["up"]);
    assert!(ran.stdout.contains("was replaced"), "{ran:?}");
    assert_ne!(
        (container_id(&home), home.json(["status"])["image"].clone()),
        before
    );
    let reply = home
        .api()
        .exec("import os\nos.environ['EVOLVED'], open('/data/kept').read()");
    assert_eq!(reply["result"], "('default', 'kept')");
    fs::write(
        home.project.join("body/Dockerfile"),
        "FROM ${BASE}\nRUN false\n",
    )
    .unwrap();
    let ran = home.run(["up"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr.contains("the image could not be built"),
        "{ran:?}"
    );
    assert_eq!(
        home.api().exec("1+1")["result"],
        "2",
        "the old container keeps running"
    );
    home.down();
}

fn a_new_container_that_fails_is_replaced_by_the_old_one() {
    let home = with_own_body("it-gives-way");
    home.up();
    let before = container_id(&home);
    let entrypoint = home.project.join("body/entrypoint.sh");
    let whole = fs::read_to_string(&entrypoint).unwrap();
    fs::write(
        &entrypoint,
        "#!/bin/bash\necho no companion today >&2\nexit 3\n",
    )
    .unwrap();
    let ran = home.run(["up"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr.contains("no companion today") && ran.stderr.contains("exit code 3"),
        "{ran:?}"
    );
    assert_eq!(container_id(&home), before);
    home.api().until("the old container's kernel", |api| {
        let answer = std::panic::catch_unwind(|| api.get("/health").status);
        (answer.ok() == Some(200)).then_some(())
    });
    assert_eq!(home.api().exec("1+1")["result"], "2");
    let old = format!("/containers/{}.old/json", home.container());
    assert_eq!(Engine.get(&old).status, 404);
    fs::write(&entrypoint, whole + "# mended\n").unwrap();
    home.ok(["up"]);
    assert_ne!(container_id(&home), before);
    assert_eq!(Engine.get(&old).status, 404);
    home.down();
}

fn the_image_is_built_alone_and_only_when_something_changed() {
    let home = with_own_body("it-build");
    let image = format!("/images/os-{}:latest", home.instance);
    let id = || Engine.get(&format!("{image}/json")).json()["Id"].clone();
    assert!(home.ok(["build", "--yes"]).stdout.contains("is built"));
    let first = id();
    assert!(home.ok(["build"]).stdout.contains("is up to date"));
    assert_eq!(id(), first);
    fs::write(
        home.project.join("body/kernel/more.py"),
        "\"\"\"More.\"\"\"\n",
    )
    .unwrap();
    assert!(home.ok(["build"]).stdout.contains("is built"));
    assert_ne!(id(), first);
    assert_eq!(Engine.send("DELETE", &image, &json!(null)).status, 200);
}

fn the_classic_builder_builds_the_same_dockerfile() {
    let mut home = with_own_body("it-classic");
    home.write_config("limits:\n  memory: 3g\n");
    home.env.insert("DOCKER_BUILDKIT".into(), "0".into());
    let dockerfile = "ARG BASE\nFROM ${BASE}\n\
                      RUN --mount=type=cache,target=/a \\\n    --mount=type=cache,target=/b \\\n    echo built > /proof\n\
                      RUN cat /sys/fs/cgroup/memory.max || cat /sys/fs/cgroup/memory/memory.limit_in_bytes\n\
                      COPY .osctl/osctl /osctl\nRUN [\"/osctl\", \"--version\"]\n";
    fs::write(home.project.join("body/Dockerfile"), dockerfile).unwrap();
    let ran = home.ok(["-v", "build", "--yes"]);
    assert!(
        ran.stderr.contains("Step 6/") && ran.stderr.contains("  osctl 0."),
        "{ran:?}"
    );
    let limit = (3_u64 << 30).to_string();
    assert!(
        ran.stderr.contains(&limit),
        "a step without limits: {ran:?}"
    );
    let path = format!("/images/os-{}:latest", home.instance);
    let image = Engine.get(&format!("{path}/json")).json();
    assert!(
        image["Config"]["Labels"]["osctl.digest"]
            .as_str()
            .unwrap()
            .starts_with("sha256:")
    );
    assert_eq!(Engine.send("DELETE", &path, &json!(null)).status, 200);
}

fn failed_classic_builds_leave_no_more_than_the_cache_of_the_last() {
    let mut home = with_own_body("it-classic-fails");
    home.env.insert("DOCKER_BUILDKIT".into(), "0".into());
    // The label that identifies the images of these builds.
    let label = format!("org.opencontainers.image.title={}", home.instance);
    let build = |steps: &str| {
        let dockerfile = format!("ARG BASE\nFROM ${{BASE}}\nLABEL {label}\n{steps}");
        fs::write(home.project.join("body/Dockerfile"), dockerfile).unwrap();
        home.run(["build", "--yes"]).code
    };
    let filter = format!("{{\"dangling\":[\"true\"],\"label\":[\"{label}\"]}}");
    let left = || {
        let filter = filter
            .replace('{', "%7B")
            .replace('}', "%7D")
            .replace('"', "%22");
        let found = Engine.get(&format!("/images/json?filters={filter}")).json();
        found.as_array().unwrap().len()
    };
    for word in ["one", "two", "three"] {
        let steps = format!("RUN echo {word} > /x\nRUN echo {word}; exit 7\n");
        assert_eq!(build(&steps), 4);
        assert_eq!(left(), 1, "{word}");
    }
    assert_eq!(build("RUN echo four > /x\n"), 0);
    assert_eq!(left(), 0);
    let path = format!("/images/os-{}:latest", home.instance);
    assert_eq!(Engine.send("DELETE", &path, &json!(null)).status, 200);
}

fn the_output_of_a_step_does_not_choose_the_builder() {
    let home = with_own_body("it-builder");
    let dockerfile = "ARG BASE\nFROM ${BASE}\n\
                      RUN test -e /.dockerenv || { echo buildkit not supported by daemon; exit 1; }\n";
    fs::write(home.project.join("body/Dockerfile"), dockerfile).unwrap();
    // Only the classic builder runs steps in containers that have this file.
    let ran = home.run(["-v", "build", "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("buildkit not supported"), "{ran:?}");
    assert!(!ran.stderr.contains("Step 1/"), "{ran:?}");
}
