//! What the image contains, and what it leaves out.

use crate::harness::{Engine, Home, shared};
use crate::instance::shared_image;
use crate::trials;
use serde_json::{Value, json};

trials![
    the_image_contains_the_expected_tools,
    the_image_boots_without_a_network,
    the_compiler_is_left_out_on_request,
];

/// Each command must exit with 0, in the container's own environment.
const COMMANDS: &[&str] = &[
    "test $(cat /proc/1/comm) = tini",
    "python -c 'import sys; assert sys.version_info[:2] == (3, 13)'",
    "$OSCTL_PYTHON -c 'import IPython, cloudpickle, dill, matplotlib, numpy, pandas, tqdm'",
    "pip --version",
    "uv --version",
    "uvx --version",
    "git --version",
    "git config --system --get-all safe.directory | grep -qx /repo",
    "curl --version",
    "bash --version",
    "ls --version",
    "ps --version",
    "echo '{\"a\": 1}' | jq -e .a",
    "rg --version",
    "fd --version",
    "tmux -V",
    "ssh -V",
    "gh --version",
    "nano --version",
    "htop --version",
    "vim --version | grep -q +syntax && test -f /usr/share/vim/vim*/syntax/python.vim",
    "ffmpeg -version",
    "node --version",
    "npm --version",
    "npx --version",
    "criu --version",
    "chromium --version",
    "printf 'int main(void) { return 0; }' | gcc -x c - -o /tmp/built && /tmp/built",
    "printf 'int main() { return 0; }' | g++ -x c++ - -o /tmp/built && /tmp/built",
    "make --version",
    // Linked statically, so that it runs on any base.
    "ldd /opt/osctl/bin/osctl | grep -q 'statically linked'",
];

fn the_image_contains_the_expected_tools() {
    let api = shared().api();
    for command in COMMANDS {
        let reply = api.done("/shell", &json!({"command": command}));
        assert_eq!(reply["returncode"], 0, "{command}: {reply}");
    }
}

/// A container of that name, removed at the end of its test.
struct Offline(String);

impl Offline {
    fn remove(&self) -> u16 {
        let path = format!("/containers/{}?force=true", self.0);
        Engine.send("DELETE", &path, &Value::Null).status
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        self.remove();
    }
}

fn the_image_boots_without_a_network() {
    let suffix = std::env::var("OSCTL_TEST_SUFFIX").unwrap_or_default();
    let offline = Offline(format!("os-host-it-offline{suffix}"));
    let name = &offline.0;
    // What a killed run left.
    offline.remove();
    let body = json!({
        "Image": shared_image(),
        "Env": ["OSCTL_AUTH=off"],
        "HostConfig": {"NetworkMode": "none"},
        "Healthcheck": {"Test": ["CMD", "osctl", "health"], "Interval": 1_000_000_000_u64},
        "Labels": {"osctl.instance": format!("it-offline{suffix}")},
    });
    assert_eq!(
        Engine
            .send("POST", &format!("/containers/create?name={name}"), &body)
            .status,
        201
    );
    assert_eq!(
        Engine
            .send("POST", &format!("/containers/{name}/start"), &json!(null))
            .status,
        204
    );
    shared().api().until("health without a network", |_| {
        let found = Engine.get(&format!("/containers/{name}/json")).json();
        (found["State"]["Health"]["Status"] == "healthy").then_some(())
    });
    assert_eq!(offline.remove(), 204);
}

/// The layer of the compiler in the image's history.
fn compiler_layer(image: &str) -> Value {
    let layers = Engine.get(&format!("/images/{image}/history")).json();
    let layers = layers.as_array().unwrap();
    let is_compilers =
        |layer: &&Value| layer["CreatedBy"].as_str().unwrap().contains("python3-dev");
    layers.iter().find(is_compilers).unwrap().clone()
}

fn the_compiler_is_left_out_on_request() {
    assert!(compiler_layer(&shared_image())["Size"].as_u64().unwrap() > 100 << 20);
    let home = Home::new("it-tools");
    home.write_config("build_tools: false\n");
    home.ok(["build"]);
    let image = format!("os-{}", home.instance);
    assert!(compiler_layer(&image)["Size"].as_u64().unwrap() < 1 << 20);
    assert_eq!(
        Engine
            .send("DELETE", &format!("/images/{image}"), &json!(null))
            .status,
        200
    );
}
