#!/usr/bin/env node
// Starts the binary of this platform, which is in a separate package.
"use strict";

const { spawn } = require("node:child_process");

const name = `osctl-${process.platform}-${process.arch}`;
let binary;
try {
    binary = require.resolve(`${name}/bin/osctl`);
} catch {
    console.error(`error: the package \`${name}\` with the binary of osctl is not installed\n`);
    console.error("hint: install `osctl` with its optional dependencies, on Linux or macOS, x64 or arm64");
    process.exit(4);
}

const child = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends Ctrl-C to both processes; only the binary handles it.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) {
    process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
    console.error(`error: \`${binary}\` can't be started: ${error.message}`);
    process.exit(4);
});
child.on("exit", (code, signal) => {
    if (signal) {
        process.removeAllListeners(signal);
        process.kill(process.pid, signal);
    } else {
        process.exit(code);
    }
});
