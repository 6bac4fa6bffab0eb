//! Refuses a binary for Linux that needs the libraries of a container, before osctl itself is compiled.
#![expect(clippy::print_stdout, reason = "cargo reads it")]

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if is_linux && !features.split(',').any(|feature| feature == "crt-static") {
        println!(
            "cargo::error=osctl for Linux has to be static: the same binary runs in the container. Run: \
             RUSTFLAGS='-C target-feature=+crt-static' cargo install --locked --target host-tuple osctl"
        );
    }
}
