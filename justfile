# Daily commands. `just` lists them.

export CARGO_INCREMENTAL := "1"

# List the commands
default:
    @just --list

# Format, lint, unit tests and rules: before each commit
check:
    cargo fmt --check
    cargo clippy --locked --all-targets -- -D warnings
    cargo test --locked --lib
    cargo test --locked --test it -- laws::
    cargo test --locked --test it -- docs::

# Format Rust and Python
fmt:
    cargo fmt
    ruff format --config tests/kernel/ruff.toml body/kernel tests/kernel tests/mcp tests/jupyter

# Run the trials of a module, for example `just trial sessions`
trial module:
    cargo test --locked --test it -- {{module}}::

# Run all tests of the first tier
test:
    cargo test --locked

# Run everything that a change must pass
ci:
    .ci/run

# Run the long tier; a release needs it
long:
    .ci/long

# Start an instance of this checkout
up name="dev":
    cargo run --locked -- --instance {{name}} up --auto-ports --yes

# Remove this instance and its state
purge name="dev":
    cargo run --locked -- --instance {{name}} down --purge --yes

# Run a benchmark: kernel, desktop or evolve
bench name *filter:
    cargo bench --bench {{name}} -- {{filter}}

# Rewrite the expected files: schema of `--json`, completions, client configurations
update:
    OSCTL_TEST_UPDATE=1 cargo test --locked --lib answers::
    OSCTL_TEST_UPDATE=1 cargo test --locked --test it -- completions::
    OSCTL_TEST_UPDATE=1 cargo test --locked --test it -- connect::

# Build the documentation into target/book
book:
    mdbook build
