//! Refuses a binary for Linux that needs the libraries of a container, before osctl itself is compiled.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let var = |name| env::var(name).unwrap_or_default();
    // With musl, static is the default, of which cargo says nothing here.
    let is_gnu = var("CARGO_CFG_TARGET_OS") == "linux" && var("CARGO_CFG_TARGET_ENV") == "gnu";
    let features = var("CARGO_CFG_TARGET_FEATURE");
    if is_gnu && !features.split(',').any(|feature| feature == "crt-static") {
        println!(
            "cargo::error=osctl for Linux has to be static: the same binary runs in the container. Run: \
             RUSTFLAGS='-C target-feature=+crt-static' cargo install --locked --target host-tuple osctl"
        );
    }
}
